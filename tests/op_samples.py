"""Torch's own database of operators and sample arguments, importable without what torch's test suite needs."""

import sys
import types
import unittest
import warnings

import torch

if "expecttest" not in sys.modules:
    try:
        import expecttest  # noqa: F401
    except ImportError:
        # torch.testing only derives its test case from it.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in

# torch.testing replaces the calls of script functions for the whole process.
_calls = [(kind, kind.__call__) for kind in (torch._C.ScriptFunction, torch._C.ScriptMethod)]
with warnings.catch_warnings():
    warnings.simplefilter("ignore")
    from torch.testing._internal import common_methods_invocations
for _kind, _call in _calls:
    _kind.__call__ = _call  # type: ignore[method-assign]

# Random operators are wrapped in functions that set a seed and put the generator back, which no graph can express; who
# compares results sets the seed outside.
common_methods_invocations.wrapper_set_seed = lambda op, *args, **kwargs: op(*args, **kwargs)
op_db = common_methods_invocations.op_db

# What these return, or the last bits of it, depends on what memory held before.
_UNDEFINED = (
    "empty",
    "new_empty",
    "empty_like",
    "empty_strided",
    "empty_permuted",
    "new_empty_strided",
    "linalg.lstsq",
)
differentiable = [
    op for op in op_db if op.supports_autograd and torch.float32 in op.dtypes and op.name not in _UNDEFINED
]

__all__ = ["differentiable", "op_db"]
