"""Wishes about single tensors: which sizes may change, and whose memory stays where it is.

They are kept on the tensor: ``_magneto_dynamic`` is a dict from dimension to (min, max) or None, each bound may be
None; ``_magneto_maybe_dynamic`` and ``_magneto_static`` are sets of dimensions; ``_magneto_static_address`` is True.
"""

from typing import Any

import torch

from magneto.errors import UserError
from magneto.wishes import check_bool, wrong_type

__all__ = ["mark_dynamic", "mark_static", "mark_static_address", "maybe_mark_dynamic"]

Dimensions = int | list[int] | tuple[int, ...]


def mark_dynamic(t: torch.Tensor, index: Dimensions, min: int | None = None, max: int | None = None) -> None:
    """Says that these dimensions of the tensor change from call to call, within these bounds."""
    dimensions = _dimensions("mark_dynamic", t, index)
    for name, bound in (("min", min), ("max", max)):
        if bound is not None and (not isinstance(bound, int) or isinstance(bound, bool)):
            raise wrong_type(f"mark_dynamic: {name}", "an integer or None", bound)
    if min is not None and max is not None and min > max:
        raise UserError(f"mark_dynamic: min={min} is greater than max={max}")
    for dimension in dimensions:
        size = t.shape[dimension]
        if (min is not None and size < min) or (max is not None and size > max):
            raise UserError(f"mark_dynamic: size {size} of dimension {dimension} is not between {min} and {max}")
    _mark(t, "_magneto_dynamic", dict).update(dict.fromkeys(dimensions, (min, max)))


def maybe_mark_dynamic(t: torch.Tensor, index: Dimensions) -> None:
    """Says that these dimensions may change; unlike mark_dynamic, one that has to be fixed all the same is no error."""
    dimensions = _dimensions("maybe_mark_dynamic", t, index)
    _mark(t, "_magneto_maybe_dynamic", set).update(dimensions)


def mark_static(t: torch.Tensor, index: Dimensions | None = None) -> None:
    """Says that these dimensions, or all of them, never change; mark_dynamic is stronger."""
    _check_tensor("mark_static", t)
    dimensions = list(range(t.dim())) if index is None else _dimensions("mark_static", t, index)
    _mark(t, "_magneto_static", set).update(dimensions)


def mark_static_address(t: torch.Tensor, guard: bool = False) -> None:
    """Says that calls will pass this very tensor, so that CUDA graphs may use its memory in place.

    Other arguments are copied into the graph's own buffers at each call; parameters and buffers of modules never are.
    A mark that turns out wrong costs one more capture, never a wrong result, so `guard` makes no difference.
    """
    _check_tensor("mark_static_address", t)
    check_bool("mark_static_address: guard", guard)
    t._magneto_static_address = True


def _check_tensor(name: str, t: object) -> None:
    if not isinstance(t, torch.Tensor):
        raise wrong_type(name, "a torch.Tensor", t)


def _dimensions(name: str, t: torch.Tensor, index: object) -> list[int]:
    _check_tensor(name, t)
    given = index if isinstance(index, (list, tuple)) else [index]
    for dimension in given:
        if not isinstance(dimension, int) or isinstance(dimension, bool):
            raise wrong_type(f"{name}: index", "an integer or a list of integers", index)
        if not -t.dim() <= dimension < t.dim():
            raise UserError(f"{name}: there is no dimension {dimension} in a tensor with {t.dim()} dimensions")
    return [dimension % t.dim() for dimension in given]


def _mark(t: torch.Tensor, name: str, kind: type[Any]) -> Any:
    if not hasattr(t, name):
        setattr(t, name, kind())
    return getattr(t, name)
