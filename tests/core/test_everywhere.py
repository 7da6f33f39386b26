"""Every function of the process watched or compiled without being asked for: the switch, and what it leaves alone."""

import gc
import sys
import types
import weakref

import _core
import pytest

from core import worlds

pytestmark = worlds.needs_capture


@pytest.fixture(autouse=True)
def hook_is_gone():
    yield
    assert not _core.hook_installed()


class Everywhere:
    def __init__(self, mode):
        self.mode = mode

    def __enter__(self):
        _core.everywhere(self.mode)

    def __exit__(self, *_):
        _core.everywhere("off")


def hits():
    return _core.counters()["stats"]["hits"]


def new_function(source, **scope):
    """A function whose code object nobody has called before."""
    exec(source, scope)
    return scope["f"]


def test_an_unknown_mode_says_which_there_are():
    with pytest.raises(_core.UserError, match="'off', 'watch' or 'capture', but got 'on'"):
        _core.everywhere("on")


def test_watching_covers_all_python_code():
    asked = []

    def inner():
        asked.append(_core.is_compiling())

    def generator():
        yield _core.is_compiling()

    class Class:
        def __init__(self):
            asked.append(_core.is_compiling())

    def outer():
        import time

        time.sleep(0)  # unknown: who watched has given up
        inner()
        Class()
        asked.extend(generator())
        sorted([1], key=lambda _: inner())

    with Everywhere("watch"):
        outer()
    inner()
    assert asked == [True, True, True, True, False]


MODULE = """
import enum, time
from math import *
time.sleep(0)
x: int = floor(2.5)
del floor
log = []
class Names(dict):
    def __setitem__(self, key, value):
        log.append(key)
        super().__setitem__(key, value)
    def __missing__(self, key):
        if key != "made_up": raise KeyError(key)
        return "found"
class Meta(type):
    def __prepare__(name, bases): return Names()
def outer():
    free = "free"
    class Local(metaclass=Meta):
        a: int = 1
        time.sleep(0)
        b = a, free, made_up, len
        del a
        try: del a
        except NameError as error: text = str(error), error.name
        class Inner(enum.Flag):
            ONE = enum.auto()
            BOTH = ONE | 2
    return Local.b, Local.text, list(Local.Inner), Local.__annotations__
result = outer()
for n in range(2):
    try: missing
    except NameError as error: last = error.args, error.name
    try: del missing
    except NameError as error: last += error.args
del n
"""


def test_modules_and_class_bodies_are_watched():
    def run():
        space = {"__name__": "text"}
        exec(compile(MODULE, "<text>", "exec"), space)
        result = space["result"]
        return worlds.describe((result[0][:3], result[1], result[3], space["log"], space["last"])), list(space)

    expected = run()
    with Everywhere("watch"):
        assert run() == expected


def test_a_function_runs_as_a_program_from_its_second_call_on():
    f = new_function("def f(a, *rest, key=1, **others): return [a, rest, key, others]")
    plain = types.FunctionType(f.__code__, {})
    plain.__kwdefaults__ = f.__kwdefaults__
    calls = [((1,), {}), ((1, 2, 3), {}), ((1,), {"key": 2}), ((1, 2), {"other": 3})]
    expected = [plain(*args, **kwargs) for args, kwargs in calls]
    with Everywhere("capture"):
        for _ in range(3):
            before = hits()
            actual = [f(*args, **kwargs) for args, kwargs in calls]
        assert actual == expected
        assert hits() - before >= len(calls)


def test_a_program_is_not_used_once_something_has_changed():
    state = types.SimpleNamespace(x=1)
    f = new_function("def f(): return state.x", state=state)
    with Everywhere("capture"):
        seen = []
        for x in [1, 1, 1, 2, 2, 1]:
            state.x = x
            seen.append(f())
        assert seen == [1, 1, 1, 2, 2, 1]


def test_exceptions_have_the_frames_of_real_calls():
    f = new_function("def g(x): return 1 // x\ndef f(x): return g(x)")
    with Everywhere("capture"):
        for _ in range(4):
            assert f(1) == 1
            with pytest.raises(ZeroDivisionError) as error:
                f(0)
            names = [entry.frame.code.name for entry in error.traceback]
            assert names[-2:] == ["f", "g"]


def test_functions_and_what_they_hold_die_with_their_last_reference():
    class Held:
        pass

    held = Held()
    f = new_function("def f(): return held", held=held)
    with Everywhere("capture"):
        for _ in range(3):
            assert f() is held
        function_died, held_died = weakref.ref(f), weakref.ref(held)
        del f, held
        gc.collect()
        assert function_died() is None
        assert held_died() is None


def test_a_function_that_never_fits_again_stays_plain():
    f = new_function("def f(x): return x")
    with worlds.settings(recapture_limit=4):
        with Everywhere("capture"):
            for x in range(20):
                f(x)
            before = worlds.captures()
            for x in range(20, 40):
                f(x)
            assert worlds.captures() - before < 20  # those of others, such as `captures` itself


@pytest.mark.parametrize("mode", ["watch", "capture"])
def test_recursion_is_as_deep_as_without_us(mode):
    f = new_function("def f(n): return 0 if n == 0 else 1 + f(n - 1)")
    limit = sys.getrecursionlimit()
    with Everywhere(mode):
        try:
            for _ in range(3):
                with pytest.raises(RecursionError):
                    f(limit + 10)
            sys.setrecursionlimit(30_000)
            for _ in range(3):
                assert f(20_000) == 20_000
        finally:
            sys.setrecursionlimit(limit)
        assert _core.hook_installed()


@pytest.mark.parametrize("mode", ["watch", "capture"])
def test_a_debugger_sees_every_function(mode):
    f = new_function("def f(): return 1")
    with Everywhere(mode):
        seen = []
        for _ in range(3):
            f()
        sys.settrace(lambda frame, *_: seen.append(frame.f_code.co_name))
        try:
            f()
        finally:
            sys.settrace(None)
        assert "f" in seen


@pytest.mark.parametrize("mode", ["watch", "capture"])
def test_threads_are_covered_and_do_not_disturb_each_other(mode):
    source = "def f(n):\n  total = 0\n  for i in range(n): total += i * state\n  return total"
    functions = [new_function(source, state=state) for state in range(4)]
    results = [None] * len(functions)

    def work(index):
        results[index] = [functions[index](50) for _ in range(50)]

    with Everywhere(mode):
        worlds.in_threads(work, len(functions))
        assert results == [[1225 * index] * 50 for index in range(len(functions))]
