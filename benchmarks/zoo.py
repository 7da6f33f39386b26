"""How many graphs does a call take, and is anything left eager? The zoo in many ways of calling, beside torch.compile.

Method: one process. Each case (a model and a way of calling it, or a program written by hand) makes a few calls in two
shapes, and then one more, which is looked at: was it compiled through and through, in how many graphs, where was it
cut and why. Then torch.compile does the same with a backend that runs graphs as they are and counts them: first with
fullgraph=True, and where that raises, without. It comes after all of Magneto's cases: its first use patches nn.Module
for the whole process. A case that makes several calls (a cache, generate()) is judged by its last one.
"""

from __future__ import annotations

import argparse
import functools
import logging
import sys
import warnings
from collections.abc import Callable
from typing import Any

import magneto
import torch
from _common import Goal, Options, finish, machine, table, use_the_zoo, versions, with_progress

use_the_zoo()
from zoo import harness, ways  # noqa: E402

COLUMNS = {
    "case": "case",
    "outcome": "magneto",
    "graphs": "graphs",
    "captures": "captured in all",
    "incumbent_fullgraph": "tc fullgraph",
    "incumbent_graphs": "tc graphs",
    "incumbent_captures": "tc captured in all",
}
# Shape and seed of each call.
CALLS = ((0, 0), (0, 1), (1, 2), (1, 3), (0, 4))
LAST = (0, 5)


def measure(name: str) -> dict[str, Any]:
    """What Magneto makes of a case."""
    magneto.reset()
    case = ways.get(name)
    case.compile(magneto.compile)
    for variant, seed in CALLS:
        case(variant, seed)
    report = harness.report(case.compiled, lambda: case(*LAST))
    return {
        "case": name,
        "unit": "graphs",
        "outcome": report.outcome,
        "graphs": report.graphs,
        "captures": harness.stat("captures"),
        "cuts": report.cuts,
        "reasons": report.reasons,
        "misses": report.misses if report.outcome != "steady" else {},
    }


class Counting:
    """A backend of torch.compile that runs graphs as they are, and counts them anew in each call."""

    def __init__(self, fullgraph: bool) -> None:
        self.fullgraph = fullgraph
        self.compiled = 0
        self.ran = 0

    def backend(self, module: torch.fx.GraphModule, inputs: list[Any]) -> Callable[..., Any]:
        self.compiled += 1

        def run(*args: Any) -> Any:
            self.ran += 1
            return module.forward(*args)

        return run

    def compile(self, target: Callable[..., Any]) -> Callable[..., Any]:
        compiled = torch.compile(target, fullgraph=self.fullgraph, backend=self.backend)

        @functools.wraps(getattr(target, "forward", target))
        def call(*args: Any, **kwargs: Any) -> Any:
            self.ran = 0
            return compiled(*args, **kwargs)

        return call


def try_incumbent(name: str, fullgraph: bool) -> Counting:
    torch._dynamo.reset()
    torch._dynamo.utils.counters.clear()
    case = ways.get(name)
    counting = Counting(fullgraph)
    case.compile(counting.compile)
    for variant, seed in (*CALLS, LAST):
        case(variant, seed)
    return counting


def measure_incumbent(row: dict[str, Any]) -> None:
    """Add what torch.compile makes of it."""
    try:
        counting = try_incumbent(row["case"], fullgraph=True)
        row["incumbent_fullgraph"] = "yes"
    except Exception as error:  # whatever it cannot compile
        row["incumbent_fullgraph"] = "refused"
        row["incumbent_error"] = first_line(error)
        try:
            counting = try_incumbent(row["case"], fullgraph=False)
        except Exception as failure:
            row["incumbent_failure"] = first_line(failure)
            return
    row["incumbent_graphs"] = counting.ran
    row["incumbent_captures"] = counting.compiled
    breaks = torch._dynamo.utils.counters["graph_break"]
    row["incumbent_cuts"] = {reason.strip().split("\n")[0]: count for reason, count in breaks.items()}


def first_line(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error).strip().splitlines()[0] if str(error).strip() else ''}"


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    """None refused, none that goes on being captured, and on no row more graphs than torch.compile."""

    def none(name: str, wrong: Callable[[dict[str, Any]], bool], of: list[dict[str, Any]]) -> Goal:
        count = sum(map(wrong, of))
        return Goal(f"{name}, of {len(of)}", count if of else None, "== 0", count == 0 if of else None)

    compared = [row for row in rows if row.get("incumbent_graphs") and row["graphs"]]  # both compile it
    return [
        none("cases left eager", lambda row: row["outcome"].startswith("eager"), rows),
        none(
            "cases still captured, or left to CPython on the way, after five calls",
            lambda row: row["outcome"] in ("captured again", "left to CPython"),
            rows,
        ),
        none(
            "cases with more graphs than torch.compile", lambda row: row["graphs"] > row["incumbent_graphs"], compared
        ),
    ]


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = Options("zoo", __doc__ or "", repeats=1)
    parser.add_argument("--full", action="store_true", help="every case (an hour with torch.compile), not a sample")
    parser.add_argument("--cases", help="only those whose name contains one of these words, separated by commas")
    parser.add_argument("--no-incumbent", action="store_true", help="leave torch.compile out")
    options = parser.parse(arguments)
    # What generate_module compiles is not called, here as there.
    names = [name for name in ways.names() if not name.endswith("generate_module")]
    sample = set(ways.sample())
    words = options.cases.split(",") if options.cases else []
    options.names = [
        name for name in names if (any(w in name for w in words) if words else options.full or name in sample)
    ]
    if not options.names:
        parser.error(f"no case has one of {words} in its name")
    return options


def tell(rows: list[dict[str, Any]]) -> None:
    print(table(COLUMNS, rows))
    print("\ntc = torch.compile, eager backend; graphs: those of the last call\n")
    for row in rows:
        more = row["graphs"] > row.get("incumbent_graphs", row["graphs"])
        if row["outcome"] != "steady" or more:
            print(f"{row['case']}: {row['outcome']}")
            wanted = ("reasons", "misses", "cuts") if row["outcome"] != "steady" else ("cuts",)
            print("\n".join(f"    {reason}" for key in wanted for reason in row[key]))


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    print(", ".join(f"{key} {value}" for key, value in {**machine(), **versions()}.items()))
    rows = [measure(name) for name in with_progress(options.names, "magneto")]
    if not options.no_incumbent:
        for row in with_progress(rows, "torch.compile"):
            measure_incumbent(row)
    tell(rows)
    finish("zoo", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
