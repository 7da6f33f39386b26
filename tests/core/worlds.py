"""Two worlds: the same source loaded twice, one run by plain Python and one by Magneto, and what must agree."""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import itertools
import os
import resource
import subprocess
import sys
import textwrap
import threading
import types
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _core
import pytest

PROGRAMS = Path(__file__).parent / "programs"

needs_capture = pytest.mark.skipif(bool(_core.supported()), reason=_core.supported() or "captures")


def captures() -> int:
    return _core.counters()["stats"].get("captures", 0)


@contextlib.contextmanager
def counted() -> Iterator[Counter[str]]:
    """What was counted meanwhile: captures, hits of programs, exits from them. Filled in at the end."""
    before, found = Counter(_core.counters()["stats"]), Counter[str]()
    yield found
    found.update(_core.counters()["stats"])
    found.subtract(before)


@contextlib.contextmanager
def settings(**values: Any) -> Iterator[None]:
    before = {name: _core.get_setting(name) for name in values}
    for name, value in values.items():
        _core.set_setting(name, value)
    try:
        yield
    finally:
        for name, value in before.items():
            _core.set_setting(name, value)


def watched(function: Callable[..., Any]) -> Any:
    return _core.CompiledFunction(function, getattr(function, "__name__", "function"))


def is_whole(compiled: Any) -> bool:
    """Whether a program does all of the function's work."""
    programs = [variant["program"] for variant in compiled.variants()]
    return any("cut:" not in program and "CPython goes on" not in program for program in programs)


# -- programs ---------------------------------------------------------------------------------------------------------


@dataclass
class Program:
    function: Callable[..., Any]
    args: Callable[[], tuple[Any, ...]]
    kwargs: Callable[[], dict[str, Any]]
    eager: str | None  # None: it compiles; otherwise part of the reason why it does not, or only in parts
    left: str | None  # it compiles up to a cut, behind which CPython goes on for this reason

    def run(self, function: Callable[..., Any] | None = None) -> Any:
        call = function or self.function
        return outcome(lambda: call(*self.args(), **self.kwargs()))


@dataclass
class Registry:
    """`program = Registry()` in a module of programs; `@program` or `@program(lambda: (1, 2), eager="...")`."""

    programs: dict[str, Program] = field(default_factory=dict)

    def __call__(
        self,
        args: Callable[..., Any] | None = None,
        kwargs: Callable[[], dict[str, Any]] = dict,
        eager: str | None = None,
        left: str | None = None,
    ) -> Any:
        if isinstance(args, types.FunctionType) and args.__name__ != "<lambda>":
            return self()(args)

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            assert function.__name__ not in self.programs, function.__name__
            self.programs[function.__name__] = Program(function, args or tuple, kwargs, eager, left)
            return function

        return add


def load(file: Path) -> types.ModuleType:
    """A new module of this source, known to nobody else."""
    name = f"world_{file.stem}"
    spec = importlib.util.spec_from_file_location(name, file)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and enums look their module up
    try:
        spec.loader.exec_module(module)
    finally:
        del sys.modules[name]
    return module


# -- what must agree --------------------------------------------------------------------------------------------------

ATOMS = (type(None), bool, int, float, complex, str, bytes, type(...), type(NotImplemented), range, slice)


def describe(value: Any, seen: dict[int, int] | None = None) -> Any:
    """Plain data that is equal for equal values of two worlds: types by name, aliases by number."""
    seen = {} if seen is None else seen
    kind = type(value).__qualname__
    if isinstance(value, ATOMS):
        return kind, repr(value)
    if id(value) in seen:
        return "again", seen[id(value)]
    if type(value) is not tuple:
        seen[id(value)] = len(seen)
    if isinstance(value, BaseException):
        return describe_exception(value, seen)
    if isinstance(value, type):
        return "class", value.__qualname__
    parts: list[Any] = []
    if isinstance(value, dict):
        parts.append([(describe(key, seen), describe(item, seen)) for key, item in dict.items(value)])
    elif isinstance(value, (list, tuple)):
        parts.append([describe(item, seen) for item in value])
    elif isinstance(value, (set, frozenset)):
        parts.append(sorted((describe(item, seen) for item in value), key=repr))
    elif hasattr(value, "__qualname__"):
        return kind, value.__qualname__
    if hasattr(value, "__dict__"):
        parts.append([(name, describe(item, seen)) for name, item in vars(value).items()])
    for base in type(value).__mro__:
        for name, member in vars(base).items():
            if isinstance(member, types.MemberDescriptorType) and hasattr(value, name):
                parts.append((name, describe(getattr(value, name), seen)))
    return kind, *parts


