"""Programs about calls: every form of arguments, decorators, recursion, callbacks from C, imports."""
# ruff: noqa: F841, F821, PLW, SIM, B, RUF, C4, E731, UP, E401, I001

import functools
import operator

from core.worlds import Registry

program = Registry()


def shape(a, /, b, c=3, *args, d, e=5, **kwargs):
    return a, b, c, args, d, e, kwargs


@program
def all_forms_of_arguments():
    numbers, names = [7, 8], {"e": 6, "f": 9}
    return (
        shape(1, 2, d=4),
        shape(1, b=2, d=4),
        shape(1, 2, 3, 4, 5, d=6),
        shape(*numbers, d=1),
        shape(1, *numbers, 2, *numbers, d=3),
        shape(1, 2, d=4, **names),
        shape(*numbers, **names, d=1),
        shape(*(), 1, *"xy", d=1, **{}, **{"g": 1}),
        shape(*iter((1, 2)), d=0),
        shape(*{"k": 1, "l": 2}, d=0),
    )


@program(lambda: (1, 2), lambda: {"d": 4, "z": 5})
def own_arguments(a, /, b, c=3, *args, d, e=5, **kwargs):
    kwargs["new"] = args
    return a, b, c, args, d, e, kwargs


@program(lambda: (1, 2, 3, 4), lambda: {"y": 1, "x": 2})
def star_arguments(*args, **kwargs):
    return args[1:], list(kwargs), kwargs.get("x"), len(args)


@program
def missing_argument():
    shape(1)


@program
def missing_keyword():
    shape(1, 2)


@program
def argument_passed_twice():
    shape(1, 2, b=3, d=4)


@program(eager="passed twice")
def keyword_passed_twice():
    shape(1, 2, d=4, **{"d": 5})


@program
def unknown_keyword():
    only_two(1, c=3)


@program
def too_many_arguments():
    only_two(1, 2, 3)


def only_two(a, b=2):
    return a, b


@program(lambda: (5,), eager="cannot be iterated")
def star_of_a_number(n):
    return only_two(*n)


@program(lambda: (5,), eager="no dict")
def double_star_of_a_number(n):
    return only_two(**n)


@program(eager="passed twice")
def double_star_with_a_number_as_key():
    return only_two(**{1: 2})


class Mapping:
    def keys(self):
        return ["a", "b"]

    def __getitem__(self, key):
        return key + "!"


@program(eager="no dict")
def double_star_of_a_mapping():
    return only_two(**Mapping())


@program
def dict_display_of_a_mapping():
    return {"z": 1, **Mapping()}


@program
def defaults_are_shared():
    def f(a, b=[], *, c={}):
        b.append(a)
        c[a] = a
        return list(b), dict(c)

    return f(1), f(2), f(3, [4])


@program(lambda: (12,))
def recursion(n):
    def fibonacci(n):
        return n if n < 2 else fibonacci(n - 1) + fibonacci(n - 2)

    def even(n):
        return n == 0 or odd(n - 1)

    def odd(n):
        return n != 0 and even(n - 1)

    return fibonacci(n), even(n), odd(n)


def twice(f):
    @functools.wraps(f)
    def wrapper(*args, **kwargs):
        return f(*args, **kwargs), f(*args, **kwargs)

    return wrapper


def tagged(tag):
    def decorate(f):
        def wrapper(*args):
            return tag, f(*args)

        return wrapper

    return decorate


@twice
@tagged("inner")
def decorated(a, b=1):
    return a + b


@program
def decorators():
    return decorated(1), decorated(1, 2), decorated.__name__


@program
def decorators_made_inside():
    @twice
    @tagged("x")
    def f(a):
        return a

    return f(1)


@program
def lambdas():
    fs = [lambda x, i=i: x * i for i in range(3)]
    return [f(2) for f in fs], (lambda *a, k=1, **kw: (a, k, kw))(1, k=2, z=3)


@program
def partials():
    f = functools.partial(shape, 1, d=4)
    g = functools.partial(f, 2, e=7)
    h = functools.partial(max, 3)
    return f(2), g(), g(3, d=5), h(5), h(1)


@program(lambda: (["b", "a", "C"],))
def callbacks_from_c(names):
    return (
        list(map(lambda x: x + "!", names)),
        sorted(names, key=lambda x: x.lower(), reverse=True),
        max(names, key=lambda x: -ord(x)),
        any(x == "a" for x in names),
        all(x.isalpha() for x in names),
        list(filter(lambda x: x > "a", names)),
        sum(ord(x) for x in names),
        functools.reduce(lambda a, b: a + b, names),
        min((x for x in names), default=None),
        list(zip(names, map(str.lower, names))) if False else None,
        dict((x, i) for i, x in enumerate(names)),
        "".join(x for x in names),
        tuple(x for x in names),
        set(x for x in names),
        list(iter(lambda it=iter(names): next(it), "C")),
    )


