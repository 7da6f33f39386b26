"""What a function does to the world it does on every call, whether or not it was compiled."""

import copy
import queue

import pytest

from core import worlds
from core.effects import EFFECTS

pytestmark = worlds.needs_capture

CALLS = 5


@pytest.mark.parametrize("name", EFFECTS)
def test_the_world_is_the_same_after_every_call(name):
    case = EFFECTS[name]
    # One world after the other: some of them share what belongs to the process.
    (_, expected), (ours, actual) = (play(case, compiled) for compiled in (False, True))
    for call in range(CALLS):
        assert actual[call] == expected[call], f"call {call + 1}"
    if case.compiled is not None:
        good = ours.compiled.variants() if case.compiled else not worlds.is_whole(ours.compiled)
        assert good, ours.compiled.failures()


def play(case, compiled):
    """What each call gives, and what it leaves."""
    world = worlds.World(case.source, compiled)
    story = []
    for _ in range(CALLS):
        story.append((world.call(case.args), worlds.describe(world.value(case.state))))
        world.run(case.between)
    return world, story


def test_a_result_that_is_changed_does_not_change_the_next():
    def make():
        return [1], {"a": [2]}

    compiled = worlds.watched(make)
    for _ in range(3):
        numbers, table = compiled()
        assert (numbers, table) == ([1], {"a": [2]})
        numbers.append(5)
        table["a"].append(5)
    assert compiled.variants()


def test_the_address_of_a_new_object_is_its_own():
    def make():
        items = []
        return items, {id(items): 1, hash(make): 2}

    compiled = worlds.watched(make)
    kept = []
    for _ in range(5):
        items, table = compiled()
        kept.append(items)
        assert list(table) == [id(items), hash(make)]


def test_a_copy_that_unknown_code_takes_part_in_keeps_its_shape():
    noise = queue.SimpleQueue()

    class Noisy:
        def __deepcopy__(self, memo):
            noise.put(len(memo))
            return self

    shared = [1]
    parts = [shared, Noisy(), {"again": shared}]

    def make():
        copied = copy.deepcopy(parts)
        return copied[0] is copied[2]["again"], copied[0] is shared, copied[1] is parts[1]

    for leave in (0, 1, 2):
        with worlds.settings(leave_at_cut=leave):
            compiled = worlds.watched(make)
            assert [compiled() for _ in range(5)] == [(True, False, True)] * 5
    assert noise.qsize() == 15


def test_a_bound_method_that_is_looked_into_and_dropped():
    class Counter:
        def go(self): ...

    counter = Counter()
    counter.n = 0

    def count():
        name = counter.go.__func__.__name__
        counter.n += 1
        return name

    compiled = worlds.watched(count)
    for call in range(1, 6):
        assert compiled() == "go"
        assert counter.n == call
    assert compiled.variants()[0]["hits"] == 4, compiled.failures()


def test_an_older_object_is_returned_itself():
    kept = [1]

    def make():
        return kept, [kept]

    compiled = worlds.watched(make)
    for _ in range(3):
        first, (second,) = compiled()
        assert first is kept
        assert second is kept
    assert compiled.variants()


def test_an_argument_is_returned_itself():
    def same(x):
        return x, [x]

    compiled = worlds.watched(same)
    for _ in range(3):
        given = [1]
        first, (second,) = compiled(given)
        assert first is given
        assert second is given
    assert compiled.variants()


def test_an_older_tuple_is_returned_itself():
    kept = ([1], 2)

    def make():
        return kept

    compiled = worlds.watched(make)
    assert all(compiled() is kept for _ in range(3))


def test_structures_made_by_c_are_returned():
    import sys

    def make():
        return sys.version_info, sys.flags

    compiled = worlds.watched(make)
    for _ in range(3):
        assert compiled() == (sys.version_info, sys.flags)


@pytest.mark.parametrize("attributes", ["vars(c)", "c.__dict__"])
def test_the_attributes_of_a_new_object_stay_its_own(attributes):
    source = f"class C: pass\ndef f():\n  c = C()\n  c.x = 1\n  return c, {attributes}"
    world = worlds.World(source, compiled=True)
    for _ in range(3):
        made, held = world.compiled()
        held["x"] = 5
        assert made.x == 5
