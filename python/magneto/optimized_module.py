"""OptimizedModule: an nn.Module that calls the compiled original and is the original in every other respect."""

import copy
import functools
import operator
import types
from collections.abc import Callable
from typing import Any, ClassVar, cast

from torch import nn

from magneto._C import ScopedFunction
from magneto.errors import UserAttributeError, UserTypeError
from magneto.registry import compiled_function
from magneto.wishes import Wishes

__all__ = ["ModuleProxy", "OptimizedModule", "ScopedModule"]

# What Python looks up on the type, so that __getattr__ cannot pass it on. A proxy gets those that its original has.
_SPECIAL_METHODS = {
    *("__len__", "__iter__", "__next__", "__getitem__", "__setitem__", "__delitem__", "__contains__", "__reversed__"),
    *("__bool__", "__int__", "__float__", "__index__", "__enter__", "__exit__", "__aenter__", "__aexit__"),
    *("__add__", "__radd__", "__iadd__", "__mul__", "__rmul__", "__imul__", "__or__", "__ror__", "__ior__"),
}


class ModuleProxy(nn.Module):
    """An nn.Module that passes everything but calls on to an original module, which has all of the state.

    nn.Module.__init__ is not run: parameters, buffers, submodules and hooks are the original's, so that the names in a
    state_dict are the original's too, also where the proxy is a submodule of something else.
    """

    _orig_mod: nn.Module
    _magneto_call: Callable[..., Any]
    _magneto_how: Any  # for copies: what else it was made with
    _OWN: ClassVar[frozenset[str]] = frozenset({"_orig_mod", "_magneto_call", "_magneto_how"})

    # The type's slots find these, and both are C: a call of the proxy runs no bytecode before the compiled function's.
    __call__ = property(operator.attrgetter("_magneto_call"))
    forward = property(operator.attrgetter("_magneto_call"))
    # isinstance() asks both this and type(), so the proxy is an instance of the original's class as well as of its own.
    __class__ = property(operator.attrgetter("_orig_mod.__class__"))

    def __new__(cls, orig_mod: nn.Module, *args: Any, **kwargs: Any) -> "ModuleProxy":
        names = _special_methods_of(type(orig_mod))
        proxy: ModuleProxy = object.__new__(_with_special_methods(cast(Any, cls), names))
        return proxy

    def __init__(self, orig_mod: nn.Module, call: Callable[..., Any], how: Any) -> None:
        self.__dict__.update(_orig_mod=orig_mod, _magneto_call=call, _magneto_how=how)

    def _like_this(self, orig_mod: nn.Module) -> "ModuleProxy":
        """Another of this kind, around another module; each kind says how."""
        raise NotImplementedError(
            f"{type(self).__name__} has to say how another of its kind is made: _like_this(orig_mod)"
        )

    def __getattr__(self, name: str) -> Any:
        if name in ModuleProxy._OWN:
            raise AttributeError(name)
        return getattr(self._orig_mod, name)

    def __setattr__(self, name: str, value: Any) -> None:
        if name in ModuleProxy._OWN:
            raise UserAttributeError(f"{name} of a compiled module is fixed; call magneto.compile on the other module")
        setattr(self._orig_mod, name, value)

    def __delattr__(self, name: str) -> None:
        if name in ModuleProxy._OWN:
            raise UserAttributeError(f"{name} of a compiled module cannot be deleted")
        delattr(self._orig_mod, name)

    # Who keeps notes about modules (FSDP, sets of visited ones) finds under either what is noted of the other.
    def __eq__(self, other: object) -> Any:
        return self._orig_mod == (other._orig_mod if isinstance(other, ModuleProxy) else other)

    def __hash__(self) -> int:
        return hash(self._orig_mod)

    def __dir__(self) -> list[str]:
        return sorted({*dir(self._orig_mod), *ModuleProxy._OWN})

    def __repr__(self) -> str:
        return f"{type(self).__name__}({self._orig_mod!r})"

    def __copy__(self) -> "ModuleProxy":
        return self._like_this(copy.copy(self._orig_mod))

    def __deepcopy__(self, memo: dict[int, Any]) -> "ModuleProxy":
        original = copy.deepcopy(self._orig_mod, memo)
        # The original may hold the proxy, and then the copy of the original already holds a copy of the proxy.
        known: ModuleProxy | None = memo.get(id(self))
        return known if known is not None else self._like_this(original)


