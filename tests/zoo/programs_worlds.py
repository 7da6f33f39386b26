"""Programs that depend on the world outside, on the values in tensors, or that change what existed before."""

from __future__ import annotations

import contextlib
import contextvars
import io
import itertools
import os
import random
import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from .programs import Case, alternating, holder, program

# Reading the world: results of C functions that are not pure


@program
def counter_written_in_c() -> Case:
    count = itertools.count(1).__next__
    return Case(lambda x: x * count())


@program
def iterator_shared_by_calls() -> Case:
    numbers = iter(range(1, 100))
    return Case(lambda x: x * next(numbers))


@program
def generator_shared_by_calls() -> Case:
    def endless() -> Iterator[int]:
        value = 1
        while True:
            yield value
            value *= 2

    numbers = endless()
    return Case(lambda x: x * next(numbers))


@program
def popped_from_a_list() -> Case:
    numbers = list(range(20))
    return Case(lambda x: x * numbers.pop(), observe=lambda: numbers)


@program
def random_of_python() -> Case:
    return Case(lambda x: x * random.random(), lambda i: random.seed(i))


@program
def random_object() -> Case:
    generator = random.Random(3)
    return Case(lambda x: x * generator.randint(1, 9), observe=lambda: generator.getstate())


@program
def random_of_torch() -> Case:
    return Case(lambda x: x + torch.rand(2, 3) + F.dropout(x, 0.5) + torch.randn_like(x))


@program
def random_with_a_generator() -> Case:
    generator = torch.Generator().manual_seed(5)
    return Case(lambda x: x + torch.rand(2, 3, generator=generator), observe=lambda: generator.get_state())


@program
def random_order() -> Case:
    return Case(lambda x: x[:, torch.randperm(3)])


