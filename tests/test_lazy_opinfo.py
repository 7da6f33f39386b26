"""Torch's own samples of its operators do on the device `lazy` what they do on the CPU, to the bit, or are refused.

lazy_refusals.txt lists the operators that do not, each with the reason; this test keeps it true. Each sample is taken
twice on `lazy`: the second time its steps are found, not recorded.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import magneto
import pytest
import torch
from lazy_stories import BACKING, Nearly
from op_samples import op_db
from torch import Tensor
from torch.utils import _pytree as pytree
from zoo import compare, harness

pytestmark = pytest.mark.filterwarnings("ignore")

REFUSALS = Path(__file__).with_name("lazy_refusals.txt")
DTYPES = (torch.float32, torch.int64, torch.bool)
SEED = 42
LEAST = 0.97
# What these return, or the last bits of it, depends on what memory held before.
UNDEFINED_CONTENTS = {
    "empty",
    "empty_like",
    "new_empty",
    "empty_strided",
    "new_empty_strided",
    "empty_permuted",
    "linalg.lstsq",
}
# They go many ways, which their samples try in turn.
OF_MANY_WAYS = ("__getitem__", "index_put", "nn.functional.scaled_dot_product_attention", "nn.functional.dropout")
OPS = [op for op in op_db if not op.name.startswith("jiterator") and any(dtype in op.dtypes for dtype in DTYPES)]

Tree = tuple[tuple[Any, ...], dict[str, Any]]
Call = Callable[..., Any]


@pytest.fixture(scope="module", autouse=True)
def lazy_device() -> None:
    magneto.lazy.init(BACKING)


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}".rstrip(".")


# ---- arguments


@dataclass(frozen=True)
class Sample:
    how: str
    call: Call
    tree: Tree


def in_place(op: Any) -> Call:
    """The operator that changes its first argument, which may not be a leaf."""

    def call(x: Any, *args: Any, **kwargs: Any) -> Any:
        changed = x.clone() if isinstance(x, Tensor) and x.requires_grad else x
        return op.inplace_variant(changed, *args, **kwargs)

    return call


def into_given(op: Any) -> Call:
    """The operator with `out=`, into every other element of some memory."""

    def place_for(result: Tensor) -> Tensor:
        return torch.zeros((*result.shape, 2), dtype=result.dtype, device=result.device)[..., 1]

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.no_grad():
            given = pytree.tree_map_only(Tensor, place_for, op.op(*args, **kwargs))
            return op.op(*args, **kwargs, out=given)

    return call


def calls(op: Any) -> dict[str, Call]:
    found = {"": op.op}
    if op.inplace_variant:
        found["in place"] = in_place(op)
    if op.supports_out:
        found["with out="] = into_given(op)
    return found


def samples(op: Any, count: int | None) -> Iterator[Sample]:
    """With float32 the gradients are asked for, where there are any."""
    for dtype in DTYPES:
        if dtype not in op.dtypes:
            continue
        backward = dtype == torch.float32 and op.supports_autograd
        for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=backward), count):
            for how, call in calls(op).items():
                yield Sample(how, call, ((sample.input, *sample.args), dict(sample.kwargs)))
    if op.error_inputs_func:
        for error in itertools.islice(op.error_inputs("cpu"), count):
            sample = error.sample_input
            yield Sample("wrong arguments", op.op, ((sample.input, *sample.args), dict(sample.kwargs)))


def moved(tree: Any, device: str) -> Any:
    """Other tensors in place of those in a tree, with the same contents, as moving to a device lays them out."""
    copies: dict[int, Tensor] = {}

    def copy_of(value: Any) -> Any:
        if isinstance(value, Tensor):
            if id(value) not in copies:
                copies[id(value)] = value.detach().to(device, copy=True).requires_grad_(value.requires_grad)
            return copies[id(value)]
        if isinstance(value, torch.device) or (isinstance(value, str) and value == "cpu"):
            return torch.device(device)
        return value

    return pytree.tree_map(copy_of, tree)


def has_device(tree: Tree) -> bool:
    """Whether the call says, or its tensors do, where the result belongs."""
    return any(isinstance(leaf, Tensor | torch.device) or leaf == "cpu" for leaf in pytree.tree_leaves(tree))


def tensors_of(tree: Any) -> list[Tensor]:
    """The different tensors, in order."""
    return list({id(leaf): leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


# ---- what a call does


@dataclass(frozen=True)
class Looks:
    """What can be seen of a value, but for its device."""

    form: Any
    contents: Any = b""


def looks(value: Any, device: str, contents: bool) -> Looks:
    if not isinstance(value, Tensor):
        is_device = isinstance(value, torch.device) and value.type == device
        return Looks("the device" if is_device else "nan" if value != value else value)
    if value.layout != torch.strided:
        return Looks((value.shape, value.layout, value.dtype, value.requires_grad))
    assert value.device.type == device, f"a result is on {value.device}"
    form = (*compare.look(value, False), value.storage_offset(), value.requires_grad, value.is_leaf)
    if not contents:
        return Looks(form)
    return Looks(form, compare.bits(value.cpu()).numpy().tobytes() if BACKING == "cpu" else Nearly(value.cpu()))


def all_looks(tree: Any, device: str, contents: bool = True) -> list[Looks]:
    leaves, structure = pytree.tree_flatten(tree)
    return [Looks(str(structure)), *(looks(leaf, device, contents) for leaf in leaves)]


def same_objects(results: Any, arguments: Any) -> list[int]:
    """For each result: which tensor it is."""
    found = [id(leaf) for tree in (arguments, results) for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)]
    return [found.index(each) for each in found]


def gradients(results: Any, tree: Tree) -> Any:
    ends = [tensor for tensor in tensors_of(results) if tensor.requires_grad]
    leaves = [tensor for tensor in tensors_of(tree) if tensor.requires_grad]
    if not (ends and leaves):
        return []
    tangents = [torch.randn_like(end) for end in ends]
    return torch.autograd.grad(ends, leaves, tangents, allow_unused=True)


def detached(tree: Any) -> list[Tensor]:
    return [tensor.detach() for tensor in tensors_of(tree) if tensor.layout == torch.strided]


def outcome(sample: Sample, device: str, contents: bool) -> dict[str, Any]:
    """All that can be seen of a call."""
    found: dict[str, Any] = {}
    try:
        tree = moved(sample.tree, device)
        torch.manual_seed(SEED)
        results = sample.call(*tree[0], **tree[1])
        found["results"] = all_looks(results, device, contents)
        found["arguments afterwards"] = all_looks(tensors_of(tree), device)
        found["identities"] = same_objects(results, tree)
    except Exception as error:  # of whatever kind
        return {"error": error}
    try:
        found["gradients"] = all_looks(gradients(results, tree), device)
    except Exception as error:
        found["error of the backward"] = error
    seen = detached(results)
    for argument in detached(tree):
        argument.fill_(1)
    found["results after their arguments have changed"] = all_looks(seen, device, contents)
    return found


def difference(expected: dict[str, Any], found: dict[str, Any]) -> str:
    """The first one, in words."""
    for what in sorted({**expected, **found}, key=lambda name: not name.startswith("error")):
        if what.startswith("error"):
            if (what in expected) != (what in found):
                return f"{what}: {found.get(what)!r}, expected {expected.get(what)!r}"
        elif what == "identities":
            if expected[what] != found[what]:
                return f"{what}: {found[what]}, expected {expected[what]}"
        else:
            for index, (right, ours) in enumerate(itertools.zip_longest(expected[what], found[what])):
                if ours.form != right.form:
                    return f"{what}: the form of {index} is {ours.form}, expected {right.form}"
                if ours != right:
                    return f"{what}: the contents of {index}, {ours.form}, differ"
    return ""


def problems(op: Any, count: int | None) -> Iterator[str]:
    """How the samples differ from the CPU, where that is the same each time."""
    contents = op.name not in UNDEFINED_CONTENTS
    for sample in samples(op, count):
        if not has_device(sample.tree):
            continue
        expected, again = (outcome(sample, BACKING, contents) for _ in range(2))
        if difference(expected, again):
            continue
        for time in ("first", "second"):
            if found := difference(expected, outcome(sample, "lazy", contents)):
                yield f"{time} time: {found}; {sample.how} {sample.tree}"


# ---- tests

worked: dict[bool, set[str]] = {True: set(), False: set()}


@functools.cache
def stated() -> dict[str, str]:
    lines = [line for line in REFUSALS.read_text().splitlines() if line and not line.startswith("#")]
    return dict(line.split(": ", 1) for line in lines)


@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_an_operator_does_on_lazy_what_it_does_on_the_cpu(op: Any) -> None:
    is_refused = name_of(op) in stated()
    takes_all = harness.FULL or is_refused or name_of(op).startswith(OF_MANY_WAYS)
    found = next(problems(op, None if takes_all else 2), "")
    worked[not found].add(name_of(op))
    assert found or not is_refused, f"needless in {REFUSALS.name}"
    assert is_refused or not found


def test_refusals_are_of_operators_that_exist() -> None:
    assert stated().keys() <= {name_of(op) for op in OPS}


def test_nearly_all_operators_work(record_property: Callable[[str, object], None]) -> None:
    yes, no = (len(worked[state]) for state in (True, False))
    record_property("told", f"torch's samples on lazy: {yes} operators as on the CPU, {no} not")
    assert yes >= LEAST * (yes + no)
