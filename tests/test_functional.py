"""The functional form of graphs: nothing is written before the edge, and a run is eager's to the bit and the alias."""

from __future__ import annotations

import random
import types
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import test_joint
import test_opinfo as opinfo
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils import _pytree as pytree
from zoo import training

MODES = pytest.mark.parametrize("live", [False, True], ids=["trace", "live"])


def functional(graph: magneto.Graph) -> magneto.Graph:
    """Also checks what must hold for each of them."""
    form = graph.functional()
    form.verify()
    assert form.is_functional
    assert all(op.name.split("::")[1] in EDGE or not op.name.endswith("_") for op in form.ops)
    assert not any(writes(op) for op in form.ops[: form.edge])
    again = magneto.Graph.parse(form.text, states=[state for _, state in form.states])
    assert again.text == form.text
    assert again.hash == form.hash == form.functional().hash
    return form


EDGE = {"copy_", "t_", "transpose_", "squeeze_", "unsqueeze_", "as_strided_", "detach_"}


def writes(op: Any) -> bool:
    if op.name == "aten::native_batch_norm":
        return op.arguments[3] is not None and op.arguments[5]  # statistics, while it trains
    schema = getattr(getattr(torch.ops.aten, op.name.split("::")[1]), op.overload or "default")._schema
    return any(argument.alias_info and argument.alias_info.is_write for argument in schema.arguments)


def difference(program: Callable[..., Any], *arguments: Tensor, joint: bool = False, live: bool = False) -> str:
    op = types.SimpleNamespace(name="program", op=program)
    return opinfo.difference(op, (arguments, {}), joint, live, functional)


# ---- programs


def writes_an_argument(x, y):
    x.add_(y)
    return x * 2


def writes_a_view_of_a_view(x, y):
    x.view(-1)[3:9].view(2, 3).select(0, 1).mul_(y[:3])
    return x


def reads_an_old_view_after_a_write(x, y):
    view = x.t()
    x[1].sub_(y)
    return view + 1, view


def writes_overlapping_views(x, y):
    a, b = x.view(-1)[0:8], x.view(-1)[4:12]
    a.add_(1)
    b.mul_(y[0])
    a.sub_(y[1])
    return a, b


def returns_views_of_one_fresh_memory(x, y):
    z = x + y
    a, b = z[:2], z[2:]
    a.add_(b)
    return b, z, a, z.unbind(1)[2]


def writes_through_a_transposed_split(x, y):
    first, second = x.t().split([2, 4])
    second.copy_(y[2:, None])
    return first, x.diagonal()


def writes_a_diagonal(x, y):
    x.diagonal(1).fill_(3)
    x.diagonal(-1, 1, 0).mul_(2)
    return x.sum(0)


def writes_by_strides(x, y):
    x.as_strided((2, 3), (7, 2)).add_(5)
    z = x * 2
    z.as_strided((2, 3), (7, 2), 1).add_(y[:3])
    return x.as_strided((3,), (6,)), z


def writes_to_memory_with_gaps(x, y):
    base = torch.zeros(3, 4, 6, 2)
    base[1, ..., 0].copy_(x).mul_(2).add_(y)
    return base[:, 1:3, ::2], base


def casts_in_a_copy(x, y):
    counts = torch.zeros(4, 6, dtype=torch.int32)
    counts.copy_(x * 10)
    counts[:, 2].copy_(y[:4] * 7)
    halves = torch.ones(6, dtype=torch.float16)
    halves.mul_(y.double())
    return counts, halves


def broadcasts_a_copy(x, y):
    z = torch.empty(3, 4, 6)
    z.copy_(x)
    z[:, 1:, :].copy_(y)
    return z


def changes_shapes(x, y):
    z = x * 2
    w = z.view(-1)
    z.t_()
    z.unsqueeze_(1)
    z.add_(1)
    z.squeeze_()
    z.transpose_(0, 1)
    w[0] = 7
    return z, w


def changes_shapes_of_an_argument(x, y):
    x.t_()
    x[1].add_(1)
    x.unsqueeze_(0)
    return x, x.view(-1, 2) if x.is_contiguous() else x[0, 2]


def writes_by_index(x, y):
    rows = torch.tensor([0, 2])
    x[rows] = y
    x[:, 1].index_add_(0, rows, y[:2])
    x.scatter_(1, rows[None], y[None, :2])
    x.index_put_((rows, rows), y[:2], accumulate=True)
    return x.index_fill_(1, rows, 0.5)


