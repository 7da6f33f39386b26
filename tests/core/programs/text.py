"""Programs that build things: strings, displays, comprehensions with conditions."""
# ruff: noqa: F841, F821, PLW, SIM, B, RUF, C4, E731, UP

from core.worlds import Registry

program = Registry()


class Loud(str):
    def __format__(self, spec):
        return f"loud({spec})"

    def __str__(self):
        return "STR"

    def __repr__(self):
        return "REPR"


@program(lambda: ("text", 3.14159, [1, "a"]))
def f_strings(text, number, items):
    width = 10
    return (
        f"{text}",
        f"{text!s}",
        f"{text!r}",
        f"{'é'!a}",
        f"{number:.2f}",
        f"{number!r:>{width}}",
        f"{items}",
        f"{items!s:<12}|",
        f"{text:>{width}}|{number:<{width}.{2}f}|",
        f"{{}}",
        f"{text}{number}{items}",
        f"{text=}",
        f"{number = :.1f}",
        f"{None}{True}",
        f"{3:05d}{255:x}{1000000:,}",
        f"{'nested ' + f'{text}'}",
        f"",
    )


LOUD = Loud("x")
UNIQUE = {5}


@program(lambda: (LOUD,))
def f_strings_of_objects(loud):
    return f"{loud}", f"{loud!s}", f"{loud!r}", f"{loud!a}", f"{loud:abc}", f"{loud!r:>6}", [f"{x}" for x in (loud,)]


@program
def bad_format():
    return f"{5:zzz}"


@program
def format_of_an_object():
    return f"{[1]:>5}"


@program(lambda: ([1, 2], {"k": 1}, UNIQUE))
def displays(values, table, unique):
    return (
        [0, *values, *values, 3],
        (0, *values),
        {*unique, 6, *values},
        {**table, "l": 2, **{"k": 3}},
        [*table, *"ab"],
        {"a": 1, "b": 2, "c": values},
        [[]],
        [()],
        {},
        set(),
        {"x": {"y": [{"z": ()}]}},
        {1: 2, **{}},
        {i: -i for i in values},
    )


@program(lambda: ({"b": 1, "a": 2},))
def dict_order(table):
    table = dict(table)
    table["c"] = 3
    del table["b"]
    table["b"] = 4
    return list(table.items()), {**table, "a": 0}


@program
def constants():
    return 1, 1.5, 2j, "s", b"b", None, True, ..., (1, (2, 3)), frozenset({1}) == {1}, -0.0, 10**30, "\ud800", 1e400


@program(lambda: (5,))
def unstarrable(n):
    return [*n]


@program(lambda: (5,))
def unstarrable_set(n):
    return {*n}


@program(lambda: (5,), eager="no mapping")
def unstarrable_dict(n):
    return {**n}


@program
def unhashable_in_a_set():
    return {1, []}


@program
def unhashable_in_a_dict():
    return {[]: 1}


@program
def unhashable_constant_keys():
    return {"a": 1, "b": [2], (1, 2): 3}


@program(lambda: ("a,b;c",))
def string_methods(text):
    return (
        text.upper(),
        text.split(","),
        text.replace(",", "-"),
        text.find("b"),
        text.partition(";"),
        ",".join(["x", "y"]),
        text[::-1],
    )


@program
def big_displays():
    return [i for i in range(200)][150:], {str(i): i for i in range(40)}["39"], (*range(100),)[-1]
