"""Floats that change from call to call, a rate or a scale: tensors are computed with them without a recapture."""

import math
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from test_sizes import no_grad, same  # noqa: F401
from torch.nn import functional as F

pytestmark = pytest.mark.usefixtures("no_grad")

RATES = (0.1, 0.25, 1e-3, 7.5, -0.3, 1e30, 1e-30)
SPECIAL = (0.1, 0.2, 0.0, -0.0, 1.0, -1.0, 2.0, 0.5, 3.0, math.inf, -math.inf, math.nan, 1.0, 0.3)


def alike(found: Any, expected: Any) -> None:
    """Bit by bit: -0.0 is not 0.0, and a NaN is one."""
    assert type(found) is type(expected)
    if isinstance(found, torch.Tensor):
        assert found.dtype == expected.dtype and found.shape == expected.shape
        assert torch.equal(found.nan_to_num(7.25), expected.nan_to_num(7.25))
        assert torch.equal(found.isnan(), expected.isnan())
        if found.is_floating_point():
            assert torch.equal(found.signbit() & ~found.isnan(), expected.signbit() & ~expected.isnan())
    elif isinstance(found, (tuple, list)):
        for one, other in zip(found, expected, strict=True):
            alike(one, other)
    elif isinstance(found, float):
        assert repr(found) == repr(expected)
    else:
        assert found == expected


def captures_of(fn: Callable[..., Any], numbers: Any, make: Callable[[], torch.Tensor], **options: Any) -> int:
    compiled = magneto.compile(fn, **options)
    before = magneto.counters["stats"]["captures"]
    for number in numbers:
        given, kept = make(), make()
        alike(compiled(given, number), fn(kept, number))
        alike(given, kept)
    return magneto.counters["stats"]["captures"] - before


def vector() -> torch.Tensor:
    return torch.linspace(-2, 2, 9)


def scaled(x, s):
    return x * s


def stepped(x, s):
    g = x + 1
    x.add_(g, alpha=-s)
    return x


def moments(x, s):
    return torch.addcmul(x, x, x + 1, value=s), torch.addcdiv(x, x, x + 9, value=s), x.lerp(x + 1, s)


def filled(x, s):
    return torch.full((2, 2), s), torch.full_like(x, s), x.new_full((3,), s), x.masked_fill(x > 0, s)


def computed(x, s):
    rate = s * 0.9**3 + 1
    return x * rate, x - rate / 2, rate


def compared(x, s):
    return x > s, x == s, x.clamp(max=s), x.clamp(min=s)


def divided(x, s):
    return x / s, s / (x + 5), s - x, x - s, s * x, s + x, x // s


def sized(x, s):
    return x * (s / x.shape[0]), s * x.numel()


def keyword(x, s):
    return inner(x, rate=s), inner(x, s)


def inner(x, rate=1.0):
    return x * rate


FUNCTIONS = [scaled, stepped, moments, filled, computed, compared, divided, sized, keyword]


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_a_float_that_changes_is_captured_twice(fn):
    assert captures_of(fn, (*RATES, *RATES), vector) == 2


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_dynamic_captures_once(fn):
    assert captures_of(fn, (*RATES, *RATES), vector, dynamic=True) == 1


@pytest.mark.parametrize("fn", FUNCTIONS)
def test_special_values(fn):
    captures_of(fn, (*SPECIAL, *SPECIAL), vector)


DTYPES = [torch.float64, torch.float16, torch.bfloat16, torch.int64, torch.int8, torch.bool, torch.complex64]


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("rank", [0, 1])
def test_dtypes(dtype, rank):
    def make():
        return torch.tensor([3, 1, 0, 2]).to(dtype) if rank else torch.tensor(3).to(dtype)

    def fn(x, s):
        return x * s, s * x, x + s, x / s

    captures_of(fn, (0.1, 0.2, 257.3, 1e-3, 65519.0, 0.1), make)


def test_a_half_default():
    torch.set_default_dtype(torch.bfloat16)
    try:
        captures_of(scaled, RATES[:5], lambda: torch.arange(5))
        captures_of(filled, RATES[:5], lambda: torch.arange(5))
    finally:
        torch.set_default_dtype(torch.float32)


@pytest.mark.parametrize("base", [0.5, 2.0])
def test_powers_are_those_of_the_number(base):
    def fn(x, s):
        return x**s, x.pow(s), torch.pow(s, x), (x + 3).pow_(s)

    captures_of(fn, (base, 3.0, 2.0, 0.5, -0.5, 0.0, 1.0, -1.0, -2.0, 1.5, 2.0, math.inf, math.nan), vector)


