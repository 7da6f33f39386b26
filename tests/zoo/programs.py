"""Small programs that read, change or depend on something a compiler may overlook; each runs eager and compiled.

A program is a function that builds a fresh `Case`. Its call is repeated, with a step before each call that changes the
world a little, the same way on both sides.
"""

from __future__ import annotations

import abc
import collections
import contextlib
import contextvars
import dataclasses
import enum
import functools
import io
import itertools
import math
import os
import random
import sys
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

CALLS = 8


def _nothing(*_: Any) -> None:
    return None


def alternating(index: int) -> tuple[Any, ...]:
    """One tensor whose values change with the call, and their sign too."""
    return ((torch.arange(6.0).reshape(2, 3) + 1) * (index + 1) * (-1 if index % 3 == 2 else 1),)


@dataclasses.dataclass
class Case:
    """What to call, with which arguments, what happens before each call, and what to look at after it."""

    call: Callable[..., Any]
    step: Callable[[int], Any] = _nothing
    inputs: Callable[[int], tuple[Any, ...]] = alternating
    observe: Callable[..., Any] = _nothing
    close: Callable[[], Any] = _nothing


PROGRAMS: dict[str, Callable[[], Case]] = {}


def program(build: Callable[[], Case]) -> Callable[[], Case]:
    PROGRAMS[build.__name__] = build
    return build


def holder(call: Callable[[Any, Tensor], Any], **values: Any) -> tuple[Any, Callable[[Tensor], Any]]:
    """An object with attributes, and a function of a tensor that reads them."""
    state = types.SimpleNamespace(**values)
    return state, lambda x: call(state, x)


