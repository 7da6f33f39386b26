"""magneto.guards: build the guards of a frame by hand, for users of magneto.eval_frame.

A ``RootGuardManager`` leads to places (``local_manager("self").getattr_manager("training")``), each place takes guards
(``add_equals_guard(True)``), and the manager itself is the callable ``(f_locals) -> bool`` that says whether all of
them hold. A check runs no Python code and keeps no guarded object alive.
"""

from magneto._C import (
    GlobalStateGuard,
    GuardDebugInfo,
    GuardManager,
    RootGuardManager,
    TensorGuards,
    assert_size_stride,
    check_obj_id,
    check_type_id,
    dict_version,
)

__all__ = [
    "GlobalStateGuard",
    "GuardDebugInfo",
    "GuardManager",
    "RootGuardManager",
    "TensorGuards",
    "assert_size_stride",
    "check_obj_id",
    "check_type_id",
    "dict_version",
]
