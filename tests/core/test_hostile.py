"""Hostile code: whatever objects, threads, signals and debuggers do, calls are as in plain Python and nothing crashes."""

import bdb
import ctypes
import gc
import os
import random
import re
import resource
import signal
import sys
import threading
import time
import trace

import _core
import pytest

from core import worlds
from core.hostile import SCENARIOS

pytestmark = worlds.needs_capture

PRELUDE = "LOG, busy = [], []\n"


def play(scenario, compiled):
    """What each call gives, and what it leaves."""
    world = worlds.World(PRELUDE + scenario.source, compiled)
    world.space["again"] = world.compiled or world.space["f"]
    story = []
    for step in scenario.steps:
        world.run(step)
        story.append((world.call(scenario.args), worlds.describe(world.value(scenario.state))))
    return world, story


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
@pytest.mark.parametrize("name", SCENARIOS)
def test_a_hostile_object_sees_what_it_would_have_seen(name):
    if SCENARIOS[name].adaptive and sys.version_info >= SCENARIOS[name].adaptive:
        pytest.skip("plain Python itself asks more or less often, depending on how warm it is")
    (_, expected), (_, actual) = (play(SCENARIOS[name], compiled) for compiled in (False, True))
    for call, (was, should_be) in enumerate(zip(actual, expected, strict=True)):
        assert was == should_be, f"call {call + 1}"


# -- interrupts at any moment -----------------------------------------------------------------------------------------

STEP = """
import queue
class C: pass
o = C()
o.n, o.log, o.items = 0, [], {}
box = queue.SimpleQueue()
def step(i):
  o.n += 1
  return i * 2
"""
INTERRUPTED = {
    "calls": """
def f():
  start = o.n
  out = []
  try:
    for i in range(6):
      out.append(step(i))
      o.items['k'] = i
    o.log.append(o.n - start)
    return out
  finally:
    del o.log[:-1]
""",
    "generators": """
def items(n):
  try:
    for i in range(n):
      yield step(i)
      o.items['k'] = i
  finally:
    o.log.append(o.n)
def all_items(n):
  yield from items(n)
def f():
  return [x for x in all_items(6)]
""",
    "cuts": """
def inner(i):
  box.put(step(i))
  o.items['k'] = i
  return box.get()
def f():
  try:
    return [inner(0), inner(1), inner(2), inner(3), inner(4), inner(5)]
  finally:
    o.log.append(o.n)
""",
    "with": """
class Logged:
  def __enter__(self):
    o.items['open'] = True
    return step
  def __exit__(self, kind, error, traceback):
    o.items.pop('open', None)
def f():
  out = []
  for i in range(6):
    with Logged() as work, Logged():
      out.append(work(i))
      o.items['open'] = i
    o.items['k'] = i
  o.log.append(o.n)
  return out
""",
}


class Interrupt(KeyboardInterrupt):
    pass


def calls_under_fire(name, hits, fire):
    """Calls of a function, and captures of it, each time until the one exception arrives that `fire` lets loose.

    For a second, or longer if the machine is too busy for as many exceptions to arrive in a call.
    """
    world = worlds.World(STEP + INTERRUPTED[name], compiled=True)
    start = time.monotonic()
    hits_in_calls = rounds = 0
    while (taken := time.monotonic() - start) < 1 or (hits_in_calls < hits and taken < 60):
        rounds += 1
        if rounds % 3 == 0:
            world.compiled.reset()
        in_calls = True
        try:
            fire()
            for _ in range(50):
                assert world.compiled() == [0, 2, 4, 6, 8, 10]
            in_calls = False
            for _ in range(10_000):
                time.sleep(1e-5)
            pytest.fail("nothing arrived")
        except Interrupt:
            hits_in_calls += in_calls
        assert not _core.is_compiling()
        assert not _core.hook_installed()
        world.run("o.n, o.log[:], o.items = 0, [], {}\nwhile not box.empty(): box.get()")
        assert world.call() == ("returned", ("list", [("int", str(2 * i)) for i in range(6)]))
        assert world.value("(o.n, o.log, o.items)") == (6, [6], {"k": 5})
    world.compiled.reset()
    for _ in range(3):
        world.compiled()
    newest = world.compiled.variants()[0]
    assert newest["hits"] and ("cut:" in newest["program"]) == (name == "cuts")
    return hits_in_calls


@pytest.mark.parametrize("name", INTERRUPTED)
def test_a_signal_may_come_at_any_moment(name):
    rng = random.Random(5)

    def handler(number, frame):
        raise Interrupt

    old = signal.signal(signal.SIGALRM, handler)
    try:
        hits = calls_under_fire(name, 20, lambda: signal.setitimer(signal.ITIMER_REAL, rng.uniform(1e-5, 4e-4)))
    finally:
        signal.signal(signal.SIGALRM, old)
    assert hits >= 20


