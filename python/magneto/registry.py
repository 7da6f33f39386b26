"""Every live compiled function and scope, weakly held: reset() reaches them all, and a dropped one is gone."""

import atexit
import copy
import functools
import inspect
import threading
import types
import warnings
import weakref
from collections.abc import Callable
from typing import Any

from torch import nn

from magneto import _C
from magneto.wishes import GuardFail, Wishes

__all__ = [
    "capture_scope",
    "code_of",
    "compiled_function",
    "eager_everywhere",
    "live_functions",
    "reset",
    "reset_code_caches",
]

# Re-entrant: a finalizer that the collector runs while we hold it may compile something.
_lock = threading.RLock()
_live: weakref.WeakSet[_C.CompiledFunction] = weakref.WeakSet()  # owned by _lock
_scopes: dict[Any, _C.CaptureScope] = {}  # by wishes; owned by _lock
_warned = False  # owned by _lock
atexit.register(_scopes.clear)  # what they compiled goes before the interpreter does

KEPT_SCOPES = 64


def compiled_function(fn: Callable[..., Any], name: str, wishes: Wishes) -> _C.CompiledFunction:
    """A new compiled function that reset() knows."""
    compiled = _C.CompiledFunction(
        fn, name, wishes.fullgraph, wishes.lowering(), wishes.guard_export_fn, _guard_fail(wishes, fn), wishes.dynamic
    )
    with _lock:
        _live.add(compiled)
    _warn_once_if_unsupported()
    return compiled


def _deepcopy(wrapper: _C.CompiledFunction | _C.ScopedFunction, memo: dict[int, Any]) -> Any:
    """As functions are copied: not at all; but a method belongs to the copy of its object."""
    method = wrapper.fn
    owner = copy.deepcopy(method.__self__, memo) if isinstance(method, types.MethodType) else None
    if not isinstance(method, types.MethodType) or owner is method.__self__:
        return wrapper
    copied = wrapper.again(types.MethodType(method.__func__, owner))
    functools.update_wrapper(copied, copied.fn)
    if isinstance(copied, _C.CompiledFunction):
        with _lock:
            _live.add(copied)
    return copied


for _kind in (_C.CompiledFunction, _C.ScopedFunction):
    _kind.__deepcopy__ = _deepcopy  # type: ignore[union-attr]


def capture_scope(wishes: Wishes, skipped: list[str], kept: list[str]) -> _C.CaptureScope:
    """The scope of ``with optimize(...)``: the same one for the same wishes, with what it has compiled."""
    key = tuple(vars(wishes).values())
    with _lock:
        if key not in _scopes:
            if len(_scopes) == KEPT_SCOPES:
                del _scopes[next(iter(_scopes))]
            _scopes[key] = _C.CaptureScope(
                wishes.fullgraph,
                wishes.lowering(),
                wishes.guard_export_fn,
                _guard_fail(wishes, None),
                skipped,
                kept,
                wishes.dynamic,
            )
        return _scopes[key]


def _guard_fail(wishes: Wishes, fn: Any) -> Callable[[str], object] | None:
    tell = wishes.guard_fail_fn
    return None if tell is None else lambda reason: tell(GuardFail(reason, code_of(fn)))


def code_of(fn: Any) -> types.CodeType | None:
    """The code of the function, or of what a module or another object runs when it is called; None if it has none."""
    fn = getattr(fn, "forward", fn) if isinstance(fn, nn.Module) else fn
    fn = getattr(fn, "__func__", fn)
    if not hasattr(fn, "__code__"):
        fn = inspect.getattr_static(type(fn), "__call__", None)
    code = getattr(fn, "__code__", None)
    return code if isinstance(code, types.CodeType) else None


def live_functions() -> list[_C.CompiledFunction]:
    """Every compiled function that somebody still holds."""
    with _lock:
        return list(_live)


def reset() -> None:
    """Drops everything that was compiled and sets the counters to zero; the next call of each captures again."""
    reset_code_caches()
    _C.reset_counters()


def reset_code_caches() -> None:
    """Drops everything that was compiled; counters and times stay."""
    for compiled in live_functions():
        compiled.reset()
    with _lock:
        scopes = list(_scopes.values())
    for scope in scopes:
        scope.clear()
    _C.clear_autograd_cache()


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
