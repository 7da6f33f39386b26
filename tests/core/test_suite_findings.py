"""What CPython's own test-suite found, each with the smallest program that shows it."""

import gc
import sys
import weakref

import _core
import pytest

from core import worlds

pytestmark = worlds.needs_capture


def test_an_argument_whose_class_is_gone_can_be_explained():
    compiled = worlds.watched(lambda x: 1)
    for _ in range(12):
        compiled(type("Passing", (), {})())
        gc.collect()
    assert compiled(3) == 1
    assert any("was a object that is gone" in reason or "is a int" in reason for reason in compiled.misses())


def test_an_equal_atom_may_take_the_place_of_another():
    world = {"value": b"".join([b"seventy", b"-one"])}
    compiled = worlds.watched(lambda: world["value"].decode() + "!")
    for _ in range(3):
        assert compiled() == "seventy-one!"
        world["value"] = b"".join([b"seventy", b"-one"])
    blocks = [bytes(range(i, i + 11)) for i in range(50)]  # where the first one was
    world["value"] = b"other"
    assert compiled() == "other!"
    assert blocks and "`world" in next(iter(compiled.misses()))


def test_a_class_in_the_making_can_be_looked_at():
    class Meta(type):
        def mro(cls):
            return compiled(cls)

    def backwards(cls):
        found = type.mro(cls)
        assert isinstance(cls, type)
        found.reverse()
        return found

    compiled = worlds.watched(lambda cls: type.mro(cls))
    watched = worlds.watched(backwards)
    for _ in range(3):
        made = Meta("Made", (), {})
        assert made.__mro__ == (made, object)
    assert watched(made) == [object, made]


def test_a_deep_list_stands_in_a_frame_at_a_cut():
    import random

    draw = random.Random(1).random

    def f():
        deep = []
        for _ in range(50_000):
            deep = [deep]
        draw()
        return len(deep)

    compiled = worlds.watched(f)
    for _ in range(2):
        assert compiled() == 1


def test_what_a_traceback_leads_to_is_forgotten_with_it():
    def fails():
        raise ValueError

    def f():
        try:
            fails()
        except ValueError as error:
            traceback = error.__traceback__
        lines = []
        traceback = traceback.tb_next
        while traceback:
            frame = traceback.tb_frame
            lines.append(frame.f_lineno - frame.f_code.co_firstlineno)
            traceback = traceback.tb_next
        return lines

    compiled = worlds.watched(f)
    for _ in range(4):
        assert compiled() == [1]
        gc.collect()


def test_a_traceback_that_is_passed_in_is_not_kept():
    class Held:
        pass

    def fails(held):
        raise ValueError

    compiled = worlds.watched(lambda traceback: True)
    for _ in range(3):
        held = Held()
        died = weakref.ref(held)
        try:
            fails(held)
        except ValueError as error:
            assert compiled(error.__traceback__)
        del held
        assert died() is None
    assert any("traceback, which is another one each time" in reason for reason in compiled.failures())


def test_an_iterator_that_is_passed_in_is_not_kept():
    class Held:
        pass

    compiled = worlds.watched(lambda iterator: True)
    for _ in range(3):
        held = Held()
        died = weakref.ref(held)
        assert compiled(iter([held]))
        del held
        assert died() is None


def test_what_a_write_drops_dies_when_the_last_variable_lets_go():
    order = []

    class Number(int):
        def __del__(self):
            order.append("died")

    world = {}

    def f():
        for item in world.items():
            if item[0] == 1:
                world[1] = None
        order.append("end")

    for call in (f, worlds.watched(f)):
        order.clear()
        world.clear()
        world.update({0: Number(0), 1: Number(1), 2: Number(2)})
        call()
        assert order == ["died", "end"]
        world.clear()


def test_what_a_call_drops_before_an_unknown_one_is_gone_by_then():
    def f():
        held = {"a"}
        count = weakref.getweakrefcount  # unknown, as is weakref.proxy
        proxy = weakref.proxy(held)
        seen = count(held)
        held = None
        return seen, str(proxy.__class__ is set)

    compiled = worlds.watched(f)
    for call in [f, compiled, compiled, compiled]:
        with pytest.raises(ReferenceError):
            call()
    assert compiled.variants()


def test_a_constant_tuple_is_the_same_object_each_time():
    def f():
        return (1, ("a", None))

    compiled = worlds.watched(f)
    first = f()
    for _ in range(3):
        assert compiled() is first
    assert compiled.variants()[0]["hits"] == 2


def test_a_new_tuple_of_constants_is_another_one_each_time():
    world = {"x": 1}

    def f():
        return (world["x"], 2)

    compiled = worlds.watched(f)
    results = [compiled() for _ in range(3)]
    assert len({id(result) for result in results}) == 3


def test_a_long_text_is_cut_between_characters():
    compiled = worlds.watched(lambda text: 1)
    for text in ("\u20ac" * 100, "x" + "\u20ac" * 100, "xy" + "\u20ac" * 100):
        compiled(text)
    assert len(compiled.misses()) == 2
    assert _core.counters()


def test_an_exception_that_was_handled_does_not_hide_the_one_further_out():
    def generator():
        yield
        try:
            raise TypeError
        except TypeError:
            pass
        yield sys.exc_info()[0]

    def f():
        items = generator()
        next(items)
        try:
            raise ValueError
        except ValueError:
            return next(items)

    _core.everywhere("watch")
    try:
        found = f()
    finally:
        _core.everywhere("off")
    assert found is ValueError


def test_an_import_where_the_builtins_are_no_dict_is_left_to_cpython():
    class Builtins(dict):
        pass

    scope = {"__builtins__": Builtins(__import__=__import__)}
    exec("def f():\n  import sys\n  return sys", scope)
    compiled = worlds.watched(scope["f"])
    for _ in range(3):
        assert compiled() is sys