@pytest.mark.parametrize("name", INTERRUPTED)
def test_an_exception_of_another_thread_may_come_at_any_moment(name):
    rng = random.Random(6)
    me = threading.get_ident()
    orders = []  # no locks: the exception could come while one is held

    def shoot():
        while "stop" not in orders:
            if orders:
                orders.pop()
                time.sleep(rng.uniform(0, 3e-4))
                ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(me), ctypes.py_object(Interrupt))
            time.sleep(1e-5)

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    shooter = threading.Thread(target=shoot)
    shooter.start()
    try:
        hits = calls_under_fire(name, 5, lambda: orders.append("shoot"))
    finally:
        orders.append("stop")
        shooter.join()
        sys.setswitchinterval(interval)
    assert hits >= 5


# -- debuggers and profilers ------------------------------------------------------------------------------------------

TRACED = "class C: pass\no = C()\no.n = 1\ndef g(x):\n  y = x + 1\n  return y\ndef f():\n  a = g(o.n)\n  b = 2\n  return a + b"


def lines_of(call):
    seen = []

    def tool(frame, event, arg):
        if frame.f_code.co_filename == "<world>":
            seen.append((event, frame.f_code.co_name, frame.f_lineno))
        return tool

    sys.settrace(tool)
    try:
        call()
    finally:
        sys.settrace(None)
    return seen


def test_a_debugger_sees_every_line_of_a_compiled_function():
    plain, ours = (worlds.World(TRACED, compiled) for compiled in (False, True))
    for _ in range(3):
        ours.compiled()
    (variant,) = ours.compiled.variants()
    assert lines_of(ours.compiled) == lines_of(plain.space["f"])
    assert ours.compiled.variants()[0]["hits"] == variant["hits"]
    ours.compiled()
    assert ours.compiled.variants()[0]["hits"] == variant["hits"] + 1


STEPPED = """
__file__ = "world.py"  # the module trace asks for it
class C: pass
o = C()
o.n, o.calls = 3, 0
def g(x):
  try:
    return 6 // x
  except ZeroDivisionError:
    return x
def items(n):
  yield from range(n)
def f():
  total = 0
  for i in items(o.n):
    total += g(i)
  o.calls += 1
  doubled = [x * 2 for x in items(2)]
  return [total, o.calls, doubled]
"""


