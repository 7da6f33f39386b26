"""Magneto compiles PyTorch programs at once: the first call is watched while it runs, the second runs compiled."""

import torch  # noqa: F401  # first: magneto._C links against the libraries that torch loads

from magneto.counts import counters
from magneto.errors import DataDependent, InternalError, RecordError, UserError
from magneto.explanation import Explanation, explain
from magneto.front_door import compile, disable, is_compiling, is_supported, reset
from magneto.graph import Graph
from magneto.marks import mark_static_address
from magneto.optimized_module import OptimizedModule
from magneto.recording import record
from magneto.settings import config

__version__ = "0.1.0"

__all__ = [
    "DataDependent",
    "Explanation",
    "Graph",
    "InternalError",
    "OptimizedModule",
    "RecordError",
    "UserError",
    "__version__",
    "compile",
    "config",
    "counters",
    "disable",
    "explain",
    "is_compiling",
    "is_supported",
    "mark_static_address",
    "record",
    "reset",
]
