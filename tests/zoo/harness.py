"""What the tests on the zoo share: compiling, looking inside a compiled function, and counting."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import magneto
import torch
from torch import nn

from . import compare, models

# Small models gain nothing from more threads, and on a busy machine threads that wait for each other lose a lot.
torch.set_num_threads(1)

FULL = "--full" in sys.argv or os.environ.get("MAGNETO_TEST_FULL", "") not in ("", "0")
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