def _passes_on(name: str) -> Callable[..., Any]:
    def pass_on(self: ModuleProxy, *args: Any, **kwargs: Any) -> Any:
        original = self._orig_mod
        result = getattr(original, name)(*args, **kwargs)
        return self if result is original else result

    pass_on.__name__ = pass_on.__qualname__ = name
    return pass_on


def _pass_on_what_nn_module_defines() -> None:
    # nn.Module's own methods would find no state in the proxy, and the original's class may have overridden them.
    for name, value in vars(nn.Module).items():
        if name.startswith("__") or name in vars(ModuleProxy):
            continue
        if isinstance(value, types.FunctionType):
            setattr(ModuleProxy, name, functools.wraps(value)(_passes_on(name)))
        else:
            setattr(ModuleProxy, name, property(operator.attrgetter(f"_orig_mod.{name}")))


_pass_on_what_nn_module_defines()


def _special_methods_of(cls: type) -> frozenset[str]:
    # Not by hasattr(), which would also find what the metaclass defines for the class itself.
    scopes = [vars(base) for base in cls.__mro__]
    return frozenset(name for scope in scopes for name in _SPECIAL_METHODS & scope.keys() if scope[name] is not None)


def _special_method(name: str) -> Callable[..., Any]:
    def special_method(self: ModuleProxy, *args: Any) -> Any:
        original = self._orig_mod
        # On the type, as Python would, and bound by it: not what an instance attribute of that name says.
        result = getattr(type(original), name)(original, *args)
        return self if result is original else result

    special_method.__name__ = special_method.__qualname__ = name
    return special_method


@functools.cache
def _with_special_methods(cls: Any, names: frozenset[str]) -> Any:
    if not names:
        return cls
    body: dict[str, Any] = {name: _special_method(name) for name in names}
    body.update(__module__=cls.__module__, __qualname__=cls.__qualname__, __doc__=cls.__doc__)
    return type(cls.__name__, (cls,), body)


class OptimizedModule(ModuleProxy):
    """What ``magneto.compile(module)`` gives: calls run compiled, everything else is the original's.

    The original is ``_orig_mod``. Methods of the original that call the module themselves run it as it is, uncompiled.
    """

    def __init__(self, orig_mod: nn.Module, *, wishes: Wishes | None = None) -> None:
        _check_module("OptimizedModule", orig_mod)
        wishes = wishes or Wishes()
        compiled = compiled_function(orig_mod, type(orig_mod).__qualname__, wishes)
        # For inspect.signature(); a module's own __call__ says nothing about what it takes.
        compiled.__dict__["__wrapped__"] = orig_mod.forward
        ModuleProxy.__init__(self, orig_mod, compiled, wishes)

    def _like_this(self, orig_mod: nn.Module) -> ModuleProxy:
        return OptimizedModule(orig_mod, wishes=self._magneto_how)

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return _load_optimized, (self._orig_mod, self._magneto_how)


def _load_optimized(orig_mod: nn.Module, wishes: Wishes) -> OptimizedModule:
    return OptimizedModule(orig_mod, wishes=wishes)


class ScopedModule(ModuleProxy):
    """What ``magneto.disable(module)`` and ``magneto.run(module)`` give; `scope` as of a ScopedFunction."""

    def __init__(self, orig_mod: nn.Module, scope: str, call: Callable[..., Any] | None = None) -> None:
        _check_module("ScopedModule", orig_mod)
        scoped = ScopedFunction(call or orig_mod, scope)
        scoped.__dict__.update(__module__=type(orig_mod).__module__, __qualname__=type(orig_mod).__qualname__)
        ModuleProxy.__init__(self, orig_mod, scoped, scope)

    def _like_this(self, orig_mod: nn.Module) -> ModuleProxy:
        return ScopedModule(orig_mod, self._magneto_how)

    def __reduce_ex__(self, protocol: Any) -> tuple[Callable[..., Any], tuple[Any, ...]]:
        return ScopedModule, (self._orig_mod, self._magneto_how)


def _check_module(name: str, module: object) -> None:
    if not isinstance(module, nn.Module):
        raise UserTypeError(f"{name} expects an nn.Module, got {module!r} of type {type(module).__name__}")