def describe_exception(error: BaseException | None, seen: dict[int, int]) -> Any:
    """Type, arguments, the frames with their lines and columns, cause and context."""
    if error is None:
        return None
    frames: list[Any] = []
    step = error.__traceback__
    while step:
        code = step.tb_frame.f_code
        if not code.co_filename.startswith(str(Path(__file__).parent)) or "/programs/" in code.co_filename:
            # The very expression, not the instruction: CPython itself is of two minds about the latter.
            positions = next(itertools.islice(code.co_positions(), step.tb_lasti // 2, None))
            # Warm code of CPython 3.11 loads a variable along with what comes before it.
            unsure = isinstance(error, UnboundLocalError) and not step.tb_next
            frames.append((code.co_qualname,) if unsure else (code.co_qualname, step.tb_lineno, positions))
        step = step.tb_next
    inner: list[Any] = []
    if isinstance(error, BaseExceptionGroup):
        inner = [describe(each, seen) for each in error.exceptions]
    return {
        "type": type(error).__qualname__,
        "args": [describe(arg, seen) for arg in error.args],
        "text": str(error),
        "attributes": [(name, describe(value, seen)) for name, value in vars(error).items()],
        "frames": frames,
        "cause": describe(error.__cause__, seen),
        "context": describe(error.__context__, seen),
        "suppressed": error.__suppress_context__,
        "inner": inner,
    }


def outcome(call: Callable[[], Any]) -> Any:
    try:
        value = call()
    except BaseException as error:
        return "raised", describe(error)
    return "returned", describe(value)


# -- programs that may crash ------------------------------------------------------------------------------------------


def run_alone(source: str) -> str:
    """A program of its own, which may crash."""
    lines = [
        "import sys",
        f"sys.path.insert(0, {os.path.dirname(_core.__file__)!r})",
        "import _core",
        "_core.set_setting('without_tensors', True)",
        "def watched(f): return _core.CompiledFunction(f, f.__name__)",
    ]
    program = "\n".join(lines) + "\n" + textwrap.dedent(source)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr[-2000:]
    return result.stdout.strip()


# -- threads ----------------------------------------------------------------------------------------------------------


def blocks_after(action: Callable[[], Any], times: int, warm_up: int = 300) -> int:
    """How many memory blocks `times` repetitions leave behind, each time: what grows once is no leak."""
    return growth_after(action, times, warm_up)[0]


def growth_after(action: Callable[[], Any], times: int, warm_up: int = 300) -> tuple[int, int]:
    """The same, and the kilobytes of memory that the process has more."""
    for _ in range(warm_up):
        action()
    blocks, kilobytes = [], []
    for _ in range(3):
        before = allocated()
        for _ in range(times):
            action()
        after = allocated()
        blocks.append(after[0] - before[0])
        kilobytes.append(after[1] - before[1])
        if abs(blocks[-1]) < 50 and kilobytes[-1] < 500:
            break
    return min(blocks, key=abs), min(kilobytes)


def allocated() -> tuple[int, int]:
    """Blocks of Python's allocator, and kilobytes of the process in memory."""
    gc.collect()
    try:
        pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
        resident = pages * resource.getpagesize() // 1024
    except OSError:  # not on Linux: the most that it ever was
        resident = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return sys.getallocatedblocks(), resident


@contextlib.contextmanager
def many_switches() -> Iterator[None]:
    """Threads take turns as often as they can."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


def in_threads(work: Callable[[int], Any], count: int = 4) -> None:
    """Runs work(index) in each of some threads; what fails there fails here."""
    failures: list[BaseException] = []

    def guarded(index: int) -> None:
        try:
            work(index)
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)
        assert not thread.is_alive()
    assert not failures, failures


# -- small worlds, as text --------------------------------------------------------------------------------------------


class World:
    """A namespace made by running `source`, whose function `f` is called: plain, or compiled."""

    def __init__(self, source: str, compiled: bool) -> None:
        self.space: dict[str, Any] = {"__name__": __name__}  # data classes look their module up
        self.run(source)
        self.compiled = watched(self.space["f"]) if compiled else None

    def run(self, text: str) -> None:
        exec(compile(text, "<world>", "exec"), self.space)

    def value(self, expression: str) -> Any:
        return eval(compile(expression, "<world>", "eval"), self.space)

    def call(self, args: str = "") -> Any:
        function = self.compiled or self.space["f"]
        given, names = self.value(f"(lambda *a, **k: (a, k))({args})")
        return outcome(lambda: function(*given, **names))
