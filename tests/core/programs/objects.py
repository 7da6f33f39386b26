"""Programs about objects: classes, attributes, descriptors, operators, metaclasses, dataclasses, enums."""
# ruff: noqa: F841, F821, PLW, SIM, B, RUF, C4, E731, UP, PLR

import abc
import collections
import dataclasses
import enum
import typing

from core.worlds import Registry

program = Registry()


class Base:
    shared = "base"

    def __init__(self, a, b=2):
        self.a = a
        self.b = b

    def total(self):
        return self.a + self.b

    def name(self):
        return "base"


class Derived(Base):
    def __init__(self, a):
        super().__init__(a, b=10)
        self.c = [a]

    def name(self):
        return "derived of " + super().name()

    def total(self):
        return super(Derived, self).total() + 1


@program
def instances():
    o = Derived(1)
    o.d = o.a
    o.a += 5
    del o.b
    o.b = 7
    return o.total(), o.name(), o.c, o.shared, Derived.shared, isinstance(o, Base), type(o).__name__, o


DERIVED = Derived(4)


@program(lambda: (DERIVED,))
def older_instances(o):
    return o.total(), o.name(), o.c[0], o.shared, hasattr(o, "zzz"), getattr(o, "zzz", 5), o


@program
def missing_attribute():
    return Derived(1).zzz


@program
def missing_attribute_of_a_class():
    return Derived.zzz


class Properties:
    def __init__(self):
        self._x = 1
        self.log = []

    @property
    def x(self):
        self.log.append("get")
        return self._x

    @x.setter
    def x(self, value):
        self.log.append("set")
        self._x = value

    @x.deleter
    def x(self):
        self.log.append("del")
        del self._x

    @property
    def broken(self):
        raise AttributeError("inside")

    @property
    def read_only(self):
        return 5


@program
def properties():
    o = Properties()
    o.x = o.x + 1
    o.x += 1
    value = o.x
    del o.x
    return value, o.log, o.read_only


@program
def property_that_raises():
    return Properties().broken


@program
def property_without_a_setter():
    Properties().read_only = 1


class Field:
    def __set_name__(self, owner, name):
        self.name = name

    def __get__(self, obj, kind=None):
        if obj is None:
            return "field of " + kind.__name__
        return obj.values.get(self.name, "unset")

    def __set__(self, obj, value):
        obj.values[self.name] = value

    def __delete__(self, obj):
        del obj.values[self.name]


class NonData:
    def __get__(self, obj, kind=None):
        return "non-data"


class Described:
    x = Field()
    y = Field()
    z = NonData()

    def __init__(self):
        self.values = {}


@program
def descriptors():
    o = Described()
    o.x = 5
    o.y = 6
    del o.y
    before = o.z
    o.z = "own"
    return o.x, o.y, before, o.z, Described.x, Described.z, o.values


class Dynamic:
    def __init__(self):
        self.real = 1

    def __getattr__(self, name):
        if name.startswith("no"):
            raise AttributeError(name)
        return "dynamic " + name


class Intercepted:
    def __init__(self):
        self.real = 1

    def __getattribute__(self, name):
        if name == "virtual":
            return "intercepted"
        return super().__getattribute__(name)

    def __setattr__(self, name, value):
        super().__setattr__(name, (name, value))

    def __delattr__(self, name):
        object.__delattr__(self, name)


@program
def dynamic_attributes():
    o, p = Dynamic(), Intercepted()
    p.x = 5
    p.y = 6
    del p.y
    return o.real, o.other, hasattr(o, "nothing"), getattr(o, "no", 3), p.real, p.virtual, p.x, hasattr(p, "y")


class Slots:
    __slots__ = ("a", "b")

    def __init__(self, a):
        self.a = a


class MoreSlots(Slots):
    __slots__ = ("c",)


@program
def slots():
    o = MoreSlots(1)
    o.c = o.a + 1
    o.b = 3
    del o.b
    try:
        o.b
    except AttributeError as error:
        return o.a, o.c, str(error), o


SLOTS = Slots(5)


@program(lambda: (SLOTS,))
def older_slots(o):
    return o.a


