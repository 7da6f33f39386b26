"""Named tuples that are passed, another one in each call: known by their class and by what they hold."""

from __future__ import annotations

import collections
from collections.abc import Callable
from typing import Any, NamedTuple

import magneto
import pytest
import torch
from torch import Tensor, nn
from zoo import compare, harness

pytestmark = pytest.mark.usefixtures("fresh")

CALLS = 6


class Batch(NamedTuple):
    x: Tensor
    y: Tensor
    scale: float = 2.0

    @property
    def both(self) -> Tensor:
        return self.x + self.y

    def shifted(self, by: float) -> Batch:
        return Batch(self.x + by, self.y, self.scale)


class Deep(NamedTuple):
    inner: Batch
    others: tuple[Batch, ...]
    names: dict[str, Batch]


Point = collections.namedtuple("Point", "x y")


class Slotted(Point):
    __slots__ = ()

    def __getitem__(self, index):
        return super().__getitem__(1 - index)


class WithAttributes(Point):
    pass


def batch(i: int, **more: Any) -> Batch:
    return Batch(torch.full((2, 3), float(i)), torch.arange(6.0).reshape(2, 3), **more)


def unpacks(b):
    x, y, scale = b
    return x * y * scale


def takes_apart(b):
    return [part * 2 for part in b], len(b), b[0], b[-1], b[:2], *b


def asks(b):
    return isinstance(b, tuple), isinstance(b, Batch), hasattr(b, "z"), type(b).__name__, b._fields, b.x * 2


FUNCTIONS: dict[str, Callable[[Any], Any]] = {
    "attributes": lambda b: b.x * b.scale + b.y,
    "property": lambda b: b.both,
    "method": lambda b: b.shifted(1.5),
    "unpacked": unpacks,
    "taken_apart": takes_apart,
    "asked": asks,
    "returned": lambda b: (b, b.x + 1),
    "dict": lambda b: {name: value * 2 for name, value in b._asdict().items()},
    "made_anew": lambda b: Batch(*b)._asdict()["x"] * 2,
    "star": lambda b: (lambda x, y, scale: x * y)(*b),
    "in_place": lambda b: b.x.add_(b.y),
    "replaced": lambda b: b._replace(x=b.x + 1),
    "concatenated": lambda b: (*b, b.x + 1),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_named_tuple_is_compiled_by_what_it_holds(name: str) -> None:
    function = FUNCTIONS[name]
    compiled = magneto.compile(function)
    for i in range(CALLS):
        ours, theirs = batch(i), batch(i)
        assert compare.difference(function(theirs), compiled(ours)) is None
        assert compare.difference(theirs, ours) is None
    if name == "replaced":
        return  # which calls dict.pop from C code
    assert harness.stat("captures") == 1, (harness.native(compiled).misses(), harness.why_eager(compiled))
    other = batch(1, scale=3.0)
    assert compare.difference(function(batch(1, scale=3.0)), compiled(other)) is None


def test_the_named_tuple_that_comes_out_is_the_one_that_went_in() -> None:
    compiled = magneto.compile(lambda b: (b.x + 1, b))
    for i in range(CALLS):
        given = batch(i)
        assert compiled(given)[1] is given
    assert harness.stat("hits") == CALLS - 1


def test_named_tuples_inside_each_other() -> None:
    def function(d: Deep) -> Any:
        return d.inner.x + sum(other.both for other in d.others) + d.names["a"].y

    compiled = magneto.compile(function)
    for i in range(CALLS):
        given = Deep(batch(i), (batch(i + 1), batch(i + 2)), {"a": batch(i + 3)})
        assert torch.equal(compiled(given), function(given))
    assert harness.stat("captures") == 1


def test_a_change_of_the_class_is_noticed() -> None:
    space: dict[str, Any] = {"NamedTuple": NamedTuple, "Tensor": Tensor}
    exec("class Own(NamedTuple):\n  x: Tensor\n  def twice(self): return self.x * 2", space)
    Own = space["Own"]
    compiled = magneto.compile(lambda own: own.twice())
    for _ in range(3):
        assert compiled(Own(torch.ones(2))).tolist() == [2, 2]
    Own.twice = lambda self: self.x * 3
    assert compiled(Own(torch.ones(2))).tolist() == [3, 3]


@pytest.mark.parametrize("kind", [Point, Slotted, WithAttributes, tuple])
def test_tuples_of_other_classes_are_others(kind: Any) -> None:
    def function(p: Any) -> Any:
        return p[0] * 2 + p[1], type(p).__name__

    def make(kind: Any, i: int) -> Any:
        parts = torch.full((2,), float(i)), torch.ones(2)
        return kind(parts) if kind is tuple else kind(*parts)

    compiled = magneto.compile(function)
    for i in range(CALLS):
        for each in (Point, kind):
            expected, actual = (call(make(each, i)) for call in (function, compiled))
            assert compare.difference(expected, actual) is None


def test_a_packed_sequence_is_at_least_right() -> None:
    lstm = nn.LSTM(3, 4, batch_first=True)
    compiled = magneto.compile(lambda packed: lstm(packed)[0].data)
    for i in range(CALLS):
        packed = nn.utils.rnn.pack_padded_sequence(torch.full((2, 4, 3), float(i)), [4, 2 + i % 2], batch_first=True)
        assert torch.equal(compiled(packed), lstm(packed)[0].data)
