"""Random edits to random object trees are noticed if and only if they change something that was read."""

from __future__ import annotations

import collections
import random
import types
from collections.abc import Callable
from typing import Any

import _core
import pytest

from core import worlds

# -- the guards that users build --------------------------------------------------------------------------------------

MISSING = object()
NAMES = ["a", "b", "c"]
ATOMS = [0, 1, True, None, 0.0, -0.0, 1.0, float("nan"), "", "a", b"a", 10**20, (), (1, "a"), (1.0, (None,))]


class Base:
    shared = 1


class Left(Base):
    pass


class Right(Base):
    shared = 2


class Slots:
    __slots__ = ("a", "b")


CLASSES = [Base, Left, Right, Slots]


def make(rng: random.Random, depth: int) -> Any:
    """A random tree of objects."""
    kind = rng.randrange(8) if depth else 0
    below = lambda: make(rng, depth - 1)  # noqa: E731
    if kind == 0:
        return rng.choice(ATOMS)
    if kind in (1, 2):
        thing = rng.choice([Base, Left, Right])()
        for name in rng.sample(NAMES, 2):
            setattr(thing, name, below())
        return thing
    if kind == 3:
        slotted = Slots()
        slotted.a = below()
        return slotted
    if kind == 4:
        return tuple(below() for _ in range(rng.randrange(3)))
    if kind == 5:
        return [below() for _ in range(rng.randrange(4))]
    table = collections.OrderedDict if kind == 7 else dict
    return table((name, below()) for name in rng.sample([*NAMES, 1, -1], 3))


def static_attribute(thing: Any, name: str) -> Any:
    for base in (thing if isinstance(thing, type) else type(thing)).__mro__:
        if name in vars(base):
            found = vars(base)[name]
            break
    else:
        found = MISSING
    if isinstance(thing, type):
        return found
    if isinstance(found, types.MemberDescriptorType):
        return getattr(thing, name, MISSING)
    return getattr(thing, "__dict__", {}).get(name, found)


def follow(value: Any, step: tuple[str, Any]) -> Any:
    """What one step of a path leads to, by plain Python."""
    kind, key = step
    if value is MISSING:
        return MISSING
    if kind == "attribute":
        return static_attribute(value, key)
    if kind == "type":
        return type(value)
    if kind == "item" and isinstance(value, dict):
        return next((item for known, item in value.items() if same(known, key)), MISSING)
    if kind == "item" and isinstance(value, (list, tuple)) and type(key) is int:
        return value[key] if 0 <= key < len(value) else MISSING
    if kind == "length" and isinstance(value, (list, tuple, dict, str, bytes)):
        return len(value)
    return MISSING


def same(a: Any, b: Any) -> bool:
    """Equal constants of the same type, to the bit."""
    return type(a) is type(b) and repr(a) == repr(b) and isinstance(a, (int, float, str, bytes, tuple, type(None)))


def is_constant(value: Any) -> bool:
    if type(value) is tuple:
        return all(map(is_constant, value))
    return type(value) in (int, bool, float, str, bytes, type(None))


def paths_below(value: Any) -> list[list[tuple[str, Any]]]:
    """All paths that lead somewhere, and some that do not."""
    steps: list[tuple[str, Any]] = [("type", None)]
    if isinstance(value, (list, tuple)):
        steps += [("item", index) for index in range(len(value) + 1)] + [("length", None)]
    elif isinstance(value, dict):
        steps += [("item", key) for key in [*value, "zz"]] + [("length", None)]
    elif isinstance(value, tuple(CLASSES)):
        steps += [("attribute", name) for name in [*NAMES, "shared"]]
    found: list[list[tuple[str, Any]]] = [[]]
    for step in steps:
        below = follow(value, step)
        found += [[step, *rest] for rest in ([[]] if below is MISSING or step[0] == "type" else paths_below(below))]
    return found


