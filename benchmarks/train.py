"""What does a training step cost? Forward, backward and a step of SGD: eager, Magneto, torch.compile.

Method: one process, one thread per operation, processor time, with the collector off. Each contender trains a copy of
the model. Cold is what its first step takes longer than an eager one: one eager step before, one cold step, for each
contender. Then steps take turns, and each figure is the minimum. torch.compile runs with backend="aot_eager", which
runs the same kernels, or with `--inductor` also with its default backend, which compiles kernels of its own (minutes).

Backwards of compiled calls are compiled as well, as they are by default; those of the others are not.

Models: 20 small layers, and models of the zoo with two layers each. The loss is the mean square of all results.
"""

from __future__ import annotations

import copy
import functools
import sys
from collections.abc import Callable
from typing import Any

import magneto
import torch
from _common import Goal, Options, cpu_ms, finish, goal_of, interleaved_minima, table, with_progress
from _zoo import add_models, collector_off, load_incumbent, parse, prepare, small_layers
from zoo import harness, models
from zoo.compare import tensors

COLUMNS = {
    "case": "model",
    "eager_ms": "eager ms",
    "magneto_ms": "ours ms",
    "speedup": "eager/ours",
    "incumbent_ms": "tc ms",
    "per_incumbent": "ours/tc",
    "inductor_ms": "tc inductor ms",
    "cold_ms": "cold ms",
    "incumbent_cold_ms": "tc cold ms",
    "cold_ratio": "tc/ours cold",
}
SMALL = "20 layers"
LEAST_COLD_MS = 0.1  # steps differ by as much
MODELS = "resnet,transformer_encoder,bert,gpt2,llama,t5,vit"


class Contender:
    """A copy of a model that one of them trains."""

    def __init__(self, model: torch.nn.Module, inputs: Any, compiler: Callable[[Any], Any]) -> None:
        self.inputs = copy.deepcopy(inputs)  # torch.compile leaves attributes on tensors that it is given
        self.is_ours = compiler is magneto.compile
        self.model = copy.deepcopy(model).train()
        self.optimizer = torch.optim.SGD(self.model.parameters(), lr=1e-4)
        self.call = compiler(self.model)

    def step(self) -> None:
        args, kwargs = self.inputs
        results = [tensor for tensor in tensors(self.call(*args, **kwargs)) if tensor.requires_grad]
        loss = sum(result.float().square().mean() for result in results)
        if self.is_ours:
            loss.backward()
        else:
            with magneto.compiled_autograd.disable():
                loss.backward()
        self.optimizer.step()
        self.optimizer.zero_grad()


def from_zoo(name: str) -> tuple[torch.nn.Module, Any]:
    model, make_inputs = models.get(name)
    return model, make_inputs(0, 0)


def measure(case: str, compilers: dict[str, Callable[[Any], Any]], repeats: int) -> dict[str, Any]:
    model, inputs = small_layers() if case == SMALL else from_zoo(case)
    row: dict[str, Any] = {"case": case, "unit": "ms"}
    eager = Contender(model, inputs, lambda module: module)
    for _ in range(3):
        eager.step()
    contenders = {"eager": eager}
    with collector_off():
        for name, compiler in compilers.items():
            before = cpu_ms(eager.step)
            contenders[name] = Contender(model, inputs, compiler)
            row[f"{name}_cold_ms"] = max(LEAST_COLD_MS, cpu_ms(contenders[name].step) - before)
            contenders[name].step()
        found = interleaved_minima({name: contender.step for name, contender in contenders.items()}, repeats)
    row["cold_ms"] = row.pop("magneto_cold_ms")
    row |= {f"{name}_ms": time for name, time in found.items()}
    row["speedup"] = found["eager"] / found["magneto"]
    row["compiled"] = harness.state(contenders["magneto"].call) == "compiled"
    if "incumbent" in found:
        row["per_incumbent"] = found["magneto"] / found["incumbent"]
        row["cold_ratio"] = row["incumbent_cold_ms"] / row["cold_ms"]
    return row


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    of = functools.partial(goal_of, rows)
    return [
        of('torch.compile(backend="aot_eager") over ours, cold', "cold_ratio", ">=", 30),
        of("an eager step over ours, small models", "speedup", ">=", 1.15, SMALL),
        of("an eager step over ours", "speedup", ">=", 0.98),
    ]


def main(arguments: list[str]) -> int:
    parser = Options("train", __doc__, repeats=50)
    add_models(parser, MODELS)
    parser.add_argument("--no-incumbent", action="store_true", help="leave torch.compile out")
    parser.add_argument("--inductor", action="store_true", help="also torch.compile's default backend (needs g++)")
    options = parse(parser, arguments)
    prepare()
    torch.set_grad_enabled(True)
    compilers: dict[str, Callable[[Any], Any]] = {"magneto": magneto.compile}
    if not options.no_incumbent:
        load_incumbent("aot_eager")
        compilers["incumbent"] = lambda module: torch.compile(module, backend="aot_eager")
    if options.inductor:
        compilers["inductor"] = torch.compile
    cases = [SMALL, *options.models] if models.has_transformers() else [SMALL]
    rows = [measure(case, compilers, options.repeats) for case in with_progress(cases, "training")]
    print(table(COLUMNS, rows))
    print("\nprocessor time of a step, minima; tc = torch.compile, aot_eager backend")
    for row in rows:
        if not row["compiled"]:
            print(f"not compiled: {row['case']}")
    finish("train", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
