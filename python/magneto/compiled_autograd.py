"""magneto.compiled_autograd: backwards that were seen before run as graphs, from a cache.

While it is on, ``loss.backward()``, ``torch.autograd.backward`` and ``torch.autograd.grad`` of this thread are looked
up by what autograd's nodes are and hold. The first time, the nodes run as ever and the operators that they call are
noted; from the second time on these are called by themselves. Nodes with hooks, Python functions and nodes whose work
depends on the contents of tensors are called as they are in between. What cannot be captured is left to autograd's own
engine, and ``magneto.counters["compiled_autograd_declined"]`` has the reason.
"""

import contextlib
import threading
from collections.abc import Callable, Iterator
from typing import Any

from magneto import _C
from magneto.errors import UserTypeError

__all__ = [
    "clear_cache",
    "disable",
    "enable",
    "is_cache_empty",
    "native",
    "set_autograd_compiler",
    "set_verbose_logger",
]

Factory = Callable[[], Any]
Logger = Callable[[str], object]


def native() -> None:
    """Stands for the native compiler where a factory of compilers is expected; not to be called."""
    raise UserTypeError("magneto.compiled_autograd.native stands for the native compiler and is not to be called")


class _Wishes(threading.local):
    """Of a thread. Keeps alive what the native side only borrows."""

    compiler: Factory | None = None
    dynamic: bool | None = None
    is_off = False

    def set(self, compiler: Factory | None, dynamic: bool | None = None, is_off: bool = False) -> None:
        self.compiler, self.dynamic, self.is_off = compiler, dynamic, is_off
        _C.set_autograd_compiler(False if is_off else True if compiler is native else compiler, dynamic)

    @contextlib.contextmanager
    def for_a_while(
        self, compiler: Factory | None, dynamic: bool | None = None, is_off: bool = False
    ) -> Iterator[None]:
        before = self.compiler, self.dynamic, self.is_off
        self.set(compiler, dynamic, is_off)
        try:
            yield
        finally:
            self.set(*before)


_wishes = _Wishes()
_logger: Logger | None = None


def set_autograd_compiler(compiler: Factory | None) -> Factory | None:
    """Sets who compiles the backwards of this thread; gives who did before. None: nobody is asked to.

    ``native`` stands for the native compiler. Otherwise a callable without arguments that makes a compiler: an object
    with ``begin_capture(inputs, sizes)``, ``end_capture(outputs)``, which gives ``(runtime_wrapper, compiled_fn)``, and
    ``close()``.
    """
    before = _wishes.compiler
    _wishes.set(_checked(compiler))
    return before


def enable(compiler: Factory | None = None, dynamic: bool | None = None) -> contextlib.AbstractContextManager[None]:
    """Compiles the backwards of this thread inside the block, by the native compiler unless another one is given.

    ``dynamic``: None makes a size dynamic once it has changed, True all of them from the start, False none.
    """
    if dynamic is not None and not isinstance(dynamic, bool):
        raise UserTypeError(f"dynamic must be None, True or False, got {type(dynamic).__name__}")
    return _wishes.for_a_while(native if compiler is None else _checked(compiler), dynamic)


def disable() -> contextlib.AbstractContextManager[None]:
    """Leaves the backwards of this thread to autograd's own engine inside the block."""
    return _wishes.for_a_while(None, is_off=True)


def _checked(compiler: Any) -> Factory | None:
    if compiler is None or callable(compiler):
        return compiler
    raise UserTypeError(
        "expected None, magneto.compiled_autograd.native or a callable that makes a compiler, "
        f"got {type(compiler).__name__}"
    )


def clear_cache() -> None:
    """Drops every backward that was captured."""
    _C.clear_autograd_cache()


def is_cache_empty() -> bool:
    """Whether no captured backward is kept."""
    return _C.is_autograd_cache_empty()


def set_verbose_logger(logger: Logger | None) -> Logger | None:
    """Sets who is told, in words, why a backward was not found in the cache; gives who was before."""
    global _logger
    if logger is not None and not callable(logger):
        raise UserTypeError(f"set_verbose_logger expects None or a callable, got {type(logger).__name__}")
    before, _logger = _logger, logger
    _C.set_autograd_logger(logger)
    return before
