"""Tensors: indexing with anything, in-place and out=, attributes, factories."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from .runner import Case, Feature, add, feature, numbers

ROWS = torch.tensor([2, 0])
MASK = torch.tensor([True, False, True])


def stateless(**calls: Callable[[Tensor], Any]) -> None:
    """Functions of one matrix that become one graph; after the change it is of another dtype."""
    for name, call in calls.items():
        add(name, Feature(functools.partial(Case, call)))


stateless(
    index_int=lambda x: (x[1], x[-1], x[0, 1], x[2][-1]),
    index_slices=lambda x: (x[1:], x[:-1], x[::2], x[:, 1:3], x[1:2, ::3], x[5:], x[-2:, :100]),
    index_none_and_ellipsis=lambda x: (x[None], x[..., 0], x[..., None], x[:, None, 1], x[None, ..., None, 2], x[...]),
    index_lists=lambda x: (x[[0, 2]], x[[1]], x[:, [3, 0]], x[[0, 1], [1, 2]], x[[[0, 1], [2, 0]]], x[[]]),
    index_tensors=lambda x: (
        x[ROWS],
        x[:, ROWS],
        x[ROWS, ROWS],
        x[ROWS[:, None], ROWS],
        x[torch.tensor(1)],
        x[ROWS, 1:],
    ),
    index_bools=lambda x: (x[True], x[False], x[None, True], x[True, 1], x[..., True]),
    index_ranges=lambda x: (x[range(2)], x[:, range(0, 4, 2)], x[slice(None), slice(1, 3)]),
    index_tuples=lambda x: (x[(0, 1)], x[(slice(None), 1)], x[((0, 1), (1, 2))], x[()], x.__getitem__((1, ...))),
    index_mixed=lambda x: (
        x[ROWS, None],
        x[None, ROWS, ..., 1],
        x[1, ROWS],
        x[:, None, ROWS],
        x.unsqueeze(0)[:, ROWS, :, None],
    ),
    index_numpy_like=lambda x: (x[torch.arange(3), torch.arange(3)], x.take(torch.tensor([0, 5])), x.T[::2].T),
    iteration=lambda x: [row.sum() for row in x] + [*x[0]],
    unpacking=lambda x: (lambda a, b, c: a + b - c)(*x),
    negative_steps=lambda x: (x.flip(0), x[torch.arange(2, -1, -1)], list(x)[::-1]),
    shapes=lambda x: (
        x.shape,
        x.size(),
        x.size(-1),
        x.dim(),
        x.ndim,
        x.numel(),
        len(x),
        x.stride(),
        x.shape[0] * x.shape[-1],
        x.nelement(),
        x.T.shape,
        x + x.dim(),
    ),
    kinds=lambda x: (
        x.dtype,
        x.device,
        x.layout,
        x.is_cuda,
        x.requires_grad,
        x.is_contiguous(),
        x.T.is_contiguous(),
        x.itemsize,
        x.element_size(),
        x.nbytes,
        x.is_floating_point(),
        x.is_sparse,
        x.to(x.dtype),
        x + 1,
    ),
    transposed=lambda x: (x.T, x.mT, x.H, x.mH, x.t(), x.real, x.transpose(0, 1), x.T @ x, x.adjoint()),
    complex_views=lambda x: (
        torch.complex(x, x).H,
        torch.complex(x, x).conj(),
        torch.complex(x, x).imag,
        torch.view_as_real(torch.complex(x, -x)),
        torch.complex(x, x).conj().imag,
    ),
    detached=lambda x: (x.detach() * 2, x.detach().requires_grad),
    factories=lambda x: (
        torch.zeros(2, 3),
        torch.ones(3, dtype=torch.int64),
        torch.full((2,), 1.5),
        torch.full((2,), 7),
        torch.arange(5),
        torch.arange(1, 2, 0.25),
        torch.linspace(0, 1, 4),
        torch.eye(3),
        torch.tensor([[1, 2], [3, 4]]),
        torch.tensor(1.5),
        torch.logspace(0, 1, 3),
        torch.scalar_tensor(2.0),
        torch.as_tensor([1.0, 2.0]),
        x + 1,
    ),
    factories_like=lambda x: (
        torch.zeros_like(x),
        torch.ones_like(x.T),
        torch.full_like(x, 3),
        torch.zeros_like(x, dtype=torch.int32),
        x.new_zeros(2),
        x.new_ones(1, 2),
        x.new_full((2,), 3.0),
        x.new_tensor([1, 2]),
        torch.empty_like(x).fill_(1),
        x.new_empty(3).zero_(),
        torch.empty(2, 2).copy_(x[:2, :2]),
    ),
    triangles=lambda x: (
        torch.tril_indices(3, 3),
        torch.ones(3, 3).triu(),
        torch.meshgrid(x[0], x[1], indexing="ij"),
        torch.cartesian_prod(x[0], x[1]),
    ),
    operators=lambda x: (
        x + 1,
        1 - x,
        x * x,
        x / 3,
        x // 0.3,
        x % 0.7,
        x**2,
        2**x,
        -x,
        abs(x),
        x > 0,
        (x > 0) & (x < 1),
        ~(x > 0),
        x @ x.T,
        x == x,
        x != 0,
        (x > 0) ^ (x < 1),
    ),
    integers=lambda x: (
        (x * 10).long() // 3,
        (x * 10).int() << 1,
        (x * 10).long() & 7,
        -(x * 10).long() % 4,
        (x * 10).long().bitwise_not(),
        (x * 100).to(torch.uint8),
    ),
    functions_of_several_results=lambda x: (
        x.max(0),
        x.sort(-1),
        torch.topk(x, 2),
        x.min(dim=1).values,
        torch.aminmax(x),
        x.split(2, 1),
        x.chunk(2),
        x.unbind(),
        torch.svd(x)[1],
        torch.linalg.qr(x),
        x.median(0),
        torch.broadcast_tensors(x, x[0]),
    ),
    shared_memory_of_results=lambda x: (
        x.view(-1),
        x.view(4, 3),
        x.reshape(2, 6),
        x.T.reshape(-1),
        x.expand(2, 3, 4),
        x.narrow(0, 1, 2),
        x.diagonal(),
        x.unfold(1, 2, 1),
        x.as_strided((2, 2), (1, 2)),
        x.squeeze(),
        x.flatten(),
        x.contiguous(),
        x.T.contiguous(),
    ),
    numbers_from_shapes=lambda x: x * (x.shape[0] / x.shape[1]) + int(x.shape[0] ** 0.5) + max(x.shape) - min(x.size()),
    einsum_and_friends=lambda x: (
        torch.einsum("ij,kj->ik", x, x),
        torch.tensordot(x, x, dims=([0], [0])),
        torch.bmm(x[None], x.T[None]),
        torch.baddbmm(x[None] @ x.T, x[None], x.T[None], beta=0.5),
        torch.addmm(x @ x.T, x, x.T, alpha=2),
        torch.kron(x, x),
        torch.cdist(x, x),
    ),
    where_and_masks=lambda x: (
        torch.where(x > 0, x, 0),
        x.masked_fill(x < 0, -1),
        x.clamp(min=0),
        torch.where(x > 0, 1.0, x),
        x.masked_fill(x > 0, float("-inf")).softmax(-1).nan_to_num(),
    ),
    special_values=lambda x: (
        x / 0,
        torch.log(x),
        (x * 0) / 0,
        -x * 0,
        x.fmod(0.0),
        torch.full((2,), float("nan")),
        torch.tensor([-0.0, float("inf")]),
    ),
)


# ---- in place


def _written(write: Callable[[Tensor], Any]) -> Callable[[Tensor], Any]:
    def call(x: Tensor) -> Any:
        view = x[1:]
        result = write(x)
        return result, view, x + 1

    return call


def _set_items(x: Tensor) -> None:
    x[0] = 1.5
    x[1, 2] = x[0, 0]
    x[:, 1] = x[:, 0] * 2
    x[..., -1] = torch.arange(3.0)
    x[None, 2, :2] = x[0, 2:]
    x[::2, ::2] += 1


def _set_with_lists_and_tensors(x: Tensor) -> None:
    x[[0, 2]] = x[[2, 0]]
    x[ROWS, [1, 1]] = 5
    x[:, ROWS] *= 2
    x[torch.tensor(1)] = x[0]
    x[()] = x * 2
    x[True] = x + 1
    x[:, [True, False, False, True]] = 9


def _set_with_masks(x: Tensor) -> None:
    x[x > 0.5] = 0.5
    x[MASK] = -1
    x[MASK, 0] += 3
    x[x < 0] *= -2
    x[~MASK] = 4


def _augmented(x: Tensor) -> Tensor:
    y = x
    y += 1
    y *= 2
    y -= 0.5
    y /= 3
    y %= 5
    y //= 0.5
    return y


stateless(
    set_items=_written(_set_items),
    set_with_lists_and_tensors=_written(_set_with_lists_and_tensors),
    augmented_assignment=_written(_augmented),
    in_place_methods=_written(lambda x: x.add_(1).mul_(2).clamp_(0, 3).relu_().neg_().sub_(0.5).sigmoid_()),
    in_place_of_other_forms=_written(
        lambda x: (
            x.fill_(2),
            x.zero_(),
            x.copy_(torch.arange(4.0)),
            x.index_fill_(0, ROWS, 3),
            x.scatter_(1, torch.zeros(3, 1, dtype=torch.long), 7.0),
            x.index_add_(0, ROWS, x[:2] + 1),
            x.masked_fill_(x > 5, 0),
        )[-1]
    ),
    in_place_through_a_view=_written(lambda x: (x.view(-1)[3:6].mul_(5), x.T[0].add_(1), x.diagonal().zero_())[1]),
    in_place_of_metadata=lambda x: (x.t_(), x.unsqueeze_(0), x.squeeze_(), x.transpose_(0, 1).add_(1)),
    in_place_of_a_temporary=lambda x: torch.zeros(3, 4).add_(x).mul_(2)[1:].sub_(1),
    swapped_rows=_written(lambda x: x.__setitem__(slice(0, 2), x[0:2].flip(0))),
    delete_and_reuse=lambda x: [x := x + 1, x := x * 2, x.mul_(3)][0],
)


@feature()
def out_of_an_argument() -> Case:
    def call(x: Tensor, out: Tensor) -> Any:
        found = torch.add(x, 1, out=out)
        torch.mul(found, 2, out=out)
        return found, found is out

    return Case(call, inputs=lambda i: (*numbers(i), torch.zeros(3, 4)))


@feature()
def out_that_is_resized() -> Case:
    def call(x: Tensor, out: Tensor) -> Any:
        return torch.mm(x, x.T, out=out), out.shape

    return Case(call, inputs=lambda i: (*numbers(i), torch.empty(0)))


@feature()
def out_of_several() -> Case:
    def call(x: Tensor, values: Tensor, places: Tensor) -> Any:
        torch.max(x, 0, out=(values, places))
        return values + 1, torch.sort(x, out=(x.clone(), torch.empty(0, dtype=torch.long)))

    return Case(call, inputs=lambda i: (*numbers(i), torch.zeros(4), torch.zeros(4, dtype=torch.long)))


@feature()
def out_of_a_buffer_and_of_a_view() -> Case:
    buffer = torch.zeros(6, 4)

    def call(x: Tensor) -> Any:
        torch.exp(x, out=buffer[:3])
        torch.cumsum(x, 0, out=buffer[3:])
        return buffer * 2

    def change() -> None:
        nonlocal buffer
        buffer = torch.ones(6, 4, dtype=torch.float64)

    return Case(call, change, observe=lambda: buffer)


@feature(
    hits=2,
    cuts=("the call reads the attribute 'grad' of a tensor",),
    eager="the call reads the attribute 'grad' of a tensor",
    settles=False,
)
def gradients_as_attributes() -> Case:
    weight = torch.ones(4, requires_grad=True)
    weight.grad = torch.full((4,), 2.0)

    def call(x: Tensor) -> Any:
        return (x * weight.grad if weight.grad is not None else x), x.grad is None

    return Case(call, lambda: setattr(weight, "grad", None))


@feature(
    graphs=2,
    hits=2,
    cuts=(
        "the call reads the attribute 'data' of a tensor",
        "the call reads the attribute 'grad' of a tensor",
        "the call reads the attribute 'grad' of a tensor",
    ),
    eager="the call reads the attribute 'grad' of a tensor",
)
def gradient_written_inside() -> Case:
    weight = torch.ones(4, requires_grad=True)
    weight.grad = torch.full((4,), 2.0)

    def call(x: Tensor) -> Any:
        weight.grad.add_(x[0])
        weight.data.sub_(weight.grad, alpha=0.1)
        return weight * 2

    return Case(call, lambda: weight.grad.zero_(), observe=lambda: (weight, weight.grad))


@feature(
    graphs=2,
    hits=4,
    cuts=(
        "the call reads the attribute 'grad' of a tensor",
        "the call runs setattr of 'grad', which is not understood",
    ),
    eager="the call reads the attribute 'grad' of a tensor",
)
def gradient_replaced_inside() -> Case:
    weight = torch.ones(4, requires_grad=True)

    def call(x: Tensor) -> Any:
        weight.grad = x[0] * 2
        y = weight.grad + 1
        if x.shape[0] > 3:
            weight.grad = None
        return y

    return Case(call, observe=lambda: weight.grad, later=lambda i: (torch.ones(5, 4) * i,))


@feature(
    graphs=2,
    hits=3,
    cuts=(
        "the call reads the attribute 'note' of a tensor behind a cut",
        "the call reads the attribute 'scale' of a tensor behind a cut",
        "the call runs setattr of 'note', which is not understood",
        "the call runs setattr of 'seen', which is not understood",
    ),
    eager="the call reads the attribute 'note' of a tensor behind a cut",
)
def attribute_of_a_tensor() -> Case:
    weight = torch.ones(4)
    weight.scale = 2.0

    def call(x: Tensor) -> Any:
        weight.seen = x.shape
        x.note = "seen"
        return x * weight * weight.scale, x.note

    return Case(call, lambda: setattr(weight, "scale", 3.0), observe=lambda: weight.seen)


@feature()
def power_in_place() -> Case:
    def call(x: Tensor) -> Tensor:
        x **= 2
        return x

    return Case(call)


@feature(
    graphs=3,
    hits=3,
    cuts=("_operator.getitem", "_operator.getitem"),
    eager="the work on tensors cannot be done for other sizes",
)
def set_with_masks() -> Case:
    return Case(_written(_set_with_masks))


@feature(
    hits=3,
    cuts=("the call reads the attribute 'data' of a tensor",),
    eager="the call reads the attribute 'data' of a tensor",
)
def data_read() -> Case:
    return Case(lambda x: (x.data * 2, x.data.requires_grad))


@feature(graphs=2, cuts=("setattr of 'data'",))
def data_assigned() -> Case:
    def call(x: Tensor) -> Tensor:
        x.data = x.detach() * 2
        return x + 1

    return Case(call)


@feature(
    hits=4,
    cuts=("the call reads the attribute 'is_leaf' of a tensor",),
    eager="the call reads the attribute 'is_leaf' of a tensor",
)
def leaf_asked_for() -> Case:
    return Case(lambda x: (x.is_leaf, x * 2))


@feature(graphs=2, cuts=("TensorBase.storage_offset",))
def storage_offset() -> Case:
    return Case(lambda x: (x[1:].storage_offset(), x + 1))


@feature()
def conversions() -> Case:
    other = torch.zeros(1, dtype=torch.float64)

    def call(x: Tensor) -> Any:
        made = x.to(other), x.type_as(other), x.half(), x.to("cpu"), x.to(torch.device("cpu"), torch.int32), x.float()
        return made, made[3] is x, x.to(x.dtype, copy=True), x.bfloat16().float(), x.type(torch.int8)

    def change() -> None:
        nonlocal other
        other = torch.zeros(1, dtype=torch.int16)

    return Case(call, change)


@feature(hits=4, cuts=("the call asks TensorBase.type for a value",), eager="the call asks TensorBase.type for a value")
def type_as_a_text() -> Case:
    return Case(lambda x: (x.type(), x * 2))


@feature(
    hits=3,
    cuts=(
        "the call runs TensorBase.to_sparse, which is not understood",
        "the call uses a builtin_function_or_method that an unknown function may have changed",
        "the call uses a sparse tensor",
    ),
    eager="the call uses a builtin_function_or_method that an unknown function may have changed",
)
def sparse_inside() -> Case:
    return Case(lambda x: x.to_sparse().to_dense() + 1)
