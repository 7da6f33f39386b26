# Written by `./run stubs` from the built module.
"""The native part of Magneto."""

from collections.abc import Callable, Iterable, Iterator
from types import CodeType, FrameType
from typing import Any, overload


class UserError(ValueError):
    pass

class InternalError(RuntimeError):
    pass

class CompiledFunction:
    """A function that is compiled by its second call."""

    def __repr__(self) -> str: ...

    def __init__(self, fn: Callable[..., Any], name: str = ...) -> None: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...

    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...

    def variants(self) -> list[dict[str, Any]]:
        """What was compiled, most recently used first."""

    def failures(self) -> dict[str, int]:
        """Why captures failed: reason -> count."""

    def misses(self) -> dict[str, int]:
        """Why calls were captured again: reason -> count."""

    def state(self) -> str:
        """'new', 'compiled' or 'eager'."""

    def reset(self) -> None:
        """Forget everything that was compiled or counted."""

    def guard_ns(self, repeats: int, /, *args: Any, **kwargs: Any) -> float:
        """Nanoseconds per check of the guards of the variant that fits."""

    fn: Callable[..., Any]

    @property
    def name(self) -> str: ...

def is_compiling() -> bool:
    """Whether this thread is watching a call."""

def call_disabled(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs fn unwatched; a watch that is going on gives up."""

def counters() -> dict[str, dict[str, int]]:
    """What happened, as group -> name -> count."""

def reset_counters() -> None: ...

def settings() -> list[tuple[str, str, bool | int | str]]:
    """All settings, as (name, what it does, default)."""

def get_setting(name: str) -> bool | int | str: ...

def set_setting(name: str, value: bool | int | str) -> None: ...

def supported() -> str:
    """Empty if calls can be captured on this Python; otherwise why not."""

def hook_installed() -> bool:
    """Whether Python frames pass through Magneto right now."""

def why_no_frame_hook() -> str:
    """Empty if frames can be hooked on this Python; else why not."""

class VectorUInt8:
    @overload
    def __init__(self) -> None:
        """Default constructor"""

    @overload
    def __init__(self, arg: VectorUInt8, /) -> None:
        """Copy constructor"""

    @overload
    def __init__(self, arg: Iterable[int], /) -> None:
        """Construct from an iterable object"""

    def __len__(self) -> int: ...

    def __bool__(self) -> bool:
        """Check whether the vector is nonempty"""

    def __repr__(self) -> str: ...

    def __iter__(self) -> Iterator[int]: ...

    @overload
    def __getitem__(self, arg: int, /) -> int: ...

    @overload
    def __getitem__(self, arg: slice, /) -> VectorUInt8: ...

    def clear(self) -> None:
        """Remove all items from list."""

    def append(self, arg: int, /) -> None:
        """Append ``arg`` to the end of the list."""

    def insert(self, arg0: int, arg1: int, /) -> None:
        """Insert object ``arg1`` before index ``arg0``."""

    def pop(self, index: int = -1) -> int:
        """Remove and return item at ``index`` (default last)."""

    def extend(self, arg: VectorUInt8, /) -> None:
        """Extend ``self`` by appending elements from ``arg``."""

    @overload
    def __setitem__(self, arg0: int, arg1: int, /) -> None: ...

    @overload
    def __setitem__(self, arg0: slice, arg1: VectorUInt8, /) -> None: ...

    @overload
    def __delitem__(self, arg: int, /) -> None: ...

    @overload
    def __delitem__(self, arg: slice, /) -> None: ...

    def __eq__(self, arg: object, /) -> bool: ...

    def __ne__(self, arg: object, /) -> bool: ...

    @overload
    def __contains__(self, arg: int, /) -> bool: ...

    @overload
    def __contains__(self, arg: object, /) -> bool: ...

    def count(self, arg: int, /) -> int:
        """Return number of occurrences of ``arg``."""

    def remove(self, arg: int, /) -> None:
        """Remove first occurrence of ``arg``."""

py_opcode_caches: VectorUInt8 = ...

def set_eval_frame(callback: Callable[..., Any] | bool | None, /) -> Callable[..., Any] | bool | None:
    """Asks callback(frame, cache_entry, frame_state) about the frames of this thread; None turns that off, False only runs what is cached. Returns what was set before."""

def set_guard_error_hook(hook: Callable[..., Any] | None, /) -> None:
    """Calls hook(check_fn, code, f_locals, index, is_last) when a check raises."""

def debug_get_cache_entry_list(code: CodeType, /) -> list[CacheEntry]:
    """The cache entries of a code object, the most recently used first."""

def reset_code(code: CodeType, /) -> None:
    """Forgets everything about a code object: cache entries, frame_state, and that it is skipped."""

def skip_code(code: CodeType, /) -> None:
    """Lets a code object run as it is from now on, and drops its cache entries."""

def unsupported(obj1: object, obj2: object, /) -> Any:
    """Returns obj2. A C function that no compiler knows, to test graph breaks with."""

class CacheEntry:
    """New code for a code object, and its check."""

    @property
    def check_fn(self) -> Any:
        """Called with the variables of a frame: whether it may run `code`."""

    @property
    def code(self) -> CodeType | None:
        """The new code, or None once the entry is invalid."""

    @property
    def next(self) -> CacheEntry | None:
        """The next entry of the same code object, or None."""

    @property
    def compile_id(self) -> Any:
        """What the guarded code said, or None."""

    @property
    def trace_annotation(self) -> str:
        """The name of its region in profiles."""

    @property
    def backend(self) -> Any:
        """Whose callback made it."""

    @property
    def extra_state(self) -> ExtraState | None:
        """The _ExtraState that it belongs to, or None."""

class ExtraState:
    """The cache of a code object."""

    def invalidate(self, cache_entry: CacheEntry, check_fn: object = None, /) -> None:
        """Takes the entry out of the cache; a frame that runs its code goes on."""

class InterpreterFrame:
    """A frame that is about to run, or a caller of it."""

    @property
    def f_func(self) -> Any:
        """The function."""

    @property
    def f_globals(self) -> dict[str, Any]:
        """The global variables."""

    @property
    def f_builtins(self) -> dict[str, Any]:
        """The builtins."""

    @property
    def f_locals(self) -> Any:
        """A dict of the arguments and free variables; in a class body or module, the namespace."""

    @property
    def f_code(self) -> CodeType:
        """The code object."""

    @property
    def f_lasti(self) -> int:
        """The last instruction, as in frame objects: -1 if the frame has not started."""

    @property
    def f_lineno(self) -> int:
        """The line number."""

    @property
    def f_back(self) -> FrameType | None:
        """The frame object of the caller, or None."""

    @property
    def frame_obj(self) -> FrameType | None:
        """The frame object, or None if there is none yet."""

    @property
    def previous(self) -> InterpreterFrame | None:
        """The caller as such a view, or None."""

    @property
    def closure(self) -> tuple[Any, ...]:
        """The cells of the free variables."""
