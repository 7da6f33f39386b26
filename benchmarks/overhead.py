"""What does a compiled call cost around its kernels? Steady calls of small programs: eager, Magneto, torch.compile.

Method: one process, one thread per operation, processor time, under no_grad, with the collector off. A turn is a loop
of calls as a program would write it, long enough for the clock. All programs and contenders take turns, so that a slow
spell hits all of them, and each figure is the minimum. First eager and Magneto, then, as torch.compile's first use
patches nn.Module for the whole process, all of them again: ratios to eager are of the first round, those to
torch.compile of the second.

Programs: `x + 1` of four floats, by a function. 1 to 50 layers: an nn.Sequential of nn.Linear(32, 32) on one row of 32
floats. BERT-small: 4 layers, hidden size 512, 8 heads, intermediate size 2048, one sentence of 16 tokens: there the
kernels take most of the time. torch.compile runs with backend="eager", so that all run the same kernels and only the
work around them differs; `--inductor` adds its default backend, which compiles kernels of its own (minutes).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import Any

import magneto
import torch
from _common import Goal, Options, finish, goal_of, least, table, us, with_progress
from _zoo import collector_off, prepare
from zoo import harness, models

COLUMNS = {
    "case": "program",
    "eager_us": "eager us",
    "magneto_us": "ours us",
    "over_eager_us": "over eager us",
    "per_eager": "ours/eager",
    "incumbent_us": "tc us",
    "per_incumbent": "ours/tc",
    "inductor_us": "tc inductor us",
    "per_inductor": "ours/tc inductor",
}
LAYERS = (1, 3, 20, 50)
SAMPLE_US = 2000
Program = tuple[Callable[..., Any], dict[str, torch.Tensor]]


def add_one(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def layers(count: int) -> Program:
    stack = torch.nn.Sequential(*(torch.nn.Linear(32, 32) for _ in range(count)))
    return stack.eval(), {"input": torch.randn(1, 32)}


def bert_small() -> Program:
    import transformers

    sizes = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
    return transformers.BertModel(transformers.BertConfig(**sizes)).eval(), {"input_ids": torch.arange(16)[None]}


def programs() -> dict[str, Callable[[], Program]]:
    made: dict[str, Callable[[], Program]] = {"x + 1": lambda: (add_one, {"x": torch.ones(4)})}
    made |= {f"{count} layer{'s' * (count > 1)}": functools.partial(layers, count) for count in LAYERS}
    return {**made, **({"BERT-small": bert_small} if models.has_transformers() else {})}


class Contest:
    """One program and all its contenders."""

    def __init__(self, case: str, make: Callable[[], Program]) -> None:
        self.function, self.inputs = make()
        self.contenders = {"eager": self.function, "magneto": magneto.compile(self.function)}
        self.row: dict[str, Any] = {"case": case, "unit": "us"}

    def __str__(self) -> str:
        return self.row["case"]

    def add_incumbent(self, inductor: bool) -> None:
        self.contenders["incumbent"] = torch.compile(self.function, backend="eager")
        if inductor:
            self.contenders["inductor"] = torch.compile(self.function)

    def warm(self) -> None:
        for _ in range(2):  # what one does to nn.Module the others have to meet before they are measured
            for function in self.contenders.values():
                us(function, 10, **self.inputs)

    def timers(self) -> dict[Any, Callable[[], float]]:
        count = max(1, round(SAMPLE_US / us(self.function, 10, **self.inputs)))

        def turn(function: Callable[..., Any]) -> float:
            function(**self.inputs)  # the others have used the caches
            return us(function, count, **self.inputs)

        return {(self, name): functools.partial(turn, function) for name, function in self.contenders.items()}


def take_turns(contests: list[Contest], repeats: int) -> list[tuple[dict[str, Any], dict[str, float]]]:
    """Rows, and the least us of a call of each contender. Figures of a program that is not compiled are none."""
    for contest in contests:
        contest.warm()
    timers = {key: timer for contest in contests for key, timer in contest.timers().items()}
    names = ("calls", "hits")
    before = [harness.stat(name) for name in names]
    with collector_off():
        found = least(timers, repeats)
    calls, hits = (harness.stat(name) - old for name, old in zip(names, before, strict=True))
    if hits != calls:
        reasons = {str(contest): harness.why_eager(contest.contenders["magneto"]) for contest in contests}
        raise SystemExit(f"{calls - hits} of {calls} calls were not compiled: {reasons}")
    return [(contest.row, {name: found[contest, name] for name in contest.contenders}) for contest in contests]


def measure(contests: list[Contest], repeats: int) -> None:
    """Eager and Magneto."""
    for row, found in take_turns(contests, repeats):
        row |= {f"{name}_us": time for name, time in found.items()}
        row["over_eager_us"] = found["magneto"] - found["eager"]
        row["per_eager"] = found["magneto"] / found["eager"]


def measure_incumbent(contests: list[Contest], inductor: bool, repeats: int) -> None:
    """All of them. The stacks of layers share their code, and with it torch.compile's limit."""
    torch._dynamo.config.recompile_limit = 4 * len(contests)
    for contest in with_progress(contests, "torch.compile"):
        contest.add_incumbent(inductor)
        contest.warm()
    for row, found in take_turns(contests, repeats):
        eager, ours = found.pop("eager"), found.pop("magneto")
        row |= {"eager_beside_incumbent_us": eager, "magneto_beside_incumbent_us": ours}
        for name, time in found.items():
            row |= {f"{name}_us": time, f"{name}_over_eager_us": time - eager, f"per_{name}": ours / time}


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    of = functools.partial(goal_of, rows)
    return [
        of("x + 1 over eager in us", "over_eager_us", "<=", 1, "x + 1"),
        of("50 layers, in eager's time", "per_eager", "<=", 0.5, "50 layers"),
        of('in the time of torch.compile(backend="eager")', "per_incumbent", "<", 1),
        of("in the time of torch.compile()", "per_inductor", "<", 1),
    ]


def main(arguments: list[str]) -> int:
    parser = Options("overhead", __doc__, repeats=200)
    parser.add_argument("--no-incumbent", action="store_true", help="leave torch.compile out")
    parser.add_argument("--inductor", action="store_true", help="also torch.compile's default backend (needs g++)")
    options = parser.parse(arguments)
    prepare()
    contests = [Contest(case, make) for case, make in programs().items()]
    measure(contests, options.repeats)
    if not options.no_incumbent:
        measure_incumbent(contests, options.inductor, options.repeats)
    rows = [contest.row for contest in contests]
    print(table(COLUMNS, rows))
    print("\nprocessor time of a call, minima; tc = torch.compile, eager backend")
    finish("overhead", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
