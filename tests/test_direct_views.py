"""Views that a replay makes by itself, without the dispatcher: nobody can tell them from the operator's."""

from collections.abc import Callable

import magneto
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from zoo.allocations import peak_kib

VIEWS: dict[str, Callable[[torch.Tensor], object]] = {
    "view": lambda t: t.view(-1),
    "view_as_itself": lambda t: t.view(t.shape),
    "unsqueeze": lambda t: t.unsqueeze(-1),
    "squeeze": lambda t: t.unsqueeze(0).squeeze(0),
    "squeeze_all": lambda t: t.unsqueeze(0).squeeze(),
    "transpose": lambda t: t.transpose(0, -1),
    "permute": lambda t: t.permute(*range(t.dim() - 1, -1, -1)),
    "expand": lambda t: t.expand(3, *t.shape),
    "select": lambda t: t.select(0, 1),
    "select_from_the_end": lambda t: t.select(-1, -2),
    "slice": lambda t: t[1:],
    "slice_from_the_end": lambda t: t[..., -2:],
    "slice_to_the_end": lambda t: t[: -1],
    "slice_with_a_step": lambda t: t[..., 1::2],
    "slice_beyond_the_end": lambda t: t[:, 100:],
    "slice_of_everything": lambda t: t[-100:100],
    "narrow": lambda t: t.narrow(1, 2, 1),
    "split": lambda t: t.split(3, -1),
    "split_with_sizes": lambda t: t.split([1, 2, t.shape[1] - 3], 1),
    "chunk": lambda t: t.chunk(2, 1),
    "unbind": lambda t: t.unbind(1),
    "unfold": lambda t: t.unfold(1, 3, 2),
    "detach": lambda t: t.detach(),
    "one_of_another": lambda t: t[1:].transpose(0, 1)[2:].unsqueeze(0)[0],
}  # fmt: skip

BASES: dict[str, Callable[[], torch.Tensor]] = {
    "plain": lambda: torch.randn(4, 6),
    "behind_an_offset": lambda: torch.randn(9, 6)[3:7],
    "transposed": lambda: torch.randn(6, 4).t(),
    "expanded": lambda: torch.randn(1, 6).expand(4, 6),
    "with_gaps": lambda: torch.randn(8, 12)[::2, 1::2],
    "three_dimensions": lambda: torch.randn(3, 5, 4),
    "conjugate": lambda: torch.randn(4, 6, dtype=torch.complex64).conj(),
    "integers": lambda: torch.arange(24).view(4, 6),
}


def operators_called(action: Callable[[], object]) -> list[str]:
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        action()
    return [event.name for event in profile.events() if event.name.startswith("aten::")]


@pytest.mark.parametrize("base", BASES)
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_shows_what_the_operators_shows(name, base):
    def program(t):
        views = VIEWS[name](t)
        return [view.clone() for view in (views if isinstance(views, tuple) else [views])]

    torch.manual_seed(0)
    first, other = BASES[base](), BASES[base]()
    try:
        program(first)
    except (RuntimeError, IndexError) as error:
        pytest.skip(f"eager refuses it: {error}")
    graph = magneto.record(program, first)
    for tensor in (first, other):
        results, expected = graph.run([tensor]), program(tensor)
        assert len(results) == len(expected)
        for result, wanted in zip(results, expected, strict=True):
            assert torch.equal(result, wanted) and result.stride() == wanted.stride()
    assert set(operators_called(lambda: graph.run([other]))) <= {
        "aten::clone", "aten::empty_like", "aten::empty_strided", "aten::empty", "aten::copy_", "aten::resolve_conj",
        "aten::conj", "aten::_conj", "aten::conj_physical",
    }  # fmt: skip


def test_what_comes_out_is_the_operators_own_view():
    graph = magneto.record(lambda t: t[1:].t(), torch.randn(4, 6))
    tensor = torch.randn(4, 6)
    result = graph.run([tensor])[0]
    assert result._is_view() and result._base is tensor
    assert "aten::slice" in operators_called(lambda: graph.run([tensor]))


def test_writes_through_a_view_count_for_what_is_viewed():
    def program(t):
        t[1:].t().mul_(2)
        return t + 1

    graph = magneto.record(program, torch.randn(4, 6))
    ours, theirs = torch.ones(4, 6), torch.ones(4, 6)
    assert torch.equal(graph.run([ours])[0], program(theirs))
    assert torch.equal(ours, theirs) and ours._version == theirs._version


def test_views_of_what_comes_out_leave_its_version_alone():
    def program(t):
        base = t * 2
        return base, base[1:].sum()

    graph = magneto.record(program, torch.randn(4, 6))
    tensor = torch.randn(4, 6)
    for result, wanted in zip(graph.run([tensor]), program(tensor), strict=True):
        assert torch.equal(result, wanted) and result._version == wanted._version and not result._is_view()


def test_modes_see_every_operator():
    class Tape(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function.name())
            return function(*args, **(kwargs or {}))

    seen = []
    tensor = torch.randn(4, 6)
    graph = magneto.record(lambda t: t[1:].t() + 1, tensor)
    with Tape():
        graph.run([tensor])
    assert seen == ["aten::slice.Tensor", "aten::t", "aten::add.Tensor"]


def test_recordings_see_every_operator():
    tensor = torch.randn(4, 6)
    graph = magneto.record(lambda t: t[1:].t() + 1, tensor)
    again = magneto.record(lambda t: graph.run([t])[0], tensor, live=True)
    assert len(again) == len(graph) == 3


def test_memory_of_a_viewed_temporary_is_free_when_its_last_view_is_gone():
    def program(t):
        for _ in range(20):
            t = torch.cat([t, t])[: t.shape[0]] * 2
        return t

    tensor = torch.randn(1000, 50)
    graph = magneto.record(program, tensor)
    graph.run([tensor])
    assert peak_kib(lambda: graph.run([tensor])) <= peak_kib(lambda: program(tensor))


def test_other_strides_than_those_recorded_are_still_read_right():
    @magneto.compile
    def program(t):
        return t.t()[1:].unbind(1)[0] + 1

    with torch.no_grad():
        for _ in range(2):
            for tensor in (torch.randn(4, 6), torch.randn(6, 4).t(), torch.randn(8, 6)[::2]):
                assert torch.equal(program(tensor), tensor.t()[1:].unbind(1)[0] + 1)
