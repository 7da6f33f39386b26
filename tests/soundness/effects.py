"""Calls that change something which existed before them."""

from __future__ import annotations

import collections
import functools
import operator
from typing import Any

import torch
from torch import Tensor, nn

from .runner import Case, base, program


@program()
def module_attribute_written_and_not_read() -> Case:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.width = x.shape[0]
            return x * 2

    model = Model()
    return Case(model.forward, lambda i: setattr(model, "width", None), observe=lambda: model.width)


@program()
def module_keeps_its_last_output() -> Case:
    class Model(nn.Module):
        last: Any = None

        def forward(self, x: Tensor) -> Tensor:
            y = x * 2
            self.last = y
            return y + 1

    model = Model()
    return Case(model.forward, inputs=lambda i: (base() + i,), observe=lambda: model.last)


@program()
def module_switched_to_eval_inside() -> Case:
    model = nn.Linear(4, 4)
    torch.nn.init.constant_(model.weight, 0.5)
    torch.nn.init.constant_(model.bias, 0.5)

    def call(x: Tensor) -> Tensor:
        model.eval()
        return model(x)

    return Case(call, lambda i: model.train(), observe=lambda: model.training)


@program()
def setattr_through_a_python_override() -> Case:
    class Record:
        mark: Any = None

        def __setattr__(self, name: str, value: Any) -> None:
            object.__setattr__(self, name, value)

    record = Record()

    def call(x: Tensor) -> Tensor:
        record.mark = "called"
        return x * 2

    return Case(call, lambda i: setattr(record, "mark", None), observe=lambda: record.mark)


