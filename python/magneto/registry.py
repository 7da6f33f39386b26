"""Every live compiled function, weakly held, so that reset() reaches them all and a dropped one is gone."""

import inspect
import threading
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from magneto import _C

__all__ = ["compiled_function", "eager_everywhere", "reset"]

# Re-entrant: a finalizer that the collector runs while we hold it may compile something.
_lock = threading.RLock()
_live: weakref.WeakSet[_C.CompiledFunction] = weakref.WeakSet()  # owned by _lock
_warned = False  # owned by _lock


def compiled_function(
    fn: Callable[..., Any], name: str, whole: bool = False, dynamic: bool | None = None
) -> _C.CompiledFunction:
    """A new compiled function that reset() knows; `whole`: its programs have one part."""
    compiled = _C.CompiledFunction(fn, name, whole, dynamic)
    with _lock:
        _live.add(compiled)
    _warn_once_if_unsupported()
    return compiled


def reset() -> None:
    """Drops everything that was compiled and sets the counters to zero; the next call of each captures again."""
    with _lock:
        functions = list(_live)
    for compiled in functions:
        compiled.reset()
    _C.reset_counters()


def eager_everywhere() -> tuple[str, int]:
    """Why this process cannot capture ("" if it can), and how many live functions that leaves eager."""
    reason = _C.supported()
    if not reason:
        return "", 0
    with _lock:
        return reason, len(_live)


def _warn_once_if_unsupported() -> None:
    global _warned
    reason = _C.supported()
    if not reason:
        return
    with _lock:
        first, _warned = not _warned, True
    if first:
        warnings.warn(
            f"Magneto cannot compile here, so everything runs eagerly, with the same results: {reason}",
            RuntimeWarning,
            stacklevel=_levels_up_to_the_caller(),
        )


def _levels_up_to_the_caller() -> int:
    # Counted from the function that asks, as warnings.warn counts.
    level, frame = 0, inspect.currentframe()
    while frame and frame.f_globals.get("__name__", "").partition(".")[0] == "magneto":
        level, frame = level + 1, frame.f_back
    return level
