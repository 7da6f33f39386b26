"""How long until a model is compiled? Against torch.compile with its backends "eager" and "aot_eager".

Method: one process, one thread per operation, processor time. "until compiled" is what compiling costs over running:
the time of `compile(model)` and of the first call of what it returned, less that of one eager call. For each model:
three eager calls warm the libraries up; then eager calls and first calls of a freshly compiled model take turns, with
the collector off, each after a `reset()`. The eager call that is subtracted is the shortest of those, and so is what it
is subtracted from: of `--repeats` turns for Magneto, of two for torch.compile for want of time. torch.compile comes
after all of Magneto's figures, as its first use patches nn.Module for the whole process; its machinery is loaded before
its first figure.

A model is compiled when a call captures nothing, leaves no program early and is served by one. Where the second call is
no such call yet, those up to there count as well, less as many eager calls ("calls"); torch.compile is asked for its
first call only. Models without such a call among the first six are listed with the reason and have no figures.
"""

from __future__ import annotations

import functools
import math
import statistics
import sys
from collections.abc import Callable
from typing import Any

import magneto
import torch
from _common import Goal, Options, cpu_ms, finish, goal, table, with_progress
from _zoo import Model, add_models, collector_off, first_call, load_incumbent, parse, prepare, warm
from zoo import harness

COLUMNS = {
    "case": "model",
    "calls": "calls",
    "eager": "eager ms",
    "compile": "compile() ms",
    "first": "first ms",
    "until_compiled": "until compiled ms",
    "in_eager_calls": "in eager calls",
    "eager_backend": "tc eager ms",
    "aot_backend": "tc aot_eager ms",
    "eager_backend_gain": "tc eager/ours",
    "aot_backend_gain": "tc aot_eager/ours",
}
BACKENDS = {"eager_backend": "eager", "aot_backend": "aot_eager"}
# Of every family: plain torch, encoders, decoders with and without a cache, encoder-decoders, images, sound, both.
SAMPLE = (
    "mlp,resnet,transformer_encoder,bert,albert,deberta_v2,gpt2,llama,llama-padded,mixtral,mamba,t5,bart,vit,convnext,"
    "swin,wav2vec2,whisper,clip"
)
PATIENCE = 5


def watched_ms(call: Callable[[], Any]) -> tuple[float, bool]:
    """The time of a call in ms, and whether it ran compiled from end to end."""
    names = ("captures", "exits", "hits")
    before = [harness.stat(name) for name in names]
    took = cpu_ms(call)
    captures, exits, hits = (harness.stat(name) - old for name, old in zip(names, before, strict=True))
    return took, (captures, exits, hits) == (0, 0, 1)


def later_calls(call: Callable[[], Any]) -> list[float] | None:
    """What the calls between the first and the first compiled one take, in ms; None if there is no such one."""
    times: list[float] = []
    while len(times) < PATIENCE:
        took, compiled = watched_ms(call)
        if compiled:
            return times
        times.append(took)
    return None


def measure(name: str, repeats: int) -> dict[str, Any]:
    """The figures of eager and Magneto for one model."""
    model = _, args, kwargs = warm(name)
    turns = []
    with collector_off():
        for _ in range(repeats):
            magneto.reset()
            turn = first_call(model, magneto.compile)
            later = later_calls(functools.partial(turn.compiled, *args, **kwargs))
            if later is None:
                return {"case": name, "state": "eager", "reason": reason(turn.compiled)}
            turns.append((turn, later))
    calls = 1 + max(len(later) for _, later in turns)
    eager = min(turn.eager for turn, _ in turns)
    whole = min(turn.compiling + turn.calling + sum(later) for turn, later in turns if 1 + len(later) == calls)
    return {
        "case": name,
        "unit": "ms",
        "state": "compiled",
        "calls": calls,
        "eager": eager,
        "compile": min(turn.compiling for turn, _ in turns),
        "first": min(turn.calling for turn, _ in turns),
        "until_compiled": whole - calls * eager,
        "in_eager_calls": whole / eager - calls,
    }


def reason(compiled: Any) -> str:
    """Why it is not compiled, without the place, which is this machine's."""
    return harness.why_eager(compiled).partition(" (/")[0]


def measure_incumbent(row: dict[str, Any], figure: str) -> None:
    """Add the figures of a backend of torch.compile, taken in turns with eager calls of its own."""
    model: Model = warm(row["case"])
    compiler = functools.partial(torch.compile, backend=BACKENDS[figure])
    eager, first = math.inf, math.inf
    with collector_off():
        for _ in range(2):
            torch._dynamo.reset()
            try:
                turn = first_call(model, compiler)
            except Exception as error:
                row[f"{figure}_error"] = f"{type(error).__name__}: {str(error).splitlines()[0]}"
                return
            eager, first = min(eager, turn.eager), min(first, turn.compiling + turn.calling)
    row[f"{figure}_eager"], row[figure] = eager, first - eager
    if row["state"] == "compiled":
        row[f"{figure}_gain"] = row[figure] / row["until_compiled"]


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    def figures(name: str) -> list[tuple[float, str]]:
        return [(row[name], row["case"]) for row in rows if name in row]

    left = sum(row["state"] == "eager" for row in rows)
    found = [
        Goal("models that are not compiled", left, "<= 0", left == 0),
        goal("calls until compiled", figures("calls"), "<=", 1),
        goal("until compiled, in eager calls", figures("in_eager_calls"), "<=", 3),
    ]
    for figure, backend in BACKENDS.items():
        gains = figures(f"{figure}_gain")
        name = f'torch.compile(backend="{backend}") over ours'
        mean = round(statistics.geometric_mean(gain for gain, _ in gains), 3) if gains else None
        met = None if mean is None else mean >= 50
        found += [Goal(f"{name}, geometric mean", mean, ">= 50", met), goal(name, gains, ">=", 20)]
    return found


def main(arguments: list[str]) -> int:
    parser = Options("capture", __doc__, repeats=10)
    add_models(parser, SAMPLE)
    parser.add_argument("--no-incumbent", action="store_true", help="leave torch.compile out (much faster)")
    options = parse(parser, arguments)
    prepare()
    rows = [measure(name, options.repeats) for name in with_progress(options.models, "magneto")]
    if not options.no_incumbent:
        load_incumbent(*BACKENDS.values())
        for figure, backend in BACKENDS.items():
            for row in with_progress(rows, f"torch.compile, {backend}"):
                measure_incumbent(row, figure)
    print(table(COLUMNS, rows))
    print("\nprocessor time, minima, tc = torch.compile")
    for row in rows:
        for key in ("reason", *(f"{figure}_error" for figure in BACKENDS)):
            if key in row:
                print(f"  {row['case']}: {'stays eager' if key == 'reason' else key}: {row[key]}")
    print()
    finish("capture", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
