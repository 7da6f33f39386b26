"""What lives how long: references, cycles, threads, signals, recursion, the frame hook, debuggers."""

import ctypes
import gc
import os
import signal
import sys
import threading
import time
import weakref
from pathlib import Path

import _core
import pytest

from core import worlds

pytestmark = worlds.needs_capture


class Box:
    def __init__(self, **values):
        self.__dict__.update(values)


@pytest.fixture(autouse=True)
def hook_is_gone():
    assert not _core.hook_installed()
    yield
    assert not _core.hook_installed()
    assert not _core.is_compiling()


# -- references -------------------------------------------------------------------------------------------------------


def test_a_result_belongs_to_the_caller_alone():
    compiled = worlds.watched(lambda: [Box(x=[1])])
    for _ in range(4):
        result = compiled()
        assert sys.getrefcount(result) == 2
        dies = weakref.ref(result[0])
        del result
        assert dies() is None
    assert compiled.variants()


def test_arguments_are_let_go():
    def measure(items, table):
        return len(items) + len(table["k"])

    compiled = worlds.watched(measure)
    for _ in range(4):
        inner = {1, 2}
        items, table = [1, 2], {"k": "abc"}
        assert compiled(items, table) == 5
        assert (sys.getrefcount(items), sys.getrefcount(table)) == (2, 2)
        assert sys.getrefcount(inner) == 2
    assert compiled.variants()


def test_guards_keep_nothing_alive_that_was_passed_or_read():
    kept = Box(part=Box(x=1), items=[Box(x=2)], table={"k": Box(x=3)})
    passed = Box(x=4)

    def run(box):
        return box.x + kept.part.x + kept.items[0].x + kept.table["k"].x

    compiled = worlds.watched(run)
    assert compiled(passed) == compiled(passed) == 10
    assert compiled.variants()[0]["hits"] == 1
    objects = [weakref.ref(o) for o in (kept, passed, kept.part, kept.items[0], kept.table["k"])]
    del kept, passed
    assert [alive() for alive in objects] == [None] * 5
    assert compiled.variants()


def test_a_compiled_function_that_lost_what_it_read_captures_again():
    world = {"box": Box(x=1)}

    def run():
        return world["box"].x

    compiled = worlds.watched(run)
    for i in range(6):
        world["box"] = Box(x=i)
        assert compiled() == i
        assert compiled() == i


def test_results_do_not_keep_older_objects_alive():
    world = {"box": Box(x=1)}
    compiled = worlds.watched(lambda: (world["box"], 1))
    assert compiled()[0] is compiled()[0] is world["box"]
    alive = weakref.ref(world["box"])
    assert compiled.variants()[0]["hits"] == 1
    world.clear()
    assert alive() is None


def test_an_exception_keeps_nothing_alive():
    def fails(box):
        local = box  # noqa: F841
        raise ValueError(1)

    compiled = worlds.watched(fails)
    for _ in range(5):
        box = Box()
        dies = weakref.ref(box)
        with pytest.raises(ValueError):
            compiled(box)
        del box
        gc.collect()
        assert dies() is None


def test_a_generator_that_is_dropped_half_way_is_closed_at_once():
    def numbers(log):
        try:
            yield 1
            yield 2
        finally:
            log.append("closed")

    def take_one():
        log = []
        for number in numbers(log):
            break
        held = list(log)
        del number
        generator = numbers(log)
        next(generator)
        del generator
        return held, log

    compiled = worlds.watched(take_one)
    for _ in range(3):
        assert compiled() == take_one()
    assert compiled.variants()


def test_a_generator_outlives_the_call_that_made_it():
    def numbers():
        for i in range(3):
            yield i

    def start():
        generator = numbers()
        next(generator)
        return generator

    compiled = worlds.watched(start)
    for _ in range(4):
        assert list(compiled()) == [1, 2]


def test_after_giving_up_objects_die_when_they_should():
    box = Box(value=Box(x=1))
    dies = weakref.ref(box.value)

    def read_and_drop():
        seen = box.value.x
        time.perf_counter()  # not understood: the watch ends here
        box.value = None
        return seen, dies() is None

    assert worlds.watched(read_and_drop)() == (1, True)


