"""Torch's own database of operators and sample arguments, importable without what torch's test suite needs."""

import sys
import types
import unittest

if "expecttest" not in sys.modules:
    try:
        import expecttest  # noqa: F401
    except ImportError:
        # torch.testing only derives its test case from it.
        stand_in = types.ModuleType("expecttest")
        stand_in.TestCase = unittest.TestCase  # type: ignore[attr-defined]
        sys.modules["expecttest"] = stand_in

from torch.testing._internal.common_methods_invocations import op_db

__all__ = ["op_db"]