def fills_by_mask(x, y):
    x.masked_fill_(x > 0, 2)
    x[1:].masked_fill_(x[1:] < 0, -1)
    return x


def works_on_lists(x, y):
    a, b = x * 2, y * 3
    torch._foreach_add_([a, b], 1)
    torch._foreach_mul_([a[0], b], [y, y])
    torch._foreach_addcmul_([a], [a], [x], value=2)
    return a, b


def writes_results_given(x, y):
    sums = torch.empty(6)
    torch.sum(x, 0, out=sums)
    table = torch.zeros(2, 6)
    torch.mul(sums, y, out=table[1])
    values, indices = torch.empty(0), torch.empty(0, dtype=torch.int64)
    torch.max(x, 1, out=(values, indices))
    return table, values, indices


def draws_numbers(x, y):
    z = torch.empty(20)
    z.normal_()
    z[:4].uniform_(1, 2)
    w = torch.empty(3, 6).exponential_()
    n = torch.zeros(9, dtype=torch.int64).random_(0, 100)
    m = torch.empty(6).bernoulli_(0.3)
    return z, w, n, m * y, torch.empty_like(x).bernoulli_(0.7)


def drops_out(x, y):
    return F.dropout(x, 0.4), F.dropout(y, 0.2, inplace=True), F.rrelu(x, training=True)


def writes_complex_numbers(x, y):
    z = torch.view_as_complex(torch.stack([x, x * 2], -1))
    z.real.add_(y)
    z.conj().mul_(2)
    torch.view_as_real(z)[..., 1].sub_(y)
    return torch.view_as_real(z), z.abs()


def swaps(x, y):
    z = x[0].clone()
    x[0].copy_(y)
    y.copy_(z)
    return x[0]


def returns_arguments(x, y):
    return x, y, x.view(-1), x[1], y


def resizes_fresh_memory(x, y):
    z = x * 2
    z.resize_(3, 4)
    w = y + 1
    w.resize_(6)
    return z, w


def takes_other_memory(x, y):
    z = x * 2
    w = torch.empty(0)
    w.set_(z)
    w.add_(1)
    return z, w


PROGRAMS = [
    writes_an_argument,
    writes_a_view_of_a_view,
    reads_an_old_view_after_a_write,
    writes_overlapping_views,
    returns_views_of_one_fresh_memory,
    writes_through_a_transposed_split,
    writes_a_diagonal,
    writes_by_strides,
    writes_to_memory_with_gaps,
    casts_in_a_copy,
    broadcasts_a_copy,
    changes_shapes,
    changes_shapes_of_an_argument,
    writes_by_index,
    fills_by_mask,
    works_on_lists,
    writes_results_given,
    draws_numbers,
    drops_out,
    writes_complex_numbers,
    swaps,
    returns_arguments,
    resizes_fresh_memory,
    takes_other_memory,
]
NOT_DIFFERENTIABLE = {
    writes_through_a_transposed_split,
    works_on_lists,
    writes_results_given,
    resizes_fresh_memory,
    takes_other_memory,
    draws_numbers,
}


@MODES
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_run_is_eagers(program, live):
    assert not difference(program, torch.randn(4, 6), torch.randn(6), live=live)


@MODES
@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_a_run_on_memory_with_gaps_is_eagers(program, live):
    if program in {writes_a_view_of_a_view, writes_overlapping_views, writes_by_strides, returns_arguments}:
        pytest.skip("it views its argument as contiguous")
    x, y = torch.randn(9, 20)[1::2, 3:15:2], torch.randn(20)[2:14:2]
    if program is drops_out:
        y = y.clone()
    if program is draws_numbers or program is drops_out:
        x = torch.randn(6, 4).t()
    assert not difference(program, x, y, live=live)


@MODES
@pytest.mark.parametrize("program", [p for p in PROGRAMS if p not in NOT_DIFFERENTIABLE], ids=lambda p: p.__name__)
def test_a_joint_run_is_eagers(program, live):
    def differentiable(x, y):
        return program(x * 1, y * 1)

    x, y = torch.randn(4, 6, requires_grad=True), torch.randn(6, requires_grad=True)
    assert not difference(differentiable, x, y, joint=True, live=live)


def test_written_arguments_are_counted_as_written_and_others_are_not():
    x, y = torch.randn(4, 6), torch.randn(6)
    graph = functional(magneto.record(writes_an_argument, x.clone(), y.clone()))
    before = x._version, y._version
    graph.run([x, y])
    assert x._version == before[0] + 1
    assert y._version == before[1]


