"""What the tests on the zoo share: compiling, looking inside a compiled function, and counting."""

from __future__ import annotations

import inspect
import os
import re
import sys
import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import magneto
import torch
from torch import nn

from . import compare, models

# Small models gain nothing from more threads, and on a busy machine threads that wait for each other lose a lot.
torch.set_num_threads(1)

FULL = bool(os.environ.get("MAGNETO_TEST_FULL"))  # conftest.py says so, for --full
# Models that most tests try; with FULL they try the whole zoo.
_SAMPLE = ("mlp", "resnet", "transformer_encoder", "bert", "gpt2", "llama", "vit")


def sample() -> list[str]:
    """The models for tests that are too slow for the whole zoo."""
    return [name for name in models.names() if FULL or name in _SAMPLE]


def unsupported() -> str:
    """Why nothing can be captured here, or an empty string."""
    return magneto._C.supported()


def native(compiled: Any) -> Any:
    """The native compiled function behind whatever `magneto.compile` returned."""
    kind = magneto._C.CompiledFunction
    if isinstance(compiled, kind):
        return compiled
    # `vars` also finds what a wrapper module hides from attribute access.
    for value in vars(compiled).values():
        if isinstance(value, kind):
            return value
    raise AssertionError(f"no compiled function inside {type(compiled).__qualname__}")


def state(compiled: Any) -> str:
    """`new`, `compiled` or `eager`."""
    return native(compiled).state()


def why_eager(compiled: Any) -> str:
    """The reasons why a function is not compiled, in one line."""
    return "; ".join(native(compiled).failures()) or "no reason on record"


def stat(name: str) -> int:
    """One of the counters of `magneto.counters["stats"]`, zero if nothing was counted."""
    return dict(magneto._C.counters().get("stats", {})).get(name, 0)


def shortened(reason: str) -> str:
    """A reason whose place begins at the package or at the zoo, the same on every machine."""
    return re.sub(r"/\S*/(site-packages/|lib/python3\.\d+/|(?=zoo/))", "", reason)


@dataclass(frozen=True)
class Report:
    """What became of a compiled function."""

    state: str
    graphs: int  # of the newest program
    captures: int  # in the last calls, as are hits and exits
    hits: int
    exits: int
    python: list[str]  # `forward` functions that Python ran all the same
    cuts: dict[str, int]
    reasons: dict[str, int]  # why captures were given up
    misses: dict[str, int]  # why it was captured again

    @property
    def outcome(self) -> str:
        """In one or two words: `steady` if the last calls ran nothing but what was compiled."""
        if self.state != "compiled":
            return "not called" if self.state == "new" else "eager"
        if self.captures:
            return "captured again"
        return "left to CPython" if self.exits or self.python else "steady" if self.hits else "eager by now"

    @property
    def why(self) -> list[str]:
        """What stands behind the outcome."""
        return list({**self.reasons, **(self.misses if self.captures or not self.hits else {}), **self.cuts})


def forwards_run(function: Any, call: Callable[[], Any]) -> list[str]:
    """The `forward` functions that Python itself runs in a call, inside what was compiled."""
    seen = []
    inner = inspect.unwrap(function)
    code = getattr(inner, "__func__", inner).__code__

    def profile(frame: types.FrameType, event: str, argument: Any) -> None:
        if event != "call" or frame.f_code.co_name != "forward":
            return
        caller: types.FrameType | None = frame
        while caller and caller.f_code is not code:
            caller = caller.f_back
        if caller:
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return seen


def report(compiled: Any, call: Callable[[], Any]) -> Report:
    """Look into a compiled function while it is called once or twice more."""
    names = ("captures", "hits", "exits")
    before = [stat(name) for name in names]
    call()
    captures, hits, exits = (stat(name) - old for name, old in zip(names, before, strict=True))
    function = native(compiled)
    variants = function.variants()

    def short(reasons: dict[str, int]) -> dict[str, int]:
        return {shortened(reason): count for reason, count in reasons.items()}

    return Report(
        state=function.state(),
        graphs=len(variants[0]["graphs"]) if variants else 0,
        captures=captures,
        hits=hits,
        exits=exits,
        python=forwards_run(function, call) if hits and not (captures or exits) else [],
        cuts=short(function.breaks()),
        reasons=short(function.failures()),
        misses=short(function.misses()),
    )


class Pair:
    """One callable, eager and compiled, checked against each other call by call."""

    def __init__(self, function: Callable[..., Any], module: nn.Module | None = None) -> None:
        self.eager = function
        self.module = module if module is not None else function if isinstance(function, nn.Module) else None
        self.compiled = magneto.compile(function)

    def check(self, inputs: Callable[[], tuple[tuple[Any, ...], dict[str, Any]]], what: str = "") -> compare.Outcome:
        """Call both on their own copies of the inputs; everything the caller can see must be equal."""
        args, kwargs = inputs()
        expected = compare.outcome(self.eager, args, kwargs, self.module)
        args, kwargs = inputs()
        actual = compare.outcome(self.compiled, args, kwargs, self.module)
        found = compare.outcome_difference(expected, actual)
        assert found is None, f"{what}: {found}" if what else found
        return expected


def deterministic(module: nn.Module, make_inputs: Callable[[int, int], Any]) -> bool:
    """Whether two eager calls give the same bits (a model that does not cannot be compared)."""
    outcomes = []
    for _ in range(2):
        args, kwargs = make_inputs(0, 0)
        with torch.no_grad():
            outcomes.append(compare.outcome(module, args, kwargs, module))
    return compare.outcome_difference(*outcomes) is None
