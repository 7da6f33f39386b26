"""Arguments of every kind, and errors: what a call does when it is given something else, or when it cannot go on."""

from __future__ import annotations

import types
from typing import Any

import torch
from torch import Tensor

from .runner import BEFORE, Case, feature, left_to_python, numbers


@feature()
def arguments_that_share_memory() -> Case:
    def parts(i: int, start: int) -> tuple[Tensor, Tensor]:
        base = torch.arange(8.0) + i
        return base, base[start::2]

    def call(base: Tensor, part: Tensor) -> Any:
        part.add_(10)
        base.mul_(2)
        return base + 1, part

    return Case(call, inputs=lambda i: parts(i, 0), later=lambda i: parts(i, 1))


@feature()
def one_argument_given_twice() -> Case:
    def call(x: Tensor, y: Tensor) -> Any:
        x.add_(1)
        return x * y, x is y

    return Case(call, inputs=lambda i: numbers(i) * 2, later=lambda i: numbers(i) + numbers(i))


@feature()
def strided_arguments() -> Case:
    def call(x: Tensor) -> Any:
        return x + 1, x.stride(), x.reshape(-1), x.is_contiguous()

    return Case(call, inputs=lambda i: (numbers(i)[0].T.contiguous().T,), later=numbers)


@feature()
def conjugate_and_negative_views() -> Case:
    def views(i: int) -> tuple[Tensor, Tensor]:
        (x,) = numbers(i)
        return torch.complex(x, x + 1).conj(), torch._neg_view(x)

    def call(z: Tensor, x: Tensor) -> Any:
        return z * 2, z.imag, x + 1, z.is_conj(), x.is_neg(), z

    return Case(call, inputs=views, later=lambda i: tuple(view.clone() for view in views(i)))


@feature()
def expanded_arguments() -> Case:
    def row(i: int) -> Tensor:
        return numbers(i)[0][:1].expand(3, 4)

    return Case(
        lambda x: (x * 2, x.stride(), x.contiguous()), inputs=lambda i: (row(i),), later=lambda i: (row(i) * 1,)
    )


@feature()
def inference_tensors() -> Case:
    def made(i: int) -> tuple[Tensor]:
        with torch.inference_mode():
            return (numbers(i)[0] * 1,)

    return Case(lambda x: (x * 2, x.view(-1), x.is_inference()), inputs=made, later=numbers)


@left_to_python("argument args[0] is a tensor on device meta", "<lambda>")
def meta_tensors() -> Case:
    return Case(
        lambda x: (x @ x.T, x.shape, x.device.type),
        inputs=lambda i: (torch.empty(3, 4, device="meta"),),
        later=numbers,
    )


@feature()
def nested_arguments() -> Case:
    def tree(i: int, count: int) -> tuple[Any]:
        (x,) = numbers(i)
        return ({"rows": [x + n for n in range(count)], "more": {"scale": x[0]}},)

    def call(tree: Any) -> Any:
        return {"sum": tree["rows"][0] + tree["more"]["scale"], "count": len(tree["rows"]), "same": tree["rows"]}

    return Case(call, inputs=lambda i: tree(i, 2), later=lambda i: tree(i, 1))


@feature()
def dtypes_that_change() -> Case:
    later = [torch.int64, torch.bool, torch.float16] * 3

    def call(x: Tensor) -> Any:
        return x + 1, x * 2.5, x.dtype, x.sum(), x.float().mean()

    return Case(call, later=lambda i: (numbers(i)[0].to(later[i - BEFORE]),))


@feature()
def empty_and_single() -> Case:
    later = [(1, 4), (), (2, 0)] * 3

    def call(x: Tensor) -> Any:
        return x.sum(), x + 1, x.numel(), x.shape, torch.cat([x.reshape(-1), x.reshape(-1)])

    return Case(call, inputs=lambda i: (torch.ones(0, 4),), later=lambda i: (torch.ones(later[i - BEFORE]) * i,))


@feature()
def keywords_and_defaults() -> Case:
    ones = torch.ones(4)

    def inner(x: Tensor, *more: Any, scale: Any = ones, **others: Any) -> Tensor:
        return x * scale + len(more) + len(others)

    def call(x: Tensor) -> Any:
        return inner(x), inner(x, 1, 2, scale=x, other=3), inner(*[x], **{"scale": x + 1})

    return Case(call, lambda: inner.__kwdefaults__.update(scale=torch.zeros(4)))


@feature(
    graphs=0,
    hits=0,
    eager="an operator raised an error (aten::add.Tensor)",
    python=("call",),
    settles=False,
    raises=True,
)
def error_of_an_operator() -> Case:
    state, told = types.SimpleNamespace(width=3), []

    def call(x: Tensor) -> Tensor:
        told.append("called")
        x.add_(1)
        return x + torch.ones(state.width)

    return Case(call, lambda: setattr(state, "width", 4), observe=lambda: list(told))


@feature(settles=False)
def error_between_writes() -> Case:
    state, buffer, told = types.SimpleNamespace(row=1), torch.zeros(3), []

    def call(x: Tensor) -> Tensor:
        buffer.add_(1)
        told.append("before")
        y = x[state.row]
        buffer.add_(y[0].detach())
        told.append("behind")
        return y * 2

    return Case(call, lambda: setattr(state, "row", 7), observe=lambda: (buffer, list(told)))


@feature(
    hits=4,
    cuts=("an operator raised an error (aten::add.Tensor)",),
    eager="an operator raised an error (aten::add.Tensor)",
)
def error_that_is_caught() -> Case:
    state = types.SimpleNamespace(width=3)

    def call(x: Tensor) -> Any:
        try:
            return x + torch.ones(state.width)
        except RuntimeError as error:
            return x * 2, str(error)

    return Case(call, lambda: setattr(state, "width", 4))
