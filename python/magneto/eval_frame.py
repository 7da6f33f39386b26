"""The frame hook: a callback is asked about every Python frame before it runs, and may give it other code.

``set_eval_frame(callback)`` turns it on for this thread. ``callback(frame, cache_entry, frame_state)`` returns
``None``: the frame's code runs as it is from then on; or a ``GuardedCode``: the frame runs that code, and so do later
calls for which ``check_fn(f_locals)`` is true. ``docs/eval_frame.md`` tells the whole story.
"""

import types
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from magneto import _C

if _C.why_no_frame_hook():
    raise ImportError(_C.why_no_frame_hook(), name=__name__)

__all__ = [
    "GuardedCode",
    "VectorUInt8",
    "_CacheEntry",
    "_ExtraState",
    "_PyInterpreterFrame",
    "_debug_get_cache_entry_list",
    "py_opcode_caches",
    "reset_code",
    "set_eval_frame",
    "set_guard_error_hook",
    "skip_code",
    "unsupported",
]


@dataclass(frozen=True, slots=True)
class GuardedCode:
    """Code for a frame, and the check that must hold; any object with `code` and `check_fn` will do.

    ``trace_annotation`` names the region in profiles. ``compile_id`` is yours: the cache entry shows it again.
    """

    code: types.CodeType
    check_fn: Callable[[dict[str, Any]], object]
    compile_id: object = None
    trace_annotation: str = "Unknown"


_CacheEntry = _C.CacheEntry
_ExtraState = _C.ExtraState
_PyInterpreterFrame = _C.InterpreterFrame
_debug_get_cache_entry_list = _C.debug_get_cache_entry_list
VectorUInt8 = _C.VectorUInt8
py_opcode_caches = _C.py_opcode_caches
reset_code = _C.reset_code
set_eval_frame = _C.set_eval_frame
set_guard_error_hook = _C.set_guard_error_hook
skip_code = _C.skip_code
unsupported = _C.unsupported