@program()
def module_attribute_deleted() -> Case:
    class Model(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if hasattr(self, "extra"):
                del self.extra
            return x * 2

    model = Model()
    return Case(model.forward, lambda i: setattr(model, "extra", 1), observe=lambda: hasattr(model, "extra"))


@program()
def singleton_read() -> Case:
    class Single:
        instance: Any = None

        def __new__(cls) -> Any:
            return cls.instance

    single = object.__new__(Single)
    Single.instance = single
    return Case(lambda x: x * Single().scale, lambda i: setattr(single, "scale", i))


@program()
def singleton_written() -> Case:
    class Single:
        instance: Any = None

        def __new__(cls) -> Any:
            return cls.instance

    single = object.__new__(Single)
    single.count = 0
    Single.instance = single

    def call(x: Tensor) -> Tensor:
        Single().count += 1
        return x * 2

    return Case(call, observe=lambda: single.count)


@program()
def shared_dict_read() -> Case:
    everything = {"scale": 1}

    class Shared:
        def __init__(self) -> None:
            self.__dict__ = everything

    return Case(lambda x: x * Shared().scale, lambda i: everything.update(scale=i))


@program()
def shared_dict_written() -> Case:
    everything = {"count": 0}

    class Shared:
        def __init__(self) -> None:
            self.__dict__ = everything

    def call(x: Tensor) -> Tensor:
        shared = Shared()
        shared.count = shared.count + 1
        return x * 2

    return Case(call, observe=lambda: dict(everything))


@program()
def dict_behind_a_slot_of_a_new_object_read() -> Case:
    class Box:
        __slots__ = ("content",)

        def __init__(self, content: dict[str, int]) -> None:
            self.content = content

    settings = {"scale": 1}
    return Case(lambda x: x * Box(settings).content["scale"], lambda i: settings.update(scale=i))


@program()
def dict_behind_a_slot_of_a_new_object_written() -> Case:
    class Box:
        __slots__ = ("content",)

        def __init__(self, content: dict[str, int]) -> None:
            self.content = content

    settings = {"mark": 0}

    def call(x: Tensor) -> Tensor:
        Box(settings).content["mark"] = 7
        return x * 2

    return Case(call, lambda i: settings.update(mark=i), observe=lambda: dict(settings))


@program()
def globals_of_a_new_function() -> Case:
    scope: dict[str, Any] = {"SCALE": 1}
    exec("def call(x):\n    def inner(): pass\n    return x * inner.__globals__['SCALE']\n", scope)
    return Case(scope["call"], lambda i: scope.update(SCALE=i))


class Stream:
    """An iterable that hands out the same iterator each time."""

    def __init__(self) -> None:
        self.iterator = iter(range(1, 100))

    def __iter__(self) -> Any:
        return self.iterator


def _first_of_loop(stream: Stream) -> int:
    for item in stream:
        return item
    return 0


def _first_of_zip(stream: Stream) -> int:
    for item, _ in zip(stream, [1, 2], strict=False):
        return item
    return 0


@program()
def stored_iterator_in_a_loop() -> Case:
    stream = Stream()
    return Case(lambda x: x * _first_of_loop(stream))


@program()
def stored_iterator_in_zip() -> Case:
    stream = Stream()
    return Case(lambda x: x * _first_of_zip(stream))


@program()
def stored_iterator_in_list() -> Case:
    stream = Stream()
    return Case(lambda x: x * len(list(stream)))


@program()
def stored_iterator_in_sum() -> Case:
    stream = Stream()
    return Case(lambda x: x * sum(stream))


@program()
def stored_iterator_in_a_display() -> Case:
    stream = Stream()
    return Case(lambda x: x * len([*stream]))


@program()
def stored_iterator_in_contains() -> Case:
    stream = Stream()
    return Case(lambda x: x * (2 if 3 in stream else 5))


@program()
def stored_iterator_through_next() -> Case:
    stream = Stream()
    return Case(lambda x: x * next(iter(stream)))


@program()
def list_kept_by_a_cache() -> Case:
    @functools.lru_cache
    def kept() -> list[int]:
        return [1]

    def call(x: Tensor) -> Tensor:
        kept().append(1)
        return x * len(kept())

    return Case(call)


@program()
def tensor_kept_by_a_cache() -> Case:
    @functools.lru_cache
    def kept() -> Tensor:
        return torch.ones(4)

    return Case(lambda x: x * kept().add_(1))


@program()
def property_with_a_setter_in_c() -> Case:
    class Queue(collections.deque):  # type: ignore[type-arg]
        last = property(lambda self: self[-1], collections.deque.append)

    queue = Queue()

    def call(x: Tensor) -> Tensor:
        queue.last = 3
        return x * 2

    return Case(call, observe=lambda: list(queue))


@program()
def default_argument_that_grows() -> Case:
    def call(x: Tensor, seen: list[int] = []) -> Tensor:  # noqa: B006
        seen.append(1)
        return x * len(seen)

    return Case(call)


@program()
def class_that_counts_its_instances() -> Case:
    class Counted:
        count = 0

        def __init__(self) -> None:
            type(self).count += 1

    def call(x: Tensor) -> Tensor:
        Counted()
        return x * 2

    return Case(call, observe=lambda: Counted.count)


@program()
def finaliser_that_counts() -> Case:
    gone: list[int] = []

    class Temporary:
        def __del__(self) -> None:
            gone.append(1)

    def call(x: Tensor) -> Tensor:
        Temporary()
        return x * 2

    return Case(call, observe=lambda: len(gone))


@program()
def counter_in_a_finally() -> Case:
    count: collections.Counter[str] = collections.Counter()

    def call(x: Tensor) -> Tensor:
        try:
            return x * 2
        finally:
            count["calls"] += 1

    return Case(call, observe=lambda: dict(count))


@program()
def cache_argument_that_grows() -> Case:
    cache = {"keys": torch.ones(1)}

    def call(x: Tensor, cache: dict[str, Tensor]) -> Tensor:
        cache["keys"] = torch.cat([cache["keys"], x])
        return cache["keys"].sum()

    return Case(call, inputs=lambda i: (base(), cache))


@program()
def list_of_outputs_that_grows() -> Case:
    outputs: list[Tensor] = []

    def call(x: Tensor) -> Tensor:
        outputs.append(x * 2)
        return torch.stack(outputs).sum(0)

    return Case(call, observe=lambda: len(outputs))


@program()
def buffers_written_in_place() -> Case:
    rows, count = torch.zeros(8, 4), torch.zeros(())

    def call(x: Tensor, index: Tensor) -> Tensor:
        rows.index_copy_(0, index, x[None])
        count.add_(1)
        return rows.sum(0) * count

    return Case(call, inputs=lambda i: (base() + i, torch.tensor([i])), observe=lambda: (rows, count))


@program()
def batch_norm_statistics() -> Case:
    norm = nn.BatchNorm1d(2)
    state = [norm.running_mean, norm.running_var, norm.num_batches_tracked]
    return Case(
        norm.forward,
        inputs=lambda i: (base().view(2, 2) * (i + 1),),
        observe=lambda: (state, [t._version for t in state if t is not None]),
    )


@program()
def embedding_that_renormalises() -> Case:
    embedding = nn.Embedding(9, 3, _weight=torch.arange(27.0).view(9, 3), max_norm=0.5)
    return Case(embedding.forward, inputs=lambda i: (torch.tensor([i, 1]),), observe=lambda: embedding.weight)


@program()
def grad_mode_left_changed() -> Case:
    def call(x: Tensor) -> Tensor:
        torch.set_grad_enabled(not torch.is_grad_enabled())
        return x * 2

    return Case(call, observe=torch.is_grad_enabled)


@program()
def version_counters_of_arguments() -> Case:
    kept = base()

    def call(x: Tensor) -> Tensor:
        x.add_(1)
        x[0] = 3
        x.detach().mul_(2)
        return x.view(2, 2)

    return Case(call, inputs=lambda i: (kept,), observe=lambda: (kept, kept._version))


@program()
def arguments_that_change_shape() -> Case:
    kept = torch.arange(6.0).view(2, 3)

    def call(x: Tensor) -> Tensor:
        x.t_()
        return x * 1

    return Case(call, inputs=lambda i: (kept,), observe=lambda: (kept.shape, kept.stride()))


@program()
def overlapping_arguments() -> Case:
    memory = torch.arange(8.0)

    def call(x: Tensor, y: Tensor) -> tuple[Tensor, ...]:
        before = x * 2
        x.add_(1)
        return before, x * 2, y, y * 1

    return Case(call, inputs=lambda i: (memory[:4], memory[i % 4 : i % 4 + 4]), observe=lambda: memory)


@program()
def constant_written_through_an_unmarked_view() -> Case:
    def call(x: Tensor) -> Tensor:
        first, second = torch.unsafe_chunk(torch.tensor([1.0, 2.0, 3.0, 4.0]), 2)
        return first.add_(x[:2]) * second

    return Case(call, inputs=lambda i: (base() * (i + 1),))


@program()
def random_numbers_that_nobody_uses() -> Case:
    def call(x: Tensor) -> Tensor:
        torch.rand(3)
        nn.functional.dropout(x)
        return x * 2

    return Case(call, inputs=lambda i: (base() + i,))


@program()
def operator_module_updates() -> Case:
    numbers = [1]

    def call(x: Tensor) -> Tensor:
        operator.iadd(numbers, [1])
        return x * len(numbers)

    return Case(call)
