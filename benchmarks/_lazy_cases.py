"""What `./run bench lazy` measures, on any device; as a program, one case on PyTorch's own lazy backend, as JSON.

Magneto's lazy device and PyTorch's cannot live in one process, so that PyTorch's has one of its own, for each case: one
that it cannot run may take the process with it.
"""

from __future__ import annotations

import gc
import json
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

import torch
from _common import use_the_zoo
from torch import Tensor, nn
from torch.utils import _pytree as pytree

use_the_zoo()
from zoo import models  # noqa: E402

CHAIN = 1000
CHAIN_CASE = f"{CHAIN} adds"
CHAIN_TURNS = 20

# A model, the arguments of a call, and the loss of its result.
Case = tuple[nn.Module, Any, Callable[[Any], Tensor]]


def square(result: Tensor) -> Tensor:
    return result.square().mean()


def mlp() -> Case:
    return models.MLP((64, 128, 128, 128, 10)), ((torch.randn(32, 64),), {}), square


def resnet18() -> Case:
    """Eight blocks of two convolutions; the first convolution is that for small pictures."""
    return models.ResNet((64, 64, 128, 128, 256, 256, 512, 512)), ((torch.randn(2, 3, 32, 32),), {}), square


def encoder() -> Case:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), ((torch.randn(2, 64, 256),), {}), square


def language_model(name: str) -> Callable[[], Case]:
    def make() -> Case:
        model, make_inputs = models.get(name)
        args, kwargs = make_inputs(0, 0)
        return model, (args, {**kwargs, "labels": kwargs["input_ids"]}), lambda result: result.loss

    return make


CASES: dict[str, Callable[[], Case]] = {
    "MLP": mlp,
    "ResNet-18": resnet18,
    "TransformerEncoder x6": encoder,
    "BERT": language_model("bert"),
    "GPT-2": language_model("gpt2"),
}
FROM_TRANSFORMERS = ("BERT", "GPT-2")


class Training:
    """A model that is trained on a device, always on the same data; `end` ends a step there."""

    def __init__(self, case: str, optimizer: str, device: str, end: Callable[[], Any] = lambda: None) -> None:
        torch.manual_seed(0)
        model, inputs, self.loss = CASES[case]()
        self.model = model.train().to(device)
        self.args, self.kwargs = pytree.tree_map_only(Tensor, lambda tensor: tensor.to(device), inputs)
        self.optimizer = getattr(torch.optim, optimizer)(self.model.parameters(), lr=1e-3)
        self.end = end

    def step(self) -> Tensor:
        self.optimizer.zero_grad()
        loss = self.loss(self.model(*self.args, **self.kwargs))
        loss.backward()
        self.optimizer.step()
        self.end()
        return loss.detach()

    def losses(self, count: int) -> list[float]:
        torch.manual_seed(1)
        found = [self.step() for _ in range(count)]
        return [loss.item() for loss in found]

    def ms(self, count: int) -> tuple[float, float]:
        """Of each of `count` steps, until the loss of the last one is known: wall time, processor time."""
        wall, processor = time.perf_counter_ns(), time.process_time_ns()
        for _ in range(count):
            loss = self.step()
        loss.item()
        spent = time.perf_counter_ns() - wall, time.process_time_ns() - processor
        return spent[0] / 1e6 / count, spent[1] / 1e6 / count

    def steps_in(self, ms: float) -> int:
        """Enough that one more or less under way does not matter."""
        return max(5, min(100, int(ms / min(self.ms(1) for _ in range(3))[0])))


def minima(turns: list[tuple[float, float]]) -> tuple[float, float]:
    wall, processor = zip(*turns, strict=True)
    return min(wall), min(processor)


def chain(x: Tensor, y: Tensor) -> tuple[float, Tensor]:
    """Microseconds for each of a thousand additions, and the last result."""
    start = time.perf_counter_ns()
    for _ in range(CHAIN):
        x = x + y
    return (time.perf_counter_ns() - start) / 1e3 / CHAIN, x


def chain_us(x: Tensor, y: Tensor, end: Callable[[], Any]) -> float:
    """What comes after the recording is not counted."""
    spent, last = chain(x, y)
    end()
    del last
    return spent


# ---- PyTorch's own lazy backend


def _end() -> None:
    torch._lazy.mark_step()


def _end_and_wait() -> None:
    torch._lazy.mark_step(wait=True)


def _their_chain() -> dict[str, Any]:
    def operands(width: int) -> tuple[Tensor, Tensor]:
        return torch.ones(4, width).to("lazy"), torch.ones(4, width).to("lazy")

    chain_us(*operands(2), _end_and_wait)  # loads what it needs
    first = min(chain_us(*operands(5 + turn), _end_and_wait) for turn in range(3))  # sizes that it has not seen
    x, y = operands(4)
    return {"first": first, "repeated": min(chain_us(x, y, _end_and_wait) for _ in range(CHAIN_TURNS))}


def _their_training(case: str, optimizer: str, turn_ms: float, repeats: int) -> dict[str, Any]:
    training = Training(case, optimizer, "lazy", _end)
    training.losses(3)
    steps = training.steps_in(turn_ms)
    wall, processor = minima([training.ms(steps) for _ in range(repeats)])
    return {"ms": wall, "cpu_ms": processor}


def main() -> None:
    case, optimizer, turn_ms, repeats = sys.argv[1:]
    import torch._lazy
    import torch._lazy.ts_backend

    warnings.simplefilter("ignore")
    torch.set_num_threads(1)
    torch._lazy.ts_backend.init()
    gc.collect()
    gc.disable()
    found = _their_chain() if case == CHAIN_CASE else _their_training(case, optimizer, float(turn_ms), int(repeats))
    print(json.dumps(found))


if __name__ == "__main__":
    main()
