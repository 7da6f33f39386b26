"""For tests of programs that use Magneto: backends that count what they are given, and a deep comparison."""

import dataclasses
import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import fx

from magneto.backends import Backend, lookup_backend
from magneto.wishes import check_bool, wrong_type

__all__ = ["CompileCounter", "CompileCounterWithBackend", "same"]


class CompileCounter:
    """A backend that runs graphs as they are, and counts them: `frame_count` graphs with `op_count` operators."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.clear()

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        operators = sum("call" in node.op for node in gm.graph.nodes)
        with self._lock:
            self.frame_count += 1
            self.op_count += operators
        return gm.forward

    def clear(self) -> None:
        """Starts to count from zero again."""
        self.frame_count = 0
        self.op_count = 0


class CompileCounterWithBackend(CompileCounter):
    """The same in front of another backend; keeps the `graphs`, too."""

    def __init__(self, backend: str | Backend) -> None:
        self.backend = lookup_backend(backend)
        self.graphs: list[fx.GraphModule] = []
        super().__init__()

    def __call__(self, gm: fx.GraphModule, example_inputs: Sequence[Any]) -> Callable[..., Any]:
        super().__call__(gm, example_inputs)
        self.graphs.append(gm)
        return self.backend(gm, example_inputs)

    def clear(self) -> None:
        """Starts to count from zero again, without graphs."""
        super().clear()
        self.graphs.clear()


def same(ref: Any, res: Any, tol: float = 1e-4, equal_nan: bool = False, exact_dtype: bool = True) -> bool:
    """Whether two results are the same, however they are nested: floating-point tensors up to `tol`, all else exactly.

    exact_dtype: tensors of different dtypes differ.
    """
    if isinstance(tol, bool) or not isinstance(tol, (int, float)):
        raise wrong_type("same: tol", "a number", tol)
    check_bool("same: equal_nan", equal_nan)
    check_bool("same: exact_dtype", exact_dtype)
    return _Comparison(tol, equal_nan, exact_dtype).same(ref, res)


@dataclasses.dataclass(frozen=True)
class _Comparison:
    tol: float
    equal_nan: bool
    exact_dtype: bool

    def same(self, a: Any, b: Any) -> bool:
        if isinstance(a, torch.Tensor) and isinstance(b, torch.Tensor):
            return self.same_tensors(a, b)
        if type(a) is not type(b):
            return False
        if isinstance(a, float):
            return a == b or abs(a - b) <= self.tol or (self.equal_nan and a != a and b != b)
        if isinstance(a, (str, bytes, int, type(None))):
            return bool(a == b)
        if isinstance(a, Mapping):
            return list(a) == list(b) and all(self.same(a[key], b[key]) for key in a)
        if isinstance(a, (list, tuple)):
            return len(a) == len(b) and all(map(self.same, a, b))
        if isinstance(a, (set, frozenset)):
            return a == b
        if hasattr(a, "__dict__"):
            return self.same(vars(a), vars(b))
        return bool(a == b)

    def same_tensors(self, a: torch.Tensor, b: torch.Tensor) -> bool:
        if a.shape != b.shape or a.device != b.device or (self.exact_dtype and a.dtype != b.dtype):
            return False
        if not (a.is_floating_point() or a.is_complex()):
            return torch.equal(a, b.to(a.dtype))
        return torch.allclose(a, b.to(a.dtype), rtol=self.tol, atol=self.tol, equal_nan=self.equal_nan)
