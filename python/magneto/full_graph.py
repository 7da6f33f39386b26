"""FullGraphFunction: fullgraph=True, which turns a call that could not be captured into an error."""

import functools
import types
from collections.abc import Callable
from typing import Any

from magneto import _C
from magneto.errors import UserError
from magneto.settings import config

__all__ = ["FullGraphFunction"]


class FullGraphFunction:
    """Calls a compiled function, and raises UserError where the call would otherwise have stayed eager.

    Capturing is watching a real run, so the first call that cannot be captured has run, effects and all, when the error
    is raised. Once Magneto has given up on the function, the error is raised before anything runs.
    """

    __wrapped__: Callable[..., Any]

    def __init__(self, compiled: _C.CompiledFunction) -> None:
        functools.update_wrapper(self, compiled)
        # Not the compiled function: inspect.signature() and the like look for the code that someone wrote.
        self.__wrapped__ = getattr(compiled, "__wrapped__", compiled.fn)
        self.compiled: _C.CompiledFunction = compiled

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        compiled = self.compiled
        if not config.enabled:
            return compiled(*args, **kwargs)
        if unsupported := _C.supported():
            raise self._error([unsupported])
        failures = compiled.failures()
        if compiled.state() == "eager":
            raise self._error(list(failures))
        result = compiled(*args, **kwargs)
        now = compiled.failures()
        if now != failures:
            raise self._error([reason for reason, count in now.items() if count > failures.get(reason, 0)])
        return result

    def __get__(self, instance: object, owner: type | None = None) -> Callable[..., Any]:
        return self if instance is None else types.MethodType(self, instance)

    def __repr__(self) -> str:
        return f"<{self.compiled!r}, fullgraph=True>"

    def _error(self, reasons: list[str]) -> UserError:
        why = "; ".join(reasons) or "Magneto has given up on it"
        return UserError(
            f"fullgraph=True, but this call of {self.compiled.name} could not be captured: {why}. "
            "Change that code, or compile without fullgraph=True: then such calls run eagerly, with the same results."
        )
