"""Small programs that read, change or depend on something a compiler may overlook; each runs eager and compiled.

A program is a function that builds a fresh `Case`. Its call is repeated, with a step before each call that changes the
world a little, the same way on both sides.
"""

from __future__ import annotations

import dataclasses
import types
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

CALLS = 8


def _nothing(*_: Any) -> None:
    return None


def alternating(index: int) -> tuple[Any, ...]:
    """One tensor whose values change with the call, and their sign too."""
    return ((torch.arange(6.0).reshape(2, 3) + 1) * (index + 1) * (-1 if index % 3 == 2 else 1),)


@dataclasses.dataclass
class Case:
    """What to call, with which arguments, what happens before each call, and what to look at after it."""

    call: Callable[..., Any]
    step: Callable[[int], Any] = _nothing
    inputs: Callable[[int], tuple[Any, ...]] = alternating
    observe: Callable[..., Any] = _nothing
    close: Callable[[], Any] = _nothing


PROGRAMS: dict[str, Callable[[], Case]] = {}


def program(build: Callable[[], Case]) -> Callable[[], Case]:
    PROGRAMS[build.__name__] = build
    return build


def holder(call: Callable[[Any, Tensor], Any], **values: Any) -> tuple[Any, Callable[[Tensor], Any]]:
    """An object with attributes, and a function of a tensor that reads them."""
    state = types.SimpleNamespace(**values)
    return state, lambda x: call(state, x)


def attribute_case(name: str, values: list[Any], call: Callable[[Any, Tensor], Any]) -> Case:
    """An attribute that takes one value for two calls, then the next."""
    state, function = holder(call, **{name: values[0]})
    return Case(function, lambda i: setattr(state, name, values[i // 2 % len(values)]))


def load() -> dict[str, Callable[[], Case]]:
    """Every program by its name."""
    from . import programs_reads, programs_results, programs_worlds  # noqa: F401

    return PROGRAMS
