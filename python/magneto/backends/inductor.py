"""The adapter to PyTorch's own code generator: the only file of Magneto that may name it."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch import fx

__all__ = ["compile_with_inductor"]


def compile_with_inductor(
    gm: fx.GraphModule, example_inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None
) -> Callable[..., Any]:
    """Hands the graph over; its settings hold for this graph only."""
    import torch._inductor
    from torch._inductor.compile_fx import compile_fx

    settings = dict(torch._inductor.list_mode_options(mode)) if mode else {}
    settings.update(options or {})
    return compile_fx(gm, list(example_inputs), config_patches=settings)
