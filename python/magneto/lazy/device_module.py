"""What torch asks of the module of a device: ``torch.lazy``, once the device was made."""

import contextlib
import functools
import itertools
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from magneto import _C

__all__ = [
    "current_device",
    "device",
    "device_count",
    "get_rng_state",
    "is_available",
    "is_initialized",
    "manual_seed",
    "manual_seed_all",
    "set_rng_state",
    "synchronize",
]

_initialized = True  # as torch.utils.checkpoint asks


def is_available() -> bool:
    return True


def is_initialized() -> bool:
    return True


def device_count() -> int:
    return 1


def current_device() -> int:
    return 0


@contextlib.contextmanager
def device(_: Any) -> Iterator[None]:
    """There is one only."""
    yield


def synchronize(device: Any = None) -> None:
    """Ends the step and waits until all has run."""
    _C.lazy_end_step(True)


def manual_seed(seed: int) -> None:
    """Seeds the generator of the lazy device alone. ``torch.manual_seed`` seeds it, too."""
    _C.lazy_seed(int(seed) % 2**64)


manual_seed_all = manual_seed


def get_rng_state(device: Any = "lazy") -> Tensor:
    """Of the device's generator, behind all that was recorded so far."""
    state = _C.lazy_random_state()
    assert isinstance(state, Tensor)
    return state


def set_rng_state(new_state: Tensor, device: Any = "lazy") -> None:
    _C.lazy_set_random_state(new_state)


def register() -> None:
    """Makes it ``torch.lazy``; tensors are pickled as tensors of the CPU, and modules move with their parameters."""
    torch._register_device_module("lazy", sys.modules[__name__])
    reduce = Tensor._reduce_ex_internal

    def reduce_lazy(self: Tensor, proto: Any) -> Any:
        if self.device.type != "lazy":
            return reduce(self, proto)
        arguments = (self.detach().cpu(), self.dtype, "lazy", self.requires_grad)
        return torch._utils._rebuild_device_tensor_from_cpu_tensor, arguments

    Tensor._reduce_ex_internal = reduce_lazy
    torch.__future__.get_swap_module_params_on_conversion = _swaps_parameters
    nn.Module.to = _keeping_parameters(nn.Module.to, lambda *a, **k: torch._C._nn._parse_to(*a, **k)[0])
    nn.Module.cpu = _keeping_parameters(nn.Module.cpu, lambda: torch.device("cpu"))


class _Moving(threading.local):
    """Torch's own flag is the process's: threads that load or move other modules would see it."""

    keeps_parameters = False


_moving = _Moving()


def _swaps_parameters() -> bool:
    """For ``torch.__future__.get_swap_module_params_on_conversion``."""
    return _moving.keeps_parameters or torch.__future__._swap_module_params_on_conversion


def _keeping_parameters(move: Callable[..., Any], target: Callable[..., torch.device | None]) -> Callable[..., Any]:
    """On the way to and from the lazy device parameters stay the objects that they are, so that tied ones stay tied."""

    @functools.wraps(move)
    def moved(self: nn.Module, *args: Any, **kwargs: Any) -> Any:
        device = target(*args, **kwargs)
        tensors = itertools.chain(self.parameters(), self.buffers())
        from_lazy = device is not None and any(tensor.device.type == "lazy" for tensor in tensors)
        if device is None or (device.type == "lazy") == from_lazy:
            return move(self, *args, **kwargs)
        before = _moving.keeps_parameters
        _moving.keeps_parameters = True
        try:
            return move(self, *args, **kwargs)
        finally:
            _moving.keeps_parameters = before

    return moved
