"""What happened, as data: guard failures, cuts, times, original code; and who is told of compilations."""

import gc
import re
import threading
import traceback
import types
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar, overload

from magneto import _C
from magneto.registry import code_of, live_functions
from magneto.wishes import check_bool, check_callable, check_choice

__all__ = [
    "CompileEvent",
    "GraphBreak",
    "compile_times",
    "graph_break_reasons",
    "guard_failures",
    "on_compile_end",
    "on_compile_start",
    "orig_code_map",
    "remove_callback",
]

C = TypeVar("C", bound=Callable[..., object])

# ---- callbacks


class CompileEvent(NamedTuple):
    """What the callbacks of on_compile_start and on_compile_end are told: the compiled function's name."""

    name: str


_lock = threading.RLock()
_callbacks: dict[bool, list[Callable[..., object]]] = {True: [], False: []}  # by whether it starts; owned by _lock


def on_compile_start(callback: C) -> C:
    """Calls ``callback(event)`` before each compilation, in its thread; also as a decorator.

    An error that the callback raises comes out of the call that was to be compiled, which has not run then.
    """
    return _register("on_compile_start", callback, True)


def on_compile_end(callback: C) -> C:
    """Calls ``callback(event)`` after each compilation, whether it came to anything or not; also as a decorator."""
    return _register("on_compile_end", callback, False)


def remove_callback(callback: Callable[..., object]) -> None:
    """Takes back on_compile_start and on_compile_end; nothing happens if the callback is not registered."""
    check_callable("remove_callback", callback)
    with _lock:
        for registered in _callbacks.values():
            while callback in registered:
                registered.remove(callback)
        if not any(_callbacks.values()):
            _C.set_compile_callback(None)


def _register(name: str, callback: C, starts: bool) -> C:
    check_callable(f"magneto.{name}", callback)
    with _lock:
        _callbacks[starts].append(callback)
        _C.set_compile_callback(_tell)
    return callback


def _tell(starts: bool, name: str) -> None:
    with _lock:
        callbacks = list(_callbacks[starts])
    for callback in callbacks:
        callback(CompileEvent(name))


# ---- views


class GuardFailures(Mapping[types.CodeType, list[str]]):
    """By code object, why calls of the compiled functions that are alive were captured again."""

    def _now(self) -> dict[types.CodeType, list[str]]:
        found: dict[types.CodeType, list[str]] = {}
        for compiled in live_functions():
            if (code := code_of(compiled.fn)) and (misses := compiled.misses()):
                found.setdefault(code, []).extend(misses)
        return found

    def __getitem__(self, code: types.CodeType) -> list[str]:
        return self._now().get(code, [])

    def __contains__(self, code: object) -> bool:
        return code in self._now()

    def __iter__(self) -> Iterator[types.CodeType]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __repr__(self) -> str:
        return repr(self._now())


class GraphBreak(NamedTuple):
    """Why a program is in several parts, and where in the user's program that is."""

    reason: str
    user_stack: list[traceback.FrameSummary]


class GraphBreakReasons(Sequence[GraphBreak]):
    """The places where programs were cut since the start or the last ``magneto.reset()``, each once."""

    def _now(self) -> list[GraphBreak]:
        return [_graph_break(text) for text in _C.counters().get("graph_break", {})]

    @overload
    def __getitem__(self, index: int) -> GraphBreak: ...

    @overload
    def __getitem__(self, index: slice) -> list[GraphBreak]: ...

    def __getitem__(self, index: int | slice) -> GraphBreak | list[GraphBreak]:
        return self._now()[index]

    def __len__(self) -> int:
        return len(self._now())

    def __repr__(self) -> str:
        return repr(self._now())


def _graph_break(text: str) -> GraphBreak:
    place = re.fullmatch(r"(?P<reason>.*) \((?P<file>.+):(?P<line>\d+) in (?P<function>.*)\)", text, re.S)
    if place is None:
        return GraphBreak(text, [])
    frame = traceback.FrameSummary(place["file"], int(place["line"]), place["function"], lookup_line=False)
    return GraphBreak(place["reason"], [frame])


class OriginalCode(Mapping[types.CodeType, types.CodeType]):
    """From the code that frames were given through magneto.eval_frame to the code that it stands in for.

    magneto.compile makes no code objects, so it adds nothing here.
    """

    def _now(self) -> list[tuple[types.CodeType, types.CodeType]]:
        entries = [found for found in gc.get_objects() if type(found) is _C.CacheEntry]
        return [(entry.code, entry.original) for entry in entries if entry.code and entry.original]

    def __getitem__(self, code: types.CodeType) -> types.CodeType:
        # By identity: code objects with the same contents are equal.
        for new, original in self._now():
            if new is code:
                return original
        raise KeyError(code)

    def __iter__(self) -> Iterator[types.CodeType]:
        return iter([new for new, _ in self._now()])

    def __len__(self) -> int:
        return len(self._now())


guard_failures = GuardFailures()
graph_break_reasons = GraphBreakReasons()
orig_code_map = OriginalCode()


# ---- times


def compile_times(repr: str = "str", aggregate: bool = False) -> Any:
    """How long compilations took, by phase: watching the call, building the program, and what backends did.

    repr="str": a text to print; "csv": the names of the phases, and their seconds. aggregate: the sum of each phase
    instead of every single time.
    """
    check_choice("repr", repr, ("str", "csv"))
    check_bool("aggregate", aggregate)
    times = {phase: [sum(seconds)] if aggregate else seconds for phase, seconds in _C.compile_times().items()}
    values = [", ".join(f"{second:.6f}" for second in seconds) for seconds in times.values()]
    if repr == "csv":
        return list(times), values
    width = max([len("phase"), *map(len, times)])
    rows = [f"{phase:<{width}}  {value}" for phase, value in zip(times, values, strict=True)]
    return "\n".join(["Magneto compilation times:", f"{'phase':<{width}}  seconds", *rows])
