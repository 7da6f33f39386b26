"""Programs about names: imports, class bodies, globals that go away, type parameters."""
# ruff: noqa: F401, F811, F841, F821, PLW, PLC, SIM, B, RUF, C4, E731, UP, E722, TRY, I, A, S102

import sys
from textwrap import dedent

from core.worlds import Registry

program = Registry()
SCRATCH = 1


# -- imports


@program
def an_import():
    import keyword

    return keyword.iskeyword("if")


@program
def parts_of_packages():
    import os.path
    import os.path as path
    import xml.etree.ElementTree as tree
    from os import path as again, sep
    from collections import abc, OrderedDict as D
    from importlib.util import find_spec

    return path is again, os.path is path, sep, abc.__name__, D.__name__, tree.__name__, find_spec.__name__


@program
def missing_names_are_caught():
    try:
        from math import no_such_name
    except ImportError as error:
        return error.name, error.msg


@program(eager="looks at frames")
def a_missing_name_of_a_package():
    try:
        from collections import no_such_name
    except ImportError as error:
        return error.name, error.msg


@program
def the_future():
    import __future__

    return __future__.annotations.compiler_flag


@program
def a_module_that_is_none():
    sys.modules["module_that_is_none"] = None
    try:
        import module_that_is_none
    except ImportError as error:
        return error.name, str(error)
    finally:
        del sys.modules["module_that_is_none"]


# -- globals


@program
def a_global_goes_away_and_comes_back():
    global SCRATCH
    before = SCRATCH
    del SCRATCH
    try:
        SCRATCH
    except NameError as error:
        found = error.name, str(error)
    try:
        del SCRATCH
    except NameError as error:
        found += error.name, str(error)
    SCRATCH = before
    return found


@program
def free_variables_without_a_value():
    def inner():
        return later

    try:
        inner()
    except NameError as error:
        found = type(error).__name__, str(error), error.name
    later = 1
    return found, inner()


@program
def cells_without_a_value():
    def inner():
        return x

    try:
        x
    except UnboundLocalError as error:
        found = str(error)
    x = inner
    del x
    try:
        del x
    except UnboundLocalError as error:
        return found, str(error)


# -- class bodies


class Registry_(type):
    made = []

    def __new__(meta, name, bases, names, **keywords):
        cls = super().__new__(meta, name, bases, names)
        cls.keywords = keywords
        return cls

    def __init__(cls, name, bases, names, **keywords):
        super().__init__(name, bases, names)


@program
def a_class_that_nobody_uses():
    class Local:
        x = 1

    return 1


@program(left="may have changed")
def a_class_that_is_returned():
    class Local:
        """Text."""

        x: int = 1
        y = x + 1

        def get(self):
            return self.y

    return Local, Local.__doc__, Local().get()


@program(left="may have changed")
def a_body_with_conditions_and_loops():
    class Local:
        squares = {}
        for i in range(3):
            squares[i] = i * i
        del i
        if len(squares) > 2:
            big = True
        else:
            big = False
        try:
            missing
        except NameError as error:
            text = str(error)
        with_ = [n for n in squares]

    return sorted(name for name in vars(Local) if not name.startswith("__")), Local.text, Local.squares


@program(left="raises an exception")
def a_body_that_raises():
    class Local:
        x = 1
        y = x // 0


@program(left="raises an exception")
def a_name_that_a_body_does_not_have():
    class Local:
        del nothing


@program(left="may have changed")
def a_metaclass_with_keywords():
    class Local(metaclass=Registry_, a=1, b=[2]):
        pass

    return Local.keywords, type(Local).__name__


@program(left="may have changed")
def an_enumeration():
    import enum

    class Shade(enum.IntFlag):
        A = 1
        B = enum.auto()

    return Shade.A | Shade.B, list(Shade)


@program(left="may have changed")
def a_data_class():
    import dataclasses

    @dataclasses.dataclass(order=True)
    class Item:
        a: int
        b: list = dataclasses.field(default_factory=list)

    return Item(1), Item(1) < Item(2), Item(3, [4]).b


@program(left="may have changed")
def classes_in_classes():
    x = "outer"

    class A:
        x = "A"

        class B:
            y = x

            def f(self):
                return x, __class__.__qualname__

        z = x

    return A.B.y, A.z, A.B().f()


# -- type parameters, which CPython 3.11 cannot read

if sys.version_info >= (3, 12):
    exec(
        dedent("""
        @program
        def a_generic_function():
            def first[T](values: list[T]) -> T:
                return values[0]

            return first([1, 2])

        @program(eager="fills the cache")
        def its_parameters():
            def f[T: int, *Ts, **P](x: T, *args: *Ts) -> T:
                return x

            return f(1), [type(p).__name__ for p in f.__type_params__], f.__type_params__[0].__bound__

        @program(eager="not understood")
        def a_generic_class():
            class Box[T: (int, str)]:
                def __init__(self, item: T):
                    self.item = item

                def map[U](self, f) -> "Box[U]":
                    return Box(f(self.item))

            return Box(1).map(lambda x: x + 1).item, Box[int].__args__, Box.__type_params__[0].__constraints__

        @program(eager="GenericAlias")
        def an_alias():
            type Pair[T] = tuple[T, T]
            type Plain = int | Pair[str]
            return Pair[int].__value__ if False else Pair.__name__, Plain.__value__.__args__[0]

        @program(eager="not understood")
        def annotations_in_a_generic_class():
            y = "outer"

            class C[T]:
                y = "inner"
                z: T
                def f[U](self, a: T = y) -> U:
                    return a

            return C().f(), sorted(C.__annotations__)
        """)
    )

if sys.version_info >= (3, 13):
    exec(
        dedent("""
        @program
        def parameters_with_defaults():
            def f[T = int](x: T) -> T:
                return x

            return f(1)
        """)
    )
