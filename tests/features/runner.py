"""How a feature is declared, called eagerly and compiled in step, changed, and compared."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any

import magneto
import torch
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from zoo import compare, harness

BEFORE, AFTER = 6, 9
_FOLDER = os.path.dirname(__file__)
# Not all versions of CPython run them as functions.
_COMPREHENSIONS = ("<listcomp>", "<dictcomp>", "<setcomp>")


def numbers(index: int) -> tuple[Any, ...]:
    """The argument of most features: a matrix of both signs, with other values in each of three calls."""
    return (torch.randn(3, 4, generator=torch.Generator().manual_seed(index % 3)),)


def _nothing() -> None:
    return None


@dataclass
class Case:
    """One side's own copy of a feature. Without `change` and `later` the arguments get another dtype."""

    call: Callable[..., Any]
    change: Callable[[], Any] | None = None  # happens before call BEFORE
    inputs: Callable[[int], tuple[Any, ...]] = numbers
    later: Callable[[int], tuple[Any, ...]] | None = None  # arguments from call BEFORE on
    observe: Callable[[], Any] = _nothing  # effects, compared after each call
    module: nn.Module | None = None  # its state is compared, too
    world: Callable[[], AbstractContextManager[Any]] = contextlib.nullcontext  # what is around each call
    close: Callable[[], Any] = _nothing


@dataclass
class Feature:
    """What is expected of the compiled form, after BEFORE calls."""

    build: Callable[[], Case]
    graphs: int = 1  # of all compiled forms together
    hits: int = BEFORE - 1  # compiled calls
    cuts: tuple[str, ...] = ()  # a text in each reason why the program is in parts, as often as there are such places
    eager: str = ""  # a text in the reason why a call, or the rest of it, was left to Python
    python: tuple[str, ...] = ()  # functions of the program that CPython still runs
    settles: bool = True  # after the change calls are compiled again, by the last one
    raises: bool = False  # the program itself, before the change
    varies: str = ""  # why the form differs from run to run, so that only the results are compared


FEATURES: dict[str, Feature] = {}


def feature(**expected: Any) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Registers a feature."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        add(build.__name__, Feature(build, **expected))
        return build

    return register


def add(name: str, entry: Feature) -> None:
    assert name not in FEATURES, f"two features are called {name}"
    FEATURES[name] = entry


def left_to_python(reason: str, *python: str) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Registers a feature that is not compiled at all."""
    return feature(graphs=0, hits=0, eager=reason, python=python, settles=False)


@contextlib.contextmanager
def functions_run(names: set[str]) -> Iterator[None]:
    """Collects the names of functions of these programs that CPython runs meanwhile."""

    def note(frame: Any, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(_FOLDER) and code.co_filename != __file__:
            names.add(code.co_name)

    sys.setprofile(note)
    try:
        yield
    finally:
        sys.setprofile(None)
        names.difference_update(_COMPREHENSIONS)


def _to_double(value: Any) -> Any:
    return value.double() if isinstance(value, Tensor) and value.dtype == torch.float32 else value


class Side:
    """A feature of one's own, called in one way."""

    def __init__(self, entry: Feature, compiled: bool, changes: bool = True, gradients: bool = False) -> None:
        torch.manual_seed(7)
        self.case = entry.build()
        self.changes = changes
        self.compiled = compiled
        self.gradients = gradients
        self.call = magneto.compile(self.case.call) if compiled else self.case.call
        self.leaves: list[Tensor] = []
        self.functions: set[str] = set()  # of the program that CPython ran in the last call before the change

    def inputs(self, index: int) -> tuple[Any, ...]:
        """The arguments of a call; where gradients are wanted they are made from leaves, and may be written."""
        self.leaves = []
        case, changed = self.case, self.changes and index >= BEFORE
        args = case.later(index) if changed and case.later else case.inputs(index)
        if changed and not (case.change or case.later):
            args = pytree.tree_map(_to_double, args)
        return pytree.tree_map(self.from_leaf, args) if self.gradients else args

    def from_leaf(self, value: Any) -> Any:
        if not isinstance(value, Tensor) or not value.is_floating_point():
            return value
        self.leaves.append(value.detach().clone().requires_grad_())
        return self.leaves[-1] * 1

    def run(self, index: int) -> tuple[compare.Outcome, Any]:
        if index == BEFORE and self.changes and self.case.change:
            self.case.change()
        args, printed = self.inputs(index), io.StringIO()
        noting = functions_run(self.functions) if self.compiled and index == BEFORE - 1 else contextlib.nullcontext()
        with self.case.world(), contextlib.redirect_stdout(printed), noting:
            seen = compare.outcome(self.call, args, {}, None)
        return seen, (printed.getvalue(), self.case.observe(), self.state(seen))

    def state(self, seen: compare.Outcome) -> Any:
        module = self.case.module
        if module is None:
            return None
        state = dict(module.state_dict())
        seen.state = {t.untyped_storage()._cdata: name for name, t in state.items() if isinstance(t, Tensor)}
        return state, [m.training for m in module.modules()]

    def backward(self, seen: compare.Outcome) -> Any:
        """The gradients that a call's results have, of its arguments and of the module."""
        results = {id(t): t for t in compare.tensors(seen.result) if t.requires_grad}
        error = ""
        try:
            for t in results.values():
                (t * t.conj()).real.sum().backward(retain_graph=True)
        except RuntimeError as raised:  # what was saved has been written to since
            error = str(raised)
        parameters = [] if self.case.module is None else list(self.case.module.parameters())
        return error, [t.grad for t in self.leaves], [p.grad for p in parameters]


