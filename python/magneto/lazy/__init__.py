"""magneto.lazy: a device that records what programs do with its tensors, and runs it step by step.

After ``magneto.lazy.init()``, ``device="lazy"`` works like any other device. Operators on its tensors are recorded, not
run, until a value is needed, an optimizer has made its step, or ``mark_step()`` is called; then what was recorded runs
as one graph. A step that does what an earlier one did is recognised while it is recorded, and its graph is found, not
made. See ``docs/lazy.md``.
"""

import atexit
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.optim.optimizer import register_optimizer_step_post_hook

from magneto import _C
from magneto.lazy import autocast, backend, device_module
from magneto.lazy.device_module import get_rng_state, manual_seed, set_rng_state
from magneto.lazy.metrics import counter_names, counter_value, metrics_report, reset_metrics
from magneto.lazy.report import report
from magneto.settings import config

__all__ = [
    "backend",
    "clear_ir_cache",
    "counter_names",
    "counter_value",
    "dump_ir_cache",
    "get_default_device_type",
    "get_force_fallback",
    "get_frames",
    "get_graph_hash",
    "get_rng_state",
    "get_symbolic_shape_mode",
    "get_tensor_id",
    "get_tensors_backend",
    "get_tensors_dot",
    "get_tensors_svg",
    "get_tensors_text",
    "init",
    "is_initialized",
    "manual_seed",
    "mark_step",
    "metrics_report",
    "report",
    "reset_metrics",
    "set_force_fallback",
    "set_reuse_ir",
    "set_rng_state",
    "set_symbolic_shape_mode",
    "sync_multi",
    "wait_device_ops",
]


def init(device: str = "cpu") -> None:
    """Makes the device ``lazy``, over ``device``. Once per process; again is the same as not at all."""
    place = torch.device(device)
    if place.type not in ("cpu", "cuda"):
        raise _C.UserError(f"the lazy device runs on cpu or cuda, not on {device}")
    if place.type == "cuda" and not torch.cuda.is_available():
        raise _C.UserError("there is no CUDA device here; magneto.lazy.init() runs steps on the CPU")
    is_new = not _C.lazy_exists()
    _C.lazy_init("cpu" if place.type == "cpu" else f"cuda:{place.index or 0}")
    if not is_new:
        return
    device_module.register()
    if place.type == "cpu":
        autocast.follow(place.type)
    register_optimizer_step_post_hook(_end_step_of_optimizer)
    atexit.register(_C.lazy_stop)


def is_initialized() -> bool:
    return _C.lazy_exists()


def _end_step_of_optimizer(optimizer: torch.optim.Optimizer, *_: Any) -> None:
    if not config.lazy_optimizer_steps:
        return
    if any(p.device.type == "lazy" for group in optimizer.param_groups for p in group["params"]):
        _C.lazy_end_step(False)


def mark_step(device: str = "", devices: Sequence[str] = (), wait: bool = True) -> None:
    """Ends the step: what was recorded runs. ``wait=False``: beside the program, which goes on."""
    _check_devices([device, *devices])
    _C.lazy_end_step(wait)


def wait_device_ops(devices: Sequence[str] = ()) -> None:
    """Returns when all steps that were ended have run; raises what one of them raised."""
    _check_devices(devices)
    _C.lazy_wait()


def sync_multi(
    tensors: Iterable[Tensor], devices: Sequence[str] = (), wait: bool = True, sync_data: bool = True
) -> None:
    """Ends the step in which these tensors are made, so that they hold values."""
    for tensor in tensors:
        get_tensor_id(tensor)
    mark_step(devices=devices, wait=wait)


def _check_devices(devices: Iterable[str]) -> None:
    for device in filter(None, devices):
        if torch.device(device).type != "lazy":
            raise _C.UserError(f"expected the device lazy, got {device}")


# ---- looking at what was recorded


def get_tensor_id(tensor: Tensor) -> int:
    """The same for tensors that are the same view of the same memory."""
    return _C.lazy_tensor_id(tensor)


def get_tensors_text(tensors: Iterable[Tensor]) -> str:
    """What has been recorded to make these tensors, operator by operator."""
    return str(backend.pending(tensors)[0])


def get_tensors_dot(tensors: Iterable[Tensor]) -> str:
    """The same as a drawing for Graphviz."""
    return backend.pending(tensors)[0].to_dot()


def get_tensors_svg(tensors: Iterable[Tensor]) -> str:
    """The same as a picture."""
    return backend.pending(tensors)[0].to_svg()


def get_tensors_backend(tensors: Iterable[Tensor]) -> str:
    """The graph that would run, in the form that can be parsed (``magneto.Graph.parse``)."""
    return get_tensors_text(tensors)


def get_frames() -> list[tuple[str, list[str]]]:
    """The operators recorded so far, each with the Python frames that called it, innermost first.

    Frames are kept of operators that are met for the first time while ``magneto.config.lazy_frames`` is on.
    """
    return _C.lazy_frames()


def get_graph_hash(tensors: Iterable[Tensor]) -> bytes:
    """Of the graph that makes these tensors: the same in every process. See ``backend.run_cached_graph``."""
    return backend.remember(tensors)


def get_default_device_type() -> str:
    """The type of the device that steps run on."""
    return torch.device(_C.lazy_backing()).type


# ---- settings


def set_force_fallback(names: Iterable[str] | str) -> None:
    """Operators (``"aten::add"``) that are run one at a time instead of being recorded."""
    given = [names] if isinstance(names, str) else names
    _C.lazy_set_forced({name for name in given if name})


def get_force_fallback() -> list[str]:
    return sorted(_C.lazy_forced())


def set_reuse_ir(on: bool) -> None:
    """Whether steps are compared with earlier ones; without, each one is recorded and compiled anew."""
    _C.lazy_set_reuse(on)


def clear_ir_cache() -> None:
    """Forgets all steps that were seen."""
    _C.lazy_clear_cache()


def dump_ir_cache(file: str | Path) -> None:
    """Writes the operators of all steps that were seen to a file for Graphviz."""
    Path(file).write_text(_C.lazy_cache_dot())


_symbolic_shapes = False


def set_symbolic_shape_mode(on: bool) -> None:
    """Kept for programs that ask: steps of other sizes are other steps here."""
    global _symbolic_shapes
    _symbolic_shapes = bool(on)


def get_symbolic_shape_mode() -> bool:
    return _symbolic_shapes
