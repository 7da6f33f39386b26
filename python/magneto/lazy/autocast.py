"""``torch.autocast`` on the lazy device: it is that of the device below, and what is cast there is cast here."""

import functools
from collections.abc import Callable
from typing import Any

import torch

# torch keeps no state of autocast for the device: that of others, which nobody has, is switched with the state of the
# one below (src/lazy/autocast.h).
_CARRIERS = {"ipu": torch.bfloat16, "hpu": torch.float16}


def follow(backing: str) -> None:
    """From now on. To torch's functions, "lazy" is another name of `backing`."""

    def renamed(function: Callable[..., Any], then: Callable[[], None] = lambda: None) -> Callable[..., Any]:
        @functools.wraps(function)
        def called(*args: Any, **kwargs: Any) -> Any:
            args = tuple(backing if value == "lazy" else value for value in args)
            kwargs = {name: backing if value == "lazy" else value for name, value in kwargs.items()}
            result = function(*args, **kwargs)
            then()
            return result

        return called

    enabled, set_enabled, dtype = torch.is_autocast_enabled, torch.set_autocast_enabled, torch.get_autocast_dtype

    def switch() -> None:
        for carrier, to in _CARRIERS.items():
            set_enabled(carrier, enabled(backing) and dtype(backing) == to)

    torch._C._is_autocast_available = renamed(torch._C._is_autocast_available)
    torch.is_autocast_enabled = renamed(torch.is_autocast_enabled)
    torch.get_autocast_dtype = renamed(torch.get_autocast_dtype)
    torch.set_autocast_enabled = renamed(torch.set_autocast_enabled, switch)
    torch.set_autocast_dtype = renamed(torch.set_autocast_dtype, switch)