class Guarded:
    """Random guards on the locals of an imagined frame, and what plain Python says about them."""

    def __init__(self, rng: random.Random, f_locals: dict[str, Any]) -> None:
        self.rng, self.f_locals, self.root = rng, f_locals, _core.RootGuardManager()
        self.oracles: list[Callable[[], bool]] = []
        for name, value in f_locals.items():
            paths = paths_below(value)
            for path in rng.sample(paths, min(len(paths), rng.randrange(1, 9))):
                self.add(name, path)
        self.relate()

    def value(self, name: str, path: list[tuple[str, Any]]) -> Any:
        value = self.f_locals.get(name, MISSING)
        for step in path:
            value = follow(value, step)
        return value

    def place(self, name: str, path: list[tuple[str, Any]]) -> Any:
        place = self.root.local_manager(name)
        for kind, key in path:
            if kind == "attribute":
                place = place.getattr_manager(key)
            elif kind == "item":
                place = place.dict_getitem_manager(key)
            else:
                place = place.type_manager() if kind == "type" else place.len_manager()
        return place

    def add(self, name: str, path: list[tuple[str, Any]]) -> None:
        place, now = self.place(name, path), self.value(name, path)
        current = lambda: self.value(name, path)  # noqa: E731
        if now is MISSING:
            if all(self.value(name, path[:length]) is not MISSING for length in range(len(path))):
                place.add_absent_guard()
                # A place below something that is missing is not there either, but its parent must be.
                parent = lambda: self.value(name, path[:-1])  # noqa: E731
                self.oracles.append(lambda: current() is MISSING and parent() is not MISSING)
            return
        kinds = ["type", "identity", "none"]
        kinds += ["equals"] if is_constant(now) else []
        kinds += ["length", "truth"] if type(now) in (list, tuple, dict, str, bytes) else []
        kinds += ["keys"] if isinstance(now, dict) else []
        getattr(self, f"add_{self.rng.choice(kinds)}")(place, now, current)

    def add_type(self, place: Any, now: Any, current: Callable[[], Any]) -> None:
        kind = type(now)
        place.add_type_guard(kind)
        self.oracles.append(lambda: current() is not MISSING and type(current()) is kind)

    def add_identity(self, place: Any, now: Any, current: Callable[[], Any]) -> None:
        place.add_identity_guard(now)
        atom = is_constant(now) and type(now) is not tuple
        self.oracles.append(lambda: current() is now or (atom and same(current(), now)))

    def add_none(self, place: Any, now: Any, current: Callable[[], Any]) -> None:
        place.add_none_guard(now is None)
        self.oracles.append(lambda: current() is not MISSING and (current() is None) == (now is None))

    def add_equals(self, place: Any, now: Any, current: Callable[[], Any]) -> None:
        place.add_equals_guard(now)
        self.oracles.append(lambda: is_constant(current()) and same(current(), now))

    def add_length(self, place: Any, now: Any, current: Callable[[], Any]) -> None:
        size = len(now)
        place.add_length_guard(size)
        self.oracles.append(lambda: isinstance(current(), (list, tuple, dict, str, bytes)) and len(current()) == size)

    def add_truth(self, place: Any, now: Any, current: Callable[[], Any]) -> None:
        truth = bool(now)
        place.add_truth_guard(truth)

        def holds() -> bool:
            value = current()
            code = type(value) is collections.OrderedDict  # has a __len__ that a guard does not call
            return value is not MISSING and not code and bool(value) == truth

        self.oracles.append(holds)

    def add_keys(self, place: Any, now: Any, current: Callable[[], Any]) -> None:
        keys = list(now)
        place.add_keys_guard(keys)
        self.oracles.append(
            lambda: isinstance(current(), dict) and list(current()) == keys
            and all(type(a) is type(b) for a, b in zip(current(), keys, strict=True))
        )  # fmt: skip

    def relate(self) -> None:
        """Which of the roots are the same object."""
        names = list(self.f_locals)
        first, second = self.rng.sample(names, 2)
        places = [self.root.local_manager(first), self.root.local_manager(second)]
        are_same = self.f_locals[first] is self.f_locals[second]
        (self.root.add_same_object_guard if are_same else self.root.add_no_aliasing_guard)(*places)
        self.oracles.append(lambda: (self.f_locals[first] is self.f_locals[second]) == are_same)

    def check(self) -> bool:
        expected = all(oracle() for oracle in self.oracles)
        for _ in range(self.rng.randrange(1, 5)):
            assert self.root.check(self.f_locals) is expected, self.root.check_verbose(self.f_locals)
        if self.rng.randrange(4) == 0:
            assert self.root.check_verbose(self.f_locals).result is expected
        return expected


def containers(value: Any, found: list[Any]) -> list[Any]:
    """Everything below that can be edited."""
    if isinstance(value, (list, dict, *CLASSES)):
        found.append(value)
    for step in [path[0] for path in paths_below(value) if len(path) == 1 and path[0][0] in ("item", "attribute")]:
        containers(follow(value, step), found)
    return found


def edit(rng: random.Random, f_locals: dict[str, Any]) -> Callable[[], None]:
    """Changes something, and returns how to undo it."""
    target = rng.choice([found for value in f_locals.values() for found in containers(value, [])] + [f_locals])
    new = make(rng, rng.randrange(2))
    if rng.randrange(6) == 0:
        kind = rng.choice([Base, Left, Right])
        was = vars(kind).get("shared", MISSING)
        kind.shared = rng.choice(ATOMS)
        return lambda: delattr(kind, "shared") if was is MISSING else setattr(kind, "shared", was)
    if isinstance(target, list):
        was = list(target)
        rng.choice([lambda: target.append(new), target.clear, target.reverse, lambda: target.insert(0, new)])()
        return lambda: target.__setitem__(slice(None), was)
    if target is f_locals:
        name = rng.choice(list(f_locals))
        was = f_locals[name]
        f_locals[name] = rng.choice([new, f_locals[rng.choice(list(f_locals))]])
        return lambda: f_locals.__setitem__(name, was)
    if isinstance(target, dict):
        was = list(target.items())
        key = rng.choice([*NAMES, 1, -1])
        rng.choice([lambda: target.update({key: new}), lambda: target.pop(key, None), target.clear])()
        if key in target and rng.randrange(2):
            target[key] = target.pop(key)
        return lambda: (target.clear(), target.update(was))[1]
    if type(target) is not Slots and rng.randrange(5) == 0:
        kind = type(target)
        target.__class__ = rng.choice([Base, Left, Right])
        return lambda: setattr(target, "__class__", kind)
    name = rng.choice(["a", "b"] if type(target) is Slots else [*NAMES, "shared"])
    own = (
        dict(vars(target)) if type(target) is not Slots else {n: getattr(target, n) for n in "ab" if hasattr(target, n)}
    )
    if rng.randrange(3) == 0 and name in own:
        delattr(target, name)
    else:
        setattr(target, name, rng.choice([new, own.get(name, new)]))
    if name in own:
        return lambda: setattr(target, name, own[name])
    return lambda: delattr(target, name) if hasattr(target, name) else None


