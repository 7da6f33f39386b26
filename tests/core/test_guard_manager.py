"""Guards that users build: each holds until what it stands for changes, says why, runs no code, and owns nothing."""

from __future__ import annotations

import collections
import gc
import math
import sys
import types
import weakref
from collections.abc import Callable
from typing import Any

import _core
import pytest

from core.frames import guarded, hooked

Root = _core.RootGuardManager


class Plain:
    kind = "plain"

    def __init__(self, **values: Any) -> None:
        self.__dict__.update(values)

    def method(self) -> int:
        return 1

    @property
    def computed(self) -> int:
        raise AssertionError("a guard called a property")


class Slotted:
    __slots__ = ("x", "y")

    def __init__(self, x: Any) -> None:
        self.x = x


def verdicts(root: Any, **f_locals: Any) -> bool:
    """What check says, however often it is asked; check_verbose must agree."""
    answers = {root.check(f_locals) for _ in range(4)} | {root(f_locals), bool(root.check_verbose(f_locals))}
    assert len(answers) == 1
    return answers.pop()


def reason(root: Any, **f_locals: Any) -> str:
    info = root.check_verbose(f_locals)
    assert not info.result and info.verbose_code_parts == [info.reason]
    return info.reason


def holder() -> Any:
    return Plain(
        flag=True,
        number=3,
        nothing=None,
        items=[1, (2.5, "x"), {"k": Slotted(7)}],
        table={"a": 1, "b": [2]},
        ordered=collections.OrderedDict(a=1, b=2),
        layers=Plain(_modules={"0": Plain(training=True), "head": Plain(training=False)}),
    )


