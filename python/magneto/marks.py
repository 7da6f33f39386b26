"""Wishes about single tensors."""

import torch

__all__ = ["mark_static_address"]


def mark_static_address(tensor: torch.Tensor) -> None:
    """Says that calls will pass this very tensor, so that CUDA graphs may use its memory in place.

    Other arguments are copied into the graph's own buffers at each call; parameters and buffers of modules never are.
    A mark that turns out wrong costs one more capture, never a wrong result.
    """
    if not isinstance(tensor, torch.Tensor):
        raise TypeError(f"expected a torch.Tensor to mark as static, got {type(tensor).__name__}")
    tensor._magneto_static_address = True