def step_difference(expected: tuple[compare.Outcome, Any], actual: tuple[compare.Outcome, Any]) -> str | None:
    """Where two calls differ, or the worlds that they leave, in words, or None."""
    return compare.outcome_difference(expected[0], actual[0]) or compare.difference(expected[1], actual[1])


@contextlib.contextmanager
def sides(entry: Feature, *kinds: dict[str, bool]) -> Iterator[list[Side]]:
    """A feature built once for each kind, and closed."""
    magneto.reset()
    made = [Side(entry, **kind) for kind in kinds]
    try:
        yield made
    finally:
        for side in made:
            side.case.close()


@dataclass
class Found:
    """What the compiled form turned out to be."""

    graphs: int
    hits: int
    cuts: list[str]
    python: tuple[str, ...]
    failures: list[str]
    settles: bool = False
    raises: bool = False


def examine(entry: Feature) -> Found:
    """Runs a feature eagerly and compiled, in step; raises where they differ, and tells what was compiled."""
    with sides(entry, {"compiled": False}, {"compiled": True}) as (eager, compiled):
        native = harness.native(compiled.call)
        for index in range(BEFORE + AFTER):
            hits = harness.stat("hits")
            expected = eager.run(index)
            difference = step_difference(expected, compiled.run(index))
            assert difference is None, f"call {index}: {difference}"
            if index == BEFORE - 1:
                graphs = sum(len(variant["graphs"]) for variant in native.variants())
                python = tuple(sorted(compiled.functions))
                # To look at what runs, this call was followed; one that would have been captured was not.
                failures = [reason for reason in native.failures() if "debugger or profiler" not in reason]
                found = Found(graphs, harness.stat("hits"), list(native.breaks()), python, failures)
                found.raises = expected[0].error is not None
        found.settles = harness.stat("hits") > hits
    return found


def change_matters(entry: Feature) -> bool:
    """Whether eager calls notice the change."""
    with sides(entry, {"compiled": False}, {"compiled": False, "changes": False}) as (changed, unchanged):
        return any(step_difference(unchanged.run(index), changed.run(index)) for index in range(BEFORE + AFTER))


def gradient_difference(entry: Feature) -> str | None:
    """Where calls with arguments that need gradients differ from eager's, or the gradients do."""
    kinds = [{"compiled": kind, "gradients": True} for kind in (False, True)]
    with torch.enable_grad(), sides(entry, *kinds) as pair:
        for index in (0, 1, 2, BEFORE, BEFORE + 1):
            expected, actual = (side.run(index) for side in pair)
            if found := step_difference(expected, actual):
                return f"call {index}: {found}"
            gradients = [side.backward(seen) for side, (seen, _) in zip(pair, (expected, actual), strict=True)]
            if found := compare.difference(*gradients):
                return f"gradients of call {index}: {found}"
    return None