@program
def environment_variable() -> Case:
    def step(i: int) -> None:
        os.environ["A_VARIABLE_OF_THE_ZOO"] = str(i // 2)

    return Case(
        lambda x: x * int(os.environ.get("A_VARIABLE_OF_THE_ZOO", "1")),
        step,
        close=lambda: os.environ.pop("A_VARIABLE_OF_THE_ZOO", None),
    )


@program
def context_variable() -> Case:
    scale: contextvars.ContextVar[int] = contextvars.ContextVar("scale", default=1)
    return Case(lambda x: x * scale.get(), lambda i: scale.set(i // 2))


@program
def thread_local() -> Case:
    local = threading.local()
    return Case(lambda x: x * getattr(local, "scale", 1), lambda i: setattr(local, "scale", i // 2))


@program
def text_read_from_a_buffer() -> Case:
    text = io.StringIO("".join(map(str, range(9))))
    return Case(lambda x: x * int(text.read(1)), observe=text.tell)


@program
def identity_of_objects() -> Case:
    state = types.SimpleNamespace(a=object(), b=object())
    return Case(
        lambda x: x + 1 if id(state.a) == id(state.b) else x - 1,
        lambda i: setattr(state, "b", state.a) if i == 3 else 0,
    )


@program
def recursion_limit_and_flags() -> Case:
    old = sys.getrecursionlimit()
    return Case(
        lambda x: x + sys.getrecursionlimit(),
        lambda i: sys.setrecursionlimit(old + i // 2),
        close=lambda: sys.setrecursionlimit(old),
    )


@program
def torch_settings() -> Case:
    def step(i: int) -> None:
        torch.set_default_dtype(torch.float64 if i in (2, 3, 6) else torch.float32)

    def call(x: Tensor) -> Any:
        return torch.tensor(1.5), torch.ones(2), torch.get_default_dtype(), x / 3, torch.is_grad_enabled()

    return Case(call, step, close=lambda: torch.set_default_dtype(torch.float32))


# Asking tensors for values


@program
def branch_on_values() -> Case:
    return Case(lambda x: x + 1 if x.sum() > 0 else x - 1)


@program
def item_as_a_factor() -> Case:
    return Case(lambda x: x * x.max().item())


@program
def tolist_and_int() -> Case:
    return Case(lambda x: (x.tolist(), int(x[0, 0]), float(x[0, 1]), bool(x[0, 2])))


@program
def numpy_and_back() -> Case:
    return Case(lambda x: torch.from_numpy(x.numpy() * 2) + 1)


@program
def numpy_shares_memory() -> Case:
    def call(x: Tensor) -> Tensor:
        y = x + 1
        y.numpy()[0] = 7
        return y * 2

    return Case(call)


@program
def selection_by_a_mask() -> Case:
    return Case(lambda x: (x[x > 0], x.nonzero(), torch.unique(x.sign()), x.masked_select(x < 3)))


@program
def loop_over_rows() -> Case:
    return Case(lambda x: sum(row * index for index, row in enumerate(x)))


@program
def text_of_a_tensor() -> Case:
    return Case(lambda x: (f"{x.sum():.2f}", str(x.shape), repr(x)))


@program
def comparison_that_returns_a_bool() -> Case:
    ones = torch.ones(2, 3)
    return Case(lambda x: (x + 1 if torch.equal(x * 0, ones * 0) else x, torch.allclose(x, ones), x.is_contiguous()))


@program
def assertion_on_values() -> Case:
    def call(x: Tensor) -> Tensor:
        assert (x > 0).all(), "positive numbers, please"
        return x.sqrt()

    return Case(call)


@program
def size_taken_from_a_value() -> Case:
    return Case(lambda x: torch.zeros(int(x.abs().sum()) % 5 + 1) + 1)


@program
def value_in_a_dict_key() -> Case:
    table = {i: i * 10 for i in range(-500, 500)}
    return Case(lambda x: x * table[int(x[0, 0])])


@program
def scalar_tensor_as_an_index() -> Case:
    return Case(lambda x: x[:, x.argmax() % 3], inputs=lambda i: (torch.arange(6.0).reshape(2, 3).roll(i),))


@program
def scalar_tensor_in_python_ranges() -> Case:
    return Case(lambda n: torch.arange(n) * 2, inputs=lambda i: (torch.tensor(i // 2 + 1),))


# Effects on things that existed before


@program
def attribute_counter() -> Case:
    state, function = holder(lambda s, x: (setattr(s, "count", s.count + 1), x + s.count)[1], count=0)
    return Case(function, observe=lambda: state.count)


@program
def attribute_keeps_the_last_result() -> Case:
    state, function = holder(lambda s, x: (setattr(s, "last", x * 2), x + 1)[1], last=None)
    return Case(function, observe=lambda: state.last)


@program
def running_average_in_an_attribute() -> Case:
    def call(state: Any, x: Tensor) -> Tensor:
        state.mean = state.mean * 0.9 + x * 0.1
        return x - state.mean

    state, function = holder(call, mean=torch.zeros(2, 3))
    return Case(function, observe=lambda: state.mean)


@program
def list_append() -> Case:
    seen: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        seen.append(x + 1)
        return x * len(seen)

    return Case(call, observe=lambda: list(seen))


@program
def dict_store() -> Case:
    seen: dict[Any, Tensor] = {}

    def call(x: Tensor) -> Tensor:
        key = tuple(x.shape)
        if key not in seen:
            seen[key] = x + 1
        return x * seen[key]

    return Case(call, observe=lambda: dict(seen), inputs=lambda i: (torch.full((1 + i // 3, 2), float(i)),))


@program
def nonlocal_and_global_writes() -> Case:
    space: dict[str, Any] = {"total": 0}
    exec("def call(x):\n    global total\n    total += 1\n    return x * total", space)
    count = 0

    def call(x: Tensor) -> Tensor:
        nonlocal count
        count += 2
        return space["call"](x) + count

    return Case(call, observe=lambda: (space["total"], count))


@program
def print_is_an_effect() -> Case:
    out = io.StringIO()

    def call(x: Tensor) -> Tensor:
        print("called", tuple(x.shape), file=out)
        return x + 1

    return Case(call, observe=out.getvalue)


@program
def argument_changed_in_place() -> Case:
    def call(x: Tensor) -> Tensor:
        x.add_(1)
        x[0] = 5
        x[:, 1].mul_(2)
        return x * 2

    return Case(call)


@program
def argument_returned_after_a_change() -> Case:
    return Case(lambda x: (x.relu_(), x.view(-1), x.t()))


@program
def buffer_changed_in_place() -> Case:
    module = nn.BatchNorm1d(3).train()
    return Case(module, observe=lambda: {name: value.clone() for name, value in module.named_buffers()})


@program
def metadata_changed_in_place() -> Case:
    def call(x: Tensor) -> Tensor:
        x.unsqueeze_(0)
        x.transpose_(1, 2)
        return x + 1

    return Case(call)


@program
def output_given_by_the_caller() -> Case:
    out = torch.zeros(2, 3)
    return Case(lambda x: torch.add(x, 1, out=out), observe=lambda: out.clone())


@program
def list_argument_changed() -> Case:
    def call(x: Tensor, items: list[Tensor]) -> Tensor:
        items.append(x + 1)
        items[0] = x * 2
        return items[0] + 1

    return Case(call, inputs=lambda i: (*alternating(i), [torch.ones(2)]))


@program
def grad_mode_left_changed() -> Case:
    def call(x: Tensor) -> Tensor:
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return x + 1

    return Case(call, lambda i: torch.set_grad_enabled(False), observe=torch.is_grad_enabled)


@program
def seed_set_inside() -> Case:
    def call(x: Tensor) -> Tensor:
        torch.manual_seed(11)
        return x + torch.rand(2, 3)

    return Case(call)


@program
def parameter_updated_inside() -> Case:
    weight = nn.Parameter(torch.ones(3))

    def call(x: Tensor) -> Tensor:
        with torch.no_grad():
            weight.sub_(0.1 * x.mean(0))
        return x * weight

    return Case(call, observe=lambda: weight.detach().clone())


@program
def hook_registered_inside() -> Case:
    linear = nn.Linear(3, 3, bias=False)
    nn.init.ones_(linear.weight)

    def call(x: Tensor) -> Tensor:
        if len(linear._forward_hooks) < 2:
            linear.register_forward_hook(lambda m, args, result: result * 2)
        return linear(x)

    return Case(call, observe=lambda: len(linear._forward_hooks))


@program
def finaliser_runs_in_time() -> Case:
    log: list[str] = []

    class Noisy:
        def __del__(self) -> None:
            log.append("gone")

    def call(x: Tensor) -> Any:
        thing = Noisy()
        log.append("made")
        del thing
        log.append("after")
        return x + 1

    return Case(call, observe=lambda: list(log))


@program
def context_manager_of_the_user() -> Case:
    log: list[str] = []

    @contextlib.contextmanager
    def noted() -> Iterator[int]:
        log.append("in")
        yield len(log)
        log.append("out")

    def call(x: Tensor) -> Tensor:
        with noted() as scale:
            return x * scale

    return Case(call, observe=lambda: list(log))
