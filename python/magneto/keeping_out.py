"""What is kept out of compiled programs, or let in unseen: disable, run, stances, and rules about single functions."""

import functools
from collections.abc import Callable
from types import CodeType, FunctionType, TracebackType
from typing import Any, TypeVar, cast, overload

import torch
from torch import nn

from magneto import _C
from magneto.errors import UserError
from magneto.front_door import original_of, replace_call
from magneto.optimized_module import OptimizedModule, ScopedModule
from magneto.wishes import check_bool, check_choice, check_target, wrong_type

__all__ = [
    "allow_in_graph",
    "assume_constant_result",
    "disable",
    "disallow_in_graph",
    "forbid_in_graph",
    "graph_break",
    "is_compiling",
    "run",
    "set_stance",
]

F = TypeVar("F", bound=Callable[..., Any])
STANCES = ("default", "force_eager", "eager_on_recompile", "fail_on_recompile")


@overload
def disable(fn: None = None, recursive: bool = True) -> Callable[[F], F]: ...


@overload
def disable(fn: F, recursive: bool = True) -> F: ...


def disable(fn: F | None = None, recursive: bool = True) -> F | Callable[[F], F]:
    """Makes a function, module or class run as plain Python, also where something compiled calls it.

    A compiled program is cut there, and goes on behind the call. Something compiled is taken back: the original runs.
    With recursive=False only the function itself is left alone: compiled functions that it calls run compiled.
    """
    check_bool("recursive", recursive)
    scope = "eager" if recursive else "skip"

    def decorate(target: F) -> F:
        check_target("disable", target)
        return cast(F, _scoped(original_of(target), scope))

    return decorate if fn is None else decorate(fn)


@overload
def run(fn: None = None) -> Callable[[F], F]: ...


@overload
def run(fn: F) -> F: ...


def run(fn: F | None = None) -> F | Callable[[F], F]:
    """Calls `fn` so that compiled functions, `fn` itself or what it calls, use what they have and capture nothing new.

    A call that none of their compiled forms fits runs eagerly.
    """

    def decorate(target: F) -> F:
        check_target("run", target)
        if isinstance(target, OptimizedModule):
            return cast(F, ScopedModule(target._orig_mod, "run", target._magneto_call))
        return cast(F, _scoped(target, "run"))

    return decorate if fn is None else decorate(fn)


def _scoped(target: Any, scope: str) -> Any:
    if isinstance(target, (staticmethod, classmethod)):
        return type(target)(_scoped(target.__func__, scope))
    if isinstance(target, type):
        return replace_call(target, lambda call: _scoped(call, scope))
    if isinstance(target, nn.Module):
        return ScopedModule(target, scope)
    scoped = _C.ScopedFunction(target, scope)
    functools.update_wrapper(scoped, target)
    return scoped


graph_break = _C.graph_break
is_compiling = _C.is_compiling


# ---- rules about single functions


def allow_in_graph(fn: F) -> F:
    """Lets a compiled program take in what `fn` does with tensors without looking at its Python; returns `fn`.

    `fn` must compute its results from its arguments alone, and return tensors. To be called before what calls `fn` is
    captured, as the other rules.
    """
    return _rule("allow_in_graph", fn, "allow")


def disallow_in_graph(fn: F) -> F:
    """Cuts compiled programs where they call `fn`, which runs as Python; returns `fn`."""
    return _rule("disallow_in_graph", fn, "disallow")


def forbid_in_graph(fn: F) -> F:
    """Makes a call of `fn` inside something that is being captured an error; returns `fn`."""
    return _rule("forbid_in_graph", fn, "forbid")


def assume_constant_result(fn: F) -> F:
    """Takes what `fn` returns while a call is captured for what it always returns; returns `fn`."""
    return _rule("assume_constant_result", fn, "constant")