def test_an_object_that_the_call_lets_go_dies_at_once():
    box = Box(value=Box(x=1))
    dies = weakref.ref(box.value)

    def drop():
        seen = box.value.x
        box.value = None
        return seen, dies() is None

    assert worlds.watched(drop)() == (1, True)


def test_locals_die_while_the_call_runs():
    def run():
        first = Box()
        dies = weakref.ref(first)
        first = None
        return dies() is None

    assert worlds.watched(run)() is True


# -- leaks, by count --------------------------------------------------------------------------------------------------


class Noisy:
    """Garbage that only the collector can free, and what it does then."""

    def __init__(self, log):
        self.me, self.log = self, log

    def __del__(self):
        self.log.append(_core.is_compiling())


def test_the_collector_waits_for_the_end_of_the_watch():
    def work():
        return len([[] for _ in range(5000)])

    log = []
    threshold = gc.get_threshold()
    gc.set_threshold(10)
    try:
        gc.collect()
        compiled = worlds.watched(work)
        gc.disable()
        Noisy(log)
        gc.enable()
        compiled()
        assert gc.isenabled()
        [[] for _ in range(500)]  # more than CPython keeps ready
    finally:
        gc.set_threshold(*threshold)
    assert compiled.variants(), compiled.failures()
    assert log == [False]


@pytest.mark.parametrize("on", [True, False])
def test_a_call_sees_and_leaves_the_collector_as_it_was(on):
    def work():
        return gc.isenabled()

    if not on:
        gc.disable()
    try:
        compiled = worlds.watched(work)
        assert [compiled() for _ in range(3)] == [on] * 3
        assert gc.isenabled() == on
        worlds.watched(lambda: 1)()
        assert gc.isenabled() == on
    finally:
        gc.enable()


def test_ten_thousand_captures_leave_nothing():
    table = {"a": [1, 2]}

    class Point:
        def __init__(self, x):
            self.x = x

        def shifted(self, by=1):
            return Point(self.x + by)

    def work(n):
        def inner(k):
            return [Point(i).shifted().x for i in range(k)]

        try:
            raise KeyError(n)
        except KeyError as error:
            first = error.args[0]
        return inner(3), first, table["a"][0], f"{n}", {"p": Point(n)}

    def capture():
        compiled = worlds.watched(work)
        assert compiled(1)[1] == 1
        assert compiled(1)[1] == 1
        assert compiled.variants()

    assert worlds.blocks_after(capture, 10_000) < 100


def test_recaptures_leave_nothing():
    compiled = worlds.watched(lambda n: [n, n + 1])

    def call(count=iter(range(10**9))):
        compiled(next(count))
        compiled.reset()

    assert worlds.blocks_after(call, 2_000) < 100


def test_failed_captures_leave_nothing():
    log = []

    def effects(n):
        kept = [Box(x=n) for _ in range(3)]
        log.append(kept[0].x)
        log.clear()
        return kept

    def generates():
        yield from effects(1)

    def raises():
        raise ValueError([1])

    def capture():
        worlds.watched(effects)(1)
        for _ in worlds.watched(generates)():
            break
        with pytest.raises(ValueError):
            worlds.watched(raises)()

    assert worlds.blocks_after(capture, 2_000) < 100


def test_calls_leave_nothing():
    def work(items, k=1):
        return {"items": items, "sum": sum(items), "boxes": [Box(x=i) for i in items]}

    compiled = worlds.watched(work)
    assert worlds.blocks_after(lambda: compiled([1, 2], k=2), 20_000) < 50
    assert compiled.variants()


def test_misses_leave_nothing():
    with worlds.settings(cache_limit=4):
        compiled = worlds.watched(lambda n: str(n))
        numbers = iter(range(10**9))

        def call():
            for _ in range(10):
                compiled(next(numbers))
            compiled.reset()

        assert worlds.blocks_after(call, 300) < 100


# -- cycles -----------------------------------------------------------------------------------------------------------


def test_a_cycle_through_the_globals_is_collected():
    space = {"__name__": "cycle", "numbers": [1], "Box": Box}
    exec("def work(): return len(numbers), Box(x=1).x", space)
    space["compiled"] = worlds.watched(space["work"])
    assert space["compiled"]() == (1, 1)
    assert space["compiled"].variants()
    dies = weakref.ref(space["compiled"])
    space.pop("work")
    del space
    gc.collect()
    assert dies() is None