def test_only_what_was_written_is_copied_at_the_edge():
    graph = functional(magneto.record(swaps, torch.randn(4, 6), torch.randn(6)))
    edge = [str(op).split("  #")[0] for op in graph.ops[graph.edge :]]
    assert [op.split(" = ")[1].split("(")[0] for op in edge] == ["aten.copy_", "aten.copy_", "aten.select.int"]
    pure = functional(magneto.record(lambda x: x.exp().sum(), torch.randn(3)))
    assert pure.edge == len(pure)


def test_batch_norm_updates_its_buffers_at_the_edge():
    model, peer = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    x = torch.randn(4, 3, 5, 5)
    graph = functional(magneto.record(model, x))
    for _ in range(2):
        assert torch.equal(graph(x), peer(x))
        assert all(torch.equal(a, b) for a, b in zip(model.buffers(), peer.buffers(), strict=True))
    assert [str(op).split("(")[0] for op in graph.ops[graph.edge :]] == ["%1 = aten.copy_"] + [
        f"%{i} = aten.copy_" for i in (4, 5)
    ]
    plain = functional(magneto.record(model.eval(), x))
    assert plain.edge == len(plain)


def test_calls_and_torch_fx_take_the_functional_form_too():
    x, y = torch.randn(4, 6), torch.randn(6)
    graph = functional(magneto.record(writes_a_view_of_a_view, x.clone(), y))
    one, two, three = x.clone(), x.clone(), x.clone()
    writes_a_view_of_a_view(one, y)
    assert graph(two, y) is two
    with torch.no_grad():
        graph.to_fx()(three, y)
    assert torch.equal(one, two)
    assert torch.equal(one, three)
    assert magneto.Graph.from_fx(graph.to_fx()).is_functional


def test_the_recorded_graph_stays_as_it_was():
    graph = magneto.record(writes_an_argument, torch.randn(4, 6), torch.randn(6), dynamic=True)
    text, guards = graph.text, graph.guards
    functional(graph)
    assert (graph.text, graph.guards) == (text, guards)
    assert not graph.is_functional


# ---- sizes that change

DYNAMIC = [
    writes_an_argument,
    reads_an_old_view_after_a_write,
    writes_through_a_transposed_split,
    returns_views_of_one_fresh_memory,
    casts_in_a_copy,
    fills_by_mask,
    writes_by_index,
    works_on_lists,
    swaps,
    returns_arguments,
    changes_shapes,
]


@pytest.mark.parametrize("program", DYNAMIC, ids=lambda program: program.__name__)
def test_symbolic_sizes_stay_symbolic(program):
    dynamic = {"x": {0: "rows"}}
    graph = magneto.record(program, torch.randn(4, 6), torch.randn(6), dynamic=dynamic)
    form = functional(graph)
    assert set(form.guards) <= {*graph.guards, "x.size(0) >= 2", "x.size(0) >= 3", "x.size(0) >= 4"}
    if graph.guards == ["x.size(0) == 4"]:
        return
    for rows in (4, 7, 12):
        one = (torch.randn(rows, 6), torch.randn(6))
        two = tuple(t.clone() for t in one)
        try:
            expected = graph.run(list(one))
        except ValueError:
            continue
        results = form.run(list(two))
        for a, b in zip([*expected, *one], [*results, *two], strict=True):
            assert opinfo.look(a) == opinfo.look(b)


# ---- what has none


@pytest.mark.parametrize(
    ("program", "reason"),
    [
        (lambda x: x.resize_(3), "aten::resize_.*resizes an argument"),
        (lambda x: x.set_(torch.ones(2)), "aten::set_.source_Tensor.*other memory"),
        (
            lambda x: torch.native_batch_norm(
                x, None, None, None, None, True, 0.1, 0.1, out=(torch.empty(4, 6), torch.empty(6), torch.empty(6))
            ),
            "aten::native_batch_norm.out.*no functional partner",
        ),
        (lambda x: x[:, ::2].normal_(), "aten::normal_.*random numbers"),
        (lambda x: torch._foreach_add_([x[0], x[:, 0]], 1), "aten::_foreach_add_.Scalar.*same memory"),
        (lambda x: torch.sum(x, 0, out=torch.empty(6, dtype=torch.float64)), "aten::sum.IntList_out.*type of out="),
        (lambda x: x.as_strided((3,), (1,), 2).add_(1), "aten::add_.Tensor.*outside of an argument"),
        (lambda x: x.unfold(0, 2, 1)[0].add_(1), "aten::add_.Tensor.*aten::unfold.*no inverse"),
    ],
    ids=lambda case: case.split(".")[0] if isinstance(case, str) else "",
)
def test_what_has_no_functional_form_is_refused_by_name_and_counted(program, reason):
    magneto.reset()
    graph = magneto.record(program, torch.randn(4, 6))
    with pytest.raises(magneto.UserError, match=rf"no functional form: {reason}"):
        graph.functional()
    (counted,) = magneto.counters["functional"].items()
    assert counted[0].startswith(reason.split(".*")[0])
    assert counted[1] == 1


