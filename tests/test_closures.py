"""Numbers and tensors in the variables of closures: others in each call, without a capture for each."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from zoo import compare, harness

pytestmark = pytest.mark.usefixtures("fresh")

CALLS = 10


def counter() -> Any:
    n = 0

    def f(x):
        nonlocal n
        n += 1
        return x * n

    return f


def rate() -> Any:
    n, rate = 0, 0.5

    def f(x):
        nonlocal n, rate
        n, rate = n + 1, rate * 0.9
        return x * rate

    return f


def hidden_state() -> Any:
    h = torch.zeros(6)

    def f(x):
        nonlocal h
        h = torch.tanh(h + x)
        return h

    return f


def changed_by_an_inner_function() -> Any:
    h, k = torch.zeros(6), 0

    def step(x):
        nonlocal h, k
        h, k = h * 0.5 + x, k + 2

    def f(x):
        step(x)
        return h + k

    return f


def decides() -> Any:
    n = 0

    def f(x):
        nonlocal n
        n += 1
        return x * n if n % 2 else x - n

    return f


def is_a_size() -> Any:
    n = 3

    def f(x):
        nonlocal n
        n = n + 1 if n < 7 else 3
        return x.repeat(n).sum(0, keepdim=True)

    return f


def changes_its_type() -> Any:
    v: Any = 1

    def f(x):
        nonlocal v
        v = {int: 2.5, float: torch.ones(6), torch.Tensor: 1}[type(v)]
        return x * v

    return f


CASES: dict[str, tuple[Callable[[], Any], int | None]] = {
    "counter": (counter, 2),
    "rate": (rate, 2),
    "hidden_state": (hidden_state, 2),
    "changed_by_an_inner_function": (changed_by_an_inner_function, 2),
    "decides": (decides, 3),
    "is_a_size": (is_a_size, 3),
    "changes_its_type": (changes_its_type, None),
}


@pytest.mark.parametrize("name", CASES)
def test_a_variable_of_a_closure_may_change(name: str) -> None:
    make, captures = CASES[name]
    eager, compiled = make(), magneto.compile(make())
    for i in range(CALLS):
        x = torch.arange(6.0) + i
        assert compare.difference(eager(x), compiled(x)) is None, i
    if captures:
        assert harness.stat("captures") == captures, harness.native(compiled).misses()


def test_a_variable_that_others_set_is_seen() -> None:
    n = 1

    def f(x):
        return x * n

    compiled = magneto.compile(f)
    for i in range(CALLS):
        n = i
        assert compiled(torch.ones(2)).tolist() == [i, i]
    assert harness.stat("captures") == 2
