"""The front door: magneto.compile, and magneto.optimize, which is also a context manager."""

import functools
import os
import sysconfig
import threading
import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, cast, overload

import torch
from torch import nn

from magneto import _C
from magneto.errors import UserError, UserTypeError
from magneto.optimized_module import ModuleProxy, OptimizedModule
from magneto.registry import capture_scope, compiled_function
from magneto.wishes import GuardFail, Wishes, check_bool, check_target

__all__ = ["compile", "optimize", "optimize_assert"]

F = TypeVar("F", bound=Callable[..., Any])


@overload
def compile(
    fn_or_module: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> Callable[[F], F]: ...


@overload
def compile(
    fn_or_module: F,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> F: ...


def compile(
    fn_or_module: F | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str | Callable[..., Any] = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> F | Callable[[F], F]:
    """Compiles a function, a method, an nn.Module or a class; without the first argument, gives a decorator.

    The first call is watched while it runs; later calls that fit run what was captured. What cannot be captured runs as
    Python would have run it, with the reason in ``magneto.counters`` and ``magneto.explain``. Results are eager's.

    A module comes back as an OptimizedModule. A class is changed in place and comes back itself: calls of its instances
    run compiled, and all instances share one cache, so with many instances rather compile each of them.

    fullgraph: raise UserError at a call that cannot be captured as one graph, instead of running parts of it eagerly.
    dynamic: None: sizes and numbers among the arguments are fixed at first, and those that change are left open by the
        second capture. True: all are left open from the first capture on. False: each is captured by itself.
    backend: a name of ``magneto.list_backends()``, or a callable (gm, example_inputs) -> callable.
    mode: one of torch.compile's names; for backends that take a mode. The native one has no use for it today.
    options: for backends that take options. The native one has none today.
    disable: give back what was given, uncompiled.
    """
    check_bool("disable", disable)
    wishes = Wishes(fullgraph, dynamic, backend, mode, options)
    wishes.check()
    return _decorator("compile", fn_or_module, wishes, disable)


class optimize:  # a function to its users, hence the name
    """``magneto.compile`` with the arguments of PyTorch's older function; as a decorator, or as a context manager.

    ``optimize(...)(fn)`` compiles `fn`. In ``with optimize(...):`` every Python function that this thread calls is
    captured, as if it had been compiled; functions of torch, of Magneto and of Python's own library only as parts of
    others. What was captured stays for the next such block with the same arguments.

    nopython: as fullgraph of ``magneto.compile``. disable: change nothing.
    guard_export_fn: called with the guards, as texts, of each new compiled form.
    guard_fail_fn: called with a GuardFail when no compiled form fits a call, before that is captured.
    """

    def __init__(
        self,
        backend: str | Callable[..., Any] = "native",
        *,
        nopython: bool = False,
        guard_export_fn: Callable[[list[str]], object] | None = None,
        guard_fail_fn: Callable[[GuardFail], object] | None = None,
        disable: bool = False,
        dynamic: bool | None = None,
    ) -> None:
        check_bool("nopython", nopython)
        check_bool("disable", disable)
        self._wishes = Wishes(nopython, dynamic, backend, None, None, guard_export_fn, guard_fail_fn)
        self._wishes.check()
        self._disable = disable
        self._outer = threading.local()

    def __call__(self, fn: F) -> F:
        return cast(F, _decorator("optimize", fn, self._wishes, self._disable))

    def __enter__(self) -> "optimize":
        entered: list[tuple[Any, int]] = self._outer.__dict__.setdefault("entered", [])
        if self._disable or _C.supported():
            entered.append((None, 0))
        else:
            scope = capture_scope(self._wishes, *_files())
            entered.append((scope, scope.enter()))
        return self

    def __exit__(self, *error: object) -> None:
        scope, outer = self._outer.entered.pop()
        if scope is not None:
            scope.leave(outer)


def optimize_assert(
    backend: str | Callable[..., Any] = "native",
    *,
    guard_export_fn: Callable[[list[str]], object] | None = None,
    guard_fail_fn: Callable[[GuardFail], object] | None = None,
    dynamic: bool | None = None,
) -> optimize:
    """``optimize`` with nopython=True: what cannot be captured as one graph is an error."""
    return optimize(
        backend, nopython=True, guard_export_fn=guard_export_fn, guard_fail_fn=guard_fail_fn, dynamic=dynamic
    )


@functools.cache
def _files() -> tuple[list[str], list[str]]:
    """Whose functions are only captured as parts of others, and which folders in these are different."""
    paths = sysconfig.get_paths()
    ours = [os.path.dirname(os.path.abspath(file)) for file in (torch.__file__, __file__)]
    skipped = [*ours, paths["stdlib"], paths["platstdlib"]]
    kept = [paths["purelib"], paths["platlib"]]
    return [*(path + os.sep for path in skipped), "<frozen "], [path + os.sep for path in kept]


def _decorator(name: str, target: Any, wishes: Wishes, disable: bool) -> Any:
    def decorate(target: F) -> F:
        check_target(name, target)
        return target if disable else cast(F, _compiled(target, wishes))

    return decorate if target is None and name == "compile" else decorate(target)


def _compiled(target: Any, wishes: Wishes) -> Any:
    if wishes.fullgraph and (reason := _C.supported()):
        raise UserError(f"fullgraph=True, but nothing can be captured here: {reason}")
    target = original_of(target)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_compiled(target.__func__, wishes))
    if isinstance(target, type):
        name = f"{target.__qualname__}.__call__"
        return replace_call(target, lambda call: _compiled_callable(call, name, wishes))
    if isinstance(target, nn.Module):
        return OptimizedModule(target, wishes=wishes)
    return _compiled_callable(target, name_of(target), wishes)


def _compiled_callable(fn: Callable[..., Any], name: str, wishes: Wishes) -> Callable[..., Any]:
    compiled = compiled_function(fn, name, wishes)
    functools.update_wrapper(compiled, fn)
    return compiled


def original_of(target: Any) -> Any:
    """What was compiled or disabled, if `target` is the result of that; otherwise `target` itself."""
    if isinstance(target, ModuleProxy):
        return target._orig_mod
    if isinstance(target, (_C.CompiledFunction, _C.ScopedFunction)):
        return target.fn
    if isinstance(target, types.MethodType):
        function = original_of(target.__func__)
        return target if function is target.__func__ else types.MethodType(function, target.__self__)
    return target


def name_of(target: Any) -> str:
    """How to call a callable in messages."""
    name = getattr(target, "__qualname__", None)
    return name if isinstance(name, str) else type(target).__qualname__


def replace_call(cls: type, replace: Callable[[Callable[..., Any]], Callable[..., Any]]) -> type:
    """Changes what calling an instance of the class does."""
    for base in cls.__mro__:
        call = vars(base).get("__call__")
        if call is not None:
            cls.__call__ = replace(original_of(call))  # type: ignore[method-assign]
            return cls
    raise UserTypeError(
        f"the class {cls.__qualname__} has no __call__: its instances cannot be called, so there is nothing to "
        "compile; give one of its methods instead"
    )
