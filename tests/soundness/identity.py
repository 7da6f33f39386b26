"""Calls that ask which object they were given, not what is in it."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any

from torch import Tensor

from .runner import Case, base, program


def _two_tensors() -> tuple[Tensor, Tensor]:
    return base(), base()


def _alternate(one: Any, two: Any) -> Any:
    return lambda i: ((two, one)[i % 2],)


@program()
def table_keyed_by_id() -> Case:
    one, two = _two_tensors()
    table = {id(one): 10}
    return Case(lambda x: x * table.get(id(x), 1), inputs=_alternate(one, two))


@program()
def ids_collected_in_a_set() -> Case:
    one, two = _two_tensors()
    known = [one]
    return Case(lambda x: x * (10 if id(x) in {id(t) for t in known} else 1), inputs=_alternate(one, two))


@program()
def table_keyed_by_tensors() -> Case:
    one, two = _two_tensors()
    table = {one: 10}
    return Case(lambda x: x * table.get(x, 1), inputs=_alternate(one, two))


@program()
def set_of_tensors() -> Case:
    one, two = _two_tensors()
    known = {one}
    return Case(lambda x: x * (10 if x in known else 1), inputs=_alternate(one, two))


@program()
def id_of_a_list_passed_in() -> Case:
    one, two = [1], [1]
    known = {id(one)}
    return Case(
        lambda x, numbers: x * (10 if id(numbers) in known else 1), inputs=lambda i: (base(), (two, one)[i % 2])
    )


@program()
def function_cached_by_tensor() -> Case:
    kept = base()

    @functools.lru_cache
    def doubled(x: Tensor) -> Tensor:
        return x * 2

    other = base()
    return Case(lambda x: doubled(x) + 1, lambda i: kept.add_(1), lambda i: (other if i == 3 else kept,))


@program()
def operator_is() -> Case:
    one, two = _two_tensors()
    return Case(lambda x: x * (10 if operator.is_(x, one) else 1), inputs=_alternate(one, two))


@program()
def operator_is_not() -> Case:
    one, two = _two_tensors()
    return Case(lambda x: x * (10 if operator.is_not(x, one) else 1), inputs=_alternate(one, two))


@program()
def is_a_known_tensor() -> Case:
    one, two = _two_tensors()
    known = [one]
    return Case(lambda x: x * (10 if any(x is t for t in known) else 1), inputs=_alternate(one, two))


@program()
def same_list_passed_twice() -> Case:
    numbers = [1, 2]
    return Case(
        lambda x, left, right: x * 2 if left is right else x * 3,
        inputs=lambda i: (base(), numbers, numbers) if i % 2 else (base(), [1, 2], [1, 2]),
    )


@program()
def same_tensor_passed_twice() -> Case:
    kept = base()

    def call(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return (x is y), y * 2

    return Case(call, inputs=lambda i: (kept, kept) if i % 2 else (kept, base()))


@program()
def nan_in_a_tuple() -> Case:
    nan = math.nan
    return Case(
        lambda x, value: x * 2 if value in (nan,) else x * 3,
        inputs=lambda i: (base(), nan if i % 2 else float("nan")),
    )


@program()
def attribute_of_a_tensor_passed_in() -> Case:
    def inputs(i: int) -> tuple[Tensor]:
        x = base()
        if i:
            x.scale = i  # type: ignore[attr-defined]
        return (x,)

    return Case(lambda x: x * getattr(x, "scale", 1), inputs=inputs)


@program()
def presence_of_an_attribute_of_a_tensor() -> Case:
    def inputs(i: int) -> tuple[Tensor]:
        x = base()
        if i % 2:
            x.mark = True  # type: ignore[attr-defined]
        return (x,)

    return Case(lambda x: x * 2 if hasattr(x, "mark") else x * 3, inputs=inputs)


@program()
def method_shadowed_on_a_tensor() -> Case:
    def inputs(i: int) -> tuple[Tensor]:
        x = base()
        if i % 2:
            x.relu = lambda: x * 5  # type: ignore[method-assign]
        return (x,)

    return Case(lambda x: x.relu(), inputs=inputs)


@program()
def argument_handed_back() -> Case:
    lists = [[1, 2] for _ in range(9)]
    return Case(lambda x, numbers: (x * 2, numbers, x), inputs=lambda i: (base(), lists[i]))


@program()
def one_result_under_several_names() -> Case:
    def call(x: Tensor) -> Any:
        y = x * 2
        return y, [y], y[1:], y.view(2, 2), x.view(2, 2), y

    return Case(call, inputs=lambda i: (base() + i,))
