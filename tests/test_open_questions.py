"""Where sizes are open: objects that hold tensors, operators of torch's Python code, questions, loops over tensors."""

from collections import OrderedDict
from dataclasses import dataclass, fields
from typing import Any

import magneto
import pytest
import torch
from test_sizes import SIZES, captures_of, no_grad, same  # noqa: F401

pytestmark = pytest.mark.usefixtures("no_grad")

weight = torch.nn.Parameter(torch.rand(8, 4))
token = torch.nn.Parameter(torch.rand(1, 1, 4))


# ---- objects


@dataclass
class Output(OrderedDict):
    """As in transformers: a dict that fills itself from its fields."""

    last: Any = None
    hidden: Any = None

    def __post_init__(self):
        for field in fields(self):
            value = getattr(self, field.name)
            if value is not None:
                self[field.name] = value


class Pieces(list):
    def __init__(self, *tensors):
        super().__init__()
        for tensor in tensors:
            self.append(tensor * 2)


def test_a_dict_with_fields():
    def fn(x):
        out = Output(last=x + 1, hidden=(x, x * 2))
        return out["last"] - out.hidden[1].sum(0), len(out), out

    compiled = magneto.compile(fn)
    before = magneto.counters["stats"]["captures"]
    for n in SIZES:
        x = torch.rand(n, 4)
        (found, count, out), (expected, expected_count, expected_out) = compiled(x), fn(x)
        same((found, count, out.last, *out.hidden), (expected, expected_count, expected_out.last, *expected_out.hidden))
        assert type(out) is Output and list(out) == list(expected_out) and out["last"] is out.last
    assert magneto.counters["stats"]["captures"] - before == 2


def test_a_list_with_its_own_init():
    assert captures_of(lambda x: list(Pieces(x, x + 1)), [(torch.rand(n, 4),) for n in SIZES]) == 2


# ---- parameters, whose views claim to need gradients


def linear_by_hand(x):
    return x @ weight.T


def with_token(x):
    return torch.cat((token.expand(x.shape[0], -1, -1), x), 1)


@pytest.mark.parametrize("fn, shape", [(linear_by_hand, (3, 4)), (with_token, (5, 4))], ids=["linear", "token"])
def test_views_of_parameters(fn, shape):
    assert captures_of(fn, [(torch.rand(n, *shape),) for n in SIZES]) == 2


# ---- operators that torch has in Python


def raised_in_place(x):
    y = x * 1
    y **= 2
    return y, y + 1


def power_of_size(x):
    n = x.shape[0]
    return x**n, n**x, n - x, n / x, (x * 9) // n, n // (x + 1), n % (x + 1)


