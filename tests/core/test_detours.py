"""Places where a watch gave up and the next one goes around: calls are as in plain Python, and captures come to an end."""

import contextlib
import logging
import re
import sys
import warnings
from textwrap import indent

import pytest

from core import worlds
from core.detours import EXPRESSIONS, OBJECTS, PRELUDE, SHAPES, SLOW, SOURCES, STEPS, USES, WHOLE, WRONG

pytestmark = worlds.needs_capture

CALLS = 8


def plain(value):
    """The value, and its text: that is all there is to say about an object of a C type."""
    return value, re.sub(" at 0x[0-9a-f]+", "", repr(value))


class Observed(worlds.World):
    def call(self, args=""):
        function = self.compiled or self.space["f"]
        given = self.value(f"({args})")
        return worlds.outcome(lambda: plain(function(*given)))


def play(source, compiled, steps=("pass",), args=""):
    """What each call gives, and what it leaves."""
    world = Observed(PRELUDE + source, compiled)
    story = []
    handler = logging.Handler()
    handler.emit = lambda record: story.append((record.funcName, record.lineno, record.getMessage()))
    log = logging.getLogger("world")
    log.propagate = False
    log.addHandler(handler)
    try:
        for i in range(CALLS):
            world.run(steps[i % len(steps)])
            with warnings.catch_warnings(record=True) as caught:
                warnings.simplefilter("always")
                outcome = world.call(args)
            story.append(outcome)
            story.append([(str(each.message), each.filename, each.lineno) for each in caught])
            story.append(worlds.describe(world.value("state()")))
    finally:
        log.removeHandler(handler)
    return world, story


def check(source, **options):
    (_, expected), (ours, actual) = (play(source, compiled, **options) for compiled in (False, True))
    for should_be, was in zip(expected, actual, strict=True):
        assert was == should_be
    return ours.compiled


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("name", EXPRESSIONS)
def test_every_call_is_as_in_plain_python(name, shape):
    check(SHAPES[shape].replace("EXPR", f"({EXPRESSIONS[name]})"))


def settles(source):
    """Whether a function is soon captured no more, and its programs serve every call."""
    world = Observed(PRELUDE + source, compiled=True)
    counts = []
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for _ in range(3):
            counts.append((worlds.captures(), sum(variant["hits"] for variant in world.compiled.variants())))
            for _ in range(20):
                world.call()
    _, (captures, hits), (more_captures, more_hits) = counts
    return more_captures == captures and more_hits == hits + 20


@pytest.mark.parametrize("name", WHOLE)
def test_functions_with_several_places_are_as_in_plain_python(name):
    check(WHOLE[name])


@pytest.mark.parametrize("name", STEPS)
def test_changes_after_a_detour_was_learnt_are_noticed(name):
    source, steps = STEPS[name]
    check(source, steps=steps)


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("name", OBJECTS)
def test_objects_of_c_types_are_used_as_in_plain_python(name, source):
    make, *parts = OBJECTS[name]
    for use in USES.values():
        for part, text in zip(("ATTRIBUTE", "METHOD", "OPERATION", "COMPARISON", "SUBSCRIPT"), parts, strict=True):
            use = use.replace(part, text)
        check(SOURCES[source].replace("MAKE", make).replace("USE", indent(use, "    ")))


def known(cases):
    """Each with the reason why it fails."""
    for name, (reason, source) in cases.items():
        yield pytest.param(source, id=name, marks=pytest.mark.xfail(strict=True, raises=AssertionError, reason=reason))


@pytest.mark.parametrize("source", [*known(WRONG)])
def test_known_to_be_wrong(source):
    check(source)


@pytest.mark.parametrize("shape", sorted(SHAPES.keys() - {"handler", "property", "sort_key", "operator_method"}))
@pytest.mark.parametrize("name", ["attribute", "call", "method_that_changes", "operator", "comparison", "subscript", "truth", "frame_name", "warning_2"])  # fmt: skip
def test_captures_come_to_an_end(name, shape):
    assert settles(SHAPES[shape].replace("EXPR", f"({EXPRESSIONS[name]})"))


@pytest.mark.parametrize("source", [*known(SLOW)])
def test_known_to_be_slow(source):
    assert settles(source)


def test_threads_that_call_the_same_function_at_once():
    source = "def g(x):\n  mark.x = x\n  return dec + x, dq[0]\ndef f(x): return g(x), [y for y in dq], sys._getframe().f_lineno"
    plain, ours = (Observed(PRELUDE + source, compiled) for compiled in (False, True))
    expected = [plain.call(f"{i},") for i in range(8)]

    def work(_):
        for i in [*range(8)] * 40:
            assert ours.call(f"{i},") == expected[i]

    with worlds.many_switches():
        worlds.in_threads(work)


def test_a_debugger_sees_every_line():
    source = "def g(x):\n  mark.x = x\n  return dec + x\ndef f():\n  a = g(1)\n  b = dq[0]\n  return a, b"
    lines = {}
    for compiled in (False, True):
        world = Observed(PRELUDE + source, compiled)
        for _ in range(6):
            world.call()
        seen = lines[compiled] = []

        def tool(frame, event, arg, seen=seen):
            seen.append((event, frame.f_code.co_name, frame.f_lineno))
            return tool

        function = world.compiled or world.space["f"]
        sys.settrace(tool)
        try:
            function()
        finally:
            sys.settrace(None)
    assert lines[True] == lines[False]


@pytest.mark.parametrize("source", [
    "def g(x):\n  mark.x = [x]\n  return dec + 1, dq[0]\ndef f(): return g([1]), [C()]",
    "def g(): return sys._getframe(1).f_lineno\ndef f():\n  l = [C()]\n  return g(), l",
    "def f():\n  l = [C()]\n  try: return dq[99]\n  except IndexError: return l",
    "def g(l):\n  if dq: return [l]\ndef f(): return g([1])",
    "def g():\n  for x in dq: yield [x]\ndef f(): return [y for y in g()]",
    "def f():\n  class D: pass\n  return type('T', (), {})()",
    "class D:\n  def __del__(self): pass\ndef g(x): return dec + 1\ndef f(): return g(D())",
    "def f():\n  l = [C()]\n  return l, dq[99]",
], ids=["goes_around", "leaves", "handles", "unknown", "generator", "class", "finaliser", "raises"])  # fmt: skip
def test_two_thousand_calls_leave_nothing(source):
    world = Observed(PRELUDE + source, compiled=True)

    def call():
        with contextlib.suppress(IndexError):
            world.compiled()

    assert worlds.blocks_after(call, 2000) < 50
