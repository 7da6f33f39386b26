"""Kernels of our own compute what the operators in them compute: formulas, places in memory, sums, types, programs."""

import copy
import itertools
import re
from collections.abc import Callable, Sequence
from pathlib import Path

import magneto
import pytest
import torch
import torch.nn.functional as F
from kernels import HostCompiler
from torch import Tensor

ops = torch.ops.aten
HALVES = (torch.bfloat16, torch.float16)
REALS = (*HALVES, torch.float32, torch.float64)
INTEGERS = (torch.int32, torch.int64)
DTYPES = (*REALS, *INTEGERS, torch.bool)
VIEWS = {
    "view", "_unsafe_view", "_reshape_alias", "unsqueeze", "squeeze", "alias", "detach", "transpose", "t", "permute",
    "slice", "select", "expand", "split", "copy_",
}  # fmt: skip
MOST = 24  # operators that are tried in one kernel
EXACT, NEAR, FAIR = 0, 4, 32  # by how much results may differ, in units of the last place


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


def name_of(value: object) -> str:
    return str(value).removeprefix("torch.")


def operators(graph: magneto.Graph) -> list[str]:
    return re.findall(r"aten\.(\w+)", graph.text)


def fused(function: Callable, args: Sequence[Tensor], folder: Path, left: Sequence[str] = ()) -> "Fused":
    graph = magneto.record(function, *[copy.deepcopy(arg) for arg in args], live=True)
    joined = graph._fused(HostCompiler(folder))
    assert joined is not None
    lonely = set(operators(joined)) - VIEWS - set(left)
    assert not lonely, f"not joined: {lonely}"
    return Fused(function, graph, joined)


