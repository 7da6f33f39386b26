# Written by `./run stubs` from the built module.
"""The native part of Magneto."""

from collections.abc import Callable
from typing import Any


class UserError(ValueError):
    pass

class InternalError(RuntimeError):
    pass

class CompiledFunction:
    """A function that is compiled by its second call."""

    def __repr__(self) -> str: ...

    def __init__(self, fn: Callable[..., Any], name: str = ...) -> None: ...
    def __call__(self, /, *args: Any, **kwargs: Any) -> Any: ...

    def __get__(self, instance: Any, owner: Any = None, /) -> Any: ...

    def variants(self) -> list[dict[str, Any]]:
        """What was compiled, most recently used first."""

    def failures(self) -> dict[str, int]:
        """Why captures failed: reason -> count."""

    def misses(self) -> dict[str, int]:
        """Why calls were captured again: reason -> count."""

    def state(self) -> str:
        """'new', 'compiled' or 'eager'."""

    def reset(self) -> None:
        """Forget everything that was compiled or counted."""

    def guard_ns(self, repeats: int, /, *args: Any, **kwargs: Any) -> float:
        """Nanoseconds per check of the guards of the variant that fits."""

    fn: Callable[..., Any]

    @property
    def name(self) -> str: ...

def is_compiling() -> bool:
    """Whether this thread is watching a call."""

def call_disabled(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    """Runs fn unwatched; a watch that is going on gives up."""

def counters() -> dict[str, dict[str, int]]:
    """What happened, as group -> name -> count."""

def reset_counters() -> None: ...

def settings() -> list[tuple[str, str, bool | int | str]]:
    """All settings, as (name, what it does, default)."""

def get_setting(name: str) -> bool | int | str: ...

def set_setting(name: str, value: bool | int | str) -> None: ...

def supported() -> str:
    """Empty if calls can be captured on this Python; otherwise why not."""

def hook_installed() -> bool:
    """Whether Python frames pass through Magneto right now."""
