"""What does a compiled backward cost? The first and later ones: eager, Magneto, torch's own compiled autograd.

Method: one process, one thread per operation, processor time of loss.backward() alone, with the collector off; the
forward runs eagerly before each. First: what was compiled is dropped, then a forward, then the backward that is
measured; eager and ours take turns, twenty each, then torch's has three, and each figure is the minimum. Steady: three
more backwards each, then all take turns. Gradients are dropped after each backward, so that none adds to an older one.
Torch's compiled autograd runs with backend="eager", which runs the same kernels, and with fixed sizes (static); with
`--dynamic` also as it comes, with open sizes, where a first backward takes it minutes and is measured once. Ratios are
to the better of these; first backwards are also compared by what they take longer than an eager one, as the same
kernels run in all. Before anything is measured, our gradients are compared with eager's, bit by bit.

Models: 20 small layers, torch's encoder of six layers, and the BERT of the zoo. The loss is the mean square of all
results; dropout is on.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import magneto
import torch
from _common import Goal, Options, cpu_ms, finish, goal_of, least, table, with_progress
from _zoo import collector_off, prepare, small_layers
from magneto import compiled_autograd
from torch import nn
from zoo import compare, models

COLUMNS = {
    "case": "model",
    "nodes": "nodes",
    "eager_ms": "eager ms",
    "magneto_ms": "ours ms",
    "speedup": "eager/ours",
    "static_ms": "static ms",
    "dynamic_ms": "dynamic ms",
    "gain": "torch/ours",
    "first_ms": "first ms",
    "static_first_ms": "static first ms",
    "dynamic_first_ms": "dynamic first ms",
    "first_gain": "torch/ours first",
    "beyond_gain": "beyond eager",
}
FIRST_TURNS = {"eager": 20, "magneto": 20, "static": 3, "dynamic": 1}
PEERS = ("static", "dynamic")
LEAST_MS = 0.01  # what can be told from nothing
Enter = Callable[[], AbstractContextManager[Any]]


def encoder() -> tuple[nn.Module, Any]:
    layer = nn.TransformerEncoderLayer(256, 8, 1024, batch_first=True)
    return nn.TransformerEncoder(layer, 6, enable_nested_tensor=False), ((torch.randn(2, 64, 256),), {})


def bert() -> tuple[nn.Module, Any]:
    model, make_inputs = models.get("bert")
    return model, make_inputs(0, 0)


CASES = {"MLP-20": small_layers, "TransformerEncoder x6": encoder, "BERT": bert}


def incumbent(dynamic: bool) -> Enter:
    compiler = torch.compile(backend="eager") if dynamic else torch.compile(backend="eager", dynamic=False)
    return lambda: torch._dynamo.compiled_autograd._enable(compiler, dynamic=dynamic)


def forget_peers() -> None:
    torch._dynamo.reset()
    torch._dynamo.compiled_autograd.reset()


class Backward:
    """Backwards of one model, each behind a forward of its own."""

    def __init__(self, model: nn.Module, inputs: Any) -> None:
        self.model, (self.args, self.kwargs) = model.train(), inputs

    def loss(self) -> torch.Tensor:
        results = [t for t in compare.tensors(self.model(*self.args, **self.kwargs)) if t.requires_grad]
        return sum(result.float().square().mean() for result in results)

    def ms(self, enter: Enter) -> float:
        loss = self.loss()
        with enter():
            spent = cpu_ms(loss.backward)
        self.model.zero_grad()
        return spent

    def first_ms(self, name: str, enter: Enter) -> float:
        if name in PEERS:
            forget_peers()
        else:
            compiled_autograd.clear_cache()
        return self.ms(enter)

    def gradients(self, enter: Enter) -> list[Any]:
        torch.manual_seed(0)
        loss = self.loss()
        with enter():
            loss.backward()
        found = [None if p.grad is None else compare.look(p.grad) for p in self.model.parameters()]
        self.model.zero_grad()
        return found

    def nodes(self) -> int:
        found = [self.loss().grad_fn]
        for node in found:
            found += [after for after, _ in node.next_functions if after is not None and after not in found]
        return len(found)


def measure(case: str, contenders: dict[str, Enter], repeats: int) -> dict[str, Any]:
    backward = Backward(*CASES[case]())
    expected = backward.gradients(nullcontext)
    if [backward.gradients(compiled_autograd.enable) for _ in range(3)] != [expected] * 3:
        raise SystemExit(f"{case}: the gradients are not eager's")
    row: dict[str, Any] = {"case": case, "unit": "ms", "nodes": backward.nodes()}
    with collector_off():
        cold = {name: functools.partial(backward.first_ms, name, enter) for name, enter in contenders.items()}
        first: dict[str, float] = {}
        for turns in dict.fromkeys(FIRST_TURNS.values()):
            first |= least({name: timer for name, timer in cold.items() if FIRST_TURNS[name] == turns}, turns)
        for enter in [*contenders.values()] * 3:
            backward.ms(enter)
        hits = magneto.counters["compiled_autograd"]["hits"]
        steady = least({name: functools.partial(backward.ms, enter) for name, enter in contenders.items()}, repeats)
    row["compiled"] = magneto.counters["compiled_autograd"]["hits"] - hits == repeats
    row |= {f"{name}_ms": time for name, time in steady.items()}
    row |= {f"{name}_first_ms": time for name, time in first.items()}
    row["first_ms"] = row.pop("magneto_first_ms")
    row["speedup"] = steady["eager"] / steady["magneto"]
    if incumbents := [name for name in contenders if name in PEERS]:
        row["gain"] = min(steady[name] for name in incumbents) / steady["magneto"]
        theirs = min(first[name] for name in incumbents)
        row["first_gain"] = theirs / first["magneto"]
        row["beyond_gain"] = (theirs - first["eager"]) / max(first["magneto"] - first["eager"], LEAST_MS)
    return row


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    of = functools.partial(goal_of, rows)
    return [
        of("torch's first compiled backward over ours", "first_gain", ">=", 100),
        of("the same of what they take longer than an eager one", "beyond_gain", ">=", 100),
        of("an eager backward over ours", "speedup", ">", 1),
        of("torch's compiled backward over ours", "gain", ">=", 5),
    ]


def main(arguments: list[str]) -> int:
    parser = Options("autograd", __doc__, repeats=100)
    parser.add_argument("--no-incumbent", action="store_true", help="leave torch's compiled autograd out")
    parser.add_argument("--dynamic", action="store_true", help="also torch's with open sizes (ten minutes)")
    options = parser.parse(arguments)
    prepare()
    torch.set_grad_enabled(True)
    contenders: dict[str, Enter] = {"eager": nullcontext, "magneto": compiled_autograd.enable}
    if not options.no_incumbent:
        contenders["static"] = incumbent(False)
    if options.dynamic:
        contenders["dynamic"] = incumbent(True)
    loading = Backward(nn.Linear(2, 2), ((torch.ones(1, 2),), {}))  # the peer's own machinery
    for enter in contenders.values():
        loading.ms(enter)
    cases = list(CASES) if models.has_transformers() else [case for case in CASES if case != "BERT"]
    rows = [measure(case, contenders, options.repeats) for case in with_progress(cases, "backward")]
    print(table(COLUMNS, rows))
    print("\nprocessor time of a backward, minima; static, dynamic: torch's compiled autograd, eager backend")
    for row in rows:
        if not row["compiled"]:
            print(f"not always compiled: {row['case']}: {dict(magneto.counters['compiled_autograd_declined'])}")
    finish("autograd", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
