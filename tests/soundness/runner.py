"""How a program of this folder is registered, run and compared."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import magneto
import torch
from zoo import compare

CALLS = 6


def base() -> torch.Tensor:
    """The tensor most programs are called with: always equal, never the same object."""
    return torch.arange(4.0) + 1


def _nothing(*_: Any) -> None:
    return None


@dataclass
class Case:
    """What to call, what changes before each call, with which arguments, and what to look at afterwards."""

    call: Callable[..., Any]
    step: Callable[[int], Any] = _nothing
    inputs: Callable[[int], tuple[Any, ...]] = lambda index: (base(),)
    observe: Callable[[], Any] = _nothing
    close: Callable[[], Any] = _nothing


@dataclass
class Program:
    build: Callable[[], Case]
    grad: bool  # runs with grad mode on


PROGRAMS: dict[str, Program] = {}


def program(grad: bool = False) -> Callable[[Callable[[], Case]], Callable[[], Case]]:
    """Registers a program."""

    def register(build: Callable[[], Case]) -> Callable[[], Case]:
        assert build.__name__ not in PROGRAMS, f"two programs are called {build.__name__}"
        PROGRAMS[build.__name__] = Program(build, grad)
        return build

    return register


Wrap = Callable[[Callable[..., Any]], Callable[..., Any]]


def eager(call: Callable[..., Any]) -> Callable[..., Any]:
    return call


def compiled(call: Callable[..., Any]) -> Callable[..., Any]:
    return magneto.compile(call)


def frozen(call: Callable[..., Any]) -> Callable[..., Any]:
    """What a compiler that ignores everything would give: from the second call on, the first result again."""
    first: list[Any] = []

    def again(*args: Any) -> Any:
        if not first:
            first.append(call(*args))
        return first[0]

    return again


class Side:
    """A program of one's own, called in one way."""

    def __init__(self, entry: Program, wrap: Wrap) -> None:
        self.grad = entry.grad
        self.case = entry.build()
        self.call = wrap(self.case.call)

    def run(self, index: int) -> tuple[compare.Outcome, Any]:
        with torch.set_grad_enabled(self.grad):
            self.case.step(index)
            return compare.outcome(self.call, self.case.inputs(index), {}, None), self.case.observe()


def difference(name: str, one: Wrap, other: Wrap) -> str | None:
    """Runs a program in two ways, in step; says where they first differ, or None.

    Nothing is copied before it is compared: copying a tensor leaves a mark on it that guards may notice.
    """
    entry = PROGRAMS[name]
    with torch.set_grad_enabled(entry.grad):
        sides = [Side(entry, one), Side(entry, other)]
    try:
        for index in range(CALLS):
            (expected, expected_state), (actual, actual_state) = (side.run(index) for side in sides)
            if found := compare.outcome_difference(expected, actual):
                return f"call {index}: {found}"
            if found := compare.difference(expected_state, actual_state):
                return f"after call {index}: {found}"
    finally:
        for side in sides:
            side.case.close()
    return None
