"""Programs that read attributes, containers, globals, closures and classes which change between calls."""

from __future__ import annotations

import abc
import collections
import enum
import functools
import math
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .programs import Case, attribute_case, holder, program

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
    return Case(
        lambda x: x * table["scale"], lambda i: table.update(scale=i) if i >= 3 else None, observe=lambda: table
    )


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
        return x, list(config)

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

    return Case(lambda x: helper(1, x), lambda i: helper.register(int, lambda value, x: x * 5) if i == 3 else None)


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
