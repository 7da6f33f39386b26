"""Frames are stopped at each instruction that a program executes, rebuilt from the snapshot and resumed there."""

from __future__ import annotations

import collections
import contextlib
import copy
import ctypes
import dis
import gc
import os
import re
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import _frames
import pytest

from core import callers, resumable, worlds

FILE = resumable.__file__
FULL = bool(os.environ.get("MAGNETO_TEST_FULL"))  # conftest.py says so, for --full
RESUMES = 100_000 if FULL else 10_000  # in each of a dozen ways

pytestmark = [
    # Runs that are stopped in the middle leave coroutines behind.
    pytest.mark.filterwarnings("ignore:coroutine .* was never awaited:RuntimeWarning"),
    # A profiler of CPython 3.12 says so of itself in class bodies.
    pytest.mark.filterwarnings("ignore:assigning None to unbound local:RuntimeWarning"),
]


class Stop(BaseException):
    """Ends the run that was resumed elsewhere."""


@pytest.fixture(scope="module", autouse=True)
def a_quiet_collector() -> Iterator[None]:
    """Generators that a stopped run leaves behind are closed between two runs, not in the middle of one."""
    gc.collect()
    gc.freeze()
    gc.disable()
    yield
    gc.enable()
    gc.unfreeze()


# -- stepping ---------------------------------------------------------------------------------------------------------


def codes_of(module: types.ModuleType) -> list[types.CodeType]:
    """Every code object of the module's file."""
    found: list[types.CodeType] = []
    work: list[Any] = [f for f, _ in resumable.PROGRAMS.values()] + list(vars(module).values())
    while work:
        value = work.pop()
        if isinstance(value, type) and value.__module__ == module.__name__:
            work += vars(value).values()
        elif isinstance(value, property):
            work.append(value.fget)
        elif isinstance(value, types.FunctionType):
            work.append(value.__code__)
        elif isinstance(value, types.CodeType) and value.co_filename == FILE and value not in found:
            found.append(value)
            work += value.co_consts
    return found


@contextlib.contextmanager
def each_instruction(callback: Callable[[types.FrameType], None], story: Story) -> Iterator[Callable[[], None]]:
    """Calls back before every instruction of resumable.py, and tells the story of exceptions that leave a frame.

    What it gives switches the former off.
    """
    if sys.version_info < (3, 12):

        def trace(frame: types.FrameType, event: str, argument: Any) -> Any:
            if frame.f_code.co_filename != FILE:
                return None
            frame.f_trace_opcodes = True
            if event == "exception":
                story.leaving = frame, raised(*argument[1:])
            elif event == "opcode":
                story.leaving = None  # it did not leave
                if dis.opname[frame.f_code.co_code[frame.f_lasti]] == "RERAISE":  # without an event
                    error = _frames.take(frame, 1)[0][4][-1]
                    story.leaving = frame, raised(error, error.__traceback__)
                callback(frame)
            return trace

        sys.settrace(trace)
        try:
            yield lambda: sys.settrace(None)
        finally:
            sys.settrace(None)
        return

    monitoring = sys.monitoring
    event, unwind = monitoring.events.INSTRUCTION, monitoring.events.PY_UNWIND

    def switch(events: int) -> None:
        for code in CODES:
            monitoring.set_local_events(TOOL, code, events)

    def unwinds(code: types.CodeType, offset: int, error: BaseException) -> None:
        if code.co_filename == FILE and story.last >= 0:  # the profiler has just been told that it returned
            story.left[story.last] = raised(error, error.__traceback__)

    monitoring.register_callback(TOOL, event, lambda code, offset: callback(sys._getframe(1)))
    monitoring.register_callback(TOOL, unwind, unwinds)
    monitoring.set_events(TOOL, unwind)
    switch(event)
    try:
        yield lambda: switch(0)
    finally:
        monitoring.set_events(TOOL, 0)
        switch(0)


CODES = codes_of(resumable)
if sys.version_info >= (3, 12):
    TOOL = 4
    sys.monitoring.use_tool_id(TOOL, "test_resume")

Chain = list[tuple[str, int]]