class Fused:
    def __init__(self, function: Callable, graph: magneto.Graph, joined: magneto.Graph) -> None:
        self.function, self.graph, self.joined = function, graph, joined

    def results(self, args: Sequence[Tensor]) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Of the kernels, of the graph that they are made from, and of eager execution."""
        got, expected = (graph.run(args) for graph in (self.joined, self.graph))
        eager = self.function(*args)
        return list(zip(got, expected, [eager] if isinstance(eager, Tensor) else eager, strict=True))


def difference(got: Tensor, expected: Tensor, ulps: int = EXACT, signed_zeros: bool = True) -> str:
    looks = [(tensor.dtype, tensor.shape, tensor.stride()) for tensor in (got, expected)]
    if looks[0] != looks[1]:
        return f"{looks[0]} instead of {looks[1]}"
    same = (got == expected) | (got.isnan() & expected.isnan())
    if got.dtype.is_floating_point:
        eps = ulps * torch.finfo(got.dtype).eps
        same |= torch.isclose(got, expected, rtol=eps, atol=eps)
        same &= got.isnan() | (got.signbit() == expected.signbit()) | (ulps > 0) | (not signed_zeros)
    return (
        "" if same.all() else f"{got[~same][:9]} instead of {expected[~same][:9]} at {(~same).nonzero()[:9].tolist()}"
    )


def assert_same(got: Tensor, expected: Tensor, ulps: int = EXACT) -> None:
    assert not difference(got, expected, ulps)


# ---- numbers


def numbers_of(dtype: torch.dtype) -> list[float]:
    """Where operators and types have their edges."""
    if dtype == torch.bool:
        return [True, False]
    if dtype in INTEGERS:
        info = torch.iinfo(dtype)
        return [0, 1, -1, 2, 3, -7, 10, 255, 257, 1001, 65537, -65537, 2**24 + 1, info.max, info.max - 1, info.min]
    info = torch.finfo(dtype)
    edges = [info.max, info.tiny, info.tiny / 4, info.eps, 1 + info.eps, 0.1, 1 / 3, 0.5, 1.5, 2.5, 3.5, 257.0, 1000.0]
    near = [1.0, 2.0, 3.0, 4.0, 5.5, 11.0, 20.25, 88.0, 0.001]
    return [torch.nan, 0.0, torch.inf, *edges, *near, -0.0, -torch.inf, *(-x for x in edges + near)]


def edges_of(dtype: torch.dtype, count: int | None = None) -> Tensor:
    """All of these and some more, in some order, as often as fits; an odd number of them."""
    generator = torch.Generator().manual_seed(1)
    known = torch.tensor(numbers_of(dtype), dtype=dtype)
    more = torch.randn(20, generator=generator, dtype=torch.float64) * 3
    all_of_them = torch.cat([known, more.to(dtype)])
    count = count or len(all_of_them) + 1 - len(all_of_them) % 2
    return all_of_them[torch.arange(count) % len(all_of_them)][torch.randperm(count, generator=generator)]


def some(*sizes: int, dtype: torch.dtype = torch.float32, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    if dtype == torch.bool:
        return torch.rand(sizes, generator=generator) < 0.5
    if dtype in INTEGERS:
        return torch.randint(-9, 10, sizes, generator=generator, dtype=dtype)
    return torch.randn(sizes, generator=generator, dtype=torch.float64).to(dtype)


# ---- formulas


class Case:
    """An operator, how near its results have to be, and the types that it is not tried with.

    The formulas are those of torch's CUDA kernels. Its CPU kernels add numbers in half precision after rounding these,
    compare with thresholds that they do not round, and take roots of half numbers as powers.
    """

    def __init__(
        self, run: Callable, ulps: int = EXACT, without: Sequence[torch.dtype] = (), signed_zeros: bool = True
    ) -> None:
        self.run, self.ulps, self.without, self.signed_zeros = run, ulps, without, signed_zeros


WHOLE = (*INTEGERS, torch.bool)
UNARY = {
    "neg": Case(torch.neg),
    "abs": Case(torch.abs, without=WHOLE),
    "reciprocal": Case(torch.reciprocal),
    "sqrt": Case(torch.sqrt, NEAR),
    "floor": Case(torch.floor, without=WHOLE),
    "ceil": Case(torch.ceil, without=WHOLE),
    "trunc": Case(torch.trunc, without=WHOLE),
    "round": Case(torch.round, without=WHOLE),
    "relu": Case(torch.relu, signed_zeros=False),
    "leaky_relu": Case(lambda x: F.leaky_relu(x, 0.1)),
    "hardtanh": Case(lambda x: F.hardtanh(x, -2, 3), signed_zeros=False),
    "logical_not": Case(torch.logical_not),
    "bitwise_not": Case(torch.bitwise_not),
    "clone": Case(torch.clone),
    **{f"to {name_of(dtype)}": Case(lambda x, dtype=dtype: x.to(dtype)) for dtype in DTYPES},
    **{
        name: Case(getattr(torch, name), NEAR)
        for name in ["sin", "cos", "tanh", "exp", "log", "rsqrt", "erf", "expm1", "log1p", "sigmoid"]
    },
    "silu": Case(lambda x: F.silu(x.clamp_min(-80)), NEAR),
    "gelu": Case(lambda x: F.gelu(x.clamp(-9, 9)), FAIR),
    "gelu of tanh": Case(lambda x: F.gelu(x.clamp(-9, 9), approximate="tanh"), FAIR),
}
BY_NUMBER = {
    **{f"add {n}": Case(lambda x, n=n: x + n) for n in (3, 0.125, torch.nan, -torch.inf)},
    **{f"add {n}": Case(lambda x, n=n: x + n, without=HALVES) for n in (0.1, -1e300, 2**40)},
    "add alpha": Case(lambda x: ops.add.Scalar(x, 2, 3)),
    "sub": Case(lambda x: x - 1.5),
    "sub alpha": Case(lambda x: ops.sub.Scalar(x, 2, 3)),
    "rsub": Case(lambda x: 0.125 - x),
    "rsub of an integer": Case(lambda x: 3 - x),
    "mul": Case(lambda x: x * 0.1),
    "mul of an infinity": Case(lambda x: x * -torch.inf),
    "mul.Scalar": Case(lambda x: ops.mul.Scalar(x, 3)),
    "div": Case(lambda x: x / 3, NEAR),
    "div.Scalar": Case(lambda x: ops.div.Scalar(x, 0.7), NEAR),
    "threshold_backward": Case(lambda x: ops.threshold_backward(x, x, 0.5)),
    **{f"pow {n}": Case(lambda x, n=n: x**n, NEAR, without=WHOLE if n < 0 else ()) for n in (2, 3, -1, -2)},
    **{f"pow {n}": Case(lambda x, n=n: x**n, NEAR, without=[torch.float16]) for n in (0.5, -0.5)},
    "pow 0.3": Case(lambda x: x**0.3, FAIR),
    "clamp": Case(lambda x: x.clamp(-1, 2), signed_zeros=False),
    "clamp to reals": Case(lambda x: x.clamp(0.1, 2.5), signed_zeros=False),
    "clamp to nothing": Case(lambda x: x.clamp(2, -1), signed_zeros=False),
    "clamp to an infinity": Case(lambda x: x.clamp(-torch.inf, 2.0), signed_zeros=False),
    "clamp_min": Case(lambda x: x.clamp_min(1), signed_zeros=False),
    "clamp_max": Case(lambda x: x.clamp_max(1), signed_zeros=False),
    "masked_fill": Case(lambda x: x.masked_fill(x > 0, 3)),
    "masked_fill of an infinity": Case(lambda x: x.masked_fill(x > 0, -torch.inf)),
    "where": Case(lambda x: torch.where(x > 0, x, ops.full_like(x, 1))),
    "negated infinity": Case(lambda x: torch.where(x > 0, -torch.full_like(x, -torch.inf), x)),
    **{
        f"{name} {n}": Case(lambda x, name=name, n=n: getattr(torch, name)(x, n), without=WHOLE if n == 0.1 else ())
        for name, n in itertools.product(("eq", "ne", "lt", "le", "gt", "ge"), (0, 2, 0.1))
    },
}


def accepts(run: Callable, *args: Tensor) -> bool:
    try:
        run(*args)
    except (RuntimeError, TypeError, NotImplementedError):
        return False
    return True


def check_cases(cases: dict[str, Case], dtype: torch.dtype, args: Sequence[Tensor], folder: Path) -> None:
    """Each operator works on what a clone in the same kernel makes."""
    tried = {name: case for name, case in cases.items() if dtype not in case.without and accepts(case.run, *args)}
    parts = [list(tried.values())[at : at + MOST] for at in range(0, len(tried), MOST)]

    def function(*firsts: Tensor) -> list[Tensor]:
        made = []
        for part, first in zip(parts, firsts, strict=False):
            first = first.clone()
            made += [case.run(first, *firsts[len(parts) :]) for case in part]
        return made

    given = [args[0].clone() for _ in parts] + list(args[1:])
    results = fused(function, given, folder, left=["scalar_tensor"]).results(given)
    wrong = []
    for (name, case), (got, *others) in zip(tried.items(), results, strict=True):
        wrong += [
            f"{name}: {text}" for other in others if (text := difference(got, other, case.ulps, case.signed_zeros))
        ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
@pytest.mark.parametrize("cases", [UNARY, BY_NUMBER], ids=["of one tensor", "with a number"])
def test_formulas_compute_what_operators_do(cases: dict[str, Case], dtype: torch.dtype, tmp_path: Path):
    check_cases(cases, dtype, [edges_of(dtype)], tmp_path)


BINARY = {
    "add": Case(torch.add),
    "sub": Case(torch.sub),
    "mul": Case(torch.mul),
    "div": Case(torch.div),
    "maximum": Case(torch.maximum, signed_zeros=False),
    "minimum": Case(torch.minimum, signed_zeros=False),
    **{name: Case(getattr(torch, name)) for name in ["eq", "ne", "lt", "le", "gt", "ge", "logical_and", "logical_or"]},
    **{name: Case(getattr(torch, name)) for name in ["bitwise_and", "bitwise_or", "bitwise_xor"]},
    "where": Case(lambda x, y: torch.where(x > y, x, y)),
    "where of a tensor": Case(lambda x, y: torch.where(y.bool(), y, x)),
    "masked_fill": Case(lambda x, y: x.masked_fill(y.bool(), 0.5)),
    "copy": Case(lambda x, y: ops.copy(x, y)),
}
MIXED = [
    (torch.bfloat16, torch.float16),
    (torch.bfloat16, torch.int64),
    (torch.float16, torch.int32),
    (torch.float32, torch.float64),
    (torch.float32, torch.bfloat16),
    (torch.float32, torch.int64),
    (torch.int32, torch.int64),
    (torch.int64, torch.bool),
    (torch.bool, torch.bfloat16),
]


@pytest.mark.parametrize("dtype", DTYPES, ids=name_of)
def test_formulas_of_two_tensors_compute_what_operators_do_with_all_edges(dtype: torch.dtype, tmp_path: Path):
    x, y = edges_of(dtype)[:, None], edges_of(dtype).flip(0)
    check_cases(BINARY, dtype, [x.expand(len(x), len(y)), y], tmp_path)


@pytest.mark.parametrize("swapped", [False, True])
@pytest.mark.parametrize("dtypes", MIXED, ids=lambda pair: " ".join(map(name_of, pair)))
def test_operands_of_two_types_are_taken_as_the_type_of_both(dtypes: tuple, swapped: bool, tmp_path: Path):
    x, y = (edges_of(dtype, 61) for dtype in (reversed(dtypes) if swapped else dtypes))
    x, y = (tensor.nan_to_num(3, 5, -7).clamp(-6e4, 6e4) if tensor.is_floating_point() else tensor for tensor in (x, y))
    check_cases(BINARY, x.dtype, [x[:, None].expand(61, 61), y], tmp_path)


@pytest.mark.parametrize("dtypes", MIXED, ids=lambda pair: " ".join(map(name_of, pair)))
@pytest.mark.parametrize("sizes", [((7, 3), ()), ((), (5,)), ((), ())], ids=str)
def test_tensors_without_dimensions_count_less(dtypes: tuple, sizes: tuple, tmp_path: Path):
    args = [
        torch.full(size, 3, dtype=dtype) if not size else some(*size, dtype=dtype)
        for size, dtype in zip(sizes, dtypes, strict=True)
    ]

    def function(x: Tensor, y: Tensor, mask: Tensor) -> list[Tensor]:
        made = [x + y, x * y, torch.maximum(x, y), x < y, x == y, y >= x]
        return [torch.where(mask, one, one) for one in made]

    args.append(torch.tensor([True]))
    for got, *others in fused(function, args, tmp_path).results(args):
        for other in others:
            assert_same(got, other)


BACKWARDS = {
    "sigmoid": Case(lambda dy, y: ops.sigmoid_backward(dy, y), NEAR),
    "tanh": Case(lambda dy, y: ops.tanh_backward(dy, y), NEAR),
    "silu": Case(lambda dy, y: ops.silu_backward(dy, y), FAIR),
    "gelu": Case(lambda dy, y: ops.gelu_backward(dy, y), FAIR),
    "gelu of tanh": Case(lambda dy, y: ops.gelu_backward(dy, y, approximate="tanh"), FAIR),
    "threshold": Case(lambda dy, y: ops.threshold_backward(dy, y, -0.5)),
    "dropout": Case(lambda dy, y: ops.native_dropout_backward(dy, y > 0, 1.25)),
    "leaky_relu": Case(lambda dy, y: torch.where(y > 0, dy, dy * 0.1)),
    "add alpha": Case(lambda x, y: torch.add(x, y, alpha=3), NEAR),
    "sub alpha": Case(lambda x, y: torch.sub(x, y, alpha=0.1), NEAR),
}


@pytest.mark.parametrize("dtype", REALS, ids=name_of)
def test_formulas_of_backwards_compute_what_operators_do(dtype: torch.dtype, tmp_path: Path):
    check_cases(BACKWARDS, dtype, [some(9, 11, dtype=dtype), some(9, 11, dtype=dtype, seed=1)], tmp_path)


@pytest.mark.parametrize("dtype", INTEGERS, ids=name_of)
def test_integers_are_added_with_a_factor(dtype: torch.dtype, tmp_path: Path):
    check_cases(
        {"add": Case(lambda x, y: torch.add(x, y, alpha=-3)), "sub": Case(lambda x, y: torch.sub(x, y, alpha=7))},
        dtype,
        [edges_of(dtype), edges_of(dtype)],
        tmp_path,
    )


# ---- places in memory

LAYOUTS = {
    "contiguous": lambda dtype: some(2, 3, 4, 6, dtype=dtype),
    "transposed": lambda dtype: some(6, 3, 4, 2, dtype=dtype).transpose(0, 3),
    "channels last": lambda dtype: some(2, 3, 4, 6, dtype=dtype).to(memory_format=torch.channels_last),
    "expanded": lambda dtype: some(2, 1, 4, 1, dtype=dtype).expand(2, 3, 4, 6),
    "sliced": lambda dtype: some(4, 3, 4, 13, dtype=dtype)[::2, :, :, 1::2],
    "with an odd beginning": lambda dtype: some(2 * 3 * 4 * 6 + 1, dtype=dtype)[1:].view(2, 3, 4, 6),
}
VIEWED: dict[str, Callable[[Tensor], Tensor]] = {
    "all": lambda x: x,
    "flat": lambda x: x.reshape(-1),
    "view": lambda x: x.view(6, 24) if x.is_contiguous() else x,
    "reshape": lambda x: x.reshape(6, 24),
    "view with other borders": lambda x: x.reshape(4, 9, 4),
    "view with ones": lambda x: x.reshape(1, 6, 1, 2, 12, 1),
    "unsqueeze": lambda x: x.unsqueeze(2),
    "squeeze": lambda x: x[:, :1].squeeze(1),
    "transpose": lambda x: x.transpose(1, 3),
    "permute": lambda x: x.permute(3, 1, 0, 2),
    "permuted and flat": lambda x: x.permute(0, 2, 3, 1).reshape(8, 18),
    "permuted back": lambda x: x.permute(0, 2, 3, 1).reshape(2, 24, 3).transpose(1, 2).reshape(2, 3, 4, 6),
    "t": lambda x: x.reshape(6, 24).t(),
    "slice": lambda x: x[:, :, 1:3],
    "slice with steps": lambda x: x[..., 1::2],
    "slice of a slice": lambda x: x[..., 1::2][..., -2:][:, 1:],
    "one element": lambda x: x[1:, 2:, 3:, 5:],
    "select": lambda x: x[:, 1],
    "select from the end": lambda x: x[-1, :, -2],
    "select all but one": lambda x: x[1, 2, :, 3],
    "expand": lambda x: x[:, None].expand(2, 5, 3, 4, 6),
    "expand a slice": lambda x: x[:, :1].expand(2, 7, 4, 6),
    "split": lambda x: x.split(2, dim=2)[1],
    "split unevenly": lambda x: x.split(4, dim=-1)[1],
    "detach": lambda x: x.detach(),
    "flattened slices": lambda x: x[:, :, ::2, 1:4].reshape(2, -1),
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.bool], ids=name_of)
@pytest.mark.parametrize("layout", LAYOUTS)
def test_kernels_look_through_views(layout: str, dtype: torch.dtype, tmp_path: Path):
    args = [LAYOUTS[layout](dtype)] * len(VIEWED)

    def function(*args: Tensor) -> list[Tensor]:
        return [view(x.logical_not()).logical_not() for x, view in zip(args, VIEWED.values(), strict=True)]

    def of_numbers(*args: Tensor) -> list[Tensor]:
        return [view(-x) * 2 for x, view in zip(args, VIEWED.values(), strict=True)]

    results = fused(function if dtype == torch.bool else of_numbers, args, tmp_path, ["clone"]).results(args)
    for what, (got, *others) in zip(VIEWED, results, strict=True):
        for other in others:
            assert not (text := difference(got, other)), f"{what}: {text}"


@pytest.mark.parametrize("dtype", [torch.float32, torch.int64], ids=name_of)
def test_several_places_of_a_value_in_one_kernel_are_told_apart(dtype: torch.dtype, tmp_path: Path):
    args = [some(5, 5, dtype=dtype, seed=seed) for seed in range(5)]

    def function(a: Tensor, b: Tensor, c: Tensor, d: Tensor, e: Tensor) -> list[Tensor]:
        a, b, c, d, e = -a, -b, -c, -d, -e
        return [
            a[:, 0] + a[0],
            b[0] * 3 + b[1] + b[:, 1] + b[:, 4] + b.t()[4],
            c + c.t() + c.flatten()[:5] + c[2:3],
            d.view(25)[::5] + d.view(25)[:5] + d.t()[1],
            e[:, :1] + e[:1] + e[1:2],
        ]

    for got, *others in fused(function, args, tmp_path).results(args):
        for other in others:
            assert_same(got, other)


@pytest.mark.parametrize("sizes", [(1,), (1, 1), (3, 1), (1, 5), (1, 3, 1, 7), (2, 1, 1), (17,), (3, 1000)], ids=str)
@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.int32, torch.bool], ids=name_of)
def test_kernels_take_operands_that_broadcast(dtype: torch.dtype, sizes: tuple, tmp_path: Path):
    parts = [tuple(size if i % 2 else 1 for i, size in enumerate(sizes)), sizes[-1:], (1,), ()]
    args = [some(*size, dtype=dtype, seed=seed) for seed, size in enumerate([sizes, *parts])]

    def function(x: Tensor, *others: Tensor) -> list[Tensor]:
        x = torch.logical_not(x) if dtype == torch.bool else -x
        return [made for y in others for made in (torch.maximum(x, y), x == y, torch.where(x != y, y, x))]

    for got, *others in fused(function, args, tmp_path).results(args):
        for other in others:
            assert_same(got, other)


def test_results_lie_as_ever(tmp_path: Path):
    args = [make(torch.float32) for make in LAYOUTS.values()]

    def function(*args: Tensor) -> list[Tensor]:
        made = []
        for x in args:
            y = -x
            made += [y * args[0], y + 1, (y + 2).clone(memory_format=torch.channels_last), y.contiguous() * 2]
            made += [torch.where(y > 0, x.permute(1, 0, 2, 3)[:2, :2].expand(2, 2, 4, 6)[:, :1], y)]
        return made

    for got, *others in fused(function, args, tmp_path, ["clone"]).results(args):
        for other in others:
            assert_same(got, other)


# ---- gathers

GATHERS: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cat": lambda x, y: torch.cat([x, y]),
    "cat of many": lambda x, y: torch.cat([x, y, y[:1], x[1:], x]),
    "cat along columns": lambda x, y: torch.cat([x[:, :2], y, x], -1),
    "cat of columns": lambda x, y: torch.cat([x[:, i : i + 1] for i in range(5)], 1),
    "cat in three dimensions": lambda x, y: torch.cat([x[:, None].expand(3, 2, 5), y[:, None]], 1),
    "cat of what is made": lambda x, y: torch.cat([x * y, y - x, x]),
    "cat of one": lambda x, y: torch.cat([x * 2]),
    "cat of nothing": lambda x, y: torch.cat([x[:0], y, x[:0]]),
    "stack": lambda x, y: torch.stack([x, y, x], 1),
    "rotated": lambda x, y: torch.cat([-x[..., 2:], x[..., :2]], -1) * y,
    "slice_backward": lambda x, y: ops.slice_backward(x, [3, 9], 1, 2, 7, 1),
    "slice_backward of rows": lambda x, y: (
        ops.slice_backward(x, [6, 5], 0, 0, 3, 1) + ops.slice_backward(y, [6, 5], -2, 3, 6, 1)
    ),
    "pad": lambda x, y: F.pad(x, (1, 2)),
    "pad all dimensions": lambda x, y: F.pad(x, (0, 1, 2, 3), value=0.5 if x.is_floating_point() else 3),
    "pad with infinity": lambda x, y: F.pad(x, (2, 0), value=-torch.inf if x.is_floating_point() else 1),
    "pad of pads": lambda x, y: F.pad(F.pad(x, (1, 0, 0, 1)) * 2, (0, 1)),
    "pad of cats": lambda x, y: F.pad(torch.cat([x, y]), (1, 1))[1:-1, 1:],
    "pad of a view": lambda x, y: F.pad(x.t(), (1, 0)) + F.pad(y.t(), (0, 1)),
    "full": lambda x, y: torch.full((3, 5), 0.1 if x.is_floating_point() else 7, dtype=x.dtype) * x,
    "full of infinity": lambda x, y: torch.full((5,), -torch.inf if x.is_floating_point() else -1, dtype=x.dtype) + x,
    "zeros and ones": lambda x, y: torch.zeros(3, 5, dtype=x.dtype) + torch.ones(5, dtype=x.dtype) - x,
    "like": lambda x, y: torch.zeros_like(x) + torch.ones_like(y) * torch.full_like(x, 3),
    "cat with full": lambda x, y: torch.cat(
        [
            torch.zeros(3, 2, dtype=x.dtype),
            x * y,
            torch.full((3, 1), 0.1 if x.is_floating_point() else 2, dtype=x.dtype),
        ],
        1,
    ),
}


@pytest.mark.parametrize("layout", ["contiguous", "transposed"])
@pytest.mark.parametrize("dtype", [*REALS, *INTEGERS], ids=name_of)
def test_gathers_take_elements_from_where_they_were(dtype: torch.dtype, layout: str, tmp_path: Path):
    args = [some(3, 5, dtype=dtype, seed=seed) for seed in range(2 * len(GATHERS))]
    if layout == "transposed":
        args = [some(5, 3, dtype=dtype, seed=seed).t() for seed in range(2 * len(GATHERS))]

    def function(*args: Tensor) -> list[Tensor]:
        return [gather(-x, -y) * 2 for x, y, gather in zip(args[::2], args[1::2], GATHERS.values(), strict=True)]

    for what, (got, *others) in zip(
        GATHERS, fused(function, args, tmp_path, ["clone", "cat"]).results(args), strict=True
    ):
        for other in others:
            assert not (text := difference(got, other)), f"{what}: {text}"


def test_what_several_gathers_take_is_computed_once(tmp_path: Path):
    args = [some(3, 5), some(3, 5, seed=1)]

    def function(x: Tensor, y: Tensor) -> list[Tensor]:
        x, y = -x, -y
        return [torch.cat([torch.cat([x, y]), torch.cat([y, x])], 1) * 2]

    both = fused(function, args, tmp_path)
    assert both.joined.text.count("magneto.kernel") == 2, "one for both negations, one for what takes them"
    for got, *others in both.results(args):
        for other in others:
            assert_same(got, other)


def test_parts_of_several_types_are_joined_as_one(tmp_path: Path):
    args = [edges_of(dtype, 31) for pair in MIXED for dtype in (*pair, *reversed(pair))]

    def function(*args: Tensor) -> list[Tensor]:
        return [torch.cat([x, y]).clone() for x, y in zip(args[::2], args[1::2], strict=True)]

    for got, *others in fused(function, args, tmp_path).results(args):
        for other in others:
            assert_same(got, other)


def test_nothing_is_padded(tmp_path: Path):
    x = torch.ones(3, 0)
    for got, *others in fused(
        lambda x, y: (F.pad(x * 2, (1, 2)) + 1, y + 1 + 2),
        [x, torch.ones(3)],
        tmp_path,
        ["mul", "constant_pad_nd", "add"],
    ).results([x, torch.ones(3)]):
        for other in others:
            assert_same(got, other)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("first", [0, 1, 3, 4, 8])
def test_arguments_may_begin_anywhere(first: int, dtype: torch.dtype, tmp_path: Path):
    both = fused(lambda x, y: (x * 2 + y).relu(), [some(64, 16, dtype=dtype), some(16, dtype=dtype, seed=1)], tmp_path)
    x = some(64 * 16 + 8, dtype=dtype, seed=2)[first : first + 64 * 16].view(64, 16)
    y = some(1 + 8, dtype=dtype, seed=3)[first : first + 1].expand(16)
    for args in ([x, y.contiguous()], [x.clone(), some(24, dtype=dtype)[first : first + 16]]):
        for got, *others in both.results(args):
            for other in others:
                assert_same(got, other)
