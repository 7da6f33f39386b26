"""Torch's own samples of its operators: their compiled backward gives eager's gradients to the bit, on changing data.

Each sample is taken through several steps, in which its tensors keep their sizes and get other contents: elements
change places, some become zero, masks are inverted. So a backward that relied on the contents of the one that was
captured would be seen. A step that eager refuses, or that differs from run to run, is left out.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import magneto
import pytest
import torch
from magneto import compiled_autograd
from op_samples import differentiable
from torch import Tensor
from torch.utils import _pytree as pytree
from zoo import compare, harness

pytestmark = pytest.mark.filterwarnings("ignore")

Tree = tuple[tuple[Any, ...], dict[str, Any]]
Call = Callable[..., Any]
Gradients = list[Any]
SEED = 42
DTYPES = (torch.float32, torch.float64, torch.complex64) if harness.FULL else (torch.float32,)
# What their backward does depends on contents.
BY_CONTENTS = ("prod", "cumprod", "masked", "index_put", "nonzero", "unique", "argwhere", "where", "take", "max", "min")
BESIDE_THE_ENGINE = (False, True) if harness.FULL else (False,)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


# ---- other contents


def as_given(tensor: Tensor) -> Tensor:
    return tensor


def rolled(tensor: Tensor) -> Tensor:
    return tensor.flatten().roll(1).reshape(tensor.shape)


def with_zeros(tensor: Tensor) -> Tensor:
    if not (tensor.is_floating_point() or tensor.is_complex()):
        return tensor
    places = torch.arange(tensor.numel()).reshape(tensor.shape) % 3 == 1
    return tensor.masked_fill(places, 0)


def inverted(tensor: Tensor) -> Tensor:
    """Still positive definite, still in the domain of a logarithm."""
    if tensor.dtype == torch.bool:
        return ~tensor
    return tensor * 0.75 if tensor.is_floating_point() or tensor.is_complex() else tensor


CONTENTS = (as_given, rolled, with_zeros, inverted, as_given)


def changed(tree: Tree, contents: Callable[[Tensor], Tensor]) -> Tree:
    """Leaves of the same sizes and strides, with other contents."""
    made = compare.fresh(tree)
    with torch.no_grad():
        for tensor in tensors_of(made):
            if tensor.layout == torch.strided and contents is not as_given:
                tensor.copy_(contents(tensor))
    return made


# ---- backwards


def tensors_of(tree: Any) -> list[Tensor]:
    """The different tensors, in order."""
    return list({id(leaf): leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


def looks(gradient: Tensor | None) -> Any:
    if gradient is None or gradient.layout == torch.strided:
        return gradient if gradient is None else compare.look(gradient)
    if gradient.layout == torch.sparse_coo:
        parts = compare.look(gradient._indices()), compare.look(gradient._values())
        return gradient.shape, gradient.is_coalesced(), parts
    return gradient.shape, gradient.layout, compare.look(gradient.to_dense())


def gradients(call: Call, tree: Tree, around: AbstractContextManager[Any]) -> Gradients | None:
    """Of all its arguments; None where there is nothing to go backward from or to."""
    torch.manual_seed(SEED)
    ends = [tensor for tensor in tensors_of(call(*tree[0], **tree[1])) if tensor.requires_grad]
    leaves = [tensor for tensor in tensors_of(tree) if tensor.requires_grad]
    if not (ends and leaves):
        return None
    tangents = [torch.randn_like(end) for end in ends]
    with around:
        torch.autograd.backward(ends, tangents)
    return [looks(leaf.grad) for leaf in leaves]


def expected_gradients(call: Call, tree: Tree, contents: Callable[[Tensor], Tensor]) -> Gradients | None:
    """Eager's; None where it has none, or others each time."""
    try:
        first, second = (gradients(call, changed(tree, contents), nullcontext()) for _ in range(2))
    except (RuntimeError, NotImplementedError, ValueError, IndexError):
        return None
    return first if first == second else None


def in_place_on_a_view(op: Any) -> Call:
    def call(x: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        base = x.clone()
        op.inplace_variant(base.view_as(base), *args, **kwargs)
        return base

    return call


def calls(op: Any) -> list[Call]:
    return [op.op, in_place_on_a_view(op)] if harness.FULL and op.inplace_variant else [op.op]


def samples(op: Any, dtypes: tuple[torch.dtype, ...]) -> Iterator[Tree]:
    count = None if harness.FULL else 6 if op.name.startswith(BY_CONTENTS) else 1
    for dtype in dtypes:
        if dtype in op.dtypes:
            for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=True), count):
                yield (sample.input, *sample.args), dict(sample.kwargs)


# ---- what became of them

became: dict[str, set[str]] = collections.defaultdict(set)


def group(name: str) -> collections.Counter[str]:
    return collections.Counter(dict(magneto.counters[name]))


def check(call: Call, tree: Tree, name: str) -> None:
    """Goes through the steps."""
    expected = {contents: expected_gradients(call, tree, contents) for contents in dict.fromkeys(CONTENTS)}
    steps = [contents for contents in CONTENTS if expected[contents] is not None]
    magneto.reset()
    for index, contents in enumerate(steps):
        found = gradients(call, changed(tree, contents), compiled_autograd.enable())
        assert found == expected[contents], f"step {index}, {contents.__name__}: {tree}"
    counted, reasons = group("compiled_autograd"), group("compiled_autograd_declined")
    assert counted["captures"] + counted["hits"] + counted["declined"] == len(steps)
    assert counted["declined"] == sum(reasons.values()) and all(reasons), reasons
    for state, happened in {
        "captured": counted["hits"] > 0,
        "with nodes called as they are": group("compiled_autograd_opaque"),
        "declined": counted["declined"],
        "tried": steps,
    }.items():
        if happened:
            became[state].add(name)


@pytest.mark.parametrize("beside_the_engine", BESIDE_THE_ENGINE)
@pytest.mark.parametrize("op", differentiable, ids=name_of)
def test_gradients_of_an_operator_equal_eager(op: Any, beside_the_engine: bool) -> None:
    dtypes = DTYPES[:1] if beside_the_engine else DTYPES
    with magneto.config.patch(compiled_autograd_verify=beside_the_engine):
        for tree, call in itertools.product(samples(op, dtypes), calls(op)):
            check(call, tree, name_of(op))


def test_nearly_all_operators_are_captured(record_property: Callable[[str, object], None]) -> None:
    record_property("told", f"backwards of torch's samples: { ({state: len(ops) for state, ops in became.items()}) }")
    assert len(became["captured"]) >= 0.99 * len(became["tried"])
    assert len(became["declined"]) <= 0.01 * len(became["tried"])
    assert len(became["with nodes called as they are"]) <= 0.05 * len(differentiable)