class Debugger(bdb.Bdb):
    """Steps through all lines, as pdb does when it is told to."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def note(self, event, frame, *more):
        if frame.f_code.co_filename == "<world>":
            self.seen.append((event, frame.f_code.co_name, frame.f_lineno, sorted(frame.f_locals), *more))
        self.set_step()

    def user_call(self, frame, arguments):
        self.note("call", frame)

    def user_line(self, frame):
        self.note("line", frame)

    def user_return(self, frame, value):
        self.note("return", frame, re.sub("0x[0-9a-f]+", "", repr(value)))

    def user_exception(self, frame, error):
        self.note("exception", frame, error[0].__name__)


def with_debugger(function):
    debugger = Debugger()
    return debugger.runcall(function), debugger.seen


def with_line_counts(function):
    tracer = trace.Trace(count=1, trace=0)
    result = tracer.runfunc(function)
    return result, {line: count for (file, line), count in tracer.results().counts.items() if file == "<world>"}


@pytest.mark.parametrize("tool", [with_debugger, with_line_counts])
def test_a_tool_of_the_standard_library_sees_of_a_compiled_function_what_it_would_have_seen(tool):
    plain, ours = (worlds.World(STEPPED, compiled) for compiled in (False, True))
    for _ in range(4):
        assert ours.compiled() == plain.space["f"]()
    hits = [variant["hits"] for variant in ours.compiled.variants()]
    assert sum(hits) > 0
    for _ in range(2):
        (result, seen), (expected, should_be) = tool(ours.compiled), tool(plain.space["f"])
        assert result == expected and seen == should_be
        assert len(seen) >= 10  # lines, at least
    assert [variant["hits"] for variant in ours.compiled.variants()] == hits
    assert ours.compiled() == plain.space["f"]()


def test_a_debugger_that_a_signal_brings_in_sees_what_it_would_have_seen():
    source = "import signal\ndef g(n):\n  for i in range(n): pass\n  return n\ndef f():\n  g(900_000)\n  a = 1\n  b = 2\n  return g(1)"

    def play(compiled):
        world = worlds.World(source, compiled)
        seen = []

        def tool(frame, event, arg):
            if frame.f_code.co_name == "f":
                seen.append((event, frame.f_lineno))
            return tool

        def handler(number, frame):
            while frame and frame.f_code.co_name != "f":
                frame = frame.f_back
            if frame:
                frame.f_trace = tool
            sys.settrace(tool)

        old = signal.signal(signal.SIGALRM, handler)
        signal.setitimer(signal.ITIMER_REAL, 0.005)
        try:
            result = world.call()
        finally:
            sys.settrace(None)
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, old)
        came_in_time = seen and seen[0] == ("line", 7)
        return (result, seen) if came_in_time else play(compiled)

    assert play(compiled=True) == play(compiled=False)


@pytest.mark.skipif(sys.version_info < (3, 12), reason="sys.monitoring is new in 3.12")
def test_a_monitoring_tool_sees_every_line_of_a_compiled_function():
    world = worlds.World(TRACED, compiled=True)
    for _ in range(3):
        world.compiled()
    monitoring = sys.monitoring

    def lines(call):
        seen = []
        monitoring.use_tool_id(3, "test")
        monitoring.register_callback(3, monitoring.events.LINE, lambda code, line: seen.append((code.co_name, line)))
        monitoring.set_events(3, monitoring.events.LINE)
        try:
            call()
        finally:
            monitoring.set_events(3, 0)
            monitoring.free_tool_id(3)
        return [entry for entry in seen if entry[0] in ("f", "g")]

    assert lines(world.compiled) == lines(world.space["f"])


# -- fork, exit -------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork here")
def test_a_fork_in_the_middle_of_a_watched_call():
    world = worlds.World(
        "import os\nL = []\ndef f():\n  L.append(1)\n  pid = os.fork()\n  L.append(2)\n  return pid", True
    )
    for _ in range(3):
        pid = world.compiled()
        if pid == 0:
            os._exit(0 if world.value("L")[-2:] == [1, 2] and world.compiled.fn else 1)
        assert os.waitpid(pid, 0)[1] == 0
    assert world.value("L") == [1, 2] * 3


@pytest.mark.parametrize("last", [
    "sys.exit(0)", "watched(lambda: sys.exit(0))()", "import os; watched(lambda: os._exit(0))()",
    "import threading; threading.Thread(target=lambda: [compiled() for _ in range(10**9)], daemon=True).start()",
    "sys.modules.clear()", "del sys.modules['_core'], _core", "import atexit; atexit.register(lambda: watched(work)())",
    "import weakref; weakref.finalize(work, lambda: compiled())", "sys.settrace(lambda *a: None)",
    "compiled.me = compiled; work.c = compiled; del compiled, work",
])  # fmt: skip
def test_the_process_ends_cleanly_with_compiled_functions(last):
    worlds.run_alone(f"""
        import queue
        b = queue.SimpleQueue()
        class C:
            def __del__(self): self.f and self.f()
        c = C()
        c.n, c.f = 0, None
        def work():
            c.n += 1
            b.put(c.n)
            return [c.n, b.get()]
        compiled = watched(work)
        for _ in range(5): assert compiled() == [c.n, c.n]
        c.f = compiled
        {last}
        """)


# -- nothing is left --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("source", [
    "class C:\n  def __eq__(self, other): raise ValueError\nc = C()\ndef f():\n  try: return c == 1\n  except ValueError: return 2",
    "class C: pass\no = C()\no.n = 0\nclass M: pass\ndef f():\n  o.n += 1\n  o.m = M()\n  o.m.x = [o.n]\n  return o.m",
    "import queue\nb = queue.SimpleQueue()\ndef g(x):\n  b.put([x])\n  return b.get()\ndef f(): return g(1), g(2)",
    "import weakref\nclass C: pass\no = C()\ndef f():\n  o.x = C()\n  r = weakref.ref(o.x)\n  o.x = None\n  return r()",
    "class M:\n  def __del__(self): pass\nclass C: pass\no = C()\ndef f():\n  o.m = M()\n  return 1",
    "import sys\ndef f(): return sys._getframe().f_locals",
    "def f():\n  def g():\n    try: yield 1\n    finally: pass\n  return next(g())",
], ids=["raises", "stores", "cuts", "weak", "finaliser", "frame", "generator"])  # fmt: skip
def test_a_hundred_thousand_calls_leave_nothing(source):
    world = worlds.World(source, compiled=True)
    function = world.compiled

    def thousand():
        function.reset()
        _core.reset_counters()
        for _ in range(1000):
            function()

    def held():
        gc.collect()
        return len(gc.get_objects()), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss

    worlds.blocks_after(thousand, 1, warm_up=20)
    objects, memory = held()
    assert worlds.blocks_after(thousand, 50, warm_up=30) < 100
    more_objects, more_memory = held()
    assert more_objects - objects < 20
    assert more_memory - memory < 4000  # kilobytes