def test_a_cycle_through_a_closure_is_collected():
    def make():
        def work():
            return compiled.name, kept.x

        kept = Box(x=1)
        compiled = worlds.watched(work)
        assert compiled() == ("work", 1)
        kept.back = compiled
        return weakref.ref(compiled), weakref.ref(kept)

    refs = make()
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_a_cycle_through_an_argument_is_collected():
    box = Box(x=1)
    box.compiled = worlds.watched(lambda b: b.x)
    assert box.compiled(box) == 1
    assert box.compiled.variants()
    dies = weakref.ref(box)
    del box
    gc.collect()
    assert dies() is None


def test_a_cycle_through_a_class_is_collected():
    class Local:
        x = 1

        def read(self):
            return type(self).x

    Local.compiled = worlds.watched(lambda: Local().read())
    assert Local.compiled() == 1
    dies = weakref.ref(Local)
    del Local
    gc.collect()
    assert dies() is None


def test_it_can_be_dropped_while_it_runs():
    holder = {}

    def work():
        holder.clear()
        return 5

    holder["compiled"] = worlds.watched(work)
    assert holder["compiled"]() == 5


def test_it_can_be_reset_while_it_runs():
    def work(n):
        compiled.reset()
        return n

    compiled = worlds.watched(work)
    assert [compiled(i % 2) for i in range(6)] == [0, 1, 0, 1, 0, 1]


# -- recursion --------------------------------------------------------------------------------------------------------


def test_a_compiled_function_may_call_itself():
    def factorial(n):
        return n * compiled(n - 1) if n else 1

    compiled = worlds.watched(factorial)
    for n in (5, 5, 6, 10):
        assert compiled(n) == factorial(n)


def test_the_recursion_limit_holds():
    def down(n):
        return down(n + 1)

    def measure():
        try:
            down(0)
        except RecursionError as error:
            return str(error)

    assert worlds.watched(measure)() == measure()


@pytest.mark.parametrize("after", ["the watch has given up", "it was nested too deeply"])
def test_deep_recursion_takes_no_more_stack_than_in_plain_python(after):
    first = "time.perf_counter()" if after == "the watch has given up" else "pass"
    out = worlds.run_alone(f"""
        import time
        sys.setrecursionlimit(1_000_000)
        def down(n): return n and 1 + down(n - 1)
        def work():
            {first}
            return down(100_000)
        print(watched(work)())
        """)
    assert out == "100000"


@pytest.mark.parametrize(
    "use",
    ["nest == other", "len(str(type(nest)))", "nest in [other]", "repr(flat)", "make(100_000)", "hash(tuples) == 0"],
)
def test_deeply_nested_values_do_not_crash(use):
    out = worlds.run_alone(f"""
        def make(n):
            value = []
            for _ in range(n): value = [value]
            return value
        nest, other, flat, tuples = make(100_000), make(100_000), make(10), ()
        for _ in range(100_000): tuples = (tuples,)
        def work(): return {use}
        def attempt(call):
            try: return type(call()).__name__
            except RecursionError: return "RecursionError"
        expected = attempt(work)
        compiled = watched(work)
        assert [attempt(compiled) for _ in range(3)] == [expected] * 3
        print("ok")
        import os
        os._exit(0)
        """)
    assert out == "ok"


# -- signals and asynchronous exceptions ------------------------------------------------------------------------------


def interrupt_soon(seconds=0.05):
    signal.signal(signal.SIGALRM, signal.default_int_handler)
    signal.setitimer(signal.ITIMER_REAL, seconds)


@pytest.fixture
def alarm():
    old = signal.getsignal(signal.SIGALRM)
    yield
    signal.setitimer(signal.ITIMER_REAL, 0)
    signal.signal(signal.SIGALRM, old)


def loop_with_jumps():
    n = 0
    while True:
        n += 1


def loop_with_conditions():
    n = 1
    while n:
        n += 1


def loop_with_comparisons(steps=0):
    while steps >= 0:
        steps += 1


