"""Wishes: what somebody asked of magneto.compile, checked; and the checks that all public functions share."""

import types
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from magneto.backends import lowering
from magneto.errors import UserError, UserTypeError

__all__ = ["MODES", "GuardFail", "Wishes", "check_bool", "check_callable", "check_choice", "check_target", "wrong_type"]

MODES = ("default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs")


class GuardFail(NamedTuple):
    """What ``optimize(guard_fail_fn=...)`` is told: which guard failed, and of which code, if that is known."""

    reason: str
    orig_code: types.CodeType | None


@dataclass(frozen=True)
class Wishes:
    """How something is to be compiled; the arguments of magneto.compile and magneto.optimize."""

    fullgraph: bool = False
    dynamic: bool | None = None
    backend: str | Callable[..., Any] = "native"
    mode: str | None = None
    options: Mapping[str, Any] | None = None
    guard_export_fn: Callable[[list[str]], object] | None = None
    guard_fail_fn: Callable[[GuardFail], object] | None = None

    def check(self) -> None:
        check_bool("fullgraph", self.fullgraph)
        if self.dynamic is not None:
            check_bool("dynamic", self.dynamic, "True, False or None")
        if self.mode is not None:
            check_choice("mode", self.mode, MODES)
        if self.options is not None and not isinstance(self.options, Mapping):
            raise wrong_type("options", "a dict or None", self.options)
        if self.mode is not None and self.options is not None:
            raise UserError(f"give mode or options, not both; got mode={self.mode!r} and options={self.options!r}")
        for name in ("guard_export_fn", "guard_fail_fn"):
            if getattr(self, name) is not None:
                check_callable(name, getattr(self, name))
        self.lowering()

    def lowering(self) -> Callable[[Any], Any] | None:
        """What makes something runnable of a graph; None: the native tiers do."""
        return lowering(self.backend, self.mode, self.options)


def wrong_type(name: str, expected: str, value: object) -> UserTypeError:
    return UserTypeError(f"{name} expects {expected}, got {value!r} of type {type(value).__name__}")


def check_bool(name: str, value: object, expected: str = "True or False") -> None:
    if not isinstance(value, bool):
        raise wrong_type(name, expected, value)


def check_callable(name: str, value: object) -> None:
    if not callable(value):
        raise wrong_type(name, "a callable", value)


def check_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    listed = ", ".join(repr(choice) for choice in choices)
    if not isinstance(value, str):
        raise wrong_type(name, f"one of {listed}", value)
    if value not in choices:
        raise UserError(f"unknown {name} {value!r}; expected one of {listed}")


def check_target(name: str, target: object, expected: str = "a function, a method, an nn.Module or a class") -> None:
    if not callable(target) and not isinstance(target, (staticmethod, classmethod)):
        raise wrong_type(f"magneto.{name}", expected, target)