def chain_of(frame: types.FrameType | None) -> Chain:
    """Names and lines of the frame and its callers, as far as the programs go."""
    found: Chain = []
    while frame and frame.f_code.co_filename != __file__:
        found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


@dataclass
class Story:
    """What a profiler is told of a run: every call and return with the callers, and how each frame was left."""

    events: list[tuple[str, str, Chain]] = field(default_factory=list)
    count: int = 0  # entries into frames of resumable.py, which are numbered
    running: list[tuple[types.FrameType, int]] = field(default_factory=list)
    left: dict[int, Any] = field(default_factory=dict)
    last: int = -1  # whoever left
    leaving: tuple[types.FrameType, Any] | None = None  # with an exception

    def of(self, frame: types.FrameType) -> int:
        """-1 where the profiler was not told: in a generator that something is thrown into."""
        return next((number for running, number in self.running if running is frame), -1)

    def __call__(self, frame: types.FrameType, event: str, argument: Any) -> None:
        if frame.f_code.co_filename != FILE:
            return
        self.events.append((event, getattr(argument, "__name__", "") if event[:2] == "c_" else "", chain_of(frame)))
        if event == "call":
            self.running.append((frame, self.count))
            self.count += 1
        elif event == "return":
            raising = self.leaving and self.leaving[0] is frame and self.leaving[1]
            self.last, self.leaving = -1, None
            if self.running and self.running[-1][0] is frame:
                self.last = self.running.pop()[1]
                self.left[self.last] = raising or described(frame.f_code, argument, frame.f_locals)

    def from_here_on(self, start: int, outside: int) -> list[tuple[str, str, Chain]]:
        """The events until the frame leaves that has so many callers."""
        events = self.events[start:]
        ends = (i for i, event in enumerate(events) if event[0] == "return" and len(event[2]) == outside + 1)
        return events[: next(ends, len(events)) + 1]


def described(code: types.CodeType, value: Any, names: Any) -> Any:
    is_class_body = not code.co_flags & 0x2  # its result is in its names
    return sorted(map(str, names)) if is_class_body else shown(value)


def shown(value: Any) -> str:
    """repr without addresses."""
    return re.sub(r" at 0x[0-9a-f]+", "", repr(value))


def raised(error: BaseException, traceback: Any) -> tuple[Any, ...]:
    lines = []
    while traceback:
        if traceback.tb_frame.f_code.co_filename == FILE:
            lines.append((traceback.tb_frame.f_code.co_name, traceback.tb_lineno))
        traceback = traceback.tb_next
    return "raised", type(error).__name__, shown(error), lines, shown(error.__cause__), shown(error.__context__)


def outcome(call: Callable[[], Any]) -> tuple[Any, ...]:
    try:
        return "value", shown(call())
    except Exception as error:
        return raised(error, error.__traceback__)


@dataclass
class Found:
    """What happened where a run was stopped."""

    events: int = 0
    depth: int = 0  # frames in the chain that was resumed
    whole: bool = False  # the chain reached the program itself
    got: Any = None
    activation: int = -1
    where: str = ""
    outside: Chain = field(default_factory=list)  # the callers that were not resumed
    seen: list[tuple[str, str, Chain]] = field(default_factory=list)  # by a profiler, with these callers
    starts: list[tuple[int, Chain]] = field(default_factory=list)  # events before each instruction, and callers there


Action = Callable[[types.FrameType, Found, Story], None]


def step(function: Callable[..., Any], args: tuple[Any, ...], at: int, act: Action | None) -> Found:
    """Runs the program and, before its instruction number `at`, calls act(frame, found, story) with all tracing off.

    With nothing to do there, it notes what a profiler sees of the run.
    """
    found, story = Found(), Story()

    def callback(frame: types.FrameType) -> None:
        found.events += 1
        if act is None:
            found.starts.append((len(story.events), chain_of(frame)))
        if found.events - 1 != at or act is None:
            return
        sys.setprofile(None)
        off()
        found.where = f"{frame.f_code.co_name}:{frame.f_lineno}:{dis.opname[frame.f_code.co_code[frame.f_lasti]]}"
        try:
            act(frame, found, story)
        except Exception as error:
            found.got = error  # the program might catch it
        if not found.where.endswith("PUSH_EXC_INFO"):  # never raises, so its handlers do not expect it to
            raise Stop

    with each_instruction(callback, story) as off:
        sys.setprofile(story)
        try:
            function(*copy.deepcopy(args))
        except (Stop, Exception, BaseExceptionGroup):
            pass
        finally:
            sys.setprofile(None)
    _frames.set_handled(None)  # raising between two instructions may have left it wrong
    story.running.clear()  # CPython 3.11 does not collect a cycle through a generator that is traced
    gc.collect()
    if act is None:
        found.got = story
    return found


