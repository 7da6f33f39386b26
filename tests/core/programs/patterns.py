"""Programs about match statements: what a pattern looks at, in which order, and what it raises."""
# ruff: noqa: F841, F821, PLW, SIM, B, RUF, C4, E731, UP, E722, TRY, PLR, N801

import collections
import dataclasses
import enum
import types
from collections import abc

from core.worlds import Registry

program = Registry()


class Color(enum.Enum):
    RED = 1
    BLUE = 2


@dataclasses.dataclass
class Node:
    left: object
    value: int
    right: object = None


Pair = collections.namedtuple("Pair", "first second")


class Loud:
    """Notes what is asked of it."""

    __match_args__ = ("a", "b")

    def __init__(self):
        self.log = []

    def __getattr__(self, name):
        if name.startswith("__") or name == "log":
            raise AttributeError(name)
        self.log.append(name)
        if name == "missing":
            raise AttributeError(name)
        return len(name)


class Row(abc.Sequence):
    def __init__(self, *items):
        self.items = items
        self.log = []

    def __len__(self):
        self.log.append("len")
        return len(self.items)

    def __getitem__(self, i):
        self.log.append(("getitem", str(i)))
        return self.items[i]


class Table(abc.Mapping):
    def __init__(self, **items):
        self.items_, self.log = items, []

    def __getitem__(self, key):
        self.log.append(key)
        return self.items_[key]

    def __len__(self):
        return len(self.items_)

    def __iter__(self):
        return iter(self.items_)


class Registered:
    def __len__(self):
        return 2

    def __getitem__(self, i):
        return (10, 20)[i]


abc.Sequence.register(Registered)

TREE = Node(Node(None, 1), 2, Node(Node(None, 3), 4))
STATE = types.SimpleNamespace(step=0)
CONFIG = {"mode": "fast", "level": 3, "deep": {"on": True}}


@program
def a_tree():
    def total(node):
        match node:
            case None:
                return 0
            case Node(left, value, right):
                return total(left) + value + total(right)

    return total(TREE)


@program(lambda: ([("a", 1), ["b", 2, 3], "cd", b"ef", {"x": 1}, 5, None, (), [[]]],))
def sequences_of_all_kinds(values):
    found = []
    for value in values:
        match value:
            case []:
                found.append("empty")
            case [name, 1]:
                found.append(("one", name))
            case [name, *rest]:
                found.append((name, rest))
            case str() | bytes():
                found.append("text")
            case {}:
                found.append("mapping")
            case _:
                found.append("other")
    return found


@program(lambda: ((1, 2, 3, 4, 5),))
def stars(values):
    match values:
        case [*_, 9]:
            return 0
        case [1, *middle, 5]:
            match middle:
                case first, *_, last:
                    return middle, first, last


@program
def own_sequences():
    row = Row(1, 2, 3)
    match row:
        case [1, x]:
            return "two"
        case [1, *rest]:
            return rest, row.log


@program
def own_mappings():
    table = Table(a=1, b=2)
    match table:
        case {"a": 5}:
            return 0
        case {"a": a, "c": c}:
            return 1
        case {"b": b, **rest}:
            return b, rest, table.log


@program
def registered_classes():
    match Registered():
        case [a, b]:
            return a, b
        case _:
            return None


@program
def named_tuples():
    match Pair(1, Pair(2, 3)):
        case Pair(first=9):
            return 0
        case Pair(1, (a, b)):
            return a, b


@program(lambda: (Color.BLUE,))
def enums(color):
    match color:
        case Color.RED:
            return "red"
        case Color.BLUE:
            return "blue"


@program
def configuration():
    match CONFIG:
        case {"mode": "slow"}:
            return 0
        case {"mode": "fast", "level": int(level), "deep": {"on": True}, **rest}:
            return level, rest


@program
def a_counter_is_only_carried_along():
    STATE.step = STATE.step + 1
    match (STATE.step, "x"):
        case [0, _]:
            return "never"
        case [int() as step, str(x)] if step > 0:
            return step, x