def _rule(name: str, fn: Any, rule: str) -> Any:
    if isinstance(fn, (list, tuple)):
        return [_rule(name, each, rule) for each in fn]
    if not callable(fn):
        raise wrong_type(f"magneto.{name}", "a function, or a list of functions", fn)
    _C.set_rule(original_of(fn), rule)
    return fn


def _gradient_movers() -> list[Any]:
    """What of torch reads and replaces gradients, and the code of the function that each optimizer has as its step."""
    schedulers = (value for value in vars(torch.optim.lr_scheduler).values() if isinstance(value, type))
    return [
        torch.Tensor.backward,
        torch.autograd.backward,
        torch.autograd.grad,
        torch.nn.Module.zero_grad,
        torch.optim.Optimizer.zero_grad,
        *_inner_functions(torch.optim.Optimizer.profile_hook_step),
        *(vars(scheduler)["step"] for scheduler in schedulers if "step" in vars(scheduler)),
        torch.nn.utils.clip_grad_norm_,
        torch.nn.utils.clip_grad_value_,
    ]


def _transforms() -> list[Any]:
    """What makes a function of a function, and the code of what it makes: tensors have another meaning inside."""
    func, functional = torch.func, torch.autograd.functional
    makers: list[Any] = [func.grad, func.grad_and_value, func.vmap, func.functionalize, func.hessian, func.jacfwd]
    makers += [func.jacrev, func.linearize, func.vjp]
    inside = func.vjp.__globals__["_vjp_with_argnums"]  # has the function that vjp returns
    callers = [functional.jacobian, functional.hessian, functional.vjp, functional.jvp, functional.vhp, functional.hvp]
    return [
        *makers,
        *callers,
        func.jvp,
        *(code for function in (*makers, inside) for code in _inner_functions(function)),
    ]


def _inner_functions(function: FunctionType) -> list[CodeType]:
    return [part for part in function.__code__.co_consts if isinstance(part, CodeType)]


for _function in (*_gradient_movers(), *_transforms(), torch.manual_seed, torch.seed):
    _C.set_rule(_function, "aside")

# What torch.profiler.record_function calls.
_profiler = torch.ops.profiler
for _function in (
    _profiler._record_function_enter_new,
    _profiler._record_function_exit,
    _profiler._record_function_exit._RecordFunction,
):
    _C.set_rule(_function, "label")


# ---- stances


class set_stance:  # a function to its users, hence the name
    """Sets what all compiled functions do: at once, or in a ``with`` block, or while a decorated function runs.

    "default": capture and run compiled. "force_eager": run eagerly. "eager_on_recompile": use what is compiled, and run
    eagerly what does not fit. "fail_on_recompile": the same, but what does not fit is a UserError.
    """

    def __init__(self, stance: str = "default") -> None:
        check_choice("stance", stance, STANCES)
        if is_compiling():
            raise UserError("magneto.set_stance cannot be called inside something that is being captured")
        self.stance = stance
        self._before = [_C.set_stance(stance)]
        self._fresh = True  # what was set at once is the first block's

    def __enter__(self) -> "set_stance":
        if not self._fresh:
            self._before.append(_C.set_stance(self.stance))
        self._fresh = False
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        _C.set_stance(self._before.pop())

    def __call__(self, fn: F) -> F:
        if not callable(fn):
            raise wrong_type("magneto.set_stance as a decorator", "a function", fn)
        if self._fresh:
            _C.set_stance(self._before.pop())
            self._fresh = False

        @functools.wraps(fn)
        def in_stance(*args: Any, **kwargs: Any) -> Any:
            before = _C.set_stance(self.stance)
            try:
                return fn(*args, **kwargs)
            finally:
                _C.set_stance(before)

        return cast(F, _scoped(in_stance, "skip"))


# ---- what the machine has

# Autocast asks this each time it is entered, through calls of the driver that a capture does not understand.
assume_constant_result(torch.cuda.is_available)
assume_constant_result(torch.cuda.is_bf16_supported)
assume_constant_result(torch.cuda.amp.common.amp_definitely_not_available)