def renewed(chain: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Generators that are running cannot be entered: new ones take their place everywhere in the chain."""
    new = {id(s[7]): _frames.new_generator(s[0], s[1]) for s in chain if s[7] is not None}
    swap = lambda value: new.get(id(value), value)  # noqa: E731
    return [
        (f, c, i, list(map(swap, locals_)), list(map(swap, stack)), names, handled, swap(generator), instead)
        for f, c, i, locals_, stack, names, handled, generator, instead in chain
    ]


def frames_of_the_program(frame: types.FrameType) -> list[types.FrameType]:
    frames = [frame]
    while frames[-1].f_back.f_code.co_filename == FILE:
        frames.append(frames[-1].f_back)
    return frames


@contextlib.contextmanager
def seen_by_tools() -> Iterator[None]:
    """Inside a callback of a debugger or monitor, where CPython follows nothing: here it does."""
    python = ctypes.pythonapi
    python.PyThreadState_Get.restype = ctypes.c_void_p
    state = ctypes.c_void_p(python.PyThreadState_Get())
    python.PyThreadState_LeaveTracing(state)
    try:
        yield
    finally:
        python.PyThreadState_EnterTracing(state)


@contextlib.contextmanager
def first_instruction(code: types.CodeType, seen: list[tuple[str, str, Chain]]) -> Iterator[None]:
    """Notes the callers before the next instruction of the code, where CPython can tell."""
    if sys.version_info < (3, 12):
        yield
        return
    monitoring = sys.monitoring
    event = monitoring.events.INSTRUCTION

    def callback(code: types.CodeType, offset: int) -> None:
        seen.append(("instruction", "", chain_of(sys._getframe(1))))
        monitoring.set_local_events(TOOL, code, 0)

    before = monitoring.register_callback(TOOL, event, callback)
    monitoring.set_local_events(TOOL, code, event)
    try:
        yield
    finally:
        monitoring.set_local_events(TOOL, code, 0)
        monitoring.register_callback(TOOL, event, before)


def resume_here(error: BaseException | None = None) -> Action:
    def act(frame: types.FrameType, found: Found, story: Story) -> None:
        frames = frames_of_the_program(frame)
        found.depth = min(_frames.chain_length(frame), len(frames))
        found.whole = found.depth == len(frames)
        found.activation = story.of(frames[found.depth - 1])
        found.outside = chain_of(frames[found.depth]) if not found.whole else []
        chain = renewed(_frames.take(frame, found.depth))
        code, names, is_generator = chain[0][1], chain[0][5], chain[0][7] is not None
        callers.continues_at = None if found.whole else frames[found.depth]
        profile = Story(found.seen)

        def resume() -> Any:
            try:
                sys.setprofile(profile)
                return _frames.resume(chain, error)
            finally:
                sys.setprofile(None)

        first = first_instruction(frame.f_code, found.seen) if not error else contextlib.nullcontext()
        with seen_by_tools(), first:
            try:
                if found.whole:
                    found.got = outcome(resume)
                else:
                    found.got = described(code, resume(), names)
            except BaseException as left:  # GeneratorExit too
                if is_generator and isinstance(left, StopIteration):
                    found.got = described(code, left.value, names)
                else:
                    found.got = raised(left, left.__traceback__)
            finally:
                callers.continues_at = None
                if error:
                    error.__traceback__ = None  # a cycle as well
        found.seen = [(event, name, callers + found.outside) for event, name, callers in found.seen]

    return act


def compare(found: Found, truth: tuple[Any, ...], story: Story, start: tuple[int, Chain], raises: bool) -> str:
    """Whether a frame that was resumed went on as in the run that was not stopped; `start` is the instruction's."""
    expected = story.from_here_on(start[0], len(found.outside))
    if not raises and sys.version_info >= (3, 12):
        expected = [("instruction", "", start[1]), *expected]
    seen = iter([*found.seen, None])
    next_seen = next(seen)
    for event in expected:
        if event == next_seen:
            next_seen = next(seen)
        else:  # of resumed frames that an exception ends at once, because they have no handler, no profiler is told
            assert event[0] == "return" and len(event[2]) <= len(start[1]), (event, next_seen)
    assert next_seen is None
    if found.whole:
        assert found.got == truth
        return "whole"
    if found.activation < 0 or (raises and sys.version_info < (3, 12)):  # which ends its tracing with the exception
        assert not isinstance(found.got, Exception)
        return "unknown"
    assert found.got == story.left[found.activation]
    return "in part"


@pytest.mark.parametrize("name", resumable.PROGRAMS)
def test_every_instruction_can_be_resumed_with_the_same_result_and_callers(name: str):
    function, args = resumable.PROGRAMS[name]
    truth = outcome(lambda: function(*copy.deepcopy(args)))
    assert truth == outcome(lambda: function(*copy.deepcopy(args))), "the program is not deterministic"
    all_of_it = step(function, args, -1, None)
    assert all_of_it.events > 5
    ways = collections.Counter()
    for at in range(all_of_it.events):
        found = step(function, args, at, resume_here())
        try:
            ways[compare(found, truth, all_of_it.got, all_of_it.starts[at], raises=False)] += 1
        except AssertionError as error:
            raise AssertionError(f"instruction {at}, {found.where}") from error
    assert ways["whole"] > 5 and ways["unknown"] < all_of_it.events // 5


# -- exceptions -------------------------------------------------------------------------------------------------------


class Injected(Exception):
    pass


def raise_natively(
    function: Callable[..., Any], args: tuple[Any, ...], at: int
) -> tuple[Any, Story, tuple[int, Chain]]:
    """What becomes of the program if its instruction number `at` raises."""
    events, story = 0, Story()
    start: tuple[int, Chain] = (0, [])
    held: list[Any] = []  # generators are not closed when a frame is: where one is resumed, the stopped run has them

    def callback(frame: types.FrameType) -> None:
        nonlocal events, start
        events += 1
        if events - 1 == at:
            start = len(story.events), chain_of(frame)
            held.extend(_frames.take(frame, min(_frames.chain_length(frame), len(frames_of_the_program(frame)))))
            off()
            raise Injected("here")

    with each_instruction(callback, story) as off:
        sys.setprofile(story)
        result = outcome(lambda: function(*copy.deepcopy(args)))
        sys.setprofile(None)
    _frames.set_handled(None)
    gc.collect()
    return result, story, start


@pytest.mark.parametrize("name", resumable.PROGRAMS)
def test_every_instruction_can_raise_with_the_same_outcome_and_callers(name: str):
    function, args = resumable.PROGRAMS[name]
    events = step(function, args, -1, None).events
    ways = collections.Counter()
    for at in range(0, events, 1 if events < 150 or FULL else events // 100):
        found = step(function, args, at, resume_here(Injected("here")))
        if found.where.endswith(("PUSH_EXC_INFO", "POP_EXCEPT")):  # which cannot raise
            continue
        try:
            ways[compare(found, *raise_natively(function, args, at), raises=True)] += 1
        except AssertionError as error:
            raise AssertionError(f"instruction {at}, {found.where}") from error
    assert ways["whole"] > 5


# -- snapshots made by hand -------------------------------------------------------------------------------------------


def snapshot(
    function: Any,
    index: int,
    stack: tuple[Any, ...] = (),
    handled: Any = None,
    generator: Any = None,
    instead: Any = None,
    **values: Any,
) -> tuple[Any, ...]:
    code = function.__code__
    names = [*code.co_varnames, *(n for n in code.co_cellvars if n not in code.co_varnames), *code.co_freevars]
    locals_ = [values.get(name, _frames.UNBOUND) for name in names]
    return function, code, index, locals_, list(stack), None, handled, generator, instead


def find(function: Any, opname: str, number: int = 0) -> int:
    """The index of an instruction."""
    return [i for i, opcode, *_ in _frames.decode(function.__code__) if dis.opname[opcode] == opname][number]


def after(function: Any, opname: str, number: int = 0) -> int:
    index = find(function, opname, number)
    return next(row[3] for row in _frames.decode(function.__code__) if row[0] == index)


def whole_chain() -> list[tuple[str, int]]:
    frame, found = sys._getframe(1), []
    while frame:
        found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found


def inner(x: Any, boom: bool) -> Any:
    y = x + 1
    chain = whole_chain()
    if boom:
        raise ValueError("in inner")
    return y, chain


def middle(x: Any, boom: bool) -> Any:
    a = x * 2
    try:
        r = inner(a, boom)
    except KeyError:
        r = "no"
    return "middle", a, r


def outer(x: Any, boom: bool) -> Any:
    b = 5
    total = [b, middle(x, boom)]
    return total


def chain_by_hand(boom: bool) -> list[tuple[Any, ...]]:
    """outer(10) -> middle(10) -> inner(20), which has just computed x + 1."""
    return [
        snapshot(outer, find(outer, "CALL"), (5,), x=10, boom=boom, b=5),
        snapshot(middle, find(middle, "CALL"), x=10, boom=boom, a=20),
        snapshot(inner, after(inner, "BINARY_OP"), (21,), x=20, boom=boom),
    ]


def test_a_chain_made_by_hand_has_the_callers_and_the_result_of_a_call():
    calls = [lambda: outer(10, False), lambda: _frames.resume(chain_by_hand(False))]
    real, resumed = (call() for call in calls)
    assert resumed == real and [name for name, _ in real[1][2][1][:3]] == ["inner", "middle", "outer"]


def test_an_exception_leaves_a_chain_with_the_traceback_of_a_call():
    tracebacks = []
    for call in (lambda: outer(10, True), lambda: _frames.resume(chain_by_hand(True))):
        with pytest.raises(ValueError, match="in inner") as caught:
            call()
        lines = resumable.traceback_of(caught.value)[2:]
        tracebacks.append([(t.tb_frame.f_code.co_name, t.tb_lineno, dict(t.tb_frame.f_locals)) for t in lines])
        names = []
        frame = lines[-1].tb_frame
        while frame:
            names.append(frame.f_code.co_name)
            frame = frame.f_back
        assert names[:5] == ["inner", "middle", "outer", "<lambda>", sys._getframe().f_code.co_name]
    for _, _, values in tracebacks[0] + tracebacks[1]:
        values.pop("chain", None)
    assert tracebacks[0] == tracebacks[1] and len(tracebacks[0]) == 3


def test_an_exception_from_further_in_meets_the_handlers_of_the_frames_around_it():
    chain = chain_by_hand(False)
    assert _frames.resume(chain, KeyError("x")) == [5, ("middle", 20, "no")]
    with pytest.raises(OSError) as caught:
        _frames.resume(chain, OSError("y"))
    assert [t.tb_frame.f_code.co_name for t in resumable.traceback_of(caught.value)][1:] == ["outer", "middle", "inner"]


def test_a_constructor_gives_the_object_and_not_what_init_returns():
    class Thing:
        def __init__(self, x):
            self.x = x
            self.y = x + 1

    def make(x):
        thing = Thing(x)
        return thing, thing.x, thing.y

    make.__closure__[0].cell_contents = Thing
    thing = Thing.__new__(Thing)
    thing.x = "set before"
    chain = [
        snapshot(make, find(make, "CALL"), instead=thing, x=1, Thing=make.__closure__[0]),
        snapshot(Thing.__init__, after(Thing.__init__, "STORE_ATTR"), self=thing, x=1),
    ]
    assert _frames.resume(chain) == (thing, "set before", 2)


def test_a_generator_continues_where_its_snapshot_stands():
    def generator(n):
        for i in range(n):
            got = yield i
            if got:
                yield got, i

    # Before the RESUME that follows the first yield: the iterator and what will be sent lie on the stack.
    index = find(generator, "RESUME", 1)
    rest = iter(range(3))
    next(rest)
    for sent, expected in ((None, [1, 2]), ("hello", [("hello", 0), 1, 2])):
        found = _frames.suspended_generator(snapshot(generator, index, (copy.copy(rest),), n=3, i=0))
        assert type(found) is types.GeneratorType and found.__name__ == "generator"
        first = found.send(sent)
        assert [first, *found] == expected
    closed = _frames.suspended_generator(snapshot(generator, index, (copy.copy(rest),), n=3, i=0))
    closed.close()
    assert list(closed) == []


def test_what_the_resumed_program_drops_goes_at_once():
    class Noisy:
        pass

    def program(x, log):
        log.append("before")
        x = None  # noqa: F841
        log.append("after")
        return log

    log: list[str] = []
    thing = Noisy()
    weakref.finalize(thing, log.append, "gone")
    chain = [snapshot(program, after(program, "RESUME"), x=thing, log=log)]
    del thing
    # The test's own tuple must not hold it either.
    assert _frames.resume(chain, None, True) == ["before", "gone", "after"]
    assert chain == []


def test_a_frame_object_of_a_resumed_frame_outlives_it():
    def program(x):
        y = x + 1
        return sys._getframe(), y

    frame, y = _frames.resume([snapshot(program, after(program, "BINARY_OP"), (7,), x=1)])
    assert y == 7 and frame.f_locals == {"x": 1, "y": 7} and frame.f_back is sys._getframe()
    frame.clear()
    assert frame.f_locals == {}


@pytest.mark.parametrize("depth", [10, 400])
def test_a_deep_chain_is_rebuilt(depth: int):
    def down(n, a=0.0, b=0.0, c=0.0, d=0.0, e=0.0, f=0.0, g=0.0, h=0.0):
        if n == 0:
            return len(whole_chain())
        return down(n - 1) + 1

    cell = down.__closure__[0]
    values = {"n": 3, "down": cell, **dict.fromkeys("abcdefgh", 0.0)}
    chain = [snapshot(down, find(down, "CALL", 2), **values)] * depth
    chain.append(snapshot(down, after(down, "RESUME"), **{**values, "n": 0}))
    assert _frames.resume(chain) == len(whole_chain()) + depth + 1 + depth
    with pytest.raises(RecursionError):
        _frames.resume(chain[:1] * 100_000 + chain[-1:])


# -- mistakes and memory ----------------------------------------------------------------------------------------------


def in_a_handler(x: Any) -> Any:
    try:
        return x.a
    except AttributeError:
        return x


def counting() -> Any:
    yield 1
    yield 2


MISTAKES = {
    "no snapshot": ([], ValueError, "no snapshot"),
    "no instruction": ([snapshot(inner, 1000)], ValueError, "inner cannot stand at instruction 1000"),
    "a negative index": ([snapshot(inner, -1)], ValueError, "cannot stand"),
    "inside a cache": ([snapshot(inner, find(inner, "BINARY_OP") + 1)], ValueError, "cannot stand"),
    "too few values": ([snapshot(inner, find(inner, "BINARY_OP"), (1,))], ValueError, "has 2 values on its stack"),
    "too many values": ([snapshot(inner, after(inner, "RESUME"), (1,))], ValueError, "has 0 values on its stack"),
    "no cell": ([snapshot(whole := (lambda y: lambda: y)(1), after(whole, "RESUME"))], TypeError, "is not a cell"),
    "nothing handled": (
        [snapshot(in_a_handler, find(in_a_handler, "POP_EXCEPT"), (1, 2))],
        ValueError,
        "names no exception",
    ),
    "a handled number": (
        [snapshot(in_a_handler, after(in_a_handler, "RESUME"), handled=3)],
        TypeError,
        "must be an exception",
    ),
    "a generator of other code": (
        [snapshot(counting, find(counting, "YIELD_VALUE"), (1,), generator=resumable.count_up(1))],
        ValueError,
        "not a new one",
    ),
    "a used generator": (
        [snapshot(counting, find(counting, "YIELD_VALUE"), (1,), generator=(lambda g: [*g] and g)(counting()))],
        ValueError,
        "not a new one",
    ),
    "operands in a chain": (
        [snapshot(middle, find(middle, "CALL"), (1, 2, 3)), snapshot(inner, after(inner, "RESUME"))],
        ValueError,
        "has 0 values on its stack",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_wrong_snapshot_is_an_exception_that_says_why(name: str):
    chain, kind, message = MISTAKES[name]
    with pytest.raises(kind, match=message):
        _frames.resume(chain)
    with pytest.raises(kind, match=message):
        _frames.resume(chain, OSError("pending"))


def test_frames_that_cannot_be_taken_say_so():
    with pytest.raises(ValueError, match="C code between"):
        max([1], key=lambda x: _frames.take(sys._getframe(), 2))
    with pytest.raises(ValueError, match="is no generator"):
        _frames.suspended_generator(snapshot(inner, after(inner, "RESUME")))
    with pytest.raises(TypeError, match="makes no generator"):
        _frames.new_generator(inner, inner.__code__)


def resumes() -> dict[str, Callable[[], Any]]:
    """Ways through every part of resuming, none of which may leave anything behind."""

    def caught(chain: list[tuple[Any, ...]], raised: BaseException | None = None) -> None:
        with contextlib.suppress(OSError, ValueError, StopIteration):
            _frames.resume(chain, raised)

    loop = snapshot(counting, find(counting, "YIELD_VALUE"), (1,))
    suspended = snapshot(counting, find(counting, "RESUME", 1))
    good, bad = chain_by_hand(False), chain_by_hand(True)
    return {
        "a chain": lambda: _frames.resume(good),
        "a chain that raises": lambda: caught(bad),
        "a pending exception that is caught": lambda: _frames.resume(good, KeyError("x")),
        "a pending exception that leaves": lambda: caught(good, OSError("y")),
        "a generator": lambda: _frames.resume([loop]),
        "a generator that raises": lambda: caught([loop], OSError("z")),
        "a suspended generator": lambda: list(_frames.suspended_generator(suspended)),
        "a suspended generator that is dropped": lambda: _frames.suspended_generator(suspended),
        "a generator that never starts": lambda: _frames.new_generator(counting, counting.__code__),
        "a wrong snapshot": lambda: caught([snapshot(inner, 1000)]),
        "taking": lambda: _frames.take(sys._getframe(), 1),
        "a pending exception that a handler handles": lambda: _frames.resume(
            [snapshot(in_a_handler, find(in_a_handler, "LOAD_ATTR"), (5,), x=5)], AttributeError("a")
        ),
    }


@pytest.mark.parametrize("name", resumes())
def test_resuming_leaves_memory_where_it_was(name: str):
    run = resumes()[name]
    run()
    gc.collect()
    before = sys.getrefcount(inner), sys.getrefcount(inner.__code__)
    blocks, kilobytes = worlds.growth_after(run, RESUMES)
    assert blocks < 100
    assert kilobytes < 1000
    assert (sys.getrefcount(inner), sys.getrefcount(inner.__code__)) == before


def test_resuming_the_programs_anywhere_leaves_memory_where_it_was():
    """What CPython counts as blocks, and what it does not: large objects and what C code asks the system for."""
    resumed = 0

    def everywhere() -> None:
        nonlocal resumed
        for function, args in resumable.PROGRAMS.values():
            events = step(function, args, -1, None).events
            for at in range(0, events, 1 if FULL else 1 + events // 40):
                for error in (None, Injected("here")):
                    step(function, args, at, resume_here(error))
                    resumed += 1

    blocks, kilobytes = worlds.growth_after(everywhere, 1, warm_up=2)
    assert resumed > 5_000
    assert blocks < 100
    assert kilobytes < 1000


@pytest.mark.parametrize("function", [f for f, _ in resumable.PROGRAMS.values()], ids=list(resumable.PROGRAMS))
def test_lines_are_what_the_code_says_and_the_stack_holds_what_was_computed(function: Any):
    code = function.__code__
    lines = {offset // 2: line for start, end, line in code.co_lines() for offset in range(start, end, 2)}
    rows = _frames.decode(code)
    assert [row[5] for row in rows] == [lines[row[0]] if lines[row[0]] is not None else -1 for row in rows]
    assert max(row[6] for row in rows) <= code.co_stacksize
