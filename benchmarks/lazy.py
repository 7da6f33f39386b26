"""What does the lazy device cost? Recording an operator, and whole training steps: eager, Magneto, PyTorch's own.

Method: one thread per operation, wall time, with the collector off. Recording: a chain of 1,000 additions of tensors of
4x4, the time until it is recorded, for each addition, not until it has run. First: all steps that were seen are
forgotten before. Repeated: the same again; beside it what eager takes to run it. Steps: zero_grad, forward, loss,
backward and a step of SGD, on the same data, with dropout on. On the lazy device a step ends behind that of the
optimizer and runs while the next one is recorded, so that a figure is the time of many steps until the last loss is
known, divided by their number; processor time, of all threads, stands beside it (cpu). Eager and ours take turns, and
each figure is the minimum. PyTorch's lazy backend has a process of its own for each row afterwards, as there is one
device `lazy` in a process only; its steps end by torch._lazy.mark_step(). Before anything is measured, the losses of
ten steps are compared with eager's, bit by bit.

Models: an MLP of four layers, ResNet-18 for pictures of 32x32, torch's encoder of six layers, and the BERT and GPT-2 of
the zoo (two layers, hidden size 32), with their own losses; the losses of the others are mean squares.
"""

from __future__ import annotations

import functools
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import _lazy_cases
import magneto
import torch
from _common import Goal, Options, finish, goal, goal_of, least, table, with_progress
from _lazy_cases import CASES, CHAIN_CASE, CHAIN_TURNS, FROM_TRANSFORMERS, Training, chain_us, minima
from _zoo import collector_off, prepare
from zoo import models

COLUMNS = {
    "case": "case",
    "unit": "unit",
    "ops": "ops",
    "runs": "runs",
    "eager": "eager",
    "magneto": "ours",
    "per_eager": "ours/eager",
    "incumbent": "torch lazy",
    "gain": "torch/ours",
    "eager_cpu": "eager cpu",
    "magneto_cpu": "ours cpu",
    "cpu_per_eager": "ours/eager cpu",
    "equal": "equal",
    "graphs": "new graphs",
    "fallbacks": "fallbacks",
}
FIRST, REPEATED = f"{CHAIN_CASE}, first step", f"{CHAIN_CASE}, repeated step"
SMALL = "MLP"
COMPARED = 10  # steps
TURN_MS = 100
PATIENCE = 120  # seconds for a case of the peer
FAILS = "fails"


def end_and_wait() -> None:
    magneto.lazy.mark_step(wait=True)


def counts() -> dict[str, int]:
    """What has happened on the lazy device so far."""
    values = {name: magneto.lazy.counter_value(name) or 0 for name in magneto.lazy.counter_names()}
    names = {"ops": "operators recorded", "runs": "steps", "graphs": "graphs made"}
    fallbacks = sum(value for name, value in values.items() if "::" in name)
    return {key: values.get(name, 0) for key, name in names.items()} | {"fallbacks": fallbacks}


# ---- what is measured here


def recording(repeats: int) -> list[dict[str, Any]]:
    here = torch.ones(4, 4), torch.ones(4, 4)
    there = tuple(tensor.to("lazy") for tensor in here)

    def first() -> float:
        magneto.lazy.clear_ir_cache()
        return chain_us(*there, end_and_wait)

    eager = functools.partial(chain_us, *here, lambda: None)
    ours = functools.partial(chain_us, *there, end_and_wait)
    with collector_off():
        first()
        cold = least({"eager": eager, "magneto": first}, repeats)
        ours()
        warm = least({"eager": eager, "magneto": ours}, max(repeats, CHAIN_TURNS))
    rows = [{"case": FIRST, **cold}, {"case": REPEATED, **warm}]
    return [row | {"unit": "us/op", "per_eager": row["magneto"] / row["eager"]} for row in rows]