def attribute_case(name: str, values: list[Any], call: Callable[[Any, Tensor], Any]) -> Case:
    """An attribute that takes one value for two calls, then the next."""
    state, function = holder(call, **{name: values[0]})
    return Case(function, lambda i: setattr(state, name, values[i // 2 % len(values)]))


# Reading values that change


@program
def attribute_number() -> Case:
    return attribute_case("scale", [2, 3, 2, 5], lambda s, x: x * s.scale)


@program
def attribute_equal_but_of_another_type() -> Case:
    return attribute_case("scale", [2, 2.0, True, 1], lambda s, x: x.long() * s.scale)


@program
def attribute_zero_of_both_signs() -> Case:
    return attribute_case("scale", [0.0, -0.0, 0.0, -0.0], lambda s, x: x.abs() * s.scale)


@program
def attribute_nan() -> Case:
    return attribute_case("scale", [math.nan, 1.0, math.nan, math.inf], lambda s, x: x * s.scale)


@program
def attribute_string() -> Case:
    return attribute_case("kind", ["relu", "tanh", "".join(["re", "lu"])], lambda s, x: getattr(torch, s.kind)(x))


@program
def attribute_large_number() -> Case:
    return attribute_case("size", [10**12, 10**12 + 1], lambda s, x: (x.double() + s.size, s.size))


@program
def attribute_none() -> Case:
    return attribute_case("bias", [None, 1.0, None], lambda s, x: x if s.bias is None else x + s.bias)


@program
def attribute_tuple() -> Case:
    return attribute_case("shape", [(3, 2), (6, 1), [3, 2]], lambda s, x: x.reshape(s.shape))


@program
def attribute_function() -> Case:
    return attribute_case("act", [torch.relu, torch.tanh, lambda x: x + 1, F.gelu], lambda s, x: s.act(x))


@program
def attribute_tensor() -> Case:
    values = [torch.ones(3), torch.zeros(3), torch.ones(3, dtype=torch.int64), torch.ones(1, 3)]
    return attribute_case("weight", values, lambda s, x: x * s.weight)


@program
def attribute_dtype() -> Case:
    return attribute_case("dtype", [torch.float32, torch.float64, torch.int32], lambda s, x: x.to(s.dtype))


@program
def attribute_slice() -> Case:
    return attribute_case("part", [slice(0, 1), slice(1, 2), ..., None, 0], lambda s, x: x[s.part])


@program
def attribute_that_appears() -> Case:
    state, function = holder(lambda s, x: x + 1 if hasattr(s, "flag") else x - 1)
    return Case(function, lambda i: setattr(state, "flag", 1) if i == 3 else delattr(state, "flag") if i == 6 else None)


@program
def attribute_default_until_set() -> Case:
    state, function = holder(lambda s, x: x * getattr(s, "scale", 2))
    return Case(function, lambda i: setattr(state, "scale", i) if i >= 3 else None)


@program
def class_attribute_shadowed_by_an_instance() -> Case:
    class Config:
        scale = 2

    config = Config()

    def step(i: int) -> None:
        if i == 2:
            Config.scale = 3
        elif i == 4:
            config.scale = 7
        elif i == 6:
            del config.scale

    return Case(lambda x: x * config.scale, step)


@program
def property_over_hidden_state() -> Case:
    class Config:
        def __init__(self) -> None:
            self._hidden = [1]

        @property
        def scale(self) -> int:
            return self._hidden[-1]

    config = Config()
    return Case(lambda x: x * config.scale, lambda i: config._hidden.append(i) if i % 2 else None)


@program
def dynamic_getattr() -> Case:
    class Config:
        def __init__(self) -> None:
            self.table = {"scale": 1}

        def __getattr__(self, name: str) -> Any:
            try:
                return self.__dict__["table"][name]
            except KeyError:
                raise AttributeError(name) from None

    config = Config()
    return Case(lambda x: x * config.scale, lambda i: config.table.update(scale=i // 2))


@program
def slots() -> Case:
    class Config:
        __slots__ = ("scale",)

    config = Config()
    return Case(lambda x: x * config.scale, lambda i: setattr(config, "scale", i // 2))


@program
def descriptor_patched() -> Case:
    class Config:
        @property
        def scale(self) -> int:
            return 2

    config = Config()
    return Case(lambda x: x * config.scale, lambda i: i == 3 and setattr(Config, "scale", property(lambda self: 5)))


@program
def base_class_attribute() -> Case:
    class Base:
        scale = 2

    class Middle(Base):
        pass

    class Leaf(Middle):
        pass

    leaf = Leaf()

    def step(i: int) -> None:
        if i == 2:
            Base.scale = 3
        elif i == 4:
            Middle.scale = 4
        elif i == 6:
            del Middle.scale

    return Case(lambda x: x * leaf.scale, step)


@program
def metaclass_attribute() -> Case:
    class Meta(type):
        scale = 2

    class Config(metaclass=Meta):
        pass

    return Case(lambda x: x * Config.scale, lambda i: i == 3 and setattr(Meta, "scale", 5))


@program
def enum_member() -> Case:
    class Mode(enum.Enum):
        ADD = 1
        MULTIPLY = 2

    return attribute_case("mode", list(Mode), lambda s, x: x + 2 if s.mode is Mode.ADD else x * 2)


@program
def list_contents() -> Case:
    scales = [1, 2]

    def step(i: int) -> None:
        if i == 2:
            scales.append(3)
        elif i == 4:
            scales[0] = 9
        elif i == 6:
            scales.reverse()

    return Case(lambda x: torch.stack([x * scale for scale in scales]), step)


@program
def list_of_objects() -> Case:
    items = [types.SimpleNamespace(scale=i) for i in range(3)]
    return Case(lambda x: sum(x * item.scale for item in items), lambda i: setattr(items[1], "scale", i // 2))


@program
def dict_contents() -> Case:
    table = {"a": 1}

    def step(i: int) -> None:
        if i == 2:
            table["b"] = 2
        elif i == 4:
            table["a"] = table.pop("a")
        elif i == 6:
            del table["b"]

    return Case(lambda x: {key: x * value for key, value in table.items()}, step)


@program
def dict_lookup_of_a_missing_key() -> Case:
    table: dict[str, int] = {}
    return Case(lambda x: x * table.get("scale", 1), lambda i: table.update(scale=i) if i >= 3 else None)


@program
def dict_membership() -> Case:
    table: dict[str, int] = {"other": 1}
    return Case(lambda x: x + 1 if "scale" in table else x - 1, lambda i: table.update(scale=i) if i >= 3 else None)


@program
def set_membership() -> Case:
    names = {"other"}
    return Case(lambda x: x + 1 if "scale" in names else x - 1, lambda i: names.add("scale") if i >= 3 else None)


@program
def defaultdict_lookup() -> Case:
    table: dict[str, int] = collections.defaultdict(lambda: 3)
    return Case(lambda x: x * table["scale"], lambda i: table.update(scale=i) if i >= 3 else None, observe=lambda: table)


@program
def deque_contents() -> Case:
    scales = collections.deque([1, 2, 3], maxlen=3)
    return Case(lambda x: x * scales[0] + scales[-1], lambda i: scales.append(i) if i % 2 else None)


@program
def truth_of_a_container() -> Case:
    flags: list[int] = []
    return Case(lambda x: x + 1 if flags else x - 1, lambda i: flags.append(i) if i == 3 else None)


@program
def special_methods_that_read_state() -> Case:
    class Config:
        size = 2

        def __len__(self) -> int:
            return self.size

        def __bool__(self) -> bool:
            return self.size > 3

        def __eq__(self, other: object) -> bool:
            return self.size == other

        def __hash__(self) -> int:
            return self.size

        def __contains__(self, item: object) -> bool:
            return item == self.size

        def __iter__(self) -> Iterator[int]:
            return iter(range(self.size))

    config = Config()

    def call(x: Tensor) -> Any:
        x = x * len(config) + (1 if config else 2) + (3 if config == 4 else 0) + (7 if 2 in config else 0)
        return x, [i for i in config]

    return Case(call, lambda i: setattr(config, "size", i // 2 + 1))


# Functions: globals, closures, defaults, code


@program
def global_number() -> Case:
    space: dict[str, Any] = {"scale": 1}
    exec("def call(x):\n    return x * scale", space)
    return Case(space["call"], lambda i: space.update(scale=i // 2))


@program
def global_that_disappears() -> Case:
    space: dict[str, Any] = {"scale": 1}
    exec("def call(x):\n    return x * scale", space)
    return Case(space["call"], lambda i: space.pop("scale") if i == 3 else space.update(scale=4) if i == 5 else None)


@program
def global_that_shadows_a_builtin() -> Case:
    space: dict[str, Any] = {}
    exec("def call(x):\n    return x * max(1, 2)", space)
    return Case(space["call"], lambda i: space.update(max=min) if i == 3 else space.pop("max") if i == 6 else None)


@program
def builtins_of_the_function_changed() -> Case:
    names: dict[str, Any] = {"max": max}
    space: dict[str, Any] = {"__builtins__": names}
    exec("def call(x):\n    return x * max(1, 2)", space)
    return Case(space["call"], lambda i: names.update(max=min if i >= 3 else max))


@program
def global_helper_replaced() -> Case:
    space: dict[str, Any] = {}
    exec("def helper(x):\n    return x + 1\ndef other(x):\n    return x * 5\ndef call(x):\n    return helper(x)", space)
    return Case(space["call"], lambda i: space.update(helper=space["other"]) if i == 3 else None)


@program
def closure_cell() -> Case:
    scale = 1

    def step(i: int) -> None:
        nonlocal scale
        scale = i // 2

    return Case(lambda x: x * scale, step)


@program
def closure_cell_set_from_outside() -> Case:
    scale = 1

    def call(x: Tensor) -> Tensor:
        return x * scale

    return Case(call, lambda i: setattr(call.__closure__[0], "cell_contents", i // 2))


@program
def closure_of_a_helper() -> Case:
    def make() -> tuple[Callable[[Tensor], Tensor], Callable[[int], None]]:
        scale = 1

        def helper(x: Tensor) -> Tensor:
            return x * scale

        def change(i: int) -> None:
            nonlocal scale
            scale = i // 2

        return helper, change

    helper, change = make()
    return Case(lambda x: helper(x) + 1, change)


@program
def defaults_changed() -> Case:
    def helper(x: Tensor, scale: float = 2, *, shift: float = 1) -> Tensor:
        return x * scale + shift

    def step(i: int) -> None:
        if i == 2:
            helper.__defaults__ = (5,)
        elif i == 4:
            helper.__kwdefaults__ = {"shift": 7}
        elif i == 6:
            assert helper.__kwdefaults__ is not None
            helper.__kwdefaults__["shift"] = 9

    return Case(lambda x: helper(x), step)


@program
def default_that_is_a_mutable_list() -> Case:
    scales = [1]

    def helper(x: Tensor, scale: list[int] = scales) -> Tensor:
        return x * scale[-1]

    return Case(lambda x: helper(x), lambda i: scales.append(i) if i % 2 else None)


@program
def defaults_of_the_compiled_function_itself() -> Case:
    def call(x: Tensor, scale: float = 2) -> Tensor:
        return x * scale

    return Case(call, lambda i: setattr(call, "__defaults__", (i // 2,)))


@program
def code_of_a_helper() -> Case:
    def helper(x: Tensor) -> Tensor:
        return x + 1

    def other(x: Tensor) -> Tensor:
        return x * 5

    return Case(lambda x: helper(x), lambda i: setattr(helper, "__code__", other.__code__) if i == 3 else None)


@program
def code_of_the_compiled_function_itself() -> Case:
    def call(x: Tensor) -> Tensor:
        return x + 1

    def other(x: Tensor) -> Tensor:
        return x * 5

    return Case(call, lambda i: setattr(call, "__code__", other.__code__) if i == 3 else None)


@program
def partial_with_a_mutable_argument() -> Case:
    options = {"scale": 1}
    call = functools.partial(lambda options, x: x * options["scale"], options)
    return Case(lambda x: call(x), lambda i: options.update(scale=i // 2))


@program
def bound_method_of_changing_object() -> Case:
    class Config:
        scale = 1

        def apply(self, x: Tensor) -> Tensor:
            return x * self.scale

    config = Config()
    method = config.apply
    return Case(lambda x: method(x), lambda i: setattr(config, "scale", i // 2))


@program
def lru_cached_helper() -> Case:
    state = {"scale": 1}

    @functools.lru_cache
    def helper(size: int) -> int:
        return size * state["scale"]

    def step(i: int) -> None:
        state["scale"] = i
        if i == 4:
            helper.cache_clear()

    return Case(lambda x: x * helper(x.shape[0]), step, observe=lambda: helper.cache_info().currsize)


@program
def single_dispatch_gets_a_new_case() -> Case:
    @functools.singledispatch
    def helper(value: Any, x: Tensor) -> Tensor:
        return x

    return Case(
        lambda x: helper(1, x), lambda i: helper.register(int, lambda value, x: x * 5) if i == 3 else None
    )


@program
def abstract_class_registered_later() -> Case:
    class Shape(abc.ABC):  # noqa: B024
        pass

    class Square:
        pass

    square = Square()
    return Case(
        lambda x: x + 1 if isinstance(square, Shape) else x - 1, lambda i: Shape.register(Square) if i == 3 else None
    )


@program
def class_of_an_object_assigned() -> Case:
    class Adds:
        def apply(self, x: Tensor) -> Tensor:
            return x + 1

    class Multiplies:
        def apply(self, x: Tensor) -> Tensor:
            return x * 3

    thing = Adds()
    return Case(lambda x: thing.apply(x), lambda i: setattr(thing, "__class__", Multiplies) if i == 3 else None)


@program
def method_patched_on_the_class() -> Case:
    class Adds:
        def apply(self, x: Tensor) -> Tensor:
            return x + 1

        def __call__(self, x: Tensor) -> Tensor:
            return x + 2

    thing = Adds()

    def step(i: int) -> None:
        if i == 2:
            Adds.apply = lambda self, x: x * 3
        elif i == 4:
            Adds.__call__ = lambda self, x: x * 5
        elif i == 6:
            thing.apply = lambda x: x * 7

    return Case(lambda x: thing.apply(x) + thing(x), step)


@program
def imported_name_replaced() -> Case:
    module = types.ModuleType("a_module_of_the_zoo")
    module.scale = 2
    sys.modules[module.__name__] = module

    def call(x: Tensor) -> Tensor:
        import a_module_of_the_zoo

        return x * a_module_of_the_zoo.scale

    return Case(call, lambda i: setattr(module, "scale", i // 2), close=lambda: sys.modules.pop(module.__name__))


@program
def weak_reference_that_dies() -> Case:
    class Thing:
        scale = 3

    things = [Thing()]
    reference = weakref.ref(things[0])
    return Case(lambda x: x if reference() is None else x * reference().scale, lambda i: i == 3 and things.clear())


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
        lambda x: x + 1 if id(state.a) == id(state.b) else x - 1, lambda i: setattr(state, "b", state.a) if i == 3 else 0
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


@program
def parameters_and_subclasses_as_arguments() -> Case:
    class Mine(torch.Tensor):
        pass

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
    return Case(
        lambda x: (weight, items, x * 2), observe=lambda result: (result[0] is weight, result[1] is items)
    )


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