@MODES
def test_arguments_that_share_memory_are_refused_if_one_is_written(live):
    base = torch.randn(8)
    reads = functional(magneto.record(lambda a, b: a + b, base[:4], base[4:], live=live))
    assert torch.equal(reads.run([base[:4], base[4:]])[0], base[:4] + base[4:])
    graph = magneto.record(lambda a, b: a.add_(b), base[:4], base[4:], live=live)
    with pytest.raises(magneto.UserError, match=r"aten::add_.Tensor.*share"):
        graph.functional()


def test_a_run_refuses_a_written_input_that_shares_memory_only_now():
    graph = functional(magneto.record(lambda a, b: (a.add_(1), b * 2), torch.randn(4), torch.randn(4)))
    base = torch.randn(8)
    with pytest.raises(magneto.UserError, match="input 0, which shares memory with input 1"):
        graph.run([base[:4], base[:4]])
    with pytest.raises(magneto.UserError, match="shares memory"):
        graph.run([base[:4], base[4:]])


# ---- models


@MODES
@pytest.mark.parametrize("name", training.names())
def test_functional_joint_graphs_of_models_equal_eager(name, live):
    (model, batch), (peer, _) = training.make(name), training.make(name)
    arguments = batch(2, 12)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    graph = functional(magneto.record(model, *arguments, joint=True, live=live))
    model.load_state_dict(before)
    for _ in range(2):
        test_joint.check(graph, model, peer, arguments)


# ---- torch's own samples


def plain(op: Any) -> Callable[..., Any]:
    return op.op


def in_place(op: Any) -> Callable[..., Any] | None:
    return op.inplace_variant


def in_place_on_a_copy(op: Any) -> Callable[..., Any] | None:
    return op.inplace_variant and (lambda x, *args, **kwargs: op.inplace_variant(x.clone(), *args, **kwargs))


def in_place_on_a_view(op: Any) -> Callable[..., Any] | None:
    def program(x: Tensor, *args: Any, **kwargs: Any) -> Any:
        base = torch.zeros(2, *x.shape, dtype=x.dtype)
        view = base[1]
        view.copy_(x)
        return op.inplace_variant(view, *args, **kwargs), base

    return op.inplace_variant and program


def into_results(op: Any) -> Callable[..., Any] | None:
    def program(*args: Any, **kwargs: Any) -> Any:
        results = pytree.tree_map_only(Tensor, torch.empty_like, op.op(*args, **kwargs))
        return op.op(*args, **kwargs, out=results)

    return program if op.supports_out and op.name not in NO_RESULTS else None


# Torch's samples seed each of their calls, give no tensors, or never write to out=.
NO_RESULTS = {
    "randn",
    "multinomial",
    "normal",
    "bernoulli",
    "equal",
    "histogramdd",
    "nonzero",
    "fft.ihfft2",
    "fft.ihfftn",
}
# The recorder runs these on arbitrary contents, which they refuse.
BY_CONTENTS = {
    "floor_divide",
    "fmod",
    "remainder",
    "div",
    "lu_solve",
    "lu_unpack",
    "linalg.lu_solve",
    "linalg.ldl_solve",
}
WITHOUT = {
    "aten::addbmm_",
    "aten::resize_",
    "aten::resize_as_",
    "aten::_native_batch_norm_legit.out",
    "aten::native_batch_norm.out",
}


class NoForm(magneto.RecordError):
    pass


def functional_or_refused(graph: magneto.Graph) -> magneto.Graph:
    try:
        return functional(graph)
    except magneto.UserError as error:
        raise NoForm(str(error).split(": ")[1].split(",")[0]) from None


FORMS = [plain, in_place, in_place_on_a_copy, in_place_on_a_view, into_results]