@program
def default_dicts_are_not_filled():
    d = collections.defaultdict(int, a=1)
    match d:
        case {"z": z}:
            return z
        case {"a": a}:
            return a, dict(d)


@program
def ordered_and_other_mappings():
    found = []
    for value in collections.OrderedDict(a=1), types.MappingProxyType({"a": 2}), collections.ChainMap({"a": 3}):
        match value:
            case {"a": a}:
                found.append(a)
    return found


@program
def attributes_are_asked_for_in_order():
    loud = Loud()
    match loud:
        case Loud(1, missing=_):
            return 0
        case Loud(a, bb=b):
            return a, b, loud.log


@program
def keys_that_are_names():
    match {1: "a", "k": "b"}:
        case {Color.RED.value: a, "k": b}:
            return a, b


@program
def builtin_classes_take_themselves():
    found = []
    for value in (True, 1, 1.5, "s", b"b", (1,), [1], {1}, {}):
        match value:
            case bool(x):
                found.append(("bool", x))
            case int(x) | float(x):
                found.append(("number", x))
            case str(x) | bytes(x):
                found.append(("text", x))
            case tuple(x) | list(x) | set(x) | dict(x):
                found.append(("container", x))
    return found


@program(lambda: (5,))
def a_pattern_that_is_no_class(value):
    number = types.SimpleNamespace(cls=5)
    match value:
        case number.cls():
            return 1


@program
def too_many_positions():
    match TREE:
        case Node(a, b, c, d):
            return 1


@program
def positions_without_names():
    match STATE:
        case types.SimpleNamespace(x):
            return 1


@program
def one_position_too_many():
    match 5:
        case int(x, y):
            return 1


class NoTuple:
    __match_args__ = ["x"]
    x = 1


class NoNames:
    __match_args__ = (1,)


@program
def names_that_are_no_tuple():
    match NoTuple():
        case NoTuple(x):
            return 1


@program
def names_that_are_no_strings():
    match NoNames():
        case NoNames(x):
            return 1


@program
def an_attribute_that_is_asked_for_twice():
    match TREE:
        case Node(x, left=y):
            return 1


@program
def a_key_that_is_asked_for_twice():
    keys = types.SimpleNamespace(a="k", b="k")
    match {"k": 1}:
        case {keys.a: x, keys.b: y}:
            return 1


class Broken:
    def __len__(self):
        raise KeyError("len")

    def __getitem__(self, i):
        return i


abc.Sequence.register(Broken)


@program
def a_length_that_raises():
    match Broken():
        case [x]:
            return x


@program
def a_property_that_raises():
    match types.SimpleNamespace(x=1), 1:
        case [types.SimpleNamespace(x=x), y]:
            pass
    match AngryOne():
        case AngryOne(x=x):
            return x


class AngryOne:
    @property
    def x(self):
        raise ValueError("x")


class Meta(type):
    def __instancecheck__(cls, other):
        return isinstance(other, int) and other > 3


class Big(metaclass=Meta):
    pass


@program(lambda: ([1, 5, "x"],))
def classes_that_decide_themselves(values):
    found = []
    for value in values:
        match value:
            case Big():
                found.append(value)
    return found


@program
def abstract_base_classes():
    found = []
    for value in [1], {}, "x", 5, Row():
        match value:
            case abc.Sequence():
                found.append("sequence")
            case abc.Mapping():
                found.append("mapping")
            case _:
                found.append("other")
    return found


@program
def guards_see_what_is_bound():
    log = []
    match [1, 2]:
        case [x, y] if log.append((x, y)):
            return 0
        case [x, *_] if x == 1:
            return log, x, y


@program
def nothing_fits():
    match 5:
        case "a" | None | 7 | -1 | 2.5:
            return 1
    return "nothing"


@program
def inside_a_generator():
    def numbers(values):
        for value in values:
            match value:
                case int(n) | [n]:
                    yield n
                case {"n": n}:
                    yield from (n, n)

    return list(numbers([1, [2], {"n": 3}, "x"]))
