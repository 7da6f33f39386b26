"""How soon is a model compiled, and what does a call cost then? First call, second call, guards, against the peers.

Method: one process, one thread per operation, processor time. For each model of the zoo: eager calls warm the libraries
up; then eager calls and first calls of a freshly compiled model take turns, with the collector off; then eager and
later calls take turns. Every figure is the minimum of its repeats, and is compared with the eager calls that it took
turns with. torch.compile (backend="eager", so that both run the same kernels and only the work around them differs) is
measured the same way, with two first calls for want of time, after all of Magneto's figures: its first use patches
nn.Module for the whole process.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import magneto
import torch
from _common import Options, finish, goal, interleaved_minima, table, with_progress
from _zoo import Model, add_models, collector_off, first_call, load_incumbent, parse, prepare, warm
from zoo import harness

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


def measure_magneto(model: Model, repeats: int) -> tuple[dict[str, Any], Any]:
    """The first call and the time until a compiled version stands ready."""
    turns = []
    for _ in range(repeats):
        magneto.reset()
        turns.append(first_call(model, magneto.compile))
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
        _, args, kwargs = model
        checks = [harness.native(compiled).guard_ns(2000, *args, **kwargs) for _ in range(5)]
        row["guards_us"] = min(checks) / 1000
    else:
        row["reason"] = harness.why_eager(compiled)
    return row, compiled


def measure(name: str, repeats: int) -> dict[str, Any]:
    """The figures of eager and Magneto for one model."""
    model = module, args, kwargs = warm(name)
    with collector_off():
        row, compiled = measure_magneto(model, max(3, repeats))
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
    model = module, args, kwargs = warm(row["case"])
    row["incumbent_first"] = float("inf")
    with collector_off():
        for _ in range(2):
            torch._dynamo.reset()
            turn = first_call(model, functools.partial(torch.compile, backend="eager"))
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


def main(arguments: list[str]) -> int:
    parser = Options("first", __doc__, repeats=20)
    add_models(parser, "all")
    parser.add_argument("--no-incumbent", action="store_true", help="leave torch.compile out (much faster)")
    options = parse(parser, arguments)
    prepare()
    rows = [measure(name, options.repeats) for name in with_progress(options.models, "magneto")]
    if not options.no_incumbent:
        load_incumbent("eager")
        for row in with_progress(rows, "torch.compile"):
            measure_incumbent(row, options.repeats)
    compiled = [row for row in rows if row["state"] == "compiled"]
    print(table(COLUMNS, compiled))
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