def training(case: str, optimizer: str, repeats: int) -> dict[str, Any]:
    eager, ours = (Training(case, optimizer, device) for device in ("cpu", "lazy"))
    row: dict[str, Any] = {"case": case, "unit": "ms"}
    row["equal"] = "yes" if eager.losses(COMPARED) == ours.losses(COMPARED) else "NO"
    with collector_off():
        steps = eager.steps_in(TURN_MS)
        ours.ms(steps)
        before = counts()
        turns = [(eager.ms(steps), ours.ms(steps)) for _ in range(repeats)]
        happened = {name: number - before[name] for name, number in counts().items()}
    row |= {name: happened[name] / (repeats * steps) for name in ("ops", "runs", "fallbacks")}
    row["graphs"] = happened["graphs"]
    for name, found in zip(("eager", "magneto"), zip(*turns, strict=True), strict=True):
        row[name], row[f"{name}_cpu"] = minima(list(found))
    return row | {"per_eager": row["magneto"] / row["eager"], "cpu_per_eager": row["magneto_cpu"] / row["eager_cpu"]}


# ---- the peer


def incumbent(case: str, optimizer: str, repeats: int) -> dict[str, Any] | str:
    """What PyTorch's lazy backend takes; as text, why it fails."""
    command = [sys.executable, str(Path(_lazy_cases.__file__)), case, optimizer, str(TURN_MS), str(repeats)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE, check=False)
    except subprocess.TimeoutExpired:
        return f"not ready after {PATIENCE} seconds"
    if done.returncode == 0:
        return json.loads(done.stdout.splitlines()[-1])
    errors = [line for line in done.stderr.splitlines() if line.strip() and not line.startswith((" ", "\t"))]
    named = [line for line in errors if "Error" in line]
    return (named or errors or [f"exit status {done.returncode}"])[-1]


def add_incumbents(rows: list[dict[str, Any]], optimizer: str, repeats: int) -> list[str]:
    """Their figures in the rows, and what there is to say about those that it cannot run."""
    remarks = []
    cases = [CHAIN_CASE, *(row["case"] for row in rows if row["case"] in CASES)]
    for case in with_progress(cases, "torch's lazy backend"):
        found = incumbent(case, optimizer, repeats)
        if isinstance(found, str):
            remarks.append(f"torch's lazy backend fails: {case}: {found}")
            found = {}
        figures = {FIRST: "first", REPEATED: "repeated"} if case == CHAIN_CASE else {case: "ms"}
        for row in rows:
            if row["case"] in figures:
                row["incumbent"] = found.get(figures[row["case"]], FAILS)
                if "cpu_ms" in found:
                    row["incumbent_cpu"] = found["cpu_ms"]
                if found:
                    row["gain"] = row["incumbent"] / row["magneto"]
    return remarks


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    of = functools.partial(goal_of, rows)
    steps = [row for row in rows if row["case"] in CASES]
    works = [(float(row["equal"] == "yes"), row["case"]) for row in steps]
    return [
        of("us to record an operator of a step that repeats", "magneto", "<=", 1.5, REPEATED),
        goal_of(steps, "our step over eager's", "per_eager", "<=", 1.05),
        of("the same, small models", "per_eager", "<", 1, SMALL),
        of("torch's lazy backend over ours", "gain", ">=", 5),
        goal("losses are eager's", works, ">=", 1),
        goal("GPT-2 works", [pair for pair in works if pair[1] == "GPT-2"], ">=", 1),
    ]


def main(arguments: list[str]) -> int:
    parser = Options("lazy", __doc__, repeats=15)
    parser.add_argument("--models", default=",".join(CASES), help="names with commas between them; default: all")
    parser.add_argument("--optimizer", default="SGD", help="of torch.optim; default SGD")
    parser.add_argument("--no-incumbent", action="store_true", help="leave torch's lazy backend out")
    options = parser.parse(arguments)
    cases = [case for case in options.models.split(",") if case]
    if unknown := set(cases) - set(CASES):
        parser.error(f"no such models: {', '.join(sorted(unknown))}; there are: {', '.join(CASES)}")
    if not models.has_transformers():
        cases = [case for case in cases if case not in FROM_TRANSFORMERS]
    prepare()
    torch.set_grad_enabled(True)
    magneto.lazy.init()
    rows = recording(options.repeats)
    rows += [training(case, options.optimizer, options.repeats) for case in with_progress(cases, "training")]
    remarks = [] if options.no_incumbent else add_incumbents(rows, options.optimizer, min(options.repeats, 5))
    print(table(COLUMNS, rows))
    print("\nwall time (cpu: processor time), minima; torch lazy: PyTorch's own lazy backend")
    print("ops, runs of graphs, fallbacks: in a step; new graphs: in all steps that were measured")
    for remark in remarks:
        print(remark)
    finish("lazy", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
