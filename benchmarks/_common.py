"""What the benchmarks share: timing by interleaved minima, facts about the machine, tables and JSON."""

from __future__ import annotations

import argparse
import functools
import gc
import importlib.metadata
import json
import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent


def use_the_zoo() -> None:
    """Make `from zoo import models` work."""
    sys.path.insert(0, str(ROOT / "tests"))


def cpu_ms(function: Callable[[], Any]) -> float:
    """The processor time of one call, of all threads of this process, in milliseconds."""
    start = time.process_time_ns()
    function()
    return (time.process_time_ns() - start) / 1e6


def interleaved_minima(functions: dict[str, Callable[[], Any]], repeats: int) -> dict[str, float]:
    """The least processor time of each function, in ms; they take turns, so that a slow spell hits all of them."""
    gc.collect()
    return least({name: functools.partial(cpu_ms, function) for name, function in functions.items()}, repeats)


def us(function: Callable[..., Any], count: int, *args: Any, **kwargs: Any) -> float:
    """Microseconds of processor time for each of `count` calls."""
    start = time.process_time_ns()
    for _ in range(count):
        function(*args, **kwargs)
    return (time.process_time_ns() - start) / 1e3 / count


def least(functions: dict[str, Callable[[], float]], repeats: int) -> dict[str, float]:
    """The least that each of these timers says; they take turns."""
    best = dict.fromkeys(functions, float("inf"))
    for _ in range(repeats):
        for name, function in functions.items():
            best[name] = min(best[name], function())
    return best


def with_progress(items: Sequence[Any], what: str) -> Iterator[Any]:
    """The items (names, rows, or what has a name as its text), with a line on the terminal that says how far it is."""
    for index, item in enumerate(items, 1):
        name = item["case"] if isinstance(item, dict) else str(item)
        print(f"\r{what} [{index}/{len(items)}] {name:<30}", end="", file=sys.stderr, flush=True)
        yield item
    print(f"\r{'':<70}\r", end="", file=sys.stderr, flush=True)


@dataclass
class Goal:
    """A figure to reach. `value` is the worst case that was measured."""

    name: str
    value: float | None
    goal: str
    met: bool | None


def goal(name: str, values: Sequence[tuple[float, str]], limit: str, bound: float) -> Goal:
    """A goal of the form `<= 3` or `>= 30` over (value, case) pairs; the name says which case is the worst."""
    if not values:
        return Goal(name, None, f"{limit} {bound:g}", None)
    worst, case = max(values) if limit.startswith("<") else min(values)
    met = {"<=": worst <= bound, "<": worst < bound, ">=": worst >= bound, ">": worst > bound}[limit]
    return Goal(f"{name} (worst: {case})", round(worst, 3), f"{limit} {bound:g}", met)


def goal_of(rows: Sequence[dict[str, Any]], name: str, figure: str, limit: str, bound: float, case: str = "") -> Goal:
    """A goal for a figure of all rows that have it, or of one case."""
    found = [(row[figure], row["case"]) for row in rows if figure in row and case in ("", row["case"])]
    return goal(name, found, limit, bound)


def machine() -> dict[str, Any]:
    """What a reader must know about the hardware."""
    model = platform.processor() or platform.machine()
    cpuinfo = Path("/proc/cpuinfo")
    if cpuinfo.exists():
        lines = [line.partition(":")[2].strip() for line in cpuinfo.read_text().splitlines() if "model name" in line]
        model = lines[0] if lines else model
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else 0
    return {
        "cpu": model,
        "cores": len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count(),
        "memory_gb": round(memory / 2**30, 1),
        "system": f"{platform.system()} {platform.machine()}",
    }


def versions() -> dict[str, str]:
    """The versions of everything that decides a figure."""
    found = {"python": platform.python_version()}
    for package in ("magneto", "torch", "transformers"):
        try:
            found[package] = importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            module = sys.modules.get(package)
            found[package] = getattr(module, "__version__", "absent")
    return found


def table(columns: dict[str, str], rows: Sequence[dict[str, Any]]) -> str:
    """A plain-text table of the columns that some row has: the first to the left, figures to the right."""
    keys = [key for key in columns if any(key in row for row in rows)]
    texts = [[columns[key] for key in keys]] + [[_text(row.get(key)) for key in keys] for row in rows]
    widths = [max(len(row[index]) for row in texts) for index in range(len(keys))]
    lines = []
    for row in texts:
        cells = [row[0].ljust(widths[0])] + [cell.rjust(width) for cell, width in zip(row[1:], widths[1:], strict=True)]
        lines.append("  ".join(cells).rstrip())
    lines.insert(1, "  ".join("-" * width for width in widths))
    return "\n".join(lines)


def _text(cell: Any) -> str:
    if cell is None:
        return "-"
    if isinstance(cell, float):
        return f"{cell:.0f}" if abs(cell) >= 1000 else f"{cell:.1f}" if abs(cell) >= 100 else f"{cell:.2f}"
    return str(cell)


class Options(argparse.ArgumentParser):
    """What every suite can be asked for; a suite adds its own."""

    def __init__(self, suite: str, doc: str, repeats: int) -> None:
        super().__init__(prog=f"./run bench {suite}", description=doc.split("\n")[0])
        self.add_argument("--json", metavar="FILE", help="also write the results as JSON")
        self.add_argument("--repeats", type=int, default=repeats, help=f"turns for each figure; default {repeats}")

    def parse(self, arguments: list[str]) -> argparse.Namespace:
        options = self.parse_args(arguments)
        if options.repeats < 1:
            self.error("--repeats must be at least 1")
        return options


def write_json(
    path: str, suite: str, arguments: Sequence[str], rows: Sequence[dict[str, Any]], goals: Sequence[Goal]
) -> None:
    """The results as data, in the shape that all suites share."""
    content = {
        "suite": suite,
        "command": " ".join(["./run bench", suite, *arguments]),
        "machine": machine(),
        "versions": versions(),
        "rows": rows,
        "goals": [asdict(item) for item in goals],
    }
    Path(path).parent.mkdir(parents=True, exist_ok=True)
    Path(path).write_text(json.dumps(content, indent=2) + "\n")


def finish(
    suite: str, arguments: Sequence[str], json_file: str | None, rows: Sequence[dict[str, Any]], goals: Sequence[Goal]
) -> None:
    """Say which goals were reached, and write the results if that was asked for."""
    for item in goals:
        verdict = {True: "met", False: "MISSED", None: "not measured"}[item.met]
        print(f"{verdict:>12}  {item.name}: {item.value} (goal {item.goal})")
    if json_file:
        given = [word for word in arguments if not word.startswith("--json") and word != json_file]
        write_json(json_file, suite, given, rows, goals)
        print(f"\nwritten to {json_file}")