@program(lambda: ([3, 1, 2],))
def callbacks_that_raise(values):
    def bad(x):
        if x == 1:
            raise ValueError(x)
        return x

    found = []
    for attempt in (
        lambda: list(map(bad, values)),
        lambda: sorted(values, key=bad),
        lambda: max(values, key=bad),
        lambda: any(bad(x) is None for x in values),
        lambda: [*filter(bad, values)],
    ):
        try:
            attempt()
        except ValueError as error:
            found.append(error.args)
    return found


@program
def sort_key_raises():
    return sorted([3, 1], key=lambda x: x.missing)


@program
def operator_functions():
    return operator.add(1, 2), operator.contains([1], 1), operator.not_(0), operator.index(5)


@program
def builtins_of_all_kinds():
    return (
        abs(-1),
        bin(5),
        chr(65),
        divmod(7, 2),
        hex(255),
        isinstance(1, (int, str)),
        issubclass(bool, int),
        len("abc"),
        max(1, 2),
        min([3, 4]),
        oct(8),
        ord("a"),
        pow(2, 3, 5),
        repr("x"),
        round(2.5),
        sum([1, 2], 3),
        callable(len),
        list(reversed([1, 2])),
        sorted({3, 1}),
        type(5).__name__,
        str(1.5),
        int("7"),
        float("1.5"),
        bool([]),
        hash("a") == hash("a"),
        list("ab"),
        tuple([1]),
        dict(a=1),
        set([1]),
        frozenset([1]) == {1},
        complex(1, 2),
        bytes(2),
        getattr("a", "upper")(),
        hasattr(1, "real"),
        [*range(3)],
        slice(1, 2).start,
        format(3.14159, ".2f"),
    )


@program
def methods_of_builtins():
    values = [3, 1, 2]
    values.sort()
    values.append(4)
    values.extend((5, 6))
    values.insert(0, 0)
    values.remove(3)
    last = values.pop()
    values.reverse()
    table = {"a": 1}
    table.update(b=2)
    table.setdefault("c", []).append(1)
    popped = table.pop("a"), table.pop("zz", None)
    unique = {1, 2}
    unique.add(3)
    unique.discard(1)
    unique |= {9}
    return (
        values,
        last,
        table,
        popped,
        unique,
        "a-b".split("-"),
        " x ".strip(),
        "%s-%d" % ("a", 1),
        "{}:{k}".format(1, k=2),
    )


@program
def imports():
    import math
    import os.path as path
    import collections.abc
    from math import pi, floor as down
    from collections import abc

    return math.sqrt(16), path.__name__, abc is collections.abc, pi, down(2.5)


@program(eager="first time")
def import_of_a_missing_module():
    import no_such_module_anywhere


@program
def import_of_a_missing_name():
    from math import no_such_name


@program(eager="first time")
def import_errors_are_caught():
    try:
        import no_such_module_anywhere as m
    except ImportError as error:
        m = error.name
    return m


class Callable:
    def __init__(self, n):
        self.n = n

    def __call__(self, *args, **kwargs):
        return self.n, args, kwargs


CALLABLE = Callable(3)


@program(lambda: (CALLABLE,))
def callable_objects(f):
    g = Callable(4)
    return f(1), f(*[1], **{"a": 2}), g(k=1), f.__call__(2)


class Methods:
    kind = "class"

    def method(self, x):
        return "method", self.kind, x

    @classmethod
    def of_class(cls, x):
        return "class", cls.__name__, x

    @staticmethod
    def static(x):
        return "static", x


METHODS = Methods()


@program(lambda: (METHODS,))
def all_kinds_of_methods(o):
    bound = o.method
    return (
        o.method(1),
        o.of_class(2),
        o.static(3),
        Methods.method(o, 4),
        Methods.of_class(5),
        Methods.static(6),
        bound(7),
        bound.__func__(o, 8),
        bound.__self__ is o,
        list(map(bound, [1, 2])),
    )


@program
def nested_calls_and_keywords():
    return shape(shape(1, 2, d=0), b=shape(3, 4, d=5, e=shape(6, 7, d=8)), d=[shape(9, 9, d=x) for x in "ab"])


@program(lambda: (30,))
def deep_recursion(n):
    def down(n):
        if n == 0:
            raise ValueError("bottom")
        return down(n - 1)

    try:
        down(n)
    except ValueError as error:
        step, count = error.__traceback__, 0
        return error.args


@program(eager="nested|raised")
def endless_recursion():
    def down():
        return down()

    try:
        down()
    except RecursionError as error:
        return str(error)


@program(eager="")
def executed_text():
    space = {}
    exec("x = 1 + 1\ndef f(a): return a + x", space)
    return space["f"](3), eval("1 + 2")


@program(eager="")
def own_locals():
    a = 1
    return sorted(locals()), a
