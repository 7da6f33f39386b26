"""Programs that ask tensors for values, or whose sizes depend on them: compiled in parts, with eager's results."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import magneto
import pytest
import torch
from torch import Tensor, nn

torch.manual_seed(0)
LINEAR = nn.Linear(4, 4)
CALLS = 12


pytestmark = pytest.mark.usefixtures("fresh")


def number_is_returned(x: Tensor) -> Any:
    return LINEAR(x).sum().item(), x + 1


def number_is_converted(x: Tensor) -> Any:
    return float(LINEAR(x).mean()) * 2, int(x.sum()), bool(x.sum() > 0)


def decides_a_branch(x: Tensor) -> Tensor:
    y = LINEAR(x)
    if y.sum() > 0:
        return y * 2
    return y - 1


def decides_a_loop(x: Tensor) -> Any:
    n = 0
    while x.sum() < 20 and n < 3:
        x, n = x + 1, n + 1
    return x, n


def is_negated(x: Tensor) -> Tensor:
    return x * 2 if not (x > 0).all() else x


def is_asserted(x: Tensor) -> Tensor:
    assert not torch.isnan(x).any(), "a number expected"
    return x * 2


def chooses_the_larger(x: Tensor) -> Tensor:
    return x.sum() if x.sum() > x.mean() else x.mean()


def becomes_a_list(x: Tensor) -> Any:
    return LINEAR(x)[0].tolist(), x * 2


def selects(x: Tensor) -> Any:
    where = (x > 0).nonzero()
    return where * 2, x[x > 0] + 1


def is_measured(x: Tensor) -> int:
    return (x > 0).nonzero().shape[0]


def takes_so_many(x: Tensor) -> Any:
    count = int((x > 0).sum()) % 3 + 2
    return x.flatten()[:count] * 2, torch.arange(count) + count


def takes_the_largest(x: Tensor) -> Any:
    x = x.flatten()
    best = int(x.argmax())
    return x[best] * 2, x - best


def thins_out(x: Tensor) -> Tensor:
    x = x.flatten()
    order = x.argsort(descending=True)
    kept: list[int] = []
    while order.numel() > 0 and len(kept) < 2:
        best = int(order[0].item())
        kept.append(best)
        order = order[1:]
        order = order[(x[order] - x[best]).abs() > 0.05]
    return x[torch.tensor(kept)]


def is_made_unique(x: Tensor) -> Any:
    values, places = torch.unique(x.clamp(0, 1).round(), return_inverse=True)
    return values * 2, places + 1


def is_printed(x: Tensor) -> Tensor:
    y = LINEAR(x)
    print(y.shape, float(y.sum()))
    return y.relu()


def under_autocast(x: Tensor) -> Any:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        y = LINEAR(x)
        print(end="")
        z = LINEAR(y)
    return y, z, x @ x.T


def in_other_modes(x: Tensor) -> Any:
    with torch.enable_grad():
        print(torch.is_grad_enabled())
    y = x * 2
    with torch.set_grad_enabled(True):
        print(torch.is_grad_enabled())
    return y, torch.is_grad_enabled()


@dataclass
class Case:
    function: Callable[[Tensor], Any]
    captures: int | None = None  # None: as many as there are sizes
    hits: int = 1


CASES = {
    case.function.__name__: case
    for case in [
        Case(number_is_returned, 1, CALLS - 1),
        Case(number_is_converted, 3),
        Case(decides_a_branch, 3),
        Case(decides_a_loop),
        Case(is_negated, 1),
        Case(is_asserted, 1),
        Case(chooses_the_larger),
        Case(becomes_a_list, 1, CALLS - 1),
        Case(selects, 3, CALLS - 5),
        Case(is_measured, 2, CALLS - 2),
        Case(is_made_unique, 3, CALLS - 5),
        Case(takes_so_many, 2, CALLS - 2),
        Case(takes_the_largest, 2, CALLS - 2),
        Case(thins_out, 2, CALLS - 2),
        Case(is_printed, 1, CALLS - 1),
        Case(under_autocast),
        Case(in_other_modes),
    ]
}


def same(a: Any, b: Any) -> bool:
    if isinstance(a, Tensor):
        return torch.equal(a, b) and a.dtype == b.dtype and a.stride() == b.stride()
    if isinstance(a, (tuple, list)):
        return type(a) is type(b) and len(a) == len(b) and all(map(same, a, b))
    return type(a) is type(b) and a == b


@pytest.mark.parametrize("leave", [0, 1, 2])
@pytest.mark.parametrize("name", CASES)
def test_results_are_those_of_eager(name, leave, capsys):
    case = CASES[name]
    compiled = magneto.compile(case.function)
    torch.manual_seed(0)
    with magneto.config.patch(leave_at_cut=leave):
        for _ in range(CALLS):
            x = torch.randn(3, 4)
            expected, said = case.function(x), capsys.readouterr().out
            assert same(compiled(x), expected)
            assert capsys.readouterr().out == said
    if leave:
        return
    stats = magneto.counters["stats"]
    assert stats.get("hits", 0) >= case.hits, magneto.counters
    if case.captures is not None:
        assert stats["captures"] <= case.captures, magneto.counters
    assert magneto.counters["graph_break"]


def test_sizes_that_depend_on_contents_stay_open_from_the_second_capture_on() -> None:
    """Also behind arguments of changing sizes, and without a capture for each size."""

    def kept(x: Tensor, mask: Tensor) -> Any:
        y = LINEAR(x)[mask]
        return y.sum(0) / y.shape[0], y

    compiled = magneto.compile(kept)
    generator = torch.Generator().manual_seed(3)
    for rows in [8] * 10 + [9, 12, 15, 11] * 5:
        x, mask = torch.randn(rows, 4, generator=generator), torch.rand(rows, generator=generator) > 0.4
        mask[:2] = True  # sizes 0 and 1 are never open
        assert same(compiled(x, mask), kept(x, mask))
    stats = magneto.counters["stats"]
    assert stats["captures"] <= 4, magneto.counters["recompile"]
    assert stats["exits"] <= 3


def test_dynamic_false_keeps_the_sizes_of_what_is_asked_fixed() -> None:
    compiled = magneto.compile(lambda x: x[x > 0] * 2, dynamic=False)
    for count in range(2, 6):
        x = torch.cat([torch.ones(count), torch.zeros(8 - count)])
        assert same(compiled(x), torch.full((count,), 2.0))
    assert magneto.counters["stats"]["exits"] == 2
    assert "a tensor that the call asks for is f32[3], was f32[2]" in magneto.counters["recompile"]


def test_a_failed_assertion_is_eager_s(capsys):
    compiled = magneto.compile(is_asserted)
    for _ in range(3):
        compiled(torch.ones(3))
    for _ in range(3):
        with pytest.raises(AssertionError, match="a number expected") as raised:
            compiled(torch.full((3,), float("nan")))
        assert raised.traceback[-1].name == "is_asserted"
    assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))


def test_fullgraph_keeps_questions_inside():
    compiled = magneto.compile(decides_a_branch, fullgraph=True)
    torch.manual_seed(0)
    for _ in range(6):
        x = torch.randn(3, 4)
        assert torch.equal(compiled(x), decides_a_branch(x))
    assert not magneto.counters["graph_break"]


def test_a_tensor_that_comes_back_in_another_shape_is_noticed():
    shapes = iter([(2, 3), (2, 3), (3, 2), (2, 3), (6,), (2, 3), (3, 2)])
    numbers = {"shape": (2, 3)}

    def f(x: Tensor) -> Tensor:
        y = torch.from_numpy(make(numbers["shape"]))
        return y * 2 + x

    make = __import__("numpy").ones
    compiled = magneto.compile(f)
    for shape in shapes:
        numbers["shape"] = shape
        assert torch.equal(compiled(torch.ones(())).to(torch.float32), torch.full(shape, 3.0))


@pytest.mark.parametrize("fn", [lambda x: x + 1, lambda x: LINEAR(x) * 2, lambda x: x @ x.t()])
def test_a_compiled_call_leaves_autocast_as_it_was(fn):
    compiled = magneto.compile(fn)
    x = torch.rand(3, 4)
    with torch.no_grad(), torch.autocast("cpu", dtype=torch.bfloat16):
        for _ in range(3):
            assert torch.equal(compiled(x), fn(x))
            assert torch.is_autocast_enabled("cpu")
    assert not torch.is_autocast_enabled("cpu")
