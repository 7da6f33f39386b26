"""What makes steady calls cheap changes nothing: what programs remember from run to run, and calls that go through."""

import gc
import weakref

import pytest

from core import worlds

pytestmark = worlds.needs_capture

OBJECT = "class C: pass\no, p = C(), C()\no.n, o.m, o.x, p.n = 4, 5, 1.5, 0\n"

# -- what programs remember --------------------------------------------------------------------------------------------

REMEMBERED = {
    "branch": (OBJECT + "def f(): return 'big' if o.n * o.m > 10 else 'small'", ["o.n = 1", "o.m = 100", "o.n = 4"]),
    "returned": (OBJECT + "def f(): return o.n + o.m, o.n, 'a'", ["o.n = 10**30", "o.m = 0", "o.n = 4"]),
    "given_back": (OBJECT + "def f(): return o.n", ["o.n = 10**30", "o.n = 'text'", "p.n = 9", "o.n = 4.5", "o.n = 4"]),
    "checked": (
        OBJECT + "a, b = [1], [2]\ndef f(): return a if o.n > 3 else b",
        ["a.append(3)", "o.n = 1", "b = [5]", "o.n = 1.5", "o.n = 4"],
    ),
    "types": (OBJECT + "def f(): return o.n * 2, o.n > 3", ["o.n = 4.0", "o.n = True", "o.n = 'four'", "o.n = 4"]),
    "nan": (OBJECT + "def f(): return o.x == o.x, o.x", ["o.x = float('nan')", "o.x = -0.0", "o.x = 0.0", "o.x = 1.5"]),
    "absent": (OBJECT + "def f(): return o.n + 1", ["del o.n", "o.n = 5", "C.n = 7; del o.n", "o.n = 4"]),
    "other_dict": (OBJECT + "def f(): return o.n + 1, o.n < 9", ["o.__dict__ = {'n': 9}", "o.__dict__ = {'n': 4}"]),
    "other_object": (OBJECT + "def f(): return o.n + 1, o.n < 9", ["o = C(); o.n = 9", "o = C(); o.n = 4"]),
    "unrelated": (OBJECT + "def f(): return o.n + 1, o.n < 9", ["o.other = 1", "p.n += 1", "o.n = 5; o.n = 4"]),
    "cell": (
        "def make():\n  n = 1\n  def f(): return n + 1, n < 3, n\n  def put(x):\n    nonlocal n\n    n = x\n"
        "  return f, put\nf, put = make()",
        ["put(5)", "put(2.5)", "put(10**40)", "put(10**40 + 1)", "put([1])", "put(1)"],
    ),
    "effect": (OBJECT + "def f():\n  p.n += o.m\n  return p.n, o.n < 9", ["o.m = 6", "p.n = 0", "o.n = 10", "o.n = 4"]),
    "carried": (OBJECT + "def f():\n  p.n = o.n\n  return p.n", ["o.n = 5", "o.n = 'text'", "o.n = [1]", "o.n = 4"]),
    "behind_a_cut": (
        "import zlib\n" + OBJECT + "def f():\n  a = o.n * 2\n  b = zlib.crc32(b'a')\n  return a, b, o.n < 9, o.m + a",
        ["o.n = 5", "o.m = 6", "o.n = 10", "o.n = 4"],
    ),
    "unrolled": (
        OBJECT + "def f():\n  n = o.n\n  for _ in range(30): n = (n * 5 + 3) % 1024\n  return n",
        ["o.n = 5", "o.n = 5.5", "o.n = 4"],
    ),
}


@pytest.mark.parametrize("name", REMEMBERED)
def test_what_is_remembered_is_what_would_be_computed(name):
    source, steps = REMEMBERED[name]
    plain, ours = (worlds.World(source, compiled) for compiled in (False, True))
    for step in ["pass", *steps, *steps]:
        plain.run(step), ours.run(step)
        for _ in range(4):
            assert ours.call() == plain.call(), step
    assert ours.compiled.state() == "compiled"


def test_a_run_that_differs_each_time_forgets_to_remember():
    plain, ours = (
        worlds.World(OBJECT + "def f():\n  o.n += 1\n  return o.n % 7 + o.m", compiled) for compiled in (False, True)
    )
    for turn in range(200):
        if turn > 100:  # neither does it start again
            plain.run("o.n = 3"), ours.run("o.n = 3")
        assert ours.call() == plain.call()
    assert len(ours.compiled.variants()) == 1


def test_nothing_but_plain_values_is_kept():
    world = worlds.World(OBJECT + "def f():\n  p.n = o.n\n  return p.n", True)
    for _ in range(4):
        world.call()
    world.run("o.n = C()")
    gone = weakref.ref(world.space["o"].n)
    for _ in range(4):
        world.call()
    assert world.compiled.state() == "compiled"
    world.run("o.n = p.n = 1")
    assert gone() is None


# -- calls that go through ---------------------------------------------------------------------------------------------