# name: (build, change, what the failure says)
CASES: dict[str, tuple[Callable[[Any], Any], Callable[[Any], Any], str]] = {
    "constant": (
        lambda o: o.getattr_manager("flag").add_equals_guard(True),
        lambda o: setattr(o, "flag", False),
        "`o.flag` is False, was True",
    ),
    "constant_of_another_type": (
        lambda o: o.getattr_manager("number").add_equals_guard(3),
        lambda o: setattr(o, "number", 3.0),
        "`o.number` is 3.0, was 3",
    ),
    "tuple": (
        lambda o: o.getattr_manager("items").getitem_manager(1).add_equals_guard((2.5, "x")),
        lambda o: o.items.__setitem__(1, (-2.5, "x")),
        "`o.items[1]` is (-2.5, 'x'), was (2.5, 'x')",
    ),
    "attribute_deleted": (
        lambda o: o.getattr_manager("number").add_type_guard(int),
        lambda o: delattr(o, "number"),
        "`o.number` is not there",
    ),
    "attribute_added": (
        lambda o: o.getattr_manager("more").add_absent_guard(),
        lambda o: setattr(o, "more", 1),
        "`o.more` is 1, was not there",
    ),
    "none": (
        lambda o: o.getattr_manager("nothing").add_none_guard(),
        lambda o: setattr(o, "nothing", []),
        "`o.nothing` is a list, was None",
    ),
    "not_none": (
        lambda o: o.getattr_manager("number").add_none_guard(False),
        lambda o: setattr(o, "number", None),
        "`o.number` is None, was not",
    ),
    "truth": (
        lambda o: o.getattr_manager("items").add_truth_guard(True),
        lambda o: o.items.clear(),
        "`o.items` is false, was true",
    ),
    "length": (
        lambda o: o.getattr_manager("items").add_length_guard(3),
        lambda o: o.items.append(1),
        "`o.items` has length 4, had 3",
    ),
    "length_as_a_source": (
        lambda o: o.getattr_manager("table").len_manager().add_equals_guard(2),
        lambda o: o.table.update(c=1),
        "`len(o.table)` is 3, was 2",
    ),
    "keys": (
        lambda o: o.getattr_manager("table").add_keys_guard(["a", "b"]),
        lambda o: o.table.update(a=o.table.pop("a")),
        "`o.table` has the keys ('b', 'a'), had ('a', 'b')",
    ),
    "keys_as_a_source": (
        lambda o: o.getattr_manager("table").keys_manager().add_equals_guard(("a", "b")),
        lambda o: o.table.pop("a"),
        "`tuple(o.table)` is ('b',), was ('a', 'b')",
    ),
    "order_of_an_ordered_dict": (
        lambda o: o.getattr_manager("ordered").add_keys_guard(["a", "b"]),
        lambda o: o.ordered.move_to_end("a"),
        "`o.ordered` has the keys ('b', 'a')",
    ),
    "type": (
        lambda o: o.getattr_manager("items").add_type_guard(list),
        lambda o: setattr(o, "items", ()),
        "`o.items` is a tuple, was a list",
    ),
    "class_of_an_object": (
        lambda o: o.add_type_guard(Plain),
        lambda o: setattr(o, "__class__", type("Other", (Plain,), {})),
        "`o` is a Other, was a Plain",
    ),
    "slot": (
        lambda o: (
            o.getattr_manager("items").getitem_manager(2).getitem_manager("k").getattr_manager("x").add_equals_guard(7)
        ),
        lambda o: setattr(o.items[2]["k"], "x", 8),
        "`o.items[2]['k'].x` is 8, was 7",
    ),
    "empty_slot": (
        lambda o: (
            o.getattr_manager("items").getitem_manager(2).getitem_manager("k").getattr_manager("y").add_absent_guard()
        ),
        lambda o: setattr(o.items[2]["k"], "y", 8),
        "`o.items[2]['k'].y` is 8, was not there",
    ),
    "key_removed": (
        lambda o: o.getattr_manager("table").getitem_manager("a").add_equals_guard(1),
        lambda o: o.table.pop("a"),
        "`o.table['a']` is not there",
    ),
    "list_too_short": (
        lambda o: o.getattr_manager("items").getitem_manager(2).add_type_guard(dict),
        lambda o: o.items.pop(),
        "`o.items[2]` is not there",
    ),
    "instance_hides_class": (
        lambda o: o.getattr_manager("kind").add_equals_guard("plain"),
        lambda o: setattr(o, "kind", "own"),
        "`o.kind` is 'own', was 'plain'",
    ),
    "modules_as_people_write_them": (
        lambda o: (
            o.getattr_manager("layers")
            .getattr_manager("_modules")
            .getitem_manager("0")
            .getattr_manager("training")
            .add_equals_guard(True)
        ),
        lambda o: setattr(o.layers._modules["0"], "training", False),
        "`o.layers[0].training` is False, was True",
    ),
    "named_modules": (
        lambda o: (
            o.getattr_manager("layers")
            .getattr_manager("_modules")
            .getitem_manager("head")
            .getattr_manager("training")
            .add_truth_guard(False)
        ),
        lambda o: setattr(o.layers._modules["head"], "training", True),
        "`o.layers.head.training` is true, was false",
    ),
    "dict_of_an_object": (
        lambda o: o.getattr_manager("__dict__").getitem_manager("number").add_equals_guard(3),
        lambda o: setattr(o, "number", 4),
        "is 4, was 3",
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_guard_holds_until_its_place_changes_and_says_what_changed(name):
    build, change, says = CASES[name]
    o = holder()
    root = Root()
    build(root.local_manager("o"))
    assert verdicts(root, o=o)
    o.unrelated = 1
    o.layers.unrelated = [1]
    assert verdicts(root, o=o)
    change(o)
    assert not verdicts(root, o=o)
    assert says in reason(root, o=o)
    assert verdicts(root, o=holder()), "another object in the same state is as good"


def test_identity_is_that_of_the_object():
    first, second = Plain(), Plain()
    root = Root()
    root.local_manager("x").add_identity_guard(first)
    assert verdicts(root, x=first) and not verdicts(root, x=second)
    assert reason(root, x=second) == "`x` is another object, a Plain"
    root = Root()
    kept = [1]
    root.local_manager("x").add_identity_guard(kept)
    assert verdicts(root, x=kept) and not verdicts(root, x=[1])


def test_identity_of_what_has_no_weak_references_is_its_address_and_keeps_nothing_alive():
    """As documented: holding it would keep an object of the user's alive, and what owns it has guards of its own."""
    guarded = [1]
    root = Root()
    before = sys.getrefcount(guarded)
    root.local_manager("x").add_identity_guard(guarded)
    assert verdicts(root, x=guarded) and sys.getrefcount(guarded) == before
    assert not any(root.check({"x": [1]}) for _ in range(100))
    address = id(guarded)
    del guarded
    later = [[i] for i in range(2000)]
    assert [root.check({"x": each}) for each in later] == [id(each) == address for each in later]


@pytest.mark.parametrize("value", [10**30, "text of no name", 0.5, -0.0, math.nan, None, 2j, b"x", ..., True])
def test_identity_of_atoms_is_equality(value):
    root = Root()
    root.local_manager("x").add_identity_guard(value)
    equal = float(str(value)) if isinstance(value, float) else type(value)(str(value)) if type(value) is int else value
    assert verdicts(root, x=value) and verdicts(root, x=equal)
    assert not verdicts(root, x=17.25)


def test_a_weak_identity_dies_with_its_object():
    victim = Plain()
    root = Root()
    root.local_manager("x").add_weak_identity_guard(victim)
    assert verdicts(root, x=victim)
    seen = weakref.ref(victim)
    address = id(victim)
    del victim
    assert seen() is None
    impostors = [Plain() for _ in range(2000)]
    assert all(not root.check({"x": each}) for each in impostors if id(each) == address)
    assert not any(root.check({"x": each}) for each in impostors)


def test_a_class_that_died_is_not_mistaken_for_a_new_one():
    def make() -> type:
        return type("Temporary", (), {"v": 1})

    kind = make()
    root = Root()
    root.local_manager("x").add_type_guard(kind)
    assert verdicts(root, x=kind())
    seen = weakref.ref(kind)
    del kind
    gc.collect()
    assert seen() is None
    for _ in range(50):
        assert not verdicts(root, x=make()())
        gc.collect()
    assert "of a class that is gone" in reason(root, x=make()())


@pytest.mark.parametrize(
    ("constant", "same", "different"),
    [
        (math.nan, float("nan"), 1.0),
        (0.0, 0.0, -0.0),
        (-0.0, -0.0, 0.0),
        (1, 1, True),
        (1, 1, 1.0),
        ("a", "".join(["a"]), b"a"),
        ((1, (math.nan,)), (1, (float("nan"),)), (1, (0.0,))),
        (complex(0.0, -0.0), complex(0.0, -0.0), complex(0.0, 0.0)),
        ((), (), []),
    ],
)
def test_constants_are_compared_by_type_and_to_the_bit(constant, same, different):
    root = Root()
    root.local_manager("x").add_equals_guard(constant)
    root.local_manager("o").getattr_manager("x").add_equals_guard(constant)
    assert verdicts(root, x=constant, o=Plain(x=same)) and verdicts(root, x=same, o=Plain(x=constant))
    assert not verdicts(root, x=different, o=Plain(x=same)) and not verdicts(root, x=same, o=Plain(x=different))


def test_attributes_of_classes_are_found_through_their_bases():
    class Base:
        x = 1

    class Derived(Base):
        pass

    root = Root()
    root.local_manager("o").getattr_manager("x").add_equals_guard(1)
    root.local_manager("c").getattr_manager("x").add_equals_guard(1)
    root.local_manager("o").type_manager().getattr_manager("x").add_equals_guard(1)
    o = Derived()
    assert verdicts(root, o=o, c=Derived)
    Base.x = 2
    assert not verdicts(root, o=o, c=Derived)
    Derived.x = 1
    assert verdicts(root, o=o, c=Derived)
    del Derived.x
    Base.x = 1
    assert verdicts(root, o=o, c=Derived)


def test_a_property_is_not_called_and_goes_before_the_instance():
    root = Root()
    root.local_manager("o").getattr_manager("computed").add_identity_guard(Plain.__dict__["computed"])
    o = Plain()
    assert verdicts(root, o=o)
    o.__dict__["computed"] = 3
    assert verdicts(root, o=o)


def test_a_descriptor_that_learns_to_set_goes_before_the_instance():
    class Descriptor:
        def __get__(self, instance: Any, owner: Any) -> int:
            raise AssertionError("a guard called a descriptor")

    class Owner:
        d = Descriptor()

    o = Owner()
    o.__dict__["d"] = 1
    root = Root()
    root.local_manager("o").getattr_manager("d").add_equals_guard(1)
    assert verdicts(root, o=o)
    Descriptor.__set__ = lambda *_: None
    assert not verdicts(root, o=o)
    del Descriptor.__set__
    assert verdicts(root, o=o)


def test_a_slot_of_a_foreign_class_is_only_a_descriptor():
    class Thief:
        x = Slotted.__dict__["x"]

    root = Root()
    root.local_manager("o").getattr_manager("x").add_identity_guard(Slotted.__dict__["x"])
    assert verdicts(root, o=Thief())


def test_functions_show_their_fields():
    def one() -> int:
        return 1

    def two() -> int:
        return 2

    root = Root()
    function = root.local_manager("f")
    function.getattr_manager("__code__").add_identity_guard(one.__code__)
    function.getattr_manager("__defaults__").add_none_guard()
    function.getattr_manager("__name__").add_equals_guard("one")
    assert verdicts(root, f=one)
    code = one.__code__
    one.__code__ = two.__code__
    assert not verdicts(root, f=one)
    one.__code__ = code
    one.__defaults__ = (1,)
    assert not verdicts(root, f=one)


def test_globals_builtins_and_cells():
    space = types.ModuleType("space_of_a_test")
    exec(
        "G = 1\ndef outer():\n  c = 1\n  def f(): return c, G, len\n  def set(v):\n    nonlocal c\n    c = v\n"
        "  return f, set\nf, set = outer()",
        space.__dict__,
    )
    root = Root()
    root.global_manager("G", space.f).add_equals_guard(1)
    root.global_manager("len", space).add_absent_guard()
    root.closure_manager(space.f, "c").add_equals_guard(1)
    root.builtin_manager("len").add_identity_guard(len)
    assert verdicts(root)
    space.G = 2
    assert reason(root) == "`G` is 2, was 1"
    space.G = 1
    space.set([1])
    assert reason(root) == "`c` is a list, was 1"
    space.set(1)
    space.len = abs
    assert "`len` is" in reason(root) and not verdicts(root)
    del space.len
    assert verdicts(root)


def test_globals_that_are_gone_fail():
    space = types.ModuleType("space_of_a_test")
    space.x = 1
    root = Root()
    root.global_manager("x", space).add_equals_guard(1)
    assert verdicts(root)
    del space
    gc.collect()
    assert reason(root) == "`the module that holds the globals` is not there"
    assert not verdicts(root)


def test_a_dict_guard_notices_its_keys_only():
    inner = [1]
    table = {"a": inner, "b": 2, "c": 3}
    some, whole = Root(), Root()
    some.local_manager("d").add_dict_guard(table, ["a", "b"])
    whole.local_manager("d").add_dict_guard(table)
    assert verdicts(some, d=table) and verdicts(whole, d=table)
    table["c"] = 4
    assert verdicts(some, d=table) and reason(whole, d=table) == "`d['c']` is 4, was 3"
    table["c"] = 3
    table["d"] = 1
    assert verdicts(some, d=table) and not verdicts(whole, d=table)
    del table["d"]
    table["a"] = [1]
    assert not verdicts(some, d=table) and not verdicts(whole, d=table)
    table["a"] = inner
    assert verdicts(some, d=table) and verdicts(whole, d=table)


def test_a_type_version_notices_every_change_of_the_class():
    class Base:
        pass

    class Derived(Base):
        pass

    root = Root()
    root.local_manager("o").type_manager().add_type_version_guard(Derived)
    assert verdicts(root, o=Derived())
    assert not verdicts(root, o=Base())
    Base.anything = 1
    assert not verdicts(root, o=Derived())
    assert reason(root, o=Derived()) == "`type(o)` was changed"


def test_aliases_are_told_apart():
    one, two = Plain(), Plain()
    root = Root()
    a, b, c = (root.local_manager(name) for name in "abc")
    inner = root.local_manager("d").getattr_manager("inner")
    root.add_same_object_guard(a, inner)
    root.add_no_aliasing_guard(a, b, c)
    assert verdicts(root, a=one, b=two, c=Plain(), d=Plain(inner=one))
    assert "`a` and `d.inner` are different objects" in reason(root, a=one, b=two, c=Plain(), d=Plain(inner=two))
    assert not verdicts(root, a=one, b=two, c=Plain(), d=Plain(inner=two))
    assert "`b` and `c` are the same object" in reason(root, a=one, b=two, c=two, d=Plain(inner=one))
    d = Plain(inner=one)
    for _ in range(3):
        assert verdicts(root, a=one, b=two, c=Plain(), d=d)
        assert not verdicts(root, a=two, b=one, c=Plain(), d=d)


def test_the_number_of_checks_is_told():
    root = Root()
    x = root.local_manager("x")
    for value in (1, 1, 2, 1):
        x.add_equals_guard(value)
    info = root.check_verbose({"x": 1})
    assert (info.result, info.num_guards_executed) == (False, 3)
    assert Root().check_verbose({}).num_guards_executed == 0


def test_a_source_without_guards_need_not_be_there():
    root = Root()
    root.local_manager("x")
    assert verdicts(root)
    root.local_manager("x").getattr_manager("y")
    assert not verdicts(root)


def test_the_same_place_is_one_place():
    root = Root()
    root.local_manager("x").getattr_manager("y").add_equals_guard(1)
    root.local_manager("x").getattr_manager("y").add_type_guard(int)
    assert root.check_verbose({"x": Plain(y=1)}).num_guards_executed == 2
    assert root.local_manager("x").getattr_manager("y").source == "x.y"


def test_guards_can_be_added_later():
    root = Root()
    o = Plain(x=1, y=1)
    root.local_manager("o").getattr_manager("x").add_equals_guard(1)
    assert verdicts(root, o=o)
    root.local_manager("o").getattr_manager("y").add_equals_guard(2)
    assert not verdicts(root, o=o)


@pytest.mark.skipif(bool(_core.why_no_frame_hook()), reason=_core.why_no_frame_hook() or "hooks")
def test_a_manager_guards_the_code_of_a_frame():
    def old(x):
        return "old"

    def new(x):
        return "new"

    root = Root()
    root.local_manager("x").getattr_manager("flag").add_equals_guard(True)
    x = Plain(flag=True)

    def callback(frame, cache_entry, frame_state):
        if frame.f_code is not old.__code__ or not root(frame.f_locals):
            return None
        return guarded(new.__code__, root)

    with hooked(callback):
        first = old(x)
    with hooked(False):
        answers = [first, old(x), old(Plain(flag=False)), old(Plain(flag=True))]
        x.flag = False
        answers.append(old(x))
    assert answers == ["new", "new", "old", "new", "old"]


# -- no code of the user runs -----------------------------------------------------------------------------------------


class Hostile(dict):
    """Every method raises; a guard must not notice."""

    def refuse(self, *args: Any) -> Any:
        raise AssertionError("a guard ran the user's code")


for special in ("eq", "ne", "hash", "bool", "len", "iter", "getitem", "getattribute", "getattr", "contains", "repr"):
    setattr(Hostile, f"__{special}__", Hostile.refuse)


class HostileKey:
    __hash__ = lambda self: hash("k")  # noqa: E731

    def __eq__(self, other: Any) -> bool:
        if armed:
            raise AssertionError("a guard compared keys by the user's code")
        return self is other


armed = False


def everything() -> list[Any]:
    """Objects of every kind that a frame may hold."""
    recursive: list[Any] = []
    recursive.append(recursive)
    return [
        None, 0, -1, 10**40, True, 1.5, math.nan, 2j, "", "x", b"", (), (1, (2,)), [], [1], recursive, {}, {"k": 1},
        {HostileKey(): 1, "k": 2}, {1: 2}, set(), {1}, frozenset({1}), range(3), slice(1), ..., NotImplemented, int, type,
        object(), Plain(x=1), Plain, Slotted(1), Hostile(), Hostile(k=1), collections.OrderedDict(k=1),
        collections.OrderedDict([(HostileKey(), 1)]), collections.defaultdict(int), collections.Counter("x"),
        collections.namedtuple("Pair", "x y")(1, [2]), len, [].append, Plain().method, Plain.method, everything, sys,
        weakref.ref(Plain), iter([]), (i for i in ()), memoryview(b"x"), bytearray(b"x"), staticmethod(len),
        types.SimpleNamespace(x=1), ValueError("x"), sys._getframe(), everything.__code__, type("T", (), {"__slots__": ()})(),
        type("I", (int,), {})(3), type("S", (str,), {})("x"), type("L", (list,), {"__len__": Hostile.refuse})([1]),
        types.MappingProxyType({"x": 1}), super(Plain, Plain()), property(), types.CellType(1), types.CellType(),
    ]  # fmt: skip


def guard_of_every_kind(place: Any) -> None:
    place.add_type_guard(Plain)
    place.add_equals_guard(1)
    place.add_truth_guard(True)
    place.add_none_guard(True)
    place.add_length_guard(1)
    place.add_keys_guard(["k"])
    place.add_type_version_guard(Plain)
    place.add_identity_guard(Plain)
    place.add_absent_guard()


PLACES: dict[str, Callable[[Any], Any]] = {
    "itself": lambda x: x,
    "attribute": lambda x: x.getattr_manager("x"),
    "dict": lambda x: x.getattr_manager("__dict__"),
    "class": lambda x: x.getattr_manager("__class__"),
    "key": lambda x: x.getitem_manager("k"),
    "index": lambda x: x.getitem_manager(0),
    "huge_index": lambda x: x.getitem_manager(10**30),
    "negative_key": lambda x: x.dict_getitem_manager(-1),
    "type": lambda x: x.type_manager(),
    "length": lambda x: x.len_manager(),
    "keys": lambda x: x.keys_manager(),
    "attribute_of_type": lambda x: x.type_manager().getattr_manager("__getattribute__"),
    "item_of_an_item": lambda x: x.getitem_manager(0).getitem_manager(0),
}


@pytest.mark.parametrize("kind", range(9))
@pytest.mark.parametrize("where", PLACES)
def test_whatever_is_passed_a_check_answers_and_runs_no_code(where, kind):
    global armed
    root, methods = Root(), []
    place = PLACES[where](root.local_manager("x"))

    class Recorder:
        def __getattr__(self, name: str) -> Any:
            return lambda *args: methods.append((name, args))

    guard_of_every_kind(Recorder())
    name, args = methods[kind]
    getattr(place, name)(*args)
    objects = everything()
    frames: list[str] = []
    gc.disable()  # it would close generators of other tests
    armed = True
    sys.setprofile(lambda frame, event, _: frames.append(frame.f_code.co_name) if event == "call" else None)
    try:
        for _ in range(3):
            for each in objects:
                f_locals = {"x": each}
                assert root.check(f_locals) is root.check(f_locals)
                root.check_verbose(f_locals)
    finally:
        sys.setprofile(None)
        armed = False
        gc.enable()
    assert not frames


# -- lifetimes --------------------------------------------------------------------------------------------------------


def test_a_guarded_object_dies_when_its_owner_lets_go():
    root = Root()
    o = holder()
    for build, _, _ in CASES.values():
        build(root.local_manager("o"))
    root.local_manager("o").getattr_manager("table").add_dict_guard(o.table)
    root.local_manager("o").getattr_manager("layers").add_identity_guard(o.layers)
    root.local_manager("o").getattr_manager("pair")
    assert verdicts(root, o=o)
    seen = [weakref.ref(each) for each in (o, o.layers, o.layers._modules["0"])]
    del o
    assert [each() for each in seen] == [None] * 3


@pytest.mark.parametrize("wrap", [lambda x: (x,), lambda x: [x], lambda x: frozenset([x]), lambda x: {"k": x}])
def test_nothing_inside_a_guarded_container_is_kept_alive(wrap):
    root = Root()
    root.local_manager("o").getattr_manager("c").add_truth_guard(True)
    root.local_manager("direct").add_truth_guard(True)
    victim = Plain()
    f_locals = {"o": Plain(c=wrap(victim)), "direct": wrap(victim)}
    assert verdicts(root, **f_locals)
    seen = weakref.ref(victim)
    del victim, f_locals
    gc.collect()
    assert seen() is None


def test_checks_leave_reference_counts_as_they_were():
    root = Root()
    o = holder()
    for build, _, _ in CASES.values():
        build(root.local_manager("o"))
    objects = [o, o.items, o.table, o.layers, Plain, o.layers._modules, o.__dict__]
    root.check({"o": o})
    before = [sys.getrefcount(each) for each in objects]
    for _ in range(100):
        root.check({"o": o})
        root.check_verbose({"o": o})
        root.check({"o": holder()})
    assert [sys.getrefcount(each) for each in objects] == before


def test_a_manager_lives_as_long_as_a_place_of_it():
    place = Root().local_manager("x").getattr_manager("y")
    gc.collect()
    place.add_equals_guard(1)
    assert place.source == "x.y"


# -- misuse -----------------------------------------------------------------------------------------------------------

MISUSE: dict[str, tuple[Callable[[Any, Any], Any], type[Exception], str]] = {
    "locals_of_a_wrong_type": (lambda r, x: r.check([1]), TypeError, "a dict, not on a list"),
    "no_locals": (lambda r, x: r(), TypeError, "one argument"),
    "locals_by_name": (lambda r, x: r(f_locals={}), TypeError, "one argument"),
    "too_many_locals": (lambda r, x: r({}, {}), TypeError, "one argument"),
    "verbose_of_a_wrong_type": (lambda r, x: r.check_verbose(3), TypeError, "a dict, not on a int"),
    "arguments_of_the_root": (lambda r, x: Root(1), TypeError, "no arguments"),
    "unbound": (lambda r, x: Root.local_manager(3, "x"), TypeError, "RootGuardManager"),
    "name_that_is_no_text": (lambda r, x: r.local_manager(3), TypeError, "str"),
    "attribute_that_is_no_text": (lambda r, x: x.getattr_manager(3), TypeError, "str"),
    "too_many_arguments": (lambda r, x: x.getattr_manager("a", "b"), TypeError, "getattr_manager"),
    "negative_index": (lambda r, x: x.getitem_manager(-1), ValueError, "from the front"),
    "key_that_is_no_constant": (lambda r, x: x.getitem_manager([1]), TypeError, "not a list"),
    "key_that_is_no_number": (lambda r, x: x.getitem_manager(math.nan), TypeError, "not a float"),
    "constant_that_is_none": (lambda r, x: x.add_equals_guard({}), TypeError, "not a dict"),
    "tuple_that_is_no_constant": (lambda r, x: x.add_equals_guard((1, [2])), TypeError, "not a tuple"),
    "type_that_is_no_class": (lambda r, x: x.add_type_guard(3), TypeError, "expected a class"),
    "version_of_no_class": (lambda r, x: x.add_type_version_guard(3), TypeError, "expected a class"),
    "negative_length": (lambda r, x: x.add_length_guard(-1), ValueError, "not negative"),
    "length_that_is_text": (lambda r, x: x.add_length_guard("3"), TypeError, "int"),
    "keys_that_are_no_constants": (lambda r, x: x.add_keys_guard([[]]), TypeError, "not a list"),
    "keys_that_cannot_be_listed": (lambda r, x: x.add_keys_guard(3), TypeError, "iterable"),
    "dict_without_the_key": (lambda r, x: x.add_dict_guard({}, ["a"]), ValueError, "no key 'a'"),
    "weak_identity_of_a_list": (lambda r, x: x.add_weak_identity_guard([1]), TypeError, "weakly"),
    "weak_identity_of_a_number": (lambda r, x: x.add_weak_identity_guard(1), TypeError, "weakly"),
    "globals_of_a_number": (lambda r, x: r.global_manager("x", 3), TypeError, "function or a module"),
    "globals_of_nobody": (lambda r, x: r.global_manager("x", {}), TypeError, "imported module"),
    "closure_of_a_number": (lambda r, x: r.closure_manager(3, "x"), TypeError, "expected a function"),
    "unknown_free_variable": (lambda r, x: r.closure_manager(holder, "x"), ValueError, "no free variable"),
    "alias_of_one": (lambda r, x: r.add_no_aliasing_guard(x), ValueError, "at least two"),
    "alias_given_twice": (lambda r, x: r.add_no_aliasing_guard(x, x), ValueError, "given twice"),
    "alias_of_a_number": (lambda r, x: r.add_same_object_guard(x, 3), TypeError, "not a int"),
    "alias_of_another_root": (
        lambda r, x: r.add_same_object_guard(x, Root().local_manager("y")), ValueError, "another root"),
    "unknown_property": (lambda r, x: x.tensor_property_manager("colour"), ValueError, "no property 'colour'"),
    "tensor_that_is_none": (lambda r, x: x.add_tensor_guard(3), TypeError, "expected a tensor"),
    "tensor_guards_of_numbers": (lambda r, x: _core.TensorGuards(3), TypeError, "expected a tensor"),
    "number_of_tensors": (lambda r, x: _core.TensorGuards().check(3), TypeError, "expected 0 tensors, not 1"),
    "version_of_a_list": (lambda r, x: _core.dict_version([]), TypeError, "dict"),
    "id_that_is_text": (lambda r, x: _core.check_obj_id(3, "x"), TypeError, "int"),
    "id_missing": (lambda r, x: _core.check_type_id(3), TypeError, "check_type_id"),
    "shape_of_a_number": (lambda r, x: _core.assert_size_stride(3, (), ()), TypeError, "expected a tensor"),
    "state_with_arguments": (lambda r, x: _core.GlobalStateGuard(3), TypeError, "__init__"),
}  # fmt: skip


@pytest.mark.parametrize("name", MISUSE)
def test_misuse_is_an_exception_that_says_what_was_expected(name):
    misuse, error, text = MISUSE[name]
    root = Root()
    with pytest.raises(error, match=text):
        misuse(root, root.local_manager("x"))
    assert not root.check({}) or root.check({"x": 1}), "a guard that was refused was half added"


def test_a_path_has_an_end():
    place = Root().local_manager("x")
    with pytest.raises(ValueError, match="256 steps"):
        for _ in range(1000):
            place = place.getattr_manager("next")


def test_small_functions_mean_what_their_names_say():
    value = Plain()
    assert _core.check_type_id(value, id(Plain)) and not _core.check_type_id(value, id(int))
    assert _core.check_obj_id(value, id(value)) and not _core.check_obj_id(None, id(value))
    table = {"a": 1}
    before = _core.dict_version(table)
    assert _core.dict_version(table) == before
    table["a"] = 2
    assert _core.dict_version(table) != before
    assert _core.GlobalStateGuard().check() and _core.GlobalStateGuard().reason() == ""


# -- finalisers during a check -----------------------------------------------------------------------------------------


class Finaliser:
    """Garbage that does something when the collector comes by."""

    def __init__(self, action: Callable[[], Any]) -> None:
        self.me, self.action = self, action

    def __del__(self) -> None:
        self.action()


def check_with_garbage(root: Any, f_locals: dict[str, Any], action: Callable[[], Any]) -> bool:
    gc.collect()
    Finaliser(action)
    thresholds = gc.get_threshold()
    gc.set_threshold(1)
    try:
        return root.check(f_locals)
    finally:
        gc.set_threshold(*thresholds)


def test_garbage_that_adds_guards_does_so_after_the_check() -> None:
    root = Root()
    for name in "abc":
        root.local_manager(name).keys_manager().add_equals_guard(("k",))
    f_locals = {name: {"k": 1} for name in "abc"}
    assert check_with_garbage(root, f_locals, lambda: [root.local_manager(f"z{i}") for i in range(100)])
    assert root.check(f_locals)


def test_garbage_that_drops_what_is_guarded_does_so_after_the_check() -> None:
    for _ in range(50):
        root = Root()
        place = root.local_manager("b")
        place.getattr_manager("d").keys_manager().add_equals_guard(("k",))
        place.getattr_manager("e").getattr_manager("x").add_equals_guard(1)
        f_locals: dict[str, Any] = {"b": Plain(d={"k": 1}, e=Plain(x=1))}
        junk: list[Any] = []

        def drop(f_locals: dict[str, Any] = f_locals, junk: list[Any] = junk) -> None:
            f_locals["b"] = None
            junk.extend(bytes(bytearray(b"\xaa" * n)) for n in range(1, 200))

        assert check_with_garbage(root, f_locals, drop)


# -- what guards hold --------------------------------------------------------------------------------------------------


def test_methods_of_classes_and_odd_code_keep_nothing_alive() -> None:
    class Mine(dict):  # type: ignore[type-arg]
        pass

    code = holder.__code__.replace(co_consts=(Mine,))
    deep: Any = Mine
    for _ in range(200):
        deep = (deep,)
    box = Plain(from_keys=Mine.fromkeys, mro=Mine.mro, code=code, deep=deep)
    root = Root()
    for name in vars(box):
        root.local_manager("box").getattr_manager(name).add_none_guard(False)
    assert verdicts(root, box=box)
    gone = weakref.ref(Mine)
    del Mine, code, deep, box
    gc.collect()
    assert gone() is None


# -- keys, lengths and classes -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("key", [True, 1.0, 1 + 0j], ids=repr)
def test_an_equal_key_is_the_same_key(key: Any) -> None:
    present, absent = Root(), Root()
    present.local_manager("d").dict_getitem_manager(1).add_equals_guard("x")
    absent.local_manager("d").dict_getitem_manager(1).add_absent_guard()
    assert verdicts(present, d={key: "x"}) and not verdicts(absent, d={key: "x"})
    assert not verdicts(present, d={2: "x"}) and verdicts(absent, d={2: "x"})


def test_none_is_a_key() -> None:
    root = Root()
    root.local_manager("d").getitem_manager(None).add_equals_guard(1)
    root.local_manager("d").dict_getitem_manager(None).add_equals_guard(1)
    assert verdicts(root, d={None: 1}) and not verdicts(root, d={None: 2})


def test_the_length_of_a_subclass_is_told_if_it_is_its_own() -> None:
    class Same(list):  # type: ignore[type-arg]
        pass

    class Other(list):  # type: ignore[type-arg]
        def __len__(self) -> int:
            return 99

    length, truth = Root(), Root()
    length.local_manager("x").add_length_guard(1)
    truth.local_manager("x").add_truth_guard(True)
    for root in (length, truth):
        assert verdicts(root, x=Same([1])) and not verdicts(root, x=Other([1])) and not verdicts(root, x=Same())
    assert verdicts(truth, x=collections.OrderedDict(a=1)) and not verdicts(truth, x=collections.Counter())
    counted = Same([1])
    assert length.check({"x": counted}) and length.check({"x": counted})
    Same.__len__ = lambda self: 7  # type: ignore[method-assign]
    assert not verdicts(length, x=counted)


def test_a_class_has_what_its_own_class_gives_it() -> None:
    class Meta(type):
        z = 7

    class Made(metaclass=Meta):
        pass

    absent, present = Root(), Root()
    absent.local_manager("x").getattr_manager("z").add_absent_guard()
    present.local_manager("x").getattr_manager("z").add_equals_guard(7)
    assert verdicts(present, x=Made) and not verdicts(absent, x=Made)
    Meta.z = 8
    assert not verdicts(present, x=Made)
    del Meta.z
    assert verdicts(absent, x=Made)


def test_misuse_names_what_was_expected() -> None:
    place = Root().local_manager("x")
    with pytest.raises(TypeError, match="cannot be referenced weakly"):
        place.add_weak_identity_guard(None)
    with pytest.raises(TypeError, match="keys are given as an iterable"):
        place.add_dict_guard({1: 2}, keys=5)
