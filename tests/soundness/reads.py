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

SUBCLASS_CONSTRUCTOR = (
    "what C code unpacks into a new instance of a class built on list, dict, set or tuple is not read"
)


def _holder(**values: Any) -> types.SimpleNamespace:
    return types.SimpleNamespace(**values)


@program(SUBCLASS_CONSTRUCTOR)
def list_class_made_from_a_list() -> Case:
    class Numbers(list):  # type: ignore[type-arg]
        pass

    source = [1]
    return Case(lambda x: x * len(Numbers(source)), lambda i: source.append(1))


@program(SUBCLASS_CONSTRUCTOR)
def dict_class_made_from_a_dict() -> Case:
    class Settings(dict):  # type: ignore[type-arg]
        pass

    source = {"scale": 1}
    return Case(lambda x: x * Settings(source)["scale"], lambda i: source.update(scale=i))


@program(SUBCLASS_CONSTRUCTOR)
def ordered_dict_class_made_from_a_dict() -> Case:
    class Settings(collections.OrderedDict):  # type: ignore[type-arg]
        pass

    source = {"scale": 1}
    return Case(lambda x: x * Settings(source)["scale"], lambda i: source.update(scale=i))


@program(SUBCLASS_CONSTRUCTOR)
def tuple_class_made_from_a_list() -> Case:
    class Pair(tuple):  # type: ignore[type-arg]
        pass

    source = [1]
    return Case(lambda x: x * Pair(source)[0], lambda i: source.__setitem__(0, i))


@program(SUBCLASS_CONSTRUCTOR)
def set_class_made_from_a_list() -> Case:
    class Numbers(set):  # type: ignore[type-arg]
        pass

    source = [1]
    return Case(lambda x: x * sum(Numbers(source)), lambda i: source.__setitem__(0, i))


@program("the first method that runs inside a class call marks its self as new, even if that is an older object")
def list_class_made_from_another_of_its_kind() -> Case:
    class Numbers(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            return super().__iter__()

    source = Numbers([1, 2])
    return Case(lambda x: x * len(Numbers(source)) * source[0], lambda i: source.__setitem__(0, i))


@program("a slot that is not set leaves no guard when the AttributeError is caught")
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


@program("attributes read through super() are not guarded if they are slots")
def slot_through_super() -> Case:
    class Base:
        __slots__ = ("scale",)

    class Derived(Base):
        __slots__ = ()

        def call(self, x: Tensor) -> Tensor:
            return x * super().scale

    derived = Derived()
    return Case(derived.call, lambda i: setattr(derived, "scale", i))


@program("attributes read through super() are not guarded if they are properties written in C")
def property_in_c_through_super() -> Case:
    class Base:
        scale = property(operator.attrgetter("_scale"))

    class Derived(Base):
        def call(self, x: Tensor) -> Tensor:
            return x * super().scale

    derived = Derived()
    return Case(derived.call, lambda i: setattr(derived, "_scale", i))


@program("the order of classes that super() walks is not guarded")
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


@program("a __getattribute__ that is added to a class is not noticed")
def getattribute_added_to_a_class() -> Case:
    class Plain:
        scale = 2

    plain = Plain()

    def step(i: int) -> None:
        if i == 2:
            Plain.__getattribute__ = lambda self, name: 7  # type: ignore[method-assign, assignment]

    return Case(lambda x: x * plain.scale, step)


@program("a __getattr__ that is added to a class is not noticed by a look-up that found nothing")
def getattr_added_to_a_class() -> Case:
    class Plain:
        pass

    plain = Plain()

    def step(i: int) -> None:
        if i == 2:
            Plain.__getattr__ = lambda self, name: 7  # type: ignore[attr-defined]

    return Case(lambda x: x * getattr(plain, "scale", 1), step)


@program("the truth of a tuple's subclass does not guard its special methods")
def bool_added_to_a_named_tuple() -> Case:
    class Pair(collections.namedtuple("Pair", "a")):
        pass

    pair = Pair(1)

    def step(i: int) -> None:
        if i == 2:
            Pair.__bool__ = lambda self: False  # type: ignore[attr-defined]

    return Case(lambda x: x * (2 if pair else 3), step)


@program("an operator on an object does not guard which class the object has")
def class_of_an_operand_swapped() -> Case:
    class One:
        def __add__(self, other: int) -> float:
            return 1.0 + other

    class Two:
        def __add__(self, other: int) -> float:
            return 2.0 + other

    operand = One()
    return Case(lambda x: x * (operand + 1), lambda i: setattr(operand, "__class__", (One, Two)[i // 2 % 2]))


@program("a Python class built on a C type with its own attribute look-up is read as if it had none")
def subclass_of_thread_local() -> Case:
    class Local(threading.local):
        scale = 1

    local = Local()
    return Case(lambda x: x * local.scale, lambda i: setattr(local, "scale", i))


@program("namespaces count as objects without contents when they are compared")
def namespaces_compared() -> Case:
    left, right = _holder(scale=1), _holder(scale=1)
    return Case(lambda x: x * 2 if left == right else x * 3, lambda i: setattr(left, "scale", i // 2))


@program("namespaces count as objects without contents when they are printed")
def namespace_printed() -> Case:
    settings = _holder(scale=1)
    return Case(lambda x: x * len(repr(settings)), lambda i: setattr(settings, "scale", 10**i))


@program("exceptions count as objects without contents when they are printed")
def exception_printed() -> Case:
    error = ValueError("1")
    return Case(lambda x: x * int(str(error)), lambda i: setattr(error, "args", (str(i),)))


@program("str.format reads attributes without a guard")
def attribute_in_a_format_string() -> Case:
    settings, template = _holder(scale=1), "{0.scale}"
    return Case(lambda x: x * float(template.format(settings)), lambda i: setattr(settings, "scale", i))


@program("the subclasses of a class are not guarded")
def subclasses_of_a_class() -> Case:
    class Base:
        pass

    kept: list[type] = []
    return Case(
        lambda x: x * len(Base.__subclasses__()),
        lambda i: kept.append(type(f"Derived{i}", (Base,), {})),
        close=kept.clear,
    )


@program("object.__dir__ reads the attributes of an object without a guard")
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


@program("list.sort runs its key function unseen if it is written in C")
def sort_by_an_attribute() -> Case:
    one, two = _holder(rank=1, scale=1), _holder(rank=2, scale=2)
    by_rank = operator.attrgetter("rank")

    def call(x: Tensor) -> Tensor:
        order = [one, two]
        order.sort(key=by_rank)
        return x * order[0].scale

    return Case(call, lambda i: setattr(one, "rank", 1 if i % 2 else 3))


@program("list.remove compares items without guarding what is in them")
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


@program("functools.partial is taken for immutable, but __setstate__ changes it")
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


@program("an import statement does not guard the import function")
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
