"""How soon is a model compiled, and what does a call cost then? First call, second call, guards, against the peers.

Method: one process, one thread per operation, processor time. For each model of the zoo: eager calls warm the libraries
up; then eager calls and first calls of a freshly compiled model take turns, with the collector off; then eager and
later calls take turns. Every figure is the minimum of its repeats, and is compared with the eager calls that it took
turns with. torch.compile (backend="eager", so that both run the same kernels and only the work around them differs) is
measured the same way, with two first calls for want of time, after all of Magneto's figures: its first use patches
nn.Module for the whole process.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import gc
import sys
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import magneto
import torch
from _common import (
    Options,
    cpu_ms,
    finish,
    goal,
    interleaved_minima,
    machine,
    table,
    use_the_zoo,
    versions,
    with_progress,
)

use_the_zoo()
from zoo import harness, models  # noqa: E402

COLUMNS = {
    "case": "model",
    "eager": "eager ms",
    "first": "first ms",
    "until_compiled": "until compiled",
    "magneto": "second ms",
    "guards_us": "guards us",
    "incumbent_first": "tc first ms",
    "incumbent": "tc ms",
    "first_per_eager": "first/eager",
    "first_gain": "tc first/first",
    "gain_over_eager": "eager/second",
    "gain_over_incumbent": "tc/second",
}


@dataclass
class FirstCall:
    """Times in ms."""

    eager: float
    calling: float
    compiling: float
    compiled: Any


def first_call(module: torch.nn.Module, compiler: Any, args: Any, kwargs: Any) -> FirstCall:
    """An eager call, then compile and call."""
    eager = cpu_ms(lambda: module(*args, **kwargs))
    made: list[Any] = []
    compiling = cpu_ms(lambda: made.append(compiler(module)))
    calling = cpu_ms(lambda: made[0](*args, **kwargs))
    return FirstCall(eager, calling, compiling, made[0])


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """As timeit does: a collection that happens to start in a call is not part of it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def measure_magneto(module: torch.nn.Module, args: Any, kwargs: Any, repeats: int) -> tuple[dict[str, Any], Any]:
    """The first call and the time until a compiled version stands ready."""
    turns = []
    for _ in range(repeats):
        magneto.reset()
        turns.append(first_call(module, magneto.compile, args, kwargs))
    compiled = turns[-1].compiled
    row: dict[str, Any] = {
        "first": min(turn.calling for turn in turns),
        "first_cold": turns[0].calling,
        "eager_beside_first": min(turn.eager for turn in turns),
        "state": harness.state(compiled),
    }
    if row["state"] == "compiled":
        row["until_compiled"] = min(turn.compiling + turn.calling for turn in turns)
        variant = harness.native(compiled).variants()[0]
        row["ops"], row["guards"] = variant["ops"], variant["guard_count"]
        checks = [harness.native(compiled).guard_ns(2000, *args, **kwargs) for _ in range(5)]
        row["guards_us"] = min(checks) / 1000
    else:
        row["reason"] = harness.why_eager(compiled)
    return row, compiled


def measure(name: str, repeats: int) -> dict[str, Any]:
    """The figures of eager and Magneto for one model."""
    module, make_inputs = models.get(name)
    args, kwargs = make_inputs(0, 0)
    for _ in range(3):
        module(*args, **kwargs)
    with collector_off():
        row, compiled = measure_magneto(module, args, kwargs, max(3, repeats))
    contenders = {
        "eager": functools.partial(module, *args, **kwargs),
        "magneto": functools.partial(compiled, *args, **kwargs),
    }
    for function in contenders.values():
        function()
    row.update(interleaved_minima(contenders, repeats))
    row["first_per_eager"] = row["first"] / row["eager_beside_first"]
    row["gain_over_eager"] = row["eager"] / row["magneto"]
    return {"case": name, "unit": "ms", **row}


def measure_incumbent(row: dict[str, Any], repeats: int) -> None:
    """Add the figures of torch.compile, taken in turns with eager calls of its own."""
    module, make_inputs = models.get(row["case"])
    args, kwargs = make_inputs(0, 0)
    for _ in range(3):
        module(*args, **kwargs)
    row["incumbent_first"] = float("inf")
    with collector_off():
        for _ in range(2):
            torch._dynamo.reset()
            turn = first_call(module, functools.partial(torch.compile, backend="eager"), args, kwargs)
            row["incumbent_first"] = min(row["incumbent_first"], turn.calling)
    contenders = {
        "eager_beside_incumbent": functools.partial(module, *args, **kwargs),
        "incumbent": functools.partial(turn.compiled, *args, **kwargs),
    }
    for function in contenders.values():
        function()
    row.update(interleaved_minima(contenders, repeats))
    row["first_gain"] = row["incumbent_first"] / row["first"]
    incumbent_gain = row["eager_beside_incumbent"] / row["incumbent"]
    row["gain_over_incumbent"] = row["gain_over_eager"] / incumbent_gain


def goals(rows: list[dict[str, Any]]) -> list[Any]:
    """What the figures should reach on every model that is compiled."""
    compiled = [row for row in rows if row["state"] == "compiled"]

    def worst(name: str, over: Callable[[dict[str, Any]], float], limit: str, bound: float, need: str = "eager") -> Any:
        return goal(name, [(over(row), row["case"]) for row in compiled if need in row], limit, bound)

    return [
        worst("first call, in eager calls", lambda row: row["first_per_eager"], "<=", 3),
        worst("torch.compile's first call over ours", lambda row: row["first_gain"], ">=", 30, "first_gain"),
        worst("second call over an eager call", lambda row: row["magneto"] / row["eager"], "<", 1),
        worst("second call over torch.compile's", lambda row: 1 / row["gain_over_incumbent"], "<", 1, "incumbent"),
        worst("guards in us", lambda row: row["guards_us"], "<", 4, "guards_us"),
    ]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Options("first", __doc__, repeats=20)
    parser.add_argument("--models", default="all", help="names with commas between them; default: the whole zoo")
    parser.add_argument("--no-incumbent", action="store_true", help="leave torch.compile out (much faster)")
    options = parser.parse(arguments)
    options.models = models.names() if options.models == "all" else options.models.split(",")
    unknown = set(options.models) - set(models.names())
    if unknown:
        parser.error(f"no such models: {', '.join(sorted(unknown))}; there are: {', '.join(models.names())}")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    facts = {**machine(), **versions()}
    print(", ".join(f"{key} {value}" for key, value in facts.items()))
    rows = [measure(name, options.repeats) for name in with_progress(options.models, "magneto")]
    if not options.no_incumbent:
        # Loading the peer's own machinery is no part of its first call either.
        torch.compile(torch.nn.Linear(2, 2), backend="eager")(torch.ones(1, 2))
        for row in with_progress(rows, "torch.compile"):
            measure_incumbent(row, options.repeats)
    compiled = [row for row in rows if row["state"] == "compiled"]
    columns = {key: title for key, title in COLUMNS.items() if any(key in row for row in rows)}
    print(table(list(columns.values()), [[row.get(key) for key in columns] for row in compiled]))
    print(
        f"\n{len(compiled)} of {len(rows)} models compiled; processor time, minima, tc = torch.compile, eager backend"
    )
    for row in rows:
        if row["state"] != "compiled":
            print(f"  stays eager: {row['case']}: {row['reason']}")
    print()
    finish("first", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
