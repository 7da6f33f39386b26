"""Programs with unusual arguments, results and parts of the language."""

from __future__ import annotations

import dataclasses
import functools
import sys
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .programs import Case, alternating, program

# Arguments


@program
def numbers_as_arguments() -> Case:
    values = [1, 1, 2, 2.0, True, -0.0, 0.0, 10**30]
    return Case(lambda x, scale: x * scale, inputs=lambda i: (*alternating(i), values[i]))


@program
def kinds_of_arguments() -> Case:
    values = [None, (1, 2), [1, 2], {"a": 1}, "text", torch.float64, slice(1), 1j]
    return Case(lambda x, value: (x + 1, value, type(value).__name__), inputs=lambda i: (*alternating(i), values[i]))


@program
def shapes_dtypes_and_strides() -> Case:
    def inputs(i: int) -> tuple[Any, ...]:
        x = torch.arange(12.0).reshape(3, 4)
        return ([x, x.t(), x[::2], x.double(), x.int(), x[:, 1:3], x.reshape(2, 6), x[None]][i],)

    return Case(lambda x: (x.reshape(-1) * 2, x.contiguous(), x + x, x.stride()), inputs=inputs)


@program
def one_tensor_given_twice() -> Case:
    def inputs(i: int) -> tuple[Any, ...]:
        x, y = torch.ones(2, 3), torch.ones(2, 3)
        return [(x, y), (x, x), (x, x.view(2, 3)), (x, y)][i // 2]

    def call(x: Tensor, y: Tensor) -> Tensor:
        x.add_(1)
        return y * 2 if x is y else y * 3

    return Case(call, inputs=inputs)


@program
def overlapping_views_as_arguments() -> Case:
    def inputs(i: int) -> tuple[Any, ...]:
        base = torch.arange(8.0)
        return (base[:4], base[2:6] if i % 2 else base[4:])

    def call(x: Tensor, y: Tensor) -> Tensor:
        x.mul_(2)
        return y + 1

    return Case(call, inputs=inputs)


class Mine(torch.Tensor):
    """A tensor subclass of a user."""


@program
def parameters_and_subclasses_as_arguments() -> Case:
    def inputs(i: int) -> tuple[Any, ...]:
        x = torch.ones(2, 3) * i
        return ([x, nn.Parameter(x), x.as_subclass(Mine), x][i % 4],)

    return Case(lambda x: (x * 2, type(x).__name__), inputs=inputs)


@program
def arguments_that_need_gradients() -> Case:
    return Case(
        lambda x: x * 2 if x.requires_grad else x * 3,
        inputs=lambda i: (torch.ones(2, 3).requires_grad_(i % 3 == 1),),
    )


@program
def special_tensors() -> Case:
    def inputs(i: int) -> tuple[Any, ...]:
        x = torch.ones(2, 3)
        z = torch.complex(x, x)
        return ([x, x.to_sparse(), z, z.conj(), z.conj().imag, torch.empty(0, 3), torch.tensor(2.0), x.to("meta")][i],)

    return Case(lambda x: (x * 2, x.dim()), inputs=inputs)


@program
def nested_containers_as_arguments() -> Case:
    def inputs(i: int) -> tuple[Any, ...]:
        x = torch.full((2,), float(i))
        return ({"a": [x, (x + 1, None)], "b": {"c": x * 2}} if i < 5 else {"a": [x], "b": {}},)

    def call(tree: Any) -> Any:
        return {key: sum(1 for _ in value) for key, value in tree.items()}, tree["a"][0] * 2

    return Case(call, inputs=inputs)


@program
def keyword_order_and_starred_arguments() -> Case:
    def call(*args: Tensor, **kwargs: Tensor) -> Any:
        return [a + 1 for a in args], {key: value * 2 for key, value in kwargs.items()}

    def outer(x: Tensor) -> Any:
        return call(x, x + 1, b=x, a=x * 3), call(**{"z": x, "y": x}), call(*[x] * 3)

    return Case(outer)


# Results


@dataclasses.dataclass
class Pair:
    """A result class of a user."""

    left: Tensor
    right: Any = None
    notes: list[str] = dataclasses.field(default_factory=list)


class Point(NamedTuple):
    """A named tuple of a user."""

    x: Tensor
    y: Any


@program
def nested_results() -> Case:
    def call(x: Tensor) -> Any:
        return {"a": (x + 1, [x * 2, None]), "b": Pair(x, Point(x, 3), ["hi"]), 3: x.shape, "d": x.dtype, "t": "text"}

    return Case(call)


@program
def aliased_results() -> Case:
    def call(x: Tensor) -> Any:
        y = x + 1
        return y, y, y.view(-1), y[0], x, x.t(), x.detach(), y.expand(2, 2, 3)

    return Case(call)


@program
def result_that_is_state() -> Case:
    weight = torch.ones(3)
    items: list[Any] = [weight]
    return Case(lambda x: (weight, items, x * 2), observe=lambda result: (result[0] is weight, result[1] is items))


@program
def result_that_is_an_argument() -> Case:
    given: dict[str, Any] = {}

    def inputs(i: int) -> tuple[Any, ...]:
        given["args"] = ([torch.ones(2) * i], {"a": 1})
        return given["args"]

    return Case(
        lambda items, table: (items, table, items[0] + 1),
        inputs=inputs,
        observe=lambda result: (result[0] is given["args"][0], result[1] is given["args"][1]),
    )


@program
def result_that_the_caller_changes() -> Case:
    """A constant result must be a new object for each call."""
    kept: list[Any] = []

    def observe(result: Any) -> Any:
        result["list"].append("changed by the caller")
        result["tensor"].add_(100)
        kept.append(result)
        return len(result["list"])

    return Case(lambda x: {"list": [], "tensor": torch.zeros(2), "sum": x.sum()}, observe=observe)


@program
def functions_and_generators_as_results() -> Case:
    def call(x: Tensor) -> Any:
        return (lambda y: y + x), (row * 2 for row in x)

    return Case(
        lambda x: call(x), observe=lambda result: (result[0](torch.ones(2, 3)), list(result[1])) if result else None
    )


@program
def no_tensor_at_all() -> Case:
    return Case(lambda a, b: a * b, inputs=lambda i: (i, i + 1))


@program
def no_result() -> Case:
    return Case(lambda x: None)


@program
def results_without_work() -> Case:
    return Case(lambda x: x)


@program
def modules_made_inside() -> Case:
    def call(x: Tensor) -> Tensor:
        layer = nn.Linear(3, 2)
        return layer(x)

    return Case(call)


@program
def gradients_taken_inside() -> Case:
    def call(x: Tensor) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            return torch.autograd.grad((x**3).sum(), x)[0]

    return Case(call)


@program
def views_written_through() -> Case:
    def call(x: Tensor) -> Any:
        y = torch.zeros(4, 3)
        y[1:3] = x
        z = y.view(-1)
        z[0] = 9
        y[:, 0] += 1
        a, b = y.split(2)
        a.mul_(2)
        return y, b

    return Case(call)


@program
def sort_keys_and_callbacks() -> Case:
    def call(x: Tensor) -> Any:
        order = sorted(range(3), key=lambda i: -i)
        parts = list(map(lambda i: x[:, i] * i, order))  # noqa: C417
        return torch.stack(parts), functools.reduce(lambda a, b: a + b, parts), max(order, key=lambda i: i % 2)

    return Case(call)


@program
def generators_inside() -> Case:
    def pieces(x: Tensor) -> Iterator[Tensor]:
        for i in range(3):
            received = yield x[:, i] * i
            if received is not None:
                yield received
        yield from (x[0], x[1])

    def call(x: Tensor) -> Any:
        source = pieces(x)
        first = next(source)
        second = source.send(first + 1)  # type: ignore[attr-defined]
        return first, second, *source

    return Case(call)


@program
def match_statements_and_walrus() -> Case:
    def call(x: Tensor, kind: Any) -> Any:
        match kind:
            case {"scale": scale}:
                x = x * scale
            case [a, *rest] if (n := len(rest)) > 0:
                x = x + a + n
            case str() as name:
                x = getattr(x, name)()
            case _:
                x = -x
        return x

    values = [{"scale": 2}, [1, 2, 3], "abs", None, {"scale": 3}, [1], "relu", 5]
    return Case(call, inputs=lambda i: (*alternating(i), values[i]))


@program
def classes_made_inside() -> Case:
    def call(x: Tensor) -> Any:
        class Scale:
            factor = x.shape[0]

            def apply(self, y: Tensor) -> Tensor:
                return y * self.factor

        return Scale().apply(x)

    return Case(call)


@program
def async_inside() -> Case:
    async def double(x: Tensor) -> Tensor:
        return x * 2

    def call(x: Tensor) -> Tensor:
        coroutine = double(x)
        try:
            coroutine.send(None)
        except StopIteration as stop:
            return stop.value
        raise AssertionError

    return Case(call)


@program
def frames_looked_at() -> Case:
    def call(x: Tensor) -> Any:
        scale = 3
        names = sorted(sys._getframe().f_locals)
        return x * scale, names, sys._getframe().f_code.co_name, sys._getframe(1).f_code.co_name == "outcome"

    return Case(call)


@program
def locals_and_eval() -> Case:
    def call(x: Tensor) -> Any:
        scale = 3
        return eval("x * scale", globals(), {"x": x, "scale": scale}), sorted(locals())

    return Case(call)