class Number:
    def __init__(self, n):
        self.n = n

    def __add__(self, other):
        return ("add", self.n, getattr(other, "n", other))

    def __radd__(self, other):
        return ("radd", self.n, other)

    def __iadd__(self, other):
        return Number(self.n + other)

    def __sub__(self, other):
        return NotImplemented

    def __rsub__(self, other):
        return ("rsub", self.n, getattr(other, "n", other))

    def __eq__(self, other):
        return isinstance(other, Number) and self.n == other.n

    def __lt__(self, other):
        return self.n < other.n

    def __hash__(self):
        return hash(self.n)

    def __bool__(self):
        return self.n != 0

    def __neg__(self):
        return Number(-self.n)

    def __invert__(self):
        return "invert"

    def __abs__(self):
        return "abs"

    def __len__(self):
        return self.n

    def __getitem__(self, key):
        return ("item", key)

    def __contains__(self, item):
        return item == self.n

    def __call__(self):
        return "called"

    def __index__(self):
        return self.n

    def __float__(self):
        return float(self.n)

    def __str__(self):
        return f"N{self.n}"

    def __repr__(self):
        return f"Number({self.n})"

    def __format__(self, spec):
        return f"<{self.n}:{spec}>"

    def __pow__(self, other, modulo=None):
        return ("pow", self.n, other, modulo)

    def __divmod__(self, other):
        return ("divmod", other)

    def __round__(self, digits=None):
        return ("round", digits)


class Special(Number):
    def __radd__(self, other):
        return ("special radd", getattr(other, "n", other))


NUMBER = Number(3)


@program(lambda: (NUMBER,))
def operators_of_classes(older):
    a, b = Number(2), Number(2)
    c = a
    c += 5
    return (
        a + 1,
        1 + a,
        a + b,
        a + Special(4),
        5 - a,
        c.n,
        a == b,
        a != b,
        a < older,
        a > older,
        a is b,
        hash(a) == hash(b),
        bool(Number(0)),
        not a,
        (-a).n,
        ~a,
        abs(a),
        len(older),
        a[1],
        a["k"],
        a[1:2],
        a[1:2, ...],
        2 in a,
        3 in a,
        a(),
        [10, 20, 30][a],
        float(older),
        str(a),
        repr(a),
        f"{a}",
        f"{a:x}",
        f"{a!r:>10}",
        f"{a!s}",
        a**2,
        pow(a, 2, 3),
        divmod(a, 4),
        round(a),
        round(a, 1),
        {a: 1}[b],
        b in {a},
        sorted([older, a, b])[0] is a,
        max(a, older).n,
    )


@program
def operator_not_supported():
    return Number(1) - 2


@program
def operator_not_supported_at_all():
    return Base(1) + Base(2)


class Countdown:
    def __init__(self, n):
        self.n = n

    def __iter__(self):
        return self

    def __next__(self):
        if self.n == 0:
            raise StopIteration
        self.n -= 1
        return self.n


class Sequence:
    def __len__(self):
        return 3

    def __getitem__(self, i):
        if i >= 3:
            raise IndexError
        return i * i


class Reiterable:
    def __iter__(self):
        return iter([1, 2])


@program
def iterators():
    first = Countdown(3)
    return (
        list(Countdown(3)),
        [x for x in Sequence()],
        next(first),
        next(first),
        [*first],
        next(first, "end"),
        4 in Sequence(),
        list(reversed(Sequence())),
        [x for x in Reiterable()],
        [*Reiterable(), *Countdown(2)],
        sum(Countdown(4)),
        max(Sequence()),
        list(zip(Countdown(2), Reiterable())),
        tuple(map(str, Sequence())),
    )


class Meta(type):
    def __call__(cls, *args):
        made = super().__call__(*args)
        made.tag = cls.__name__
        return made

    @property
    def label(cls):
        return "label of " + cls.__name__

    def __len__(cls):
        return 42

    def __getitem__(cls, key):
        return cls.__name__, key

    def __contains__(cls, item):
        return item == "in"

    def __instancecheck__(cls, other):
        return other == "instance"

    def __iter__(cls):
        return iter((1, 2))


class WithMeta(metaclass=Meta):
    def __init__(self, x=0):
        self.x = x

    def __class_getitem__(cls, key):
        return "never"


@program
def metaclasses():
    o = WithMeta(3)
    return (
        o.tag,
        o.x,
        WithMeta.label,
        len(WithMeta),
        WithMeta["k"],
        "in" in WithMeta,
        isinstance("instance", WithMeta),
        [*WithMeta],
    )


class Generic:
    def __class_getitem__(cls, key):
        return cls.__name__, key


@program
def class_getitem():
    return Generic[int] == ("Generic", int), Generic["x"]


class Cooperative(Base):
    def total(self):
        return super().total() * 2


class Diamond(Cooperative, Derived):
    @classmethod
    def make(cls, n):
        return cls(n)

    @property
    def label(self):
        return super().shared

    def comprehension(self):
        return [super(Diamond, self).name() for _ in range(2)]


@program
def super_calls():
    o = Diamond.make(3)
    return o.total(), o.name(), o.label, o.comprehension(), [c.__name__ for c in Diamond.__mro__]


@dataclasses.dataclass
class Record:
    a: int
    b: list = dataclasses.field(default_factory=list)
    c: str = "c"

    def __post_init__(self):
        self.d = self.a * 2


@dataclasses.dataclass(frozen=True, order=True)
class Frozen:
    x: int
    y: int = 0