@pytest.mark.parametrize("seed", range(60))
def test_a_manager_agrees_with_plain_python_after_every_edit(seed):
    rng = random.Random(seed)
    f_locals = {name: make(rng, 4) for name in "xyz"}
    if rng.randrange(3) == 0:
        f_locals["w"] = f_locals["x"]
    guarded = Guarded(rng, f_locals)
    assert guarded.check()
    outcomes = []
    for _ in range(60):
        undo = edit(rng, f_locals)
        outcomes.append(guarded.check())
        if rng.randrange(4) == 0:
            another = edit(rng, f_locals)
            guarded.check()
            another()
        undo()
        assert guarded.check()
    assert True in outcomes and False in outcomes


# -- the guards that magneto.compile makes ----------------------------------------------------------------------------


class RandomWorld:
    """Source of a tree of objects below the global `o`, and a function that reads some places of it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.places: dict[str, str] = {}  # expression -> kind of its owner
        self.leaves: list[str] = []
        self.lists: set[str] = set()
        tree = self.make("o", 4)
        self.read = rng.sample(self.leaves, min(len(self.leaves), rng.randrange(1, 6)))
        body = ", ".join(self.read)
        self.source = (
            "class C:\n  def __init__(self, **k): self.__dict__.update(k)\n"
            "class S:\n  __slots__ = ('a', 'b')\n  def __init__(self, a, b): self.a = a; self.b = b\n"
            f"o = {tree}\ndef f(): return ({body},)"
        )

    def atom(self) -> str:
        return repr(self.rng.choice([0, 1, 2.5, "x", None, True, 10**20, b"y"]))

    def make(self, path: str, depth: int) -> str:
        kind = self.rng.choice(["C", "S", "dict", "list"]) if depth else "leaf"
        if depth < 4 and self.rng.randrange(3) == 0:
            kind = "leaf"
        if kind == "leaf":
            self.leaves.append(path)
            return self.atom()
        inner = {"C": ".{}", "S": ".{}", "dict": "['{}']", "list": "[{}]"}[kind]
        parts = []
        for index, name in enumerate("ab"):
            below = path + inner.format(index if kind == "list" else name)
            self.places[below] = kind
            if kind == "list":
                self.lists.add(path)
            parts.append((name, self.make(below, depth - 1)))
        if kind == "dict":
            return "{" + ", ".join(f"{name!r}: {text}" for name, text in parts) + "}"
        if kind == "list":
            return "[" + ", ".join(text for _, text in parts) + "]"
        return f"{kind}({', '.join(f'{name}={text}' for name, text in parts)})"

    def is_read(self, place: str) -> bool:
        """Whether the function looks at this place on the way to one of its leaves. Lists are read whole."""
        owner = place[: place.rindex("[")] if self.places[place] == "list" else None
        return any(
            leaf == place or leaf.startswith((place + ".", place + "["))
            or (owner is not None and leaf.startswith(owner + "["))
            for leaf in self.read
        )  # fmt: skip


@worlds.needs_capture
@pytest.mark.parametrize("seed", range(60))
def test_a_compiled_function_follows_every_edit_and_ignores_what_it_did_not_read(seed):
    rng = random.Random(seed)
    world = RandomWorld(rng)
    plain, ours = worlds.World(world.source, compiled=False), worlds.World(world.source, compiled=True)
    assert ours.call() == plain.call()
    assert ours.compiled.state() == "compiled", ours.compiled.failures()
    for _ in range(25):
        place = rng.choice(list(world.places))
        if any(other.startswith((place + ".", place + "[")) for other in world.places):
            text = f"import copy; {place} = copy.deepcopy({place})"
        else:
            text = f"{place} = {world.atom()}"
        before, now_read = worlds.captures(), world.is_read(place)
        plain.run(text)
        ours.run(text)
        for _ in range(2):
            assert ours.call() == plain.call(), text
        if not now_read:
            assert worlds.captures() == before, f"{text}: was not read by {world.read}, {ours.compiled.misses()}"
