"""Random edits that change no dict, so that guards look at no dict either, are noticed if and only if they matter."""

from __future__ import annotations

import functools
import random
import sys
from collections.abc import Callable
from typing import Any

import _core
import pytest

from core import worlds

# So many that guards first ask whether any dict has changed at all.
DICTS = 100
ONE_COUNTER = sys.version_info < (3, 12)  # from which all dicts draw their versions


def versions_drawn(call: Callable[[], Any]) -> int:
    """How often a call made or changed a dict, where there is one counter."""
    before = _core.dict_version({})
    call()
    return _core.dict_version({}) - before - 1


class Slots:
    __slots__ = ("a", "b")


class Open:
    kind = 1


class OtherOpen(Open):
    kind = 2


class Tree:
    """A random tree whose inner objects can be edited without a dict, and edits of it."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.edits: list[tuple[str, Callable[[], None]]] = []  # the place that it changes, and how
        self.leaves: list[str] = []
        self.top = self.make("top", 4)

    def atom(self) -> Any:
        return self.rng.choice([0, 1, 2.5, "x", None, True, 10**20, b"y"])

    def make(self, path: str, depth: int) -> Any:
        kind = self.rng.choice(["slots", "list", "open", "cell", "dict"]) if depth else "leaf"
        if kind == "leaf" or (depth < 3 and self.rng.randrange(4) == 0):
            self.leaves.append(path)
            return self.atom()
        return getattr(self, f"make_{kind}")(path, depth - 1)

    def make_slots(self, path: str, depth: int) -> Any:
        made = Slots()
        made.a, made.b = self.make(f"{path}.a", depth), self.make(f"{path}.b", depth)
        self.add_edit(f"{path}.a", made.a, lambda value: setattr(made, "a", value))
        self.add_edit(f"{path}.b", made.b, lambda value: setattr(made, "b", value))
        return made

    def make_list(self, path: str, depth: int) -> Any:
        made = [self.make(f"{path}[0]", depth), self.make(f"{path}[1]", depth)]
        self.add_edit(f"{path}[0]", made[0], lambda value: made.__setitem__(0, value))
        self.edits.append((f"{path}[", lambda: made.append(None)))
        self.edits.append((f"{path}[", lambda: made.__delitem__(slice(2, None))))
        return made

    def make_open(self, path: str, depth: int) -> Any:
        made = Open()
        made.a = self.make(f"{path}.a", depth)
        self.leaves.append(f"{path}.kind")
        for name, value in [
            ("__class__", Open), ("__class__", OtherOpen),
            ("__dict__", vars(made)), ("__dict__", {**vars(made), "kind": 3}),
        ]:  # fmt: skip
            self.edits.append((f"{path}.", functools.partial(setattr, made, name, value)))
        return made

    def make_cell(self, path: str, depth: int) -> Any:
        value = self.make(f"{path}()", depth)
        made = lambda: value  # noqa: E731
        cell = made.__closure__[0]
        self.add_edit(f"{path}()", value, lambda new: setattr(cell, "cell_contents", new))
        return made

    def make_dict(self, path: str, depth: int) -> Any:
        return {"a": self.make(f"{path}['a']", depth), "b": self.make(f"{path}['b']", depth)}

    def add_edit(self, place: str, value: Any, store: Callable[[Any], None]) -> None:
        """What is there again; something else only if nothing hangs below, so that the tree keeps its shape."""
        values = [value, self.atom()] if place in self.leaves else [value]
        self.edits += [(place, functools.partial(store, new)) for new in values]


def is_read(place: str, leaves: list[str]) -> bool:
    return any(leaf.startswith(place) for leaf in leaves)


@worlds.needs_capture
@pytest.mark.parametrize("seed", range(60))
def test_a_compiled_function_follows_edits_that_change_no_dict(seed):
    rng = random.Random(seed)
    tree = Tree(rng)
    read = rng.sample(tree.leaves, min(len(tree.leaves), 4))
    space = {"top": tree.top, "many": tuple({"k": i} for i in range(DICTS))}
    dicts = "+".join(f"'x' * many[{i}]['k']" for i in range(DICTS))  # what is only added up is not guarded
    exec(f"def f(): return ({', '.join(read)}, {dicts})", space)
    plain, ours = space["f"], worlds.watched(space["f"])
    with worlds.settings(cache_limit=1000):
        assert ours() == plain()
        assert ours.state() == "compiled", ours.failures()
        ours()  # the first check learns where everything is
        if ONE_COUNTER:
            assert versions_drawn(ours) == 1, "that of the dict which tells whether others have changed"
        for _ in range(40):
            place, edit = rng.choice(tree.edits)
            assert versions_drawn(edit) == 0 or not ONE_COUNTER, place
            rng.choice(tree.edits)[1]()
            ours()
            before = worlds.captures()
            ours()
            edit()
            found = ours()
            assert repr(found) == repr(plain()), place
            if not is_read(place, read):
                assert worlds.captures() == before, f"{place}: was not read by {read}, {ours.misses()}"
        assert ours.state() == "compiled"


class Place:
    """Leads to the guards of a place in the way in which a program writes the place."""

    def __init__(self, manager: Any) -> None:
        self.manager = manager

    def __getattr__(self, name: str) -> Place:
        return Place(self.manager.getattr_manager(name))

    def __getitem__(self, key: Any) -> Place:
        return Place(self.manager.dict_getitem_manager(key))


@pytest.mark.parametrize("seed", range(60))
def test_a_manager_agrees_with_plain_python_after_edits_that_change_no_dict(seed):
    rng = random.Random(seed)
    tree = Tree(rng)
    leaves = [leaf for leaf in tree.leaves if "()" not in leaf]
    read = rng.sample(leaves, min(len(leaves), 4))
    now = [functools.partial(eval, compile(leaf, leaf, "eval"), {"top": tree.top}) for leaf in read]
    root = _core.RootGuardManager()
    f_locals = {"x": (tree.top, *({"k": i} for i in range(DICTS)))}
    x = Place(root.local_manager("x"))
    for i in range(DICTS):
        x[i + 1]["k"].manager.add_equals_guard(i)
    for leaf, value in zip(read, now, strict=True):
        eval(leaf, {"top": x[0]}).manager.add_equals_guard(value())
    expected = [repr(value()) for value in now]
    assert root.check(f_locals)
    for _ in range(40):
        rng.choice(tree.edits)[1]()
        edit = rng.choice(tree.edits)[1]
        for _ in range(4):
            root.check(f_locals)
        edit()
        holds = root.check(f_locals)
        assert holds is ([repr(value()) for value in now] == expected), root.check_verbose(f_locals)