def loop_with_calls():
    def step(n):
        return n + 1

    n = 0
    while True:
        n = step(n)


def loop_with_a_generator():
    def numbers():
        while True:
            yield 1

    for _ in numbers():
        pass


@pytest.mark.parametrize(
    "loop",
    [loop_with_jumps, loop_with_conditions, loop_with_comparisons, loop_with_calls, loop_with_a_generator],
)
def test_a_loop_that_is_watched_can_be_interrupted(loop, alarm):
    compiled = worlds.watched(loop)
    interrupt_soon()
    with pytest.raises(KeyboardInterrupt):
        compiled()


def test_a_handler_that_raises_ends_an_endless_loop(alarm):
    class Late(Exception):
        pass

    def ring(*_):
        raise Late("in the handler")

    def work():
        try:
            loop_with_comparisons()
        except Late as late:
            return str(late)

    signal.signal(signal.SIGALRM, ring)
    signal.setitimer(signal.ITIMER_REAL, 0.05)
    assert worlds.watched(work)() == "in the handler"


def test_a_signal_raised_by_the_call_arrives_before_the_next_instruction(alarm):
    signal.signal(signal.SIGALRM, signal.default_int_handler)

    def work():
        try:
            signal.raise_signal(signal.SIGALRM)
            return "too late"
        except KeyboardInterrupt:
            return "in time"

    assert worlds.watched(work)() == "in time"


def test_a_signal_handler_is_no_part_of_the_call(alarm):
    seen = []
    signal.signal(signal.SIGALRM, lambda *_: seen.append(_core.is_compiling()))

    def work(n):
        total = 0
        for i in range(n):
            total += i
        return total

    compiled = worlds.watched(work)
    signal.setitimer(signal.ITIMER_REAL, 0.002, 0.002)
    assert compiled(150_000) == sum(range(150_000))
    signal.setitimer(signal.ITIMER_REAL, 0)
    assert seen
    assert set(seen) == {False}
    assert compiled.variants(), compiled.failures()


def test_an_exception_sent_by_another_thread_arrives():
    started, caught = threading.Event(), []

    def loop():
        try:
            started.set()
            while True:
                pass
        except ArithmeticError:
            return "caught"

    compiled = worlds.watched(loop)
    thread = threading.Thread(target=lambda: caught.append(compiled()))
    thread.start()
    assert started.wait(10)
    ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(ArithmeticError))
    thread.join(30)
    assert caught == ["caught"]


# -- threads ----------------------------------------------------------------------------------------------------------


@pytest.fixture
def many_switches():
    with worlds.many_switches():
        yield


def sample(n, table):
    def numbers():
        for i in range(n):
            yield i * table["k"]

    try:
        raise KeyError(n)
    except KeyError as error:
        found = error.args
    return [*numbers()], found, {str(i): Box(x=i).x for i in range(n)}


def test_threads_may_call_one_function(many_switches):
    compiled = worlds.watched(sample)

    def work(index):
        for i in range(300):
            n = (i + index) % 6
            assert compiled(n, {"k": 2}) == sample(n, {"k": 2})

    worlds.in_threads(work)
    assert compiled.variants()


def test_threads_may_capture_at_the_same_time(many_switches):
    def work(index):
        for i in range(150):
            compiled = worlds.watched(sample)
            for _ in range(3):
                assert compiled(i % 5, {"k": index}) == sample(i % 5, {"k": index})
            assert compiled.variants(), compiled.failures()

    worlds.in_threads(work)


def test_threads_may_reset_and_change_what_is_read(many_switches):
    state = Box(k=1)
    compiled = worlds.watched(lambda: (state.k, state.k))

    def work(index):
        for i in range(400):
            if index == 0:
                state.k = i
            elif index == 1 and i % 7 == 0:
                compiled.reset()
            else:
                first, second = compiled()
                assert isinstance(first, int)
                assert isinstance(second, int)

    worlds.in_threads(work)
    assert compiled() == (state.k, state.k)


