"""Numbers in tuples that are passed: left open by the second capture, wherever the tuple goes."""

from __future__ import annotations

import collections
import queue
import random
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


# -- random functions --------------------------------------------------------------------------------------------------

EXPRESSIONS = """
t[0] | t[-1] | t[0] + u[0] | len(t) | sum(t) | max(t) | min(t + u) | t + u | t[::-1] | t[:1] | sorted(t) | list(t)
[a * 2 for a in t] | [a + b for a, b in zip(t, u)] | {t[0]: 1} | {t: 1} | str(t[0]) | f'{t}' | t == u | t is u
t[0] > 2
3 in t | t[0] in (1, 2, 3) | (lambda a, b, *r: a - b)(*t) | dict(a=t)['a'] | any(a > 3 for a in t) | [t, u][0][0]
(t, u)[1][0] | k[0] | k | n * t[0] | pair.a[0] | pair | t[0] if t[0] % 2 else u | first(t) | inner() | S.t | keep(t)
t.index(u[0]) if u[0] in t else -1 | divmod(t[0] + 1, 3) | -t[0] | t[0] / 2 | float(t[0]) | bool(t[0]) | t * 2
x.new_zeros(abs(t[0]) % 4 + 1) | x[: t[0] % 3 + 1] | x.view(-1)[t[0] % 4] | x * t[0] | x + u[0] | x.repeat(t[0] % 3 + 1)
torch.full((2,), t[0]) | x.expand(2, *x.shape) * t[0] | x.reshape(2, -1) * len(u) | torch.arange(t[0] % 5 + 1)
"""
STATEMENTS = """
a = t[0] | a, *b = t | t = (t[0] + 1,) + t[1:] | u = t | t = u | n = t[0] | S.n = t[0] | S.t = t | L.append(t[0])
k = (t, u)
k = [t] | x = x * t[0] | x = x + u[-1] | for q in t: x = x + q | if t[0] > 3: x = x * 2 | if t[0] == u[0]: x = x - 1
a = (lambda: t[0])() | t = tuple(reversed(t)) | for i, q in enumerate(u): n = n + i * q
"""
Pair = collections.namedtuple("Pair", "a b")


def choices(text: str) -> list[str]:
    return [item.strip() for line in text.strip().splitlines() for item in line.split(" | ")]


def random_source(rng: random.Random) -> str:
    lines = [rng.choice(choices(STATEMENTS)) for _ in range(rng.randrange(3))]
    lines += ["def inner(): return t[0]", f"return x * 1.5, {rng.choice(choices(EXPRESSIONS))}"]
    return "def f(x, t, u, pair, n=1, k=(5, 6)):\n" + "".join(f"  {line}\n" for line in lines)


def make_world(source: str) -> dict[str, Any]:
    state = types.SimpleNamespace(t=(9, 9), n=0)

    def keep(t: Any) -> Any:
        state.t = t
        return t[0]

    space = {"torch": torch, "S": state, "L": [], "keep": keep, "first": lambda t: (t[0], len(t))}
    exec(source, space)
    return space


def random_arguments(rng: random.Random, is_aliased: bool, is_nested: bool) -> Any:
    def number() -> Any:
        return rng.randrange(-3, 9) if rng.random() < 0.96 else 0.5 * rng.randrange(8)

    t = number(), number()
    u = t if is_aliased else tuple(number() for _ in range(3 if rng.random() < 0.05 else 2))
    return torch.arange(4.0) + rng.randrange(3), t, u, Pair(t if is_nested else (1, 2), 3)


def outcome(function: Any, arguments: Any) -> Any:
    try:
        return function(*arguments)
    except Exception as error:
        return type(error), str(error).splitlines()[0]


@pytest.mark.parametrize("batch", range(10))
def test_random_functions_of_tuples_do_what_they_do_in_eager(batch: int) -> None:
    for seed in range(40 * batch, 40 * (batch + 1)):
        rng = random.Random(seed)
        source = random_source(rng)
        aliasing = rng.random() < 0.25, rng.random() < 0.25
        eager, ours = make_world(source), make_world(source)
        compiled = magneto.compile(ours["f"], dynamic=rng.choice([None, None, True]))
        for call in range(8):
            state = rng.getstate()
            expected = outcome(eager["f"], random_arguments(rng, *aliasing))
            rng.setstate(state)
            actual = outcome(compiled, random_arguments(rng, *aliasing))
            found = compare.difference((expected, vars(eager["S"]), eager["L"]), (actual, vars(ours["S"]), ours["L"]))
            assert found is None, f"seed {seed}, call {call}: {found}\n{source}"