def test_ints_floats_and_bools_are_not_each_other():
    def fn(x, s):
        return x * s, x + s, type(s)

    captures_of(fn, (0.5, 0.25, 1.0, 1, True, 2, 2.0, False, 0, 0.0, 3, 0.75), lambda: torch.arange(4))


def test_a_float_that_decides():
    def fn(x, s):
        return x + 1 if s > 0.5 else x * s

    assert captures_of(fn, (0.1, 0.2, 0.7, 0.9, 0.3, 0.8, math.nan, math.nan), vector) <= 4


def test_equal_numbers_that_are_not_the_same():
    def fn(x, s):
        return x * s if s == 0 else x + s

    captures_of(fn, (0.0, -0.0, 0.0, 1.0, -0.0, 2.0, 0.0), vector)


def test_powers_of_numbers_that_python_refuses():
    def fn(x, s):
        return x * (x.shape[0] / 4 - s) ** 0.5

    compiled = magneto.compile(fn)
    for n, s in ((8, 0.5), (8, 0.25), (12, 0.5), (8, 3.5), (12, 4.0), (8, 2.0)):
        x = torch.rand(n)
        alike(compiled(x, s), fn(x, s))  # sometimes a complex number


def test_a_division_by_zero():
    def fn(x, s):
        return x * (x.shape[0] / s)

    compiled = magneto.compile(fn)
    for s in (0.5, 0.25, 0.0, 2.0, -0.0):
        x = torch.rand(4)
        if s:
            alike(compiled(x, s), fn(x, s))
        else:
            with pytest.raises(ZeroDivisionError):
                compiled(x, s)


def test_errors_are_eagers():
    def fn(x, s):
        return F.dropout(x, s)

    compiled = magneto.compile(fn)
    for s in (0.1, 0.2, 0.3, 1.5, 0.0, 1.0, -1.0, math.nan):
        x = torch.rand(4)
        torch.manual_seed(0)
        try:
            expected = fn(x, s)
        except (RuntimeError, ValueError) as error:
            with pytest.raises(type(error)):
                compiled(x, s)
        else:
            torch.manual_seed(0)
            alike(compiled(x, s), expected)


def test_sizes_from_floats():
    def fn(x, s):
        return torch.arange(0, 4, s), F.interpolate(x[None, None], scale_factor=s), torch.linspace(0, s, 5)

    compiled = magneto.compile(fn)
    for s in (0.5, 2.0, 1.5, 3.0, 0.75):
        x = torch.rand(8)
        alike(compiled(x, s), fn(x, s))


def test_contents_made_from_an_open_float():
    def fn(x, s):
        return x + 1 if torch.full((), s).item() > 0.5 else x - 1

    compiled = magneto.compile(fn)
    for s in (0.1, 0.2, 0.7, 0.3, 0.9):
        x = torch.rand(4)
        alike(compiled(x, s), fn(x, s))


class Optimiser:
    def __init__(self):
        self.rate = 0.1
        self.steps = 0

    def step(self, x, g):
        self.steps += 1
        x.add_(g, alpha=-self.rate / (1 - 0.9**self.steps))
        return x


def test_a_rate_that_an_object_holds():
    ours, theirs = Optimiser(), Optimiser()
    compiled = magneto.compile(ours.step)
    x, y, g = torch.ones(3), torch.ones(3), torch.rand(3)
    before = magneto.counters["stats"]["captures"]
    for i in range(12):
        ours.rate = theirs.rate = 0.5 * 0.7**i
        compiled(x, g)
        theirs.step(y, g)
        alike(x, y)
        assert ours.steps == theirs.steps
    assert magneto.counters["stats"]["captures"] - before <= 4


class Module(torch.nn.Module):
    def forward(self, x, scale=1.0):
        return x * scale


def test_a_module_that_is_given_a_float():
    module = Module()
    compiled = magneto.compile(module)
    for s in (*RATES, *RATES):
        x = vector()
        alike(compiled(x, s), module(x, s))
        alike(compiled(x, scale=s), module(x, scale=s))


def test_backends_are_given_floats():
    given = []

    def backend(module, inputs):
        given.append(module)
        return module.forward

    compiled = magneto.compile(computed, backend=backend)
    for s in RATES:
        x = vector()
        alike(compiled(x, s), computed(x, s))
    assert len(given) == 2


def test_sizes_and_floats_together():
    compiled = magneto.compile(sized)
    before = magneto.counters["stats"]["captures"]
    for n, s in zip((3, 5, 7, 4, 9), RATES, strict=False):
        x = torch.rand(n)
        same(compiled(x, s), sized(x, s))
    assert magneto.counters["stats"]["captures"] - before <= 3
