"""Calls that read something which changes between them, by roads that are easy to overlook."""

from __future__ import annotations

import builtins
import collections
import contextlib
import dataclasses
import functools
import importlib
import operator
import threading
import types
from typing import Any

from torch import Tensor

from .runner import Case, base, program


def _holder(**values: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**values)


@program()
def list_class_made_from_a_list() -> Case:
    class Numbers(list):  # type: ignore[type-arg]
        pass

    source = [1]
    return Case(lambda x: x * len(Numbers(source)), lambda i: source.append(1))


@program()
def dict_class_made_from_a_dict() -> Case:
    class Settings(dict):  # type: ignore[type-arg]
        pass

    source = {"scale": 1}
    return Case(lambda x: x * Settings(source)["scale"], lambda i: source.update(scale=i))


@program()
def ordered_dict_class_made_from_a_dict() -> Case:
    class Settings(collections.OrderedDict):  # type: ignore[type-arg]
        pass

    source = {"scale": 1}
    return Case(lambda x: x * Settings(source)["scale"], lambda i: source.update(scale=i))


@program()
def tuple_class_made_from_a_list() -> Case:
    class Pair(tuple):  # type: ignore[type-arg]
        pass

    source = [1]
    return Case(lambda x: x * Pair(source)[0], lambda i: source.__setitem__(0, i))


@program()
def set_class_made_from_a_list() -> Case:
    class Numbers(set):  # type: ignore[type-arg]
        pass

    source = [1]
    return Case(lambda x: x * sum(Numbers(source)), lambda i: source.__setitem__(0, i))


