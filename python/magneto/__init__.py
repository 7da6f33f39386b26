"""Magneto compiles PyTorch programs at once: the first call is watched while it runs, the second runs compiled."""

import torch  # noqa: F401  # first: magneto._C links against the libraries that torch loads

from magneto import compiled_autograd, eval_frame, guards, lazy, testing
from magneto.backends import list_backends, lookup_backend, register_backend
from magneto.counts import counters
from magneto.errors import BackendError, DataDependent, InternalError, RecordError, UserError
from magneto.explanation import Explanation, explain
from magneto.front_door import compile, optimize, optimize_assert
from magneto.graph import Graph
from magneto.happenings import (
    compile_times,
    graph_break_reasons,
    guard_failures,
    on_compile_end,
    on_compile_start,
    orig_code_map,
    remove_callback,
)
from magneto.keeping_out import (
    allow_in_graph,
    assume_constant_result,
    disable,
    disallow_in_graph,
    forbid_in_graph,
    graph_break,
    is_compiling,
    run,
    set_stance,
)
from magneto.marks import mark_dynamic, mark_static, mark_static_address, maybe_mark_dynamic
from magneto.optimized_module import OptimizedModule
from magneto.recording import record
from magneto.registry import reset, reset_code_caches
from magneto.settings import config
from magneto.support import is_supported

__version__ = "0.1.0"

__all__ = [
    "BackendError",
    "DataDependent",
    "Explanation",
    "Graph",
    "InternalError",
    "OptimizedModule",
    "RecordError",
    "UserError",
    "__version__",
    "allow_in_graph",
    "assume_constant_result",
    "compile",
    "compile_times",
    "compiled_autograd",
    "config",
    "counters",
    "disable",
    "disallow_in_graph",
    "eval_frame",
    "explain",
    "forbid_in_graph",
    "graph_break",
    "graph_break_reasons",
    "guard_failures",
    "guards",
    "is_compiling",
    "is_supported",
    "lazy",
    "list_backends",
    "lookup_backend",
    "mark_dynamic",
    "mark_static",
    "mark_static_address",
    "maybe_mark_dynamic",
    "on_compile_end",
    "on_compile_start",
    "optimize",
    "optimize_assert",
    "orig_code_map",
    "record",
    "register_backend",
    "remove_callback",
    "reset",
    "reset_code_caches",
    "run",
    "set_stance",
    "testing",
]
