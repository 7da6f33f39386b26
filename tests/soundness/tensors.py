"""Calls whose tensors do something that a recording of operators may miss."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import torch
from torch import Tensor, nn

from .runner import Case, base, program

LIBRARY = torch.library.Library("magneto_soundness", "FRAGMENT")
calls: list[int] = []
factor = [1]


def calls_since_last_asked() -> int:
    count = len(calls)
    calls.clear()
    return count


def _count_and_scale(x: Tensor) -> Tensor:
    calls.append(1)
    return x * factor[0]


LIBRARY.define("above_two(Tensor x) -> Tensor")
LIBRARY.impl("above_two", lambda x: x[x > 2].clone(), "CPU")
LIBRARY.define("counted(Tensor x) -> Tensor")
LIBRARY.impl("counted", _count_and_scale, "CPU")
LIBRARY.define("composite(Tensor x) -> Tensor")
LIBRARY.impl("composite", _count_and_scale, "CompositeImplicitAutograd")
LIBRARY.define("add_one_(Tensor(a!) x) -> Tensor(a!)")
LIBRARY.impl("add_one_", lambda x: x.add_(1), "CPU")
LIBRARY.define("total(Tensor x) -> int")
LIBRARY.impl("total", lambda x: int(x.sum()), "CPU")
ops = torch.ops.magneto_soundness


@program()
def tensor_made_of_tensors() -> Case:
    return Case(lambda x: torch.tensor([x[0], x[1] * 2]) + 1, inputs=lambda i: (base() + i,))


@program()
def as_tensor_of_tensors() -> Case:
    return Case(lambda x: torch.as_tensor([[x[0]], [x.sum()]]) + 1, inputs=lambda i: (base() + i,))


@program()
def new_tensor_of_tensors() -> Case:
    return Case(lambda x: x.new_tensor([x[0], 1.0]) + 1, inputs=lambda i: (base() + i,))


@program()
def tensor_copied_from_a_tensor() -> Case:
    def call(x: Tensor) -> Tensor:
        return x.clone().detach() + torch.as_tensor(x)

    return Case(call, inputs=lambda i: (base() + i,))


def _indices(i: int) -> tuple[Tensor, Tensor]:
    return base(), torch.tensor([2 * i])


@program()
def index_error_caught() -> Case:
    def call(x: Tensor, index: Tensor) -> Tensor:
        try:
            return x[index] * 2
        except IndexError:
            return x * 0

    return Case(call, inputs=_indices)


@program()
def index_error_suppressed() -> Case:
    def call(x: Tensor, index: Tensor) -> Tensor:
        with contextlib.suppress(IndexError):
            return x[index] * 2
        return x * 0

    return Case(call, inputs=_indices)


@program()
def index_error_caught_after_a_write() -> Case:
    count = torch.zeros(1)

    def call(x: Tensor, index: Tensor) -> Tensor:
        count.add_(1)
        try:
            return x[index] * count
        except IndexError:
            return x * 0

    return Case(call, inputs=_indices, observe=lambda: count)


@program()
def write_in_a_finally() -> Case:
    level = torch.zeros(1)

    def call(x: Tensor, index: Tensor) -> Tensor:
        level.add_(1)
        try:
            return x[index] * level
        finally:
            level.sub_(1)

    return Case(call, inputs=_indices, observe=lambda: level)


@program()
def failed_factorisation_caught() -> Case:
    def call(x: Tensor) -> Tensor:
        try:
            return torch.linalg.cholesky(torch.eye(2) * x[0])
        except RuntimeError:
            return x

    return Case(call, inputs=lambda i: (base() - 2 * i,))


@program()
def error_of_an_unused_result() -> Case:
    def call(x: Tensor, index: Tensor) -> Tensor:
        x[index]
        return x * 2

    return Case(call, inputs=_indices)


@program()
def error_that_surfaces() -> Case:
    return Case(lambda x, index: x[index] * 2, inputs=_indices)


@program()
def custom_operator_with_sizes_from_contents() -> Case:
    return Case(lambda x: x * ops.above_two(x).shape[0], inputs=lambda i: (base() + i,))


@program()
def custom_operator_with_sizes_from_contents_viewed() -> Case:
    def call(x: Tensor) -> Tensor:
        found = ops.above_two(x)
        return found.view(found.shape[0], 1)

    return Case(call, inputs=lambda i: (base() + i,))


@program()
def custom_operator_with_an_effect() -> Case:
    return Case(lambda x: ops.counted(x), lambda i: factor.__setitem__(0, i), observe=calls_since_last_asked)


@program()
def custom_composite_operator() -> Case:
    return Case(lambda x: ops.composite(x), lambda i: factor.__setitem__(0, i), observe=calls_since_last_asked)


@program()
def custom_composite_operator_in_inference_mode() -> Case:
    with torch.inference_mode():
        x = base()
    return Case(
        lambda x: ops.composite(x), lambda i: factor.__setitem__(0, i), lambda i: (x,), observe=calls_since_last_asked
    )


@program()
def custom_operator_that_writes() -> Case:
    kept = base()
    return Case(lambda x: ops.add_one_(x) * 2, inputs=lambda i: (kept,), observe=lambda: kept)


@program()
def custom_operator_that_gives_a_number() -> Case:
    return Case(lambda x: x * ops.total(x), inputs=lambda i: (base() + i,))


def script(source: str) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.CompilationUnit(source).call  # type: ignore[no-untyped-call]


@program()
def script_function_that_reads_the_storage_offset() -> Case:
    scripted = script("def call(x: Tensor) -> Tensor:\n    return x.as_strided([2], [1], x.storage_offset() + 1) * 2\n")
    memory = torch.arange(40.0)
    return Case(lambda x: scripted(x) + 1, inputs=lambda i: (memory[4 * i : 4 * i + 4],))


@program()
def script_function_that_seeds() -> Case:
    scripted = script("def call(x: Tensor) -> Tensor:\n    torch.manual_seed(3)\n    return x + torch.rand(4)\n")
    return Case(lambda x: scripted(x) + torch.rand(4), lambda i: torch.rand(i))


@program()
def script_function_that_forks() -> Case:
    scripted = script(
        "def add_one(x: Tensor) -> Tensor:\n    return x.add_(1)\n"
        "def call(x: Tensor) -> Tensor:\n"
        "    future = torch.jit.fork(add_one, x)\n    torch.jit.wait(future)\n    return x * 2\n"
    )
    kept = base()
    return Case(lambda x: scripted(x) + 1, inputs=lambda i: (kept,), observe=lambda: kept)


@program()
def script_function_with_a_branch() -> Case:
    scripted = script(
        "def call(x: Tensor) -> Tensor:\n    if bool(x.sum() > 14):\n        return x * 2\n    return x * float(x[0])\n"
    )
    return Case(lambda x: scripted(x) + 1, inputs=lambda i: (base() + i,))


def _asks(call: Any) -> Case:
    return Case(call, inputs=lambda i: (base(), torch.tensor(float(i % 4))))


@program()
def number_asked_by_fill() -> Case:
    return _asks(lambda x, n: torch.full((4,), n) * x)


@program()
def number_asked_by_arange() -> Case:
    return _asks(lambda x, n: torch.arange(n + 1).sum() * x)


@program()
def number_asked_by_a_slice() -> Case:
    return _asks(lambda x, n: x[: n.int()] * 2)


@program()
def number_asked_by_an_index() -> Case:
    return _asks(lambda x, n: x[n.int()] * 2)


@program()
def number_asked_by_alpha() -> Case:
    return _asks(lambda x, n: torch.add(x, x, alpha=n))


@program()
def number_asked_by_range() -> Case:
    return _asks(lambda x, n: x * len(range(n.int())))


@program()
def number_asked_by_max() -> Case:
    return _asks(lambda x, n: x * max(n, 2))


@program()
def number_asked_by_membership() -> Case:
    return _asks(lambda x, n: x * 2 if n in [1.0, 2.0] else x)


@program()
def number_asked_by_formatting() -> Case:
    return _asks(lambda x, n: (x * 2, f"{n:.2f}", str(n), f"{x}"))


@program()
def number_written_to_an_item() -> Case:
    def call(x: Tensor, n: Tensor) -> Tensor:
        y = x.clone()
        y[0] = n
        y[1:2] = 5
        return y

    return _asks(call)


@program()
def operators_that_take_a_tensor_for_a_number() -> Case:
    return _asks(lambda x, n: (x.clamp(n), 2**n + x**n, x.masked_fill(x > 2, n), x * n, n * 2, x + n.double()))


@program()
def sizes_from_contents() -> Case:
    return Case(
        lambda x: (x * x[x > 2].shape[0], torch.unique(x % 3), x.nonzero()), inputs=lambda i: (base() * (i - 2),)
    )


@program()
def numpy_memory_behind_a_tensor() -> Case:
    array = torch.ones(4).numpy()
    tensor = torch.from_numpy(array)
    return Case(lambda x: x * tensor + torch.as_tensor(array), lambda i: array.fill(i))


@program()
def conjugated_arguments() -> Case:
    def inputs(i: int) -> tuple[Tensor]:
        x = torch.complex(base(), base() * (i + 1))
        return (x.conj() if i % 2 else x,)

    return Case(lambda x: (x.conj(), x.conj().imag, x.imag, x * 2), inputs=inputs)


@program()
def layouts_of_arguments() -> Case:
    memory = torch.arange(64.0)

    def inputs(i: int) -> tuple[Tensor]:
        layouts = (
            memory[:4].view(2, 2),
            memory[:4].view(2, 2).t(),
            memory[::2][:4].view(2, 2),
            memory[:1].expand(2, 2),
            memory[7:11].view(2, 2),
            memory[:0].view(0, 2),
        )
        return (layouts[i],)

    return Case(lambda x: (x.reshape(-1), x.contiguous(), x * 2, x.t(), x + x.t() if x.shape[0] else x), inputs=inputs)


@program()
def tensor_replaced_behind_its_name() -> Case:
    weight = torch.ones(4)
    holder = {"weight": weight}

    def step(i: int) -> None:
        if i == 1:
            weight.add_(1)
        elif i == 2:
            weight.data = torch.full((4,), 7.0)
        elif i == 3:
            holder["weight"] = torch.zeros(4)
        elif i == 4:
            holder["weight"].resize_(1).fill_(5)

    return Case(lambda x: x * holder["weight"], step)


@program()
def weight_norm_and_parametrizations() -> Case:
    class Double(nn.Module):
        def forward(self, weight: Tensor) -> Tensor:
            return weight * 2

    one, two = nn.Linear(4, 4), nn.Linear(4, 4)
    for tensor in (one.weight, one.bias, two.weight, two.bias):
        nn.init.constant_(tensor, 0.5)
    nn.utils.parametrizations.weight_norm(one)
    nn.utils.parametrize.register_parametrization(two, "weight", Double())

    def step(i: int) -> None:
        one.parametrizations.weight.original0.mul_(1.5)
        two.parametrizations.weight.original.mul_(1.5)

    return Case(lambda x: two(one(x)), step)


@program(grad=True)
def no_grad_inside() -> Case:
    linear = nn.Linear(4, 4)
    for parameter in linear.parameters():
        nn.init.constant_(parameter, 0.5)

    def call(x: Tensor) -> Any:
        with torch.no_grad():
            linear.bias.add_(1)
            y = linear(x)
        return y * 2, linear.weight.detach(), linear.bias, y.view(2, 2)

    return Case(call, inputs=lambda i: (base() + i,), observe=lambda: linear.bias._version)


@program(grad=True)
def arguments_that_need_gradients() -> Case:
    weight = torch.ones(4, requires_grad=True)

    def inputs(i: int) -> tuple[Tensor]:
        return ((base(), base().requires_grad_(), base() * weight)[i % 3],)

    return Case(lambda x: (x.detach() * 2, x.requires_grad, x * 1), inputs=inputs)


@program(grad=True)
def requires_grad_flipped() -> Case:
    weight = torch.ones(4)
    return Case(lambda x: x * weight, lambda i: weight.requires_grad_(i // 2 % 2 == 1))


@program(grad=True)
def custom_autograd_function() -> Case:
    runs: list[int] = []

    class Doubled(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, x: Tensor) -> Tensor:
            runs.append(1)
            return x * 2

        @staticmethod
        def backward(ctx: Any, grad: Tensor) -> Tensor:
            return grad * 2

    return Case(lambda x: Doubled.apply(x), observe=lambda: len(runs))


@program()
def transforms() -> Case:
    def call(x: Tensor) -> Any:
        return torch.func.vmap(lambda v: v * 2 + 1)(x), torch.func.grad(lambda v: (v * v).sum())(x)

    return Case(call, inputs=lambda i: (base() + i,))


@program()
def default_dtype_and_device() -> Case:
    def step(i: int) -> None:
        torch.set_default_dtype((torch.float32, torch.float64)[i // 2 % 2])
        torch.set_default_device("meta" if i == 4 else None)

    def close() -> None:
        torch.set_default_dtype(torch.float32)
        torch.set_default_device(None)

    return Case(lambda x: (torch.ones(4) + 0.5, torch.tensor(1.5), x * 2), step, observe=close, close=close)