@program()
def list_class_made_from_another_of_its_kind() -> Case:
    class Numbers(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return super().__iter__()

    source = Numbers([1, 2])
    return Case(lambda x: x * len(Numbers(source)) * source[0], lambda i: source.__setitem__(0, i))


@program()
def slot_that_is_set_later() -> Case:
    class Slotted:
        __slots__ = ("scale",)

    slotted = Slotted()

    def call(x: Tensor) -> Tensor:
        try:
            scale = slotted.scale
        except AttributeError:
            scale = 1
        return x * scale

    return Case(call, lambda i: setattr(slotted, "scale", i) if i > 1 else None)


@program()
def slot_through_super() -> Case:
    class Base:
        __slots__ = ("scale",)

    class Derived(Base):
        __slots__ = ()

        def call(self, x: Tensor) -> Tensor:
            return x * super().scale

    derived = Derived()
    return Case(derived.call, lambda i: setattr(derived, "scale", i))


@program()
def property_in_c_through_super() -> Case:
    class Base:
        scale = property(operator.attrgetter("_scale"))

    class Derived(Base):
        def call(self, x: Tensor) -> Tensor:
            return x * super().scale

    derived = Derived()
    return Case(derived.call, lambda i: setattr(derived, "_scale", i))


@program()
def bases_replaced_under_super() -> Case:
    class One:
        def scale(self) -> int:
            return 1

    class Two:
        def scale(self) -> int:
            return 2

    class Derived(One):
        def scale(self) -> int:
            return super().scale()

    derived = Derived()
    return Case(lambda x: x * derived.scale(), lambda i: setattr(Derived, "__bases__", ((One,), (Two,))[i // 2 % 2]))


@program()
def getattribute_added_to_a_class() -> Case:
    class Plain:
        scale = 2

    plain = Plain()

    def step(i: int) -> None:
        if i == 2:
            Plain.__getattribute__ = lambda self, name: 7  # type: ignore[method-assign, assignment]

    return Case(lambda x: x * plain.scale, step)


@program()
def getattr_added_to_a_class() -> Case:
    class Plain:
        pass

    plain = Plain()

    def step(i: int) -> None:
        if i == 2:
            Plain.__getattr__ = lambda self, name: 7  # type: ignore[attr-defined]

    return Case(lambda x: x * getattr(plain, "scale", 1), step)


@program()
def bool_added_to_a_named_tuple() -> Case:
    class Pair(collections.namedtuple("Pair", "a")):
        pass

    pair = Pair(1)

    def step(i: int) -> None:
        if i == 2:
            Pair.__bool__ = lambda self: False  # type: ignore[attr-defined]

    return Case(lambda x: x * (2 if pair else 3), step)


@program()
def class_of_an_operand_swapped() -> Case:
    class One:
        def __add__(self, other: int) -> float:
            return 1.0 + other

    class Two:
        def __add__(self, other: int) -> float:
            return 2.0 + other

    operand = One()
    return Case(lambda x: x * (operand + 1), lambda i: setattr(operand, "__class__", (One, Two)[i // 2 % 2]))


@program()
def subclass_of_thread_local() -> Case:
    class Local(threading.local):
        scale = 1

    local = Local()
    return Case(lambda x: x * local.scale, lambda i: setattr(local, "scale", i))


@program()
def namespaces_compared() -> Case:
    left, right = _holder(scale=1), _holder(scale=1)
    return Case(lambda x: x * 2 if left == right else x * 3, lambda i: setattr(left, "scale", i // 2))


@program()
def namespace_printed() -> Case:
    settings = _holder(scale=1)
    return Case(lambda x: x * len(repr(settings)), lambda i: setattr(settings, "scale", 10**i))


@program()
def exception_printed() -> Case:
    error = ValueError("1")
    return Case(lambda x: x * int(str(error)), lambda i: setattr(error, "args", (str(i),)))


@program()
def attribute_in_a_format_string() -> Case:
    settings, template = _holder(scale=1), "{0.scale}"
    return Case(lambda x: x * float(template.format(settings)), lambda i: setattr(settings, "scale", i))


@program()
def subclasses_of_a_class() -> Case:
    class Base:
        pass

    kept: list[type] = []
    return Case(
        lambda x: x * len(Base.__subclasses__()),
        lambda i: kept.append(type(f"Derived{i}", (Base,), {})),
        close=kept.clear,
    )


@program()
def dir_of_an_object() -> Case:
    class Plain:
        pass

    plain = Plain()
    return Case(
        lambda x: x * (2 if "extra" in plain.__dir__() else 3), lambda i: setattr(plain, "extra", 1) if i > 1 else None
    )


@program()
def cache_cleared() -> Case:
    settings = {"scale": 1}

    @functools.lru_cache
    def scale() -> int:
        return settings["scale"]

    def step(i: int) -> None:
        if i % 2 == 0:
            settings["scale"] = i
            scale.cache_clear()
        scale()

    return Case(lambda x: x * scale(), step)


@program()
def sort_by_an_attribute() -> Case:
    one, two = _holder(rank=1, scale=1), _holder(rank=2, scale=2)
    by_rank = operator.attrgetter("rank")

    def call(x: Tensor) -> Tensor:
        order = [one, two]
        order.sort(key=by_rank)
        return x * order[0].scale

    return Case(call, lambda i: setattr(one, "rank", 1 if i % 2 else 3))


@program()
def remove_an_equal_item() -> Case:
    nested = [1]

    def call(x: Tensor) -> Tensor:
        items = [nested, 5, 6]
        with contextlib.suppress(ValueError):
            items.remove([1])
        return x * len(items)

    return Case(call, lambda i: nested.__setitem__(0, i // 2))


@program()
def sort_of_lists() -> Case:
    one, two = [1], [2]

    def call(x: Tensor) -> Tensor:
        order = [one, two]
        order.sort()
        return x * 2 if order[0] is one else x * 3

    return Case(call, lambda i: one.__setitem__(0, 1 if i % 2 else 3))


@program()
def partial_restored_from_another_state() -> Case:
    part = functools.partial(lambda x, scale: x * scale, scale=1)

    def step(i: int) -> None:
        part.__setstate__((lambda x, scale: x + scale, (), {"scale": i}, {}))  # type: ignore[attr-defined]

    return Case(lambda x: part(x), step)


@program()
def partial_with_other_keywords() -> Case:
    part = functools.partial(lambda x, scale, more: x * scale + more[0], scale=1, more=[0])

    def step(i: int) -> None:
        part.keywords["scale"] = i // 2
        part.keywords["more"][0] = i

    return Case(lambda x: part(x), step)


@program()
def import_function_replaced() -> Case:
    original = builtins.__import__
    other = _holder(floor=lambda value: 9)

    def call(x: Tensor) -> Tensor:
        import math

        return x * math.floor(2.5)

    def replaced(name: str, *args: Any) -> Any:
        return other if name == "math" else original(name, *args)

    def step(i: int) -> None:
        builtins.__import__ = replaced if i == 2 else original

    def close() -> None:
        builtins.__import__ = original

    return Case(call, step, close=close)


@program()
def module_replaced_before_an_import() -> Case:
    import sys

    name = "magneto_soundness_module"

    def call(x: Tensor) -> Tensor:
        return x * importlib.import_module(name).scale

    def step(i: int) -> None:
        module = types.ModuleType(name)
        module.scale = i // 2  # type: ignore[attr-defined]
        sys.modules[name] = module

    return Case(call, step, close=lambda: sys.modules.pop(name, None))


@program()
def equal_dataclasses() -> Case:
    @dataclasses.dataclass
    class Settings:
        scale: int

    left, right = Settings(1), [Settings(1)]
    return Case(lambda x: x * 2 if left in right else x * 3, lambda i: setattr(left, "scale", i // 2))


@program()
def nested_containers_compared() -> Case:
    left, right = ([{"a": [1]}],), ([{"a": [1]}],)
    return Case(lambda x: x * 2 if left == right else x * 3, lambda i: left[0][0]["a"].__setitem__(0, i // 2))


@program()
def settings_object_passed_in() -> Case:
    settings = _holder(inner=_holder(values=[1, {"scale": 1}]))

    def call(x: Tensor, settings: Any) -> Tensor:
        return x * settings.inner.values[1]["scale"]

    def step(i: int) -> None:
        settings.inner.values[1]["scale"] = i // 2

    return Case(call, step, lambda i: (base(), settings))


@program()
def defaults_replaced() -> Case:
    def scaled(x: Tensor, scale: int = 1, *, more: int = 0) -> Tensor:
        return x * scale + more

    def step(i: int) -> None:
        scaled.__defaults__ = (i // 2,)
        scaled.__kwdefaults__["more"] = i

    return Case(lambda x: scaled(x), step)


@program()
def code_of_a_function_replaced() -> Case:
    def scaled(x: Tensor) -> Tensor:
        return x * 2

    def shifted(x: Tensor) -> Tensor:
        return x + 2

    codes = [scaled.__code__, shifted.__code__]
    return Case(lambda x: scaled(x), lambda i: setattr(scaled, "__code__", codes[i // 2 % 2]))


@program()
def order_of_keys() -> Case:
    settings = {"a": 1, "b": 2}

    def step(i: int) -> None:
        settings["a"] = settings.pop("a")
        if i > 2:
            settings["b"] = settings.pop("b")

    return Case(lambda x: (x * next(iter(settings.values())), list(settings)), step)


@program()
def order_of_keys_of_an_argument() -> Case:
    return Case(
        lambda x, settings: x * next(iter(settings.values())),
        inputs=lambda i: (base(), {"a": 1, "b": 2} if i % 2 else {"b": 2, "a": 1}),
    )


@program()
def kinds_of_numbers() -> Case:
    values = (True, 1, 1.0, 1 + 0j, 0.0, -0.0)

    def call(x: Tensor, value: Any) -> Any:
        return x * value, type(value).__name__

    return Case(call, inputs=lambda i: (base().long() if i % 2 else base(), values[i]))