@program
def data_classes():
    r = Record(1)
    r.b.append(2)
    return (
        r,
        Record(1, [2]) == r,
        r.d,
        Frozen(1) < Frozen(2),
        Frozen(1) == Frozen(1),
        hash(Frozen(1)) == hash(Frozen(1)),
        Frozen(3),
    )


@program(eager="not understood")
def text_of_a_data_class():
    return repr(Frozen(1))


@program
def frozen_data_class():
    f = Frozen(1)
    f.x = 2


RECORD = Record(5)


@program(lambda: (RECORD,))
def older_data_class(r):
    return r.a, r.b, r.c, r == Record(5), r


Pair = collections.namedtuple("Pair", "left right", defaults=[9])


class Typed(typing.NamedTuple):
    x: int
    y: str = "y"

    def both(self):
        return f"{self.x}{self.y}"


PAIR = Pair(3, 4)


@program(lambda: (PAIR,))
def named_tuples(older):
    p, t = Pair(1), Typed(2)
    left, right = p
    return p, t, p.left + older.right, p[1], left, right, t.both(), p == (1, 9), older, Pair(*older)


@program(eager="lets C code call")
def named_tuple_replaced():
    return Pair(1)._replace(left=5)


class Color(enum.Enum):
    RED = 1
    GREEN = 2

    @property
    def pretty(self):
        return self.name.lower()


class Level(enum.IntEnum):
    LOW = 1
    HIGH = 2


@program(lambda: (Color.RED,))
def enums(color):
    return (
        color.name,
        color.value,
        color is Color.RED,
        color == Color.GREEN,
        Color.RED.pretty,
        Level.HIGH > Level.LOW,
        Level.LOW + 1,
        color,
    )


@program
def enum_look_ups():
    return Color(2).name, Color["RED"].value, [c.name for c in Color], len(Color), Color.GREEN in Color


class Abstract(abc.ABC):
    @abc.abstractmethod
    def run(self): ...


class Concrete(Abstract):
    def run(self):
        return "ran"


@program
def abstract_classes():
    return Concrete().run(), isinstance(Concrete(), Abstract), isinstance(5, Abstract), issubclass(Concrete, Abstract)


@program
def abstract_class_is_not_made():
    Abstract()


@program
def lists_of_known_types():
    return (
        isinstance([], collections.abc.Sequence),
        isinstance({}, collections.abc.Mapping),
        isinstance(1, collections.abc.Hashable),
    )


class Names(dict):
    def __missing__(self, key):
        return "missing " + key


class Stack(list):
    def push(self, x):
        self.append(x)
        return self


class Tag(str):
    def loud(self):
        return self.upper() + "!"


@program
def subclasses_of_builtins():
    n = Names(a=1)
    n["b"] = 2
    s = Stack([1]).push(2)
    return n["a"], n["zz"], n.get("zz"), len(n), s[-1], s, len(s), n


TAG = Tag("x")


@program(lambda: (TAG,))
def subclass_of_str(tag):
    return tag.loud(), tag + "y", f"{tag}", len(tag)


class WithNew:
    def __new__(cls, x):
        made = super().__new__(cls)
        made.from_new = x
        return made

    def __init__(self, x):
        self.from_init = x


class Other:
    def __new__(cls, x):
        return [x]


@program
def constructors():
    o = WithNew(1)
    return o.from_new, o.from_init, Other(2), o


@program(left="may have changed")
def class_statements():
    class Local(Base):
        z = Base.shared + "!"
        table = [x for x in range(3)]

        def name(self):
            return "local " + super().name()

    return Local(1).name(), Local.z, Local.table, Local.__qualname__


@program(left="may have changed")
def class_bodies_with_cells():
    outer = "outer"

    class Local:
        a: int = 1
        inner = outer
        print = 5
        del print

        def f(self):
            return outer, __class__.__name__

    return Local.inner, Local().f(), Local.__annotations__


class Hooks:
    def __init_subclass__(cls, tag=None):
        cls.tag = tag


@program(left="may have changed")
def class_keywords():
    class Sub(Hooks, tag="t"):
        pass

    return Sub.tag


@program
def containers_are_compared_deeply():
    a = {"x": [1, (2, {3: Number(4)})], "y": {5}}
    b = {"y": {5}, "x": [1, (2, {3: Number(4)})]}
    return a == b, a != b, [a, b] == [b, a], (a,) == (b,), [1, 2] < [1, 3]


@program
def aliases_in_results():
    shared = [1]
    o = Base(shared)
    o.b = o.a
    return shared, [shared, shared], {"k": shared}, o, (o, o)


class Finalised:
    count = 0

    def __del__(self):
        self.x = 1


@program(eager="")
def objects_that_are_finalised():
    o = Finalised()
    o = None
    return 1
