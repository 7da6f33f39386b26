"""What the tests of the lazy device share: stories are functions of a device's name, told there and eagerly.

MAGNETO_TEST_LAZY_OVER=cuda lets the device run its steps on the GPU and compares it with that.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
import torch
from magneto import lazy
from torch import Tensor, nn
from torch.utils import _pytree as pytree
from zoo import compare

Story = Callable[[str], Any]
SEED = 7
BACKING = os.environ.get("MAGNETO_TEST_LAZY_OVER", "cpu")


def count(name: str) -> int:
    return lazy.counter_value(name) or 0


class Nearly:
    """Contents that may differ by rounding: on the GPU torch goes other ways than on a device that it does not know."""

    def __init__(self, contents: Tensor) -> None:
        self.contents = contents

    def __eq__(self, other: object) -> bool:
        if not isinstance(other, Nearly):
            return False
        if not (self.contents.is_floating_point() or self.contents.is_complex()):
            return torch.equal(self.contents, other.contents)
        return torch.allclose(self.contents, other.contents, rtol=1e-3, atol=1e-4, equal_nan=True)

    def __repr__(self) -> str:
        return repr(self.contents)


def seen(value: Any) -> Any:
    """What can be told of a value, whichever of the two devices it is on."""
    if not isinstance(value, Tensor):
        is_float = isinstance(value, float)
        return value if not is_float else repr(value) if BACKING == "cpu" else Nearly(torch.tensor(value))
    form = (tuple(value.shape), value.stride(), value.storage_offset(), value.dtype, value.is_conj(), value.is_neg())
    plain = value.detach().cpu()
    contents = compare.bits(plain).numpy().tobytes() if BACKING == "cpu" else Nearly(plain)
    return (*form, value.requires_grad, value.is_leaf, contents)


def tell(story: Story, name: str) -> list[Any]:
    torch.manual_seed(SEED)
    return [seen(leaf) for leaf in pytree.tree_leaves(story(name))]


def check(story: Story, times: int = 2) -> None:
    """The story goes on the lazy device as eagerly, also when it is told again."""
    expected = tell(story, BACKING)
    for _ in range(times):
        assert tell(story, "lazy") == expected


def numbers(name: str, *shape: int, seed: int = 0) -> Tensor:
    """The same on each device."""
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed)).to(name)


def grid(name: str, *shape: int) -> Tensor:
    size = torch.Size(shape).numel()
    return torch.arange(float(size), device=name).reshape(shape)


def step(name: str) -> None:
    if name == "lazy":
        lazy.mark_step()


def each(stories: dict[str, Story]) -> Any:
    return pytest.mark.parametrize("story", stories.values(), ids=stories.keys())


def leaf(d: str, *shape: int) -> Tensor:
    return numbers(d, *shape).requires_grad_()


def made_model(make: Callable[[], nn.Module], d: str, seed: int = 0) -> nn.Module:
    """Built on the CPU, with the same values each time."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return make().to(d)


def small_model(d: str, bias: bool = True) -> nn.Module:
    return made_model(lambda: nn.Sequential(nn.Linear(3, 4, bias), nn.Tanh(), nn.Linear(4, 2, bias)), d)


def conv_net() -> nn.Module:
    return nn.Sequential(
        nn.Conv2d(3, 8, 3, padding=1),
        nn.BatchNorm2d(8),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(2),
        nn.Conv2d(8, 8, 3, padding=1, bias=False),
        nn.BatchNorm2d(8),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Dropout(0.1),
        nn.Linear(8, 5),
    )


def train(model: nn.Module, optimizer: torch.optim.Optimizer, d: str, steps: int, **more: Any) -> list[Any]:
    losses = []
    for i in range(steps):
        optimizer.zero_grad()
        loss = model(numbers(d, 8, 3, seed=i)).pow(2).mean()
        loss.backward()
        optimizer.step(**more)
        losses.append(loss)
    return [seen(loss.item()) for loss in losses]