OPERATORS = {
    "power": lambda x: x**2,
    "reflected power": lambda x: 2**x,
    "quotient": lambda x: 1 / (x + 1),
    "difference": lambda x: 1 - x,
    "floor": lambda x: (x * 9) // 2,
    "reflected floor": lambda x: 7 // (x + 1),
    "in place": raised_in_place,
    "index": lambda x: x[torch.arange(x.shape[0]) // 2],
}


@pytest.mark.parametrize("fn", OPERATORS.values(), ids=OPERATORS)
def test_operators_of_python_are_recorded_once(fn):
    assert captures_of(fn, [(torch.rand(n, 4),) for n in (*SIZES, *SIZES)]) <= 3


def test_numbers_stay_open_through_operators_of_python():
    assert captures_of(power_of_size, [(torch.rand(n, 4),) for n in (*SIZES, *SIZES)]) <= 3


def test_numbers_stay_open_through_star_arguments():
    def inner(x, *numbers, **named):
        return x * numbers[1] + named["n"]

    def outer(*args, **named):
        return inner(*args, **named)

    def fn(x):
        return outer(x, 1, x.shape[0], n=x.shape[0] + 1), outer(x, x.shape[0], 2, n=3)

    assert captures_of(fn, [(torch.rand(n, 4),) for n in SIZES]) == 2


def test_a_dict_of_star_arguments_that_is_changed():
    def inner(x, **named):
        named["n"] = named.pop("n") + 1
        named["m"] += named["n"]
        return x * named["n"] + named["m"], named

    calls = [(torch.rand(n, 4),) for n in (*SIZES, *SIZES)]
    assert captures_of(lambda x: inner(x, n=x.shape[0], m=2), calls) <= 1 + len(SIZES)


class Reflected:
    def __init__(self, factor):
        self.factor = factor

    def __radd__(self, other):
        return other * self.factor


def test_operators_of_others():
    mine = Reflected(3)
    assert captures_of(lambda x: x + mine, [(torch.rand(n, 4),) for n in SIZES]) == 2


def test_numbers_stay_open_through_modules():
    class Inner(torch.nn.Module):
        def forward(self, x, n, *, m=1):
            return x * n + m

    inner = Inner()
    calls = [(torch.rand(n, 4),) for n in SIZES]
    assert captures_of(lambda x: inner(x, x.shape[0], m=x.shape[0] + 1), calls) == 2


def test_numbers_stay_open_behind_a_cut():
    def fn(x, m):
        n, k = x.shape
        a = x * m + k
        total = a.sum().item()
        return a * n, a + m, total, torch.zeros(m, n), torch.zeros(k), n * k

    calls = [
        (torch.rand(n, n + d), m) for n, d, m in ((3, 2, 2), (4, 0, 4), (5, 1, 6), (6, 0, 3), (7, 3, 9), (3, 4, 5))
    ]
    assert captures_of(fn, [*calls, *calls]) <= 4


# ---- questions


def branch_in_handler(x):
    try:
        if (x > 0.5).all():
            x = x * 2
    finally:
        y = x + 1
    return y


def numbers_in_handler(x):
    try:
        factor = float(x[0, 0]) if bool(x.sum() > 2) else int(x[0, 0] * 4)
    finally:
        y = x + 1
    return y * 2, factor


def item_in_handler(x):
    try:
        first = x[0].min().item()
    finally:
        y = x + 1
    return y, first


@pytest.mark.parametrize("fn", [branch_in_handler, numbers_in_handler, item_in_handler])
def test_questions_where_nothing_can_be_cut(fn):
    compiled = magneto.compile(fn)
    before = dict(magneto.counters["eager"])
    for n in (*SIZES, *SIZES):
        for x in (torch.linspace(0, 1, 4 * n).view(n, 4), torch.ones(n, 4)):
            same(compiled(x), fn(x))
    assert dict(magneto.counters["eager"]) == before
    assert not any("looks at a tensor" in reason for reason in compiled.failures())


def test_an_answer_is_asked_at_each_run():
    compiled = magneto.compile(branch_in_handler)
    for n in SIZES:
        compiled(torch.ones(n, 4))
    for n in SIZES:
        same(compiled(torch.zeros(n, 4)), torch.ones(n, 4))


def test_a_question_after_a_change():
    def fn(x):
        try:
            x.add_(1)
            if (x > 1.5).any():
                x.mul_(2)
        finally:
            y = x - 1
        return y

    compiled = magneto.compile(fn)
    for n in (*SIZES, *SIZES):
        for start in (0, 1):
            given, kept = torch.full((n, 4), float(start)), torch.full((n, 4), float(start))
            same(compiled(given), fn(kept))
            same(given, kept)


def test_in_a_tensor():
    def fn(x):
        return x + 1 if 0 in x[:, [-1, 0]] else x - 1

    compiled = magneto.compile(fn)
    for n in (*SIZES, *SIZES):
        for x in (torch.zeros(n, 4), torch.ones(n, 4)):
            same(compiled(x), fn(x))
    assert not any("looks at a tensor" in reason for reason in compiled.failures())


def test_tensors_as_keys():
    def fn(x):
        seen = set()
        for each in (weight, token, weight):
            if each in seen:
                x = x + 1
            seen.add(each)
        return x * 2, weight in {weight: 1}, token in {None: 1, "a": 2}

    assert captures_of(fn, [(torch.rand(n, 4),) for n in SIZES]) == 2


def test_a_key_with_the_hash_of_a_tensor():
    number = torch.ones(1)
    keys = {id(number)}

    def fn(x):
        return x + 1 if number in keys else x - 1  # compares the number with its contents

    compiled = magneto.compile(fn)
    for n in (*SIZES, *SIZES):
        x = torch.rand(n, 4)
        same(compiled(x), fn(x))
        number = torch.ones(1)
        keys = {id(number)}


# ---- loops


def unpacked(x):
    source, target = x
    return source + target, source.shape[0]


def starred(x):
    first, *rest = x.unbind(0)
    head, *tail = x
    return first * 2, rest, head, tail


def looped(x):
    total = 0
    for row in x:
        total = total + row * 2
    for i, row in enumerate(x):
        total = total - row * i
    return total, [row + 1 for row in x], list(x), tuple(x), [a + b for a, b in zip(x, x, strict=True)]


@pytest.mark.parametrize("fn", [unpacked, starred, looped])
def test_loops_over_tensors(fn):
    assert captures_of(fn, [(torch.rand(2, n),) for n in SIZES]) == 2


@pytest.mark.parametrize("fn", [starred, looped])
def test_the_length_of_a_loop_is_no_other(fn):
    calls = [(torch.rand(n, 4),) for n in (*SIZES, *SIZES)]
    assert captures_of(fn, calls) <= 1 + len(SIZES)


def test_unpacking_too_many():
    compiled = magneto.compile(unpacked)
    for n in (2, 2, 3, 2, 4, 1):
        x = torch.rand(n, 4)
        if n == 2:
            same(compiled(x), unpacked(x))
        else:
            with pytest.raises(ValueError, match="values to unpack"):
                compiled(x)