def test_other_threads_run_unwatched(many_switches):
    stop, seen = threading.Event(), []

    def other():
        while not stop.is_set():
            seen.append(_core.is_compiling())

    thread = threading.Thread(target=other)
    thread.start()
    try:
        for _ in range(200):
            worlds.watched(sample)(5, {"k": 1})
    finally:
        stop.set()
        thread.join(30)
    assert set(seen) == {False}


def test_context_variables_belong_to_the_thread():
    import contextvars

    variable = contextvars.ContextVar("variable", default=0)
    compiled = worlds.watched(lambda: variable.get())

    def work(index):
        variable.set(index)
        for _ in range(50):
            assert compiled() == index

    worlds.in_threads(work)
    assert compiled() == 0


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_forked_child_goes_on():
    compiled = worlds.watched(sample)
    expected = compiled(3, {"k": 1})
    child = os.fork()
    if child == 0:
        ok = compiled(3, {"k": 1}) == expected and compiled(4, {"k": 1}) == sample(4, {"k": 1})
        os._exit(0 if ok else 1)
    assert os.waitpid(child, 0)[1] == 0


# -- the hook, debuggers, exit ----------------------------------------------------------------------------------------


def test_the_hook_is_there_during_the_watch_only():
    seen = []

    def work():
        seen.append((_core.hook_installed(), _core.is_compiling()))

    compiled = worlds.watched(work)
    compiled()
    compiled()
    assert seen[0] == (True, True)


@pytest.mark.parametrize("error", [ValueError, KeyboardInterrupt, SystemExit, GeneratorExit])
def test_the_hook_is_gone_after_an_exception(error):
    def fails():
        raise error

    with pytest.raises(error):
        worlds.watched(fails)()
    assert not _core.hook_installed()


@pytest.mark.parametrize("install", [sys.settrace, sys.setprofile])
def test_a_debugger_sees_what_it_would_have_seen(install):
    def work(n):
        total = 0
        for i in range(n):
            total += i
        return total

    def events_of(function):
        events = []

        def tool(frame, event, arg):
            if frame.f_code is work.__code__:
                events.append((event, frame.f_lineno))
            return tool

        install(tool)
        try:
            result = function(3)
        finally:
            install(None)
        return result, events

    compiled = worlds.watched(work)
    assert events_of(compiled) == events_of(work)
    assert not compiled.variants()
    assert list(compiled.failures()) == ["a debugger or profiler follows the thread"]
    assert compiled(3) == 3
    assert compiled(3) == 3
    assert compiled.variants()


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in CPython 3.12")
def test_a_tool_that_follows_one_function_sees_every_call():
    def inner(x):
        return x + 1

    def work():
        return inner(1)

    monitoring, lines = sys.monitoring, []
    monitoring.use_tool_id(3, "test")
    monitoring.register_callback(3, monitoring.events.LINE, lambda code, line: lines.append(code))
    compiled = worlds.watched(work)
    try:
        monitoring.set_local_events(3, inner.__code__, monitoring.events.LINE)
        assert compiled() == compiled() == 2
        monitoring.set_local_events(3, inner.__code__, 0)
    finally:
        monitoring.free_tool_id(3)
    assert lines == [inner.__code__] * 2
    assert not compiled.variants()
    assert compiled() == compiled() == 2
    assert compiled.variants()


def test_a_debugger_that_comes_during_the_call_is_served():
    lines = []

    def inner():
        a = 1
        return a

    def tool(frame, event, arg):
        if frame.f_code is inner.__code__:
            lines.append(event)
        return tool

    def work():
        sys.settrace(tool)
        value = inner()
        sys.settrace(None)
        return value

    assert worlds.watched(work)() == 1
    assert lines == ["call", "line", "line", "return"]


def test_the_process_ends_cleanly():
    out = worlds.run_alone("""
        import threading, atexit
        def numbers():
            try:
                yield 1
                yield 2
            finally: pass
        def work(): return [x for x in numbers()]
        compiled = watched(work)
        compiled(), compiled()
        kept = numbers()
        def start():
            next(kept)
            return 1
        watched(start)()
        atexit.register(lambda: print("exit", compiled()))
        threading.Thread(target=lambda: compiled()).start()
        """)
    assert out == "exit [1, 2]"


def test_the_core_is_the_one_that_was_built_for_this_python():
    assert Path(_core.__file__).name.startswith("_core.")