def test_a_function_that_stays_eager_is_still_called_right():
    source = "L = []\ndef f(*a, **k): return id(a[0]) == id(L), a, k"
    plain, ours = (worlds.World(source, compiled) for compiled in (False, True))
    for _ in range(10):
        assert ours.call("L, b=2") == plain.call("L, b=2")
    assert ours.compiled.state() == "eager"


def test_a_setting_or_a_reset_gives_an_eager_function_another_chance():
    world = worlds.World("L = []\nH = 0\ndef f(x): return id(x) if H == 0 else H + 1", True)
    for _ in range(5):
        world.call("L")
    assert world.compiled.state() == "eager"
    world.run("H = 5")
    assert world.call("L") == ("returned", ("int", "6"))
    assert world.compiled.variants() == []
    with worlds.settings(capture_attempts=10):
        assert world.compiled.state() == "new"
        world.call("L")
        assert world.compiled.state() == "compiled"
    world.compiled.reset()
    world.call("L")
    assert world.compiled.state() == "compiled"


def test_a_function_that_no_program_fits_any_more_stays_eager_and_says_why():
    with worlds.settings(recapture_limit=5, cache_limit=2):
        plain, ours = (worlds.World("def f(x): return x * 2", compiled) for compiled in (False, True))
        for value in range(400):
            assert ours.call(repr(str(value))) == plain.call(repr(str(value)))
        assert ours.compiled.state() == "eager"
        (why,) = ours.compiled.failures()
        assert "recapture_limit" in why
        assert "args[0] is" in why
        ours.compiled.reset()
        assert ours.call("1") == plain.call("1")
        assert ours.compiled.state() == "compiled"


def test_programs_that_are_used_are_kept_past_the_limit():
    with worlds.settings(recapture_limit=5, cache_limit=2):
        world = worlds.World("def f(x): return x * 2", True)
        for value in range(2000):
            world.call(str(value if value % 3 == 0 else 1))
        assert world.compiled.state() == "compiled"
        assert world.compiled.failures() == {}


SLOW = {
    "unknown_call": "import zlib\ndef f(): return zlib.crc32(b'a')",
    "iterator": "import itertools\nG = itertools.count()\ndef f(): return next(G)",
    "generator": "def g():\n  i = 0\n  while True:\n    yield i\n    i += 1\nG = g()\ndef f(): return next(G) + next(G)",
}


@pytest.mark.parametrize("name", SLOW)
def test_a_function_that_hardly_does_more_than_unknown_calls_is_left_eager_in_the_end(name):
    plain, ours = (worlds.World(SLOW[name], compiled) for compiled in (False, True))
    for _ in range(20):
        assert ours.call() == plain.call()
    assert ours.compiled.state() == "compiled"
    for _ in range(200):
        assert ours.call() == plain.call()
    assert ours.compiled.state() == "eager"
    assert any("little but run what is not understood" in why for why in ours.compiled.failures())
    ours.compiled.reset()
    for _ in range(20):
        assert ours.call() == plain.call()
    assert ours.compiled.state() == "compiled"


def test_a_function_that_does_more_than_unknown_calls_stays_compiled():
    source = "import zlib\nG = range(20)\ndef f():\n  n = sum([x * 2 for x in G])\n  return zlib.crc32(b'a') + n"
    plain, ours = (worlds.World(source, compiled) for compiled in (False, True))
    for _ in range(300):
        assert ours.call() == plain.call()
    assert ours.compiled.state() == "compiled"


def test_one_form_that_pays_keeps_the_others():
    source = (
        "import zlib\nG = range(20)\ndef f(a):\n"
        "  n = sum([x * 2 for x in G]) if a else 0\n  return zlib.crc32(b'a') + n"
    )
    plain, ours = (worlds.World(source, compiled) for compiled in (False, True))
    for turn in range(400):
        assert ours.call(repr(turn % 2 == 1)) == plain.call(repr(turn % 2 == 1))
    assert ours.compiled.state() == "compiled"
    assert len(ours.compiled.variants()) == 2


# -- what a watch leaves behind ----------------------------------------------------------------------------------------


def test_objects_that_were_read_are_as_they_were():
    source = (
        "class C:\n  def __init__(self, n):\n    self.a, self.n = [n], n\n"
        "objects = [C(i) for i in range(5)]\nobjects[3].extra = 1\ndel objects[2].a\n"
        "seen = vars(objects[4])\ndef f(): return [o.n + 1 for o in objects]"
    )
    plain, ours = (worlds.World(source, compiled) for compiled in (False, True))
    for world in (plain, ours):
        for _ in range(3):
            world.call()
        world.run("objects[0].b = 2; objects[1].n = 7; del objects[0].a; seen['n'] = 9")
    state = "[list(vars(o).items()) for o in objects], objects[4].n, seen is vars(objects[4])"
    assert ours.value(state) == plain.value(state)
    assert ours.call() == plain.call()


def test_attributes_of_objects_that_were_read_live_no_longer_than_others():
    world = worlds.World("class C: pass\no = C()\no.n, o.part = 1, C()\ndef f(): return o.n + 1", True)
    world.call()
    part = weakref.ref(world.space["o"].part)
    gc.collect()
    assert part() is not None
    world.run("del o.part")
    assert part() is None
