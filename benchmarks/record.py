"""How long does it take to get the forward and the backward of a model as a graph? Recording against torch's tracers.

Method: one process, processor time, minima of repeats in which the contenders take turns; every contender has traced
the model before. The peers are make_fx with fake tensors and aot_function, both of forward and backward, and one eager
step on the same inputs. A first recording in a process is given as well. "meta" counts the operators whose results had
to be asked from torch's meta kernels, many of which are written in Python.
"""

from __future__ import annotations

import argparse
import sys
import warnings
from collections.abc import Callable
from typing import Any

import magneto
import torch
from _common import Goal, Options, cpu_ms, finish, goal, interleaved_minima, machine, table, use_the_zoo, versions

use_the_zoo()
from zoo import training  # noqa: E402

COLUMNS = {
    "case": "model",
    "ops": "ops",
    "first": "first ms",
    "magneto": "ours ms",
    "us_per_op": "us/op",
    "eager": "eager ms",
    "of_eager": "ours/eager",
    "make_fx": "make_fx ms",
    "make_fx_gain": "make_fx/ours",
    "aot": "aot ms",
    "aot_gain": "aot/ours",
    "meta": "meta",
}
MODELS = ("mlp", "resnet18", "gpt2", "bert", "llama", "vit")
BATCH, LENGTH = 8, 64


def cases() -> dict[str, Callable[[], tuple[torch.nn.Module, tuple[torch.Tensor, ...]]]]:
    def twelve_layers() -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        return training.encoder(layers=12, width=256).train(), (torch.randn(BATCH, LENGTH, 256),)

    def from_zoo(name: str) -> tuple[torch.nn.Module, tuple[torch.Tensor, ...]]:
        model, batch = training.make(name)
        return model, batch(BATCH, LENGTH)

    known = [name for name in MODELS if name in training.names()]
    return {"12-layer encoder": twelve_layers, **{name: (lambda name=name: from_zoo(name)) for name in known}}


def meta_operators() -> int:
    return sum(magneto.counters["meta_kernels"].values())


def measure(case: str, model: torch.nn.Module, arguments: tuple[torch.Tensor, ...], repeats: int) -> dict[str, Any]:
    from torch._functorch.aot_autograd import aot_function
    from torch.fx.experimental.proxy_tensor import make_fx

    state = {**dict(model.named_parameters()), **dict(model.named_buffers())}

    def function(own: dict[str, torch.Tensor], *inputs: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(model, own, inputs)

    def step(own: dict[str, torch.Tensor], *inputs: torch.Tensor) -> list[torch.Tensor | None]:
        output = function(own, *inputs)
        targets = [tensor for tensor in own.values() if tensor.requires_grad]
        return list(torch.autograd.grad(output, targets, torch.ones_like(output), allow_unused=True))

    def fx() -> None:
        make_fx(step, tracing_mode="fake", _allow_non_fake_inputs=True)(state, *arguments)

    def aot() -> None:
        compiled = aot_function(function, fw_compiler=lambda graph, _: graph, bw_compiler=lambda graph, _: graph)
        own = {name: tensor.detach().requires_grad_(tensor.requires_grad) for name, tensor in state.items()}
        output = compiled(own, *arguments)
        output.backward(torch.ones_like(output))

    def ours() -> magneto.Graph:
        return magneto.record(model, *arguments, joint=True)

    before = meta_operators()
    first = cpu_ms(ours)
    graph = ours()
    fast = interleaved_minima({"magneto": ours, "eager": lambda: step(state, *arguments)}, repeats)
    slow = {"make_fx": fx, "aot": aot}
    for contender in slow.values():
        contender()  # imports, caches
    peers = interleaved_minima({"magneto": ours, **slow}, max(2, repeats // 10))
    fast = {**peers, **fast, "magneto": min(fast["magneto"], peers["magneto"])}
    return {
        "case": case,
        "unit": "ms",
        "ops": len(graph),
        "first": first,
        "us_per_op": fast["magneto"] * 1e3 / len(graph),
        "of_eager": fast["magneto"] / fast["eager"],
        "make_fx_gain": fast["make_fx"] / fast["magneto"],
        "aot_gain": fast["aot"] / fast["magneto"],
        "meta": meta_operators() - before,
        "incumbent": fast["make_fx"],
        **fast,
    }


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    def of(name: str, figure: str, limit: str, bound: float, cases: list[dict[str, Any]] = rows) -> Goal:
        return goal(name, [(row[figure], row["case"]) for row in cases], limit, bound)

    return [
        of("make_fx's time over ours", "make_fx_gain", ">=", 150),
        of("our time over an eager step of the 12-layer encoder", "of_eager", "<", 0.15, rows[:1]),
        of("operators that needed torch's meta kernels", "meta", "<=", 0),
    ]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Options("record", __doc__, repeats=20)
    parser.add_argument("--only", metavar="MODEL", help="this model alone")
    options = parser.parse(arguments)
    if options.only and options.only not in cases():
        parser.error(f"no model {options.only!r}; there are: {', '.join(cases())}")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(", ".join(f"{key} {value}" for key, value in {**machine(), **versions()}.items()))
    chosen = {name: make for name, make in cases().items() if options.only in (None, name)}
    rows = [measure(name, *make(), options.repeats) for name, make in chosen.items()]
    print(table(COLUMNS, rows))
    print("\nforward and backward; processor time, minima")
    finish("record", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
