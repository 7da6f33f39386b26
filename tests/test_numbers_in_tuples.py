"""Numbers in tuples that are passed: left open by the second capture, wherever the tuple goes."""

from __future__ import annotations

import queue
import types
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from torch.nn import functional as F
from zoo import compare, harness

pytestmark = pytest.mark.usefixtures("fresh")

CALLS = 8
X = torch.arange(24.0).reshape(4, 6)
kept = types.SimpleNamespace()
box: queue.SimpleQueue[Any] = queue.SimpleQueue()


def unpacks(x, t):
    a, b = t
    return x.sum() * a - b, a + b


def from_a_closure(x, t):
    return x * (lambda: t[0])()


def keeps(x, t):
    kept.t = t
    return x * t[0] + kept.t[1]


def cuts(x, t):
    box.put(t)
    other = box.get()
    return x * t[0] + other[1], other is t


def changing(i):
    return X, (i, 2)


# What is called, its arguments in each call, and after how many captures it is compiled for all; None: it pins them.
CASES: dict[str, tuple[Callable[..., Any], Callable[[int], Any], int | None]] = {
    "item": (lambda x, t: x * t[0] + t[1], changing, 2),
    "negative_item": (lambda x, t: x * t[-2], changing, 2),
    "two_numbers": (unpacks, lambda i: (X, (i, 2 * i)), 2),
    "float": (lambda x, t: x * t[0], lambda i: (X, (i / 10, 2)), 2),
    "star": (lambda x, t: (lambda a, b: x * a + b)(*t), changing, 2),
    "sizes": (lambda x, t: x.new_zeros((*t, 2)), lambda i: (X, (i + 1, 2)), 2),
    "returned": (lambda x, t: (x + t[0], t), changing, 2),
    "closure": (from_a_closure, changing, 2),
    "kept": (keeps, changing, 2),
    "branch": (lambda x, t: x * 2 if t[0] > 4 else x * t[0], changing, 3),
    "compared": (lambda x, t: x + (t == (3, 2)), changing, 3),
    "sliced": (lambda x, t: x[t[0] : t[1]], lambda i: (X, (i % 3, i)), None),
    "searched": (lambda x, t: x + 1 if 3 in t else x, changing, None),
    "greatest": (lambda x, t: x + len(t) + max(t), changing, None),
    "loop": (lambda x, t: [x * number for number in t], changing, None),
    "resized": (lambda x, t: F.interpolate(x[None, None], size=t), lambda i: (X, (i + 1, i + 3)), None),
    "text": (lambda x, t: (x, f"{t}"), changing, None),
    "key": (lambda x, t: (x, {t: 1}[t]), changing, None),
    "behind_a_cut": (cuts, changing, None),
    "twice": (lambda x, t, u: x * t[0] + u[0], lambda i: (lambda t: (X, t, t))((i, 2)), None),
    "inside_another": (lambda x, t, u: x * t[0] + u[0][0], lambda i: (lambda t: (X, t, [t]))((i, 2)), None),
    "type_that_changes": (lambda x, t: x * t[0], lambda i: (X, (i if i % 2 else i / 2, 2)), None),
    "length_that_changes": (lambda x, t: x * sum(t), lambda i: (X, (i,) * (1 + i % 3)), None),
}


@pytest.mark.parametrize("dynamic", [None, True, False])
@pytest.mark.parametrize("name", CASES)
def test_a_number_in_a_tuple_may_change(name: str, dynamic: bool | None) -> None:
    function, make, captures = CASES[name]
    compiled = magneto.compile(function, dynamic=dynamic)
    for i in (*range(1, CALLS + 1), 3):
        arguments = make(i)
        expected, actual = function(*arguments), compiled(*arguments)
        assert compare.difference(expected, actual) is None, i
    if captures and dynamic is not False:
        assert harness.stat("captures") == captures, harness.native(compiled).misses()


def test_the_tuple_that_comes_out_is_the_one_that_went_in() -> None:
    compiled = magneto.compile(lambda x, t: (x * t[0], t))
    for i in range(1, CALLS):
        given = (i, 2)
        assert compiled(X, given)[1] is given
