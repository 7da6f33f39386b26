"""Torch's own samples of its operators: each records and replays exactly as eager, or is refused for a stated reason.

opinfo_refusals.txt lists, for each operator, why some of its samples are refused; this test keeps it true. To write it
anew after a change: `python tests/test_opinfo.py --write`, which takes a quarter of an hour.
"""

from __future__ import annotations

import collections
import functools
import itertools
import re
import sys
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import magneto
import pytest
import torch
from op_samples import op_db
from torch import Tensor
from torch.utils import _pytree as pytree
from zoo.compare import fresh, look

REFUSALS = Path(__file__).with_name("opinfo_refusals.txt")
DTYPES = (torch.float32, torch.int64, torch.bool)
SEED = 42  # what torch's samples of random operators set
UNDEFINED_CONTENTS = {"empty", "empty_like", "new_empty", "empty_strided", "new_empty_strided", "empty_permuted"}
LEAST = 0.97  # of 688
OPS = [op for op in op_db if not op.name.startswith("jiterator") and any(dtype in op.dtypes for dtype in DTYPES)]

Tree = tuple[tuple[Any, ...], dict[str, Any]]
Form = Callable[[magneto.Graph], magneto.Graph]


def name_of(op: Any) -> str:
    return f"{op.name}.{op.variant_test_name}" if op.variant_test_name else op.name


def samples(op: Any, count: int | None) -> Iterator[tuple[Tree, bool]]:
    """Arguments, and whether the backward is asked for, too."""
    for dtype in DTYPES:
        if dtype not in op.dtypes:
            continue
        for joint in (False, True):
            if joint and not (dtype == torch.float32 and op.supports_autograd):
                continue
            for sample in itertools.islice(op.sample_inputs("cpu", dtype, requires_grad=joint), count):
                yield ((sample.input, *sample.args), dict(sample.kwargs)), joint


def tensors_of(tree: Any) -> list[Tensor]:
    """The different tensors, in order."""
    return list({id(leaf): leaf for leaf in pytree.tree_leaves(tree) if isinstance(leaf, Tensor)}.values())


def aliases(outputs: list[Tensor], arguments: list[Tensor]) -> list[Any]:
    """For each output: which tensor it is, whose memory it uses, and where."""
    tensors = [*arguments, *outputs]
    objects = [id(t) for t in tensors]
    memories = [t.untyped_storage()._cdata for t in tensors]
    return [(objects.index(id(t)), memories.index(t.untyped_storage()._cdata), t.storage_offset()) for t in outputs]


def eager(op: Any, tree: Tree, joint: bool) -> tuple[list[Tensor], list[Tensor], list[Tensor]]:
    """Outputs, gradients of the outputs, gradients of the arguments."""
    torch.manual_seed(SEED)
    outputs = [leaf for leaf in pytree.tree_leaves(op.op(*tree[0], **tree[1])) if isinstance(leaf, Tensor)]
    ends = [t for t in outputs if t.requires_grad]
    targets = [t for t in tensors_of(tree) if t.requires_grad]
    if not (joint and ends and targets):
        return outputs, [], []
    tangents = [torch.randn_like(t) for t in ends]
    found = torch.autograd.grad(ends, targets, tangents, allow_unused=True)
    return outputs, tangents, [t for t in found if t is not None]


def difference(op: Any, tree: Tree, joint: bool, live: bool, form: Form) -> str:
    """Empty, or how the graph, in that form, differs from eager. RecordError: refused."""
    theirs, ours = fresh(tree), fresh(tree)
    outputs, tangents, gradients = eager(op, theirs, joint)
    recorded = fresh(tree)
    torch.manual_seed(SEED)
    graph = form(magneto.record(op.op, *recorded[0], joint=joint, live=live, **recorded[1]))
    graph.verify()
    torch.manual_seed(SEED)
    results = graph.run([*tensors_of(ours), *tangents])
    if len(results) != len(outputs) + len(gradients):
        return f"{len(results)} results, expected {len(outputs) + len(gradients)}"
    contents = op.name not in UNDEFINED_CONTENTS
    for i, (expected, result) in enumerate(zip([*outputs, *gradients], results, strict=False)):
        if look(expected, contents) != look(result, contents):
            return f"result {i} is {look(result, False)}, expected {look(expected, False)}, or its contents differ"
    count = len(outputs)
    if (now := aliases(results[:count], tensors_of(ours))) != (was := aliases(outputs, tensors_of(theirs))):
        return f"aliases {now}, expected {was}"
    for i, (expected, result) in enumerate(zip(tensors_of(theirs), tensors_of(ours), strict=False)):
        if look(expected) != look(result):
            return f"argument {i} was changed in another way"
    return ""


def reason_of(error: magneto.RecordError) -> str:
    return re.sub(r",? at \S+:\d+ in .*", "", str(error), flags=re.DOTALL)


def as_recorded(graph: magneto.Graph) -> magneto.Graph:
    return graph


def sweep(
    op: Any, live: bool, count: int | None, form: Form = as_recorded
) -> tuple[list[str], collections.Counter[str], int]:
    """The differences, the refusals by reason, and how many samples were recorded."""
    wrong, refused, recorded = [], collections.Counter(), 0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for tree, joint in samples(op, count):
            try:
                eager(op, fresh(tree), joint)
            except (RuntimeError, NotImplementedError):
                continue  # torch's sample is torch's to mend
            try:
                found = difference(op, tree, joint, live, form)
            except magneto.RecordError as error:
                refused[reason_of(error)] += 1
                continue
            if found:
                wrong.append(f"{'joint ' if joint else ''}{tree}: {found}")
            else:
                recorded += 1
    return wrong, refused, recorded


@functools.cache
def stated() -> dict[tuple[str, str], set[str]]:
    reasons: dict[tuple[str, str], set[str]] = collections.defaultdict(set)
    for line in REFUSALS.read_text().splitlines():
        if line and not line.startswith("#"):
            name, mode, reason = (part.strip() for part in line.split("|"))
            reasons[name, mode].add(reason)
    return reasons


MODES = {"trace": False, "live": True}


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("op", OPS, ids=name_of)
def test_samples_replay_exactly_or_are_refused_for_the_stated_reason(op, mode, request):
    full = request.config.getoption("--full")
    wrong, refused, _ = sweep(op, MODES[mode], None if full else 1)
    assert not wrong
    reasons = stated()[name_of(op), mode] - {NEVER}
    assert set(refused) == reasons if full else set(refused) <= reasons


@pytest.mark.parametrize("mode", MODES)
def test_nearly_all_operators_are_recorded(mode):
    never = {name for name, its_mode in stated() if its_mode == mode and NEVER in stated()[name, its_mode]}
    assert 1 - len(never) / len(OPS) >= LEAST


NEVER = "no sample is recorded"


def write() -> None:
    lines = []
    for op, (mode, live) in itertools.product(OPS, MODES.items()):
        wrong, refused, recorded = sweep(op, live, None)
        for text in wrong:
            print(f"WRONG {name_of(op)} {mode}: {text[:300]}", flush=True)
        lines += [f"{name_of(op)} | {mode} | {reason}" for reason in sorted(refused)]
        if not recorded:
            lines.append(f"{name_of(op)} | {mode} | {NEVER}")
    REFUSALS.write_text(
        "# Why samples of torch's operators are refused: operator | mode | reason.\n" + "\n".join(lines) + "\n"
    )


if __name__ == "__main__" and sys.argv[1:] == ["--write"]:
    write()
