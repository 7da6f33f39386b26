"""The demo: compile a GPT-2-sized model, infer, generate and train, check it bit by bit, time it beside torch.compile.

Run it with ./run demo. It prints a table and writes a report to build/demo.html.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import importlib.util
import os
import platform
import shutil
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import magneto
import torch
from report import Contender, Report, milliseconds
from torch import nn

ROOT = Path(__file__).resolve().parent.parent
GRAPH_LINES = 40
RACE_SECONDS = 20
TRAINING_TURNS = 5
NEW_TOKENS = 12


class Progress:
    """A bar on a terminal, plain lines elsewhere. No thread draws it, so that nothing disturbs what is timed."""

    def __init__(self, steps: int) -> None:
        self.steps, self.done, self.name = steps, 0, ""
        self.live = sys.stdout.isatty()
        self.started = time.perf_counter()

    def start(self, name: str) -> None:
        self.name, self.started = name, time.perf_counter()
        self._draw("...")

    def note(self, text: str) -> None:
        """Something to show while the step goes on."""
        if self.live:
            self._draw(text)

    def finish(self, text: str = "") -> None:
        self.done += 1
        took = f"{time.perf_counter() - self.started:5.1f} s"
        if self.live:
            self._draw(text)
            print()
        else:
            print(f"[{self.done}/{self.steps}] {self.name:<34} {took}  {text}".rstrip(), flush=True)

    def _draw(self, text: str) -> None:
        if self.live:
            width = 24
            full = width * self.done // self.steps
            bar = "█" * full + "░" * (width - full)
            took = f"{time.perf_counter() - self.started:5.1f} s"
            line = f"{bar} {self.done}/{self.steps} {self.name:<34} {took}  {text}"
            print("\r\x1b[2K" + line[: shutil.get_terminal_size().columns - 1], end="", flush=True)


class Block(nn.Module):
    """One layer of the stand-in for GPT-2."""

    def __init__(self, hidden: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(hidden), nn.LayerNorm(hidden)
        self.qkv, self.out = nn.Linear(hidden, 3 * hidden), nn.Linear(hidden, hidden)
        self.up, self.down = nn.Linear(hidden, 4 * hidden), nn.Linear(4 * hidden, hidden)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, hidden = x.shape
        heads = (
            part.view(batch, length, self.heads, -1).transpose(1, 2) for part in self.qkv(self.norm1(x)).chunk(3, -1)
        )
        mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(batch, length, hidden))
        return x + self.down(nn.functional.gelu(self.up(self.norm2(x)), approximate="tanh"))


class PlainGPT(nn.Module):
    """GPT-2's shape in plain torch, for machines without `transformers`."""

    def __init__(self, layers: int, hidden: int, heads: int, vocabulary: int, positions: int) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, hidden), nn.Embedding(positions, hidden)
        self.blocks = nn.ModuleList(Block(hidden, heads) for _ in range(layers))
        self.norm = nn.LayerNorm(hidden)

    def forward(self, input_ids: torch.Tensor) -> torch.Tensor:
        x = self.tokens(input_ids) + self.positions(torch.arange(input_ids.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.norm(x) @ self.tokens.weight.t()


def size_for_this_machine() -> tuple[int, int, int]:
    """Layers, hidden size, heads: GPT-2 small where two copies of its weights fit easily, else a smaller sister."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 8 << 30
    return (12, 768, 12) if memory >= 4 << 30 else (6, 512, 8)


def build(layers: int, hidden: int, heads: int) -> tuple[nn.Module, str]:
    """The model, and what to call it."""
    torch.manual_seed(0)
    vocabulary, positions = 50257, 1024
    if importlib.util.find_spec("transformers"):
        from transformers import GPT2Config, GPT2LMHeadModel

        config = GPT2Config(n_layer=layers, n_embd=hidden, n_head=heads, vocab_size=vocabulary, n_positions=positions)
        return GPT2LMHeadModel(config).eval(), "GPT-2 of transformers, random weights"
    return PlainGPT(layers, hidden, heads, vocabulary, positions).eval(), "GPT-2's shape in plain torch"


def logits(result: Any) -> torch.Tensor:
    return result if isinstance(result, torch.Tensor) else result.logits


def continued(call: Callable[[torch.Tensor], Any], ids: torch.Tensor) -> torch.Tensor:
    """The text and what the model finds most likely behind it, one call a token: each call is longer than the last."""
    for _ in range(NEW_TOKENS):
        ids = torch.cat([ids, logits(call(ids))[:, -1:].argmax(-1)], 1)
    return ids


def clock_ms(function: Callable[[], Any]) -> tuple[float, Any]:
    """Wall time of one call in ms, and its result."""
    start = time.perf_counter()
    result = function()
    return (time.perf_counter() - start) * 1e3, result


def work_ms(function: Callable[[], Any]) -> float:
    """Processor time of one call in ms: what else the machine does hardly counts. For one thread only."""
    start = time.process_time()
    function()
    return (time.process_time() - start) * 1e3


class Demo:
    """The phases of the demo in order, and what they found."""

    def __init__(self, options: argparse.Namespace) -> None:
        self.options = options
        self.progress = Progress(9 if options.inductor else 8)
        self.first: dict[str, float] = {}
        self.calls: dict[str, Callable[[torch.Tensor], Any]] = {}
        self.best: dict[str, float] = {}
        self.step: dict[str, float] = {}
        self.text: dict[str, float] = {}
        self.equal = False
        self.turns = 0

    def prompt(self, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        return torch.randint(0, 50257, (1, self.options.tokens), generator=generator)

    def run(self) -> None:
        self.build()
        self.eager()
        self.magneto()
        self.check()
        self.peer("torch.compile", "eager")
        if self.options.inductor:
            self.peer("torch.compile, inductor", "inductor")
        self.race()
        self.generate()
        self.train()

    def build(self) -> None:
        self.progress.start("build the model")
        self.model, self.title = build(*self.options.size)
        self.parameters = sum(p.numel() for p in self.model.parameters())
        self.progress.finish(f"{self.parameters / 1e6:.0f} M parameters")

    def eager(self) -> None:
        self.progress.start("eager, to warm up")
        self.calls["eager"] = self.model
        self.first["eager"], _ = clock_ms(lambda: self.calls["eager"](self.prompt(0)))
        warm = min(clock_ms(lambda: self.calls["eager"](self.prompt(0)))[0] for _ in range(3))
        self.progress.finish(f"{milliseconds(warm)} per call")

    def magneto(self) -> None:
        self.progress.start("magneto.compile, first call")
        self.compiled = magneto.compile(self.model)
        self.calls["magneto"] = self.compiled
        self.first["magneto"], self.first_result = clock_ms(lambda: self.calls["magneto"](self.prompt(1)))
        self.progress.finish(milliseconds(self.first["magneto"]))

    def check(self) -> None:
        self.progress.start("check against eager, bit by bit")
        pairs = [(self.first_result, self.calls["eager"](self.prompt(1)))]
        for seed in range(2, 6):
            self.progress.note(f"prompt {seed}")
            pairs.append((self.calls["magneto"](self.prompt(seed)), self.calls["eager"](self.prompt(seed))))
        self.equal = all(torch.equal(logits(ours), logits(eager)) for ours, eager in pairs)
        self.explanation = magneto.explain(self.compiled)(self.prompt(1))
        self.progress.finish(f"{len(pairs)} prompts: {'equal' if self.equal else 'DIFFERENT'}")

    def peer(self, name: str, backend: str) -> None:
        self.progress.start(f"{name}, first call")
        self.calls[name] = torch.compile(self.model, backend=backend)
        self.first[name], _ = clock_ms(lambda: self.calls[name](self.prompt(1)))
        self.calls[name](self.prompt(2))
        self.progress.finish(milliseconds(self.first[name]))

    def race(self) -> None:
        self.progress.start("all take turns")
        self.best = dict.fromkeys(self.calls, float("inf"))
        end = time.perf_counter() + RACE_SECONDS
        while self.turns < self.options.repeats and (self.turns < 3 or time.perf_counter() < end):
            self.progress.note(f"turn {self.turns + 1} of {self.options.repeats}")
            ids = self.prompt(self.turns)
            for name, call in self.calls.items():
                once = functools.partial(call, ids)
                took = work_ms(once) if self.options.threads == 1 else clock_ms(once)[0]
                self.best[name] = min(self.best[name], took)
            self.turns += 1
        self.progress.finish(f"{self.turns} turns")

    def generate(self) -> None:
        self.progress.start(f"generate {NEW_TOKENS} tokens")
        texts = {}
        for name, call in self.calls.items():
            self.progress.note(name)
            self.text[name], texts[name] = clock_ms(functools.partial(continued, call, self.prompt(1)))
        equal = torch.equal(texts["magneto"], texts["eager"])
        self.equal &= equal
        self.progress.finish(f"{milliseconds(self.text['magneto'])}, {'equal' if equal else 'DIFFERENT'}")

    def train(self) -> None:
        self.progress.start("train, forward and backward")
        self.step = dict.fromkeys(self.calls, float("inf"))
        equal = True
        for turn in range(TRAINING_TURNS):
            self.progress.note(f"turn {turn + 1} of {TRAINING_TURNS}")
            for name in self.calls:
                once = functools.partial(self.training_step, name, self.prompt(turn))
                took = work_ms(once) if self.options.threads == 1 else clock_ms(once)[0]
                self.step[name] = min(self.step[name], took)
                if name == "eager":
                    expected = [parameter.grad for parameter in self.model.parameters()]
                elif name == "magneto":
                    equal &= all(map(torch.equal, expected, (p.grad for p in self.model.parameters())))
        self.equal &= equal
        self.progress.finish(f"{TRAINING_TURNS} turns, gradients {'equal' if equal else 'DIFFERENT'}")

    def training_step(self, name: str, ids: torch.Tensor) -> None:
        self.model.zero_grad()
        backwards = contextlib.nullcontext() if name == "magneto" else magneto.compiled_autograd.disable()
        with torch.enable_grad(), backwards:
            logits(self.calls[name](ids)).square().mean().backward()


def rows_of(demo: Demo) -> list[list[str]]:
    """The table: one row for each contender."""
    eager = demo.best["eager"]
    rows = []
    for name in ("eager", *(name for name in demo.calls if name.startswith("torch")), "magneto"):
        ratio = f"{eager / demo.best[name]:.2f}x"
        trained = f"{demo.step['eager'] / demo.step[name]:.2f}x"
        first, later, text, step = (
            milliseconds(times[name]) for times in (demo.first, demo.best, demo.text, demo.step)
        )
        rows.append([name, first, later, ratio, text, step, trained])
    return rows


COLUMNS = [
    "",
    "first call",
    "later call",
    "against eager",
    f"{NEW_TOKENS} new tokens",
    "training step",
    "against eager",
]


def notes_of(demo: Demo) -> list[str]:
    """What a fair reader should know about the figures."""
    compiled = demo.explanation.state == "compiled"
    threads = torch.get_num_threads()
    notes = [
        f"First calls in wall time, later calls in {'processor' if threads == 1 else 'wall'} time, {threads} "
        f"thread{'s' if threads > 1 else ''}, the best of {demo.turns} turns in which all contenders alternate. The "
        "eager first call warms the libraries up for everyone.",
        'torch.compile runs with backend="eager": the same kernels as Magneto, so that the figures show the cost of '
        "getting to them.",
        f"The {NEW_TOKENS} new tokens are calls with a text that grows: what has to be compiled anew for that, with "
        "sizes that may change, is part of the time.",
        "A training step is a forward and its backward, without an optimiser. Magneto compiles both; gradients were "
        "compared with eager's bit by bit, too.",
    ]
    if not demo.options.inductor:
        compiler = shutil.which(os.environ.get("CXX", "g++"))
        notes.append(
            "There is a C++ compiler here: ./run demo --inductor adds torch.compile's code generator, which compiles "
            "for a minute or more and then runs fused kernels; on a processor Magneto calls torch's kernels one by one."
            if compiler
            else "torch.compile's code generator was left out: it needs a C++ compiler, and there is none here."
        )
    if not compiled:
        notes.insert(0, "Magneto left this model eager: " + "; ".join(demo.explanation.reasons or ["no reason given"]))
    return notes


def print_table(rows: list[list[str]]) -> None:
    widths = [max(len(row[index]) for row in [COLUMNS, *rows]) for index in range(len(COLUMNS))]
    for row in [COLUMNS, *rows]:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        print("  " + "   ".join(cells))


def facts() -> dict[str, str]:
    cpu = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        found = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        cpu = found[0] if found else cpu
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") / 2**30 if hasattr(os, "sysconf") else 0
    return {
        "Processor": f"{cpu}, {os.cpu_count()} cores, {memory:.0f} GB of memory",
        "System": f"{platform.system()} {platform.machine()}, Python {platform.python_version()}",
        "Versions": f"magneto {magneto.__version__}, torch {torch.__version__}",
    }


def report_of(demo: Demo, rows: list[list[str]]) -> Report:
    names = [row[0] for row in rows]
    contenders = [Contender(name, demo.first[name], demo.best[name], name == "magneto") for name in names]
    compiled = demo.explanation.state == "compiled"
    graph = demo.explanation.graphs[0].splitlines() if demo.explanation.graphs else ["(no graph: it runs eagerly)"]
    steps = [line for line in graph if not line.startswith(("state ", "constant "))]
    gain = demo.first["torch.compile"] / demo.first["magneto"]
    speed = demo.best["eager"] / demo.best["magneto"]
    tiles = [
        ("equal" if demo.equal else "different", "to eager, bit by bit", "good" if demo.equal else "bad"),
        (milliseconds(demo.first["magneto"]), "first call, which is watched and compiled", ""),
        (f"{gain:.0f}x", "as fast to the first result as torch.compile", "good" if gain > 1 else "bad"),
        (f"{speed:.2f}x", "as fast in a later call as eager", "good" if speed > 1 else "bad"),
    ]
    layers, hidden, _ = demo.options.size
    subtitle = f"{demo.title}: {layers} layers, hidden size {hidden}, {demo.parameters / 1e6:.0f} M parameters"
    return Report(
        title="Magneto compiled this model" if compiled else "Magneto left this model eager",
        subtitle=f"{subtitle}, {demo.options.tokens} tokens a call",
        tiles=tiles,
        columns=COLUMNS,
        rows=rows,
        contenders=contenders,
        notes=notes_of(demo),
        explanation=str(demo.explanation),
        graph="\n".join(steps[:GRAPH_LINES]),
        picture=magneto.Graph.parse(demo.explanation.graphs[0]).to_svg() if demo.explanation.graphs else "",
        graph_caption=f"The first {min(GRAPH_LINES, len(steps))} of {len(steps)} lines, without the "
        f"{len(graph) - len(steps)} that name weights, buffers and constants",
        facts=facts(),
    )


def parse(arguments: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="./run demo", description=__doc__.split("\n")[0])
    layers, hidden, heads = size_for_this_machine()
    parser.add_argument("--layers", type=int, default=layers, help=f"default here: {layers}")
    parser.add_argument("--hidden", type=int, default=hidden, help=f"default here: {hidden}")
    parser.add_argument("--tokens", type=int, default=8, help="tokens a call; default 8")
    parser.add_argument("--threads", type=int, default=1, help="default 1, which other programs disturb the least")
    parser.add_argument("--repeats", type=int, default=15, help="turns for each contender; default 15")
    parser.add_argument("--inductor", action="store_true", help="also time torch.compile's code generator")
    parser.add_argument("--report", type=Path, default=ROOT / "build" / "demo.html", help="where the report goes")
    options = parser.parse_args(arguments)
    options.size = (options.layers, options.hidden, heads)
    least = min(options.layers, options.hidden, options.tokens, options.repeats, options.threads)
    if least < 1 or options.hidden % heads or options.tokens > 1024:
        parser.error(f"every number must be positive, tokens at most 1024, hidden a multiple of {heads}")
    if options.inductor and not shutil.which(os.environ.get("CXX", "g++")):
        parser.error("--inductor needs a C++ compiler, and there is none here")
    return options


def main(arguments: list[str]) -> int:
    options = parse(arguments)
    warnings.simplefilter("ignore")
    torch.set_grad_enabled(False)
    torch.set_num_threads(options.threads)
    demo = Demo(options)
    demo.run()
    rows = rows_of(demo)
    print()
    print_table(rows)
    print()
    print(demo.explanation)
    print()
    for note in notes_of(demo):
        print(note)
    path = report_of(demo, rows).write(options.report)
    print(f"\nThe report: {path}")
    return 0 if demo.equal else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
