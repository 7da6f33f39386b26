"""The front door: compile, disable, reset, is_compiling and is_supported, with their arguments checked."""

import functools
import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeVar, cast, overload

from torch import nn

from magneto import _C
from magneto.errors import UserError, UserTypeError
from magneto.full_graph import FullGraphFunction
from magneto.optimized_module import DisabledModule, ModuleProxy, OptimizedModule
from magneto.registry import compiled_function, reset

__all__ = ["Support", "compile", "disable", "is_compiling", "is_supported", "reset"]

F = TypeVar("F", bound=Callable[..., Any])

BACKENDS = ("native", "eager")
MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


@overload
def compile(
    fn_or_module: None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str = "native",
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
    backend: str = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> F: ...


def compile(
    fn_or_module: F | None = None,
    *,
    fullgraph: bool = False,
    dynamic: bool | None = None,
    backend: str = "native",
    mode: str | None = None,
    options: Mapping[str, Any] | None = None,
    disable: bool = False,
) -> F | Callable[[F], F]:
    """Compiles a function, a method, an nn.Module or a class; without the first argument, gives a decorator.

    The first call is watched while it runs; later calls that fit run what was captured. What cannot be captured runs as
    Python would have run it, with the reason in ``magneto.counters`` and ``magneto.explain``. Results are eager's.

    A module comes back as an OptimizedModule. A class is changed in place and comes back itself: calls of its instances
    run compiled, and all instances share one cache, so with many instances rather compile each of them.

    fullgraph: raise UserError at a call that cannot be captured, instead of running it eagerly.
    dynamic: None: sizes and numbers among the arguments are fixed at first, and those that change are left open by the
        second capture. True: all are left open from the first capture on. False: each is captured by itself.
    backend: "native" or "eager". Both replay the captured operations one by one today.
    mode: one of torch.compile's names. It has no effect today.
    options: options of the backend. Neither backend has any today, so only None and an empty dict are accepted.
    disable: give back what was given, uncompiled.
    """
    _check_arguments(fullgraph, dynamic, backend, mode, options, disable)

    def decorate(target: F) -> F:
        _check_target("compile", target)
        return target if disable else cast(F, _compiled(target, fullgraph, dynamic))

    return decorate if fn_or_module is None else decorate(fn_or_module)


@overload
def disable(fn: None = None, recursive: bool = True) -> Callable[[F], F]: ...


@overload
def disable(fn: F, recursive: bool = True) -> F: ...


def disable(fn: F | None = None, recursive: bool = True) -> F | Callable[[F], F]:
    """Makes a function, module or class run as plain Python, also where something compiled calls it.

    Something compiled is taken back: the original runs. A function that calls a disabled one stays eager today.
    With recursive=False, functions called by `fn` may be compiled again; today they are not, as with True.
    """
    _check_bool("recursive", recursive)

    def decorate(target: F) -> F:
        _check_target("disable", target)
        return cast(F, _disabled(target))

    return decorate if fn is None else decorate(fn)


def is_compiling() -> bool:
    """Whether this thread is inside a call that Magneto is watching."""
    return _C.is_compiling()


@dataclass(frozen=True)
class Support:
    """Whether something works here; true or false by itself, and the reason when it does not."""

    reason: str

    def __bool__(self) -> bool:
        return not self.reason


def is_supported() -> Support:
    """Whether this Python can capture; when not, ``is_supported().reason`` says why, and everything runs eagerly."""
    return Support(_C.supported())


def _compiled(target: Any, fullgraph: bool, dynamic: bool | None) -> Any:
    target = original_of(target)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_compiled(target.__func__, fullgraph, dynamic))
    if isinstance(target, type):
        name = f"{target.__qualname__}.__call__"
        return _replace_call(target, lambda call: _compiled_callable(call, name, fullgraph, dynamic))
    if isinstance(target, nn.Module):
        return OptimizedModule(target, fullgraph=fullgraph, dynamic=dynamic)
    return _compiled_callable(target, name_of(target), fullgraph, dynamic)


def _compiled_callable(fn: Callable[..., Any], name: str, fullgraph: bool, dynamic: bool | None) -> Callable[..., Any]:
    compiled = compiled_function(fn, name, whole=fullgraph, dynamic=dynamic)
    functools.update_wrapper(compiled, fn)
    return FullGraphFunction(compiled) if fullgraph else compiled


def _disabled(target: Any) -> Any:
    target = original_of(target)
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_disabled(target.__func__))
    if isinstance(target, type):
        return _replace_call(target, _disabled)
    if isinstance(target, nn.Module):
        return DisabledModule(target)

    @functools.wraps(target)
    def disabled(*args: Any, **kwargs: Any) -> Any:
        return _C.call_disabled(target, *args, **kwargs)

    return disabled


def original_of(target: Any) -> Any:
    """What was compiled or disabled, if `target` is the result of that; otherwise `target` itself."""
    if isinstance(target, ModuleProxy):
        return target._orig_mod
    if isinstance(target, FullGraphFunction):
        return target.compiled.fn
    if isinstance(target, _C.CompiledFunction):
        return target.fn
    if isinstance(target, types.MethodType):
        function = original_of(target.__func__)
        return target if function is target.__func__ else types.MethodType(function, target.__self__)
    return target


def name_of(target: Any) -> str:
    """How to call a callable in messages."""
    name = getattr(target, "__qualname__", None)
    return name if isinstance(name, str) else type(target).__qualname__


def _replace_call(cls: type, replace: Callable[[Callable[..., Any]], Callable[..., Any]]) -> type:
    for base in cls.__mro__:
        call = vars(base).get("__call__")
        if call is not None:
            cls.__call__ = replace(original_of(call))  # type: ignore[method-assign]
            return cls
    raise UserTypeError(
        f"the class {cls.__qualname__} has no __call__: its instances cannot be called, so there is nothing to "
        "compile; give one of its methods instead"
    )


def _check_target(name: str, target: object) -> None:
    if not callable(target) and not isinstance(target, (staticmethod, classmethod)):
        raise UserTypeError(
            f"magneto.{name} expects a function, a method, an nn.Module or a class, "
            f"got {target!r} of type {type(target).__name__}"
        )


def _check_arguments(
    fullgraph: object, dynamic: object, backend: object, mode: object, options: object, disable: object
) -> None:
    _check_bool("fullgraph", fullgraph)
    _check_bool("disable", disable)
    if dynamic is not None:
        _check_bool("dynamic", dynamic, "True, False or None")
    _check_choice("backend", backend, BACKENDS)
    if mode is not None:
        _check_choice("mode", mode, MODES)
    if options is None:
        return
    if not isinstance(options, Mapping):
        raise UserTypeError(f"options expects a dict or None, got {options!r} of type {type(options).__name__}")
    if mode is not None:
        raise UserError(f"give mode or options, not both; got mode={mode!r} and options={options!r}")
    if options:
        raise UserError(f"the backend {backend!r} has no options today, got options={options!r}; leave it out")


def _check_bool(name: str, value: object, expected: str = "True or False") -> None:
    if not isinstance(value, bool):
        raise UserTypeError(f"{name} expects {expected}, got {value!r} of type {type(value).__name__}")


def _check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    listed = ", ".join(repr(choice) for choice in choices)
    if not isinstance(value, str):
        raise UserTypeError(f"{name} expects one of {listed}, got {value!r} of type {type(value).__name__}")
    if value not in choices:
        raise UserError(f"unknown {name} {value!r}; expected one of {listed}")