@pytest.mark.parametrize("mode", opinfo.MODES)
@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.__name__)
@pytest.mark.parametrize("part", range(8))
def test_torchs_samples_are_eagers_in_functional_form(part, form, mode, request):
    full = request.config.getoption("--full")
    if not full and (part != FORMS.index(form) or mode == "live"):
        pytest.skip("a sample of them is tested")
    wrong, refused, recorded = [], set(), 0
    for op in opinfo.OPS[part::8]:
        call = form(op)
        if call is None or (mode == "trace" and form is not plain and op.name in BY_CONTENTS):
            continue
        joint = op.supports_autograd and form is not in_place
        sampled = types.SimpleNamespace(
            name=op.name, op=call, dtypes=op.dtypes, supports_autograd=joint, sample_inputs=op.sample_inputs
        )
        faults, reasons, count = opinfo.sweep(sampled, opinfo.MODES[mode], None if full else 1, functional_or_refused)
        wrong += [f"{opinfo.name_of(op)}: {fault}" for fault in faults]
        refused |= {reason for reason in reasons if reason.startswith("aten::") and " " not in reason}
        recorded += count
    assert not wrong
    assert refused <= WITHOUT
    assert recorded > 20


# ---- random programs

VIEWS: list[Callable[[Tensor, random.Random], Callable[[Tensor], Tensor]]] = [
    lambda t, _: lambda t: t.t() if t.dim() <= 2 else t.transpose(0, -1),
    lambda t, _: lambda t: t.view(-1) if t.is_contiguous() else t.detach(),
    lambda t, _: lambda t: t.unsqueeze(0),
    lambda t, _: lambda t: t.squeeze(),
    lambda t, r: (lambda i: lambda t: t.select(0, i) if t.dim() else t)(r.randrange(t.size(0)) if t.dim() else 0),
    lambda t, r: (lambda d, s: lambda t: t.narrow(d, s, t.size(d) - s) if t.dim() else t)(
        d := r.randrange(max(t.dim(), 1)), r.randrange(t.size(d)) if t.dim() else 0
    ),
    lambda t, _: lambda t: t[..., ::2] if t.dim() else t,
    lambda t, _: lambda t: t.diagonal() if t.dim() >= 2 else t.alias() if hasattr(t, "alias") else t.detach(),
    lambda t, _: lambda t: t.split(2)[0] if t.dim() else t,
    lambda t, _: lambda t: t.unbind(-1)[-1] if t.dim() else t,
    lambda t, _: lambda t: t.permute([*reversed(range(t.dim()))]),
    lambda t, _: lambda t: t.movedim(0, -1) if t.dim() > 1 else t.view(t.shape),
]
WRITES: list[Callable[[Tensor, Tensor], Any]] = [
    lambda t, other: t.add_(other),
    lambda t, other: t.mul_(0.5),
    lambda t, other: t.copy_(other),
    lambda t, other: t.zero_(),
    lambda t, other: t.fill_(1.5),
    lambda t, other: t.masked_fill_(other > 0, 0.25),
    lambda t, other: t.sigmoid_(),
    lambda t, other: t.lt_(other),
    lambda t, other: torch.sub(t, other, out=t),
    lambda t, other: t.unsqueeze_(0),
    lambda t, other: t.squeeze_(),
    lambda t, other: t.t_() if t.dim() <= 2 else t.transpose_(0, 1),
]


def random_program(seed: int, steps: int = 14) -> Callable[[Tensor, Tensor], list[Tensor]]:
    """Views, writes and reads of two arguments and of fresh tensors; the same ones at each call."""

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        choose = random.Random(seed)
        tensors = [x, y, torch.zeros(3, 4)]
        for _ in range(steps):
            tensor = choose.choice(tensors)
            kind = choose.random()
            if kind < 0.45:
                tensors.append(choose.choice(VIEWS)(tensor, choose)(tensor))
            elif kind < 0.85:
                other = choose.choice(tensors)
                choose.choice(WRITES)(tensor, (other.sum() + torch.ones(tensor.shape)).tanh())
            else:
                tensors.append(tensor * 2 + 1)
        return choose.sample(tensors, 5) if len(tensors) > 5 else tensors

    return program


def test_random_programs_are_eagers_in_functional_form(request):
    count = 2000 if request.config.getoption("--full") else 150
    for seed in range(count):
        program = random_program(seed)
        arguments = (torch.randn(3, 4), torch.randn(4, 2, 3).transpose(0, 1) if seed % 2 else torch.randn(5))
        assert not difference(program, *arguments, live=bool(seed % 3 == 0)), f"seed {seed}"
