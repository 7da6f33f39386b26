"""What does an operator cost in a replay, and how much memory does one take? Graphs against the same Python in eager.

Method: one process and one thread, processor time, minima of repeats in which the contenders take turns. The operators
work on tiny tensors, so that their kernels cost next to nothing and the way to them shows. "the peer" is
torch.compile(backend="eager"), which runs the same operators from generated Python. Memory: the greatest sum of what
torch's CPU allocator has given out during one call, from its own profiler, over what was held before.
"""

from __future__ import annotations

import sys
import warnings
from collections.abc import Callable
from typing import Any

import magneto
import torch
from _common import Goal, Options, finish, goal, interleaved_minima, machine, table, use_the_zoo, versions

use_the_zoo()
from zoo import training  # noqa: E402
from zoo.allocations import peak_kib  # noqa: E402

COLUMNS = {
    "case": "program",
    "ops": "ops",
    "eager": "eager us/op",
    "incumbent": "tc us/op",
    "magneto": "ours us/op",
    "gain": "eager/ours",
    "eager_peak": "eager KiB",
    "magneto_peak": "ours KiB",
}
MODELS = ("mlp", "encoder layer", "gpt2", "bert", "llama", "vit")


class Chain(torch.nn.Module):
    """Small modules in a row, as programs have them."""

    def __init__(self, length: int) -> None:
        super().__init__()
        kinds = (torch.nn.ReLU, torch.nn.Tanh, lambda: torch.nn.LayerNorm(4), torch.nn.Sigmoid)
        self.steps = torch.nn.Sequential(*(kinds[i % len(kinds)]() for i in range(length)))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.steps(x) + 1


def cases() -> dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]]:
    def from_zoo(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        model, batch = training.make(name)
        return model.eval(), batch(1, 4)

    known = [name for name in MODELS if name in training.names()]
    chain = {"chain of 200 modules": lambda: (Chain(200).eval(), (torch.randn(1, 4),))}
    return {**chain, **{name: (lambda name=name: from_zoo(name)) for name in known}}


def measure(case: str, model: torch.nn.Module, arguments: tuple[torch.Tensor, ...], repeats: int) -> dict[str, Any]:
    torch._dynamo.reset()
    graph = magneto.record(model, *arguments)
    compiled = torch.compile(model, backend="eager")
    inputs = list(arguments)
    contenders = {
        "eager": lambda: model(*arguments),
        "magneto": lambda: graph.run(inputs),
        "incumbent": lambda: compiled(*arguments),
    }
    for contender in contenders.values():
        contender()
    least = interleaved_minima(contenders, repeats)
    per_op = {name: ms * 1e3 / len(graph) for name, ms in least.items()}
    return {
        "case": case,
        "unit": "us",
        "ops": len(graph),
        **per_op,
        "gain": per_op["eager"] / per_op["magneto"],
        "eager_peak": peak_kib(contenders["eager"]),
        "magneto_peak": peak_kib(contenders["magneto"]),
    }


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    memory = [(row["magneto_peak"] / row["eager_peak"], row["case"]) for row in rows if row["eager_peak"]]
    return [
        goal("eager's time per operator over ours", [(row["gain"], row["case"]) for row in rows], ">=", 5),
        goal("our peak of memory over eager's", memory, "<=", 1),
    ]


def main(arguments: list[str]) -> int:
    options = Options("replay", __doc__, repeats=200).parse(arguments)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    print(", ".join(f"{key} {value}" for key, value in {**machine(), **versions()}.items()))
    rows = [measure(name, *make(), options.repeats) for name, make in cases().items()]
    print(table(COLUMNS, rows))
    print("\nprocessor time, minima, tc = torch.compile(backend='eager')")
    finish("replay", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
