"""Runs modules of CPython's own test-suite plainly and under Magneto, and compares test by test.

python runner.py [watch|capture] test_grammar ...      what differs, with the tracebacks
"""

from __future__ import annotations

import functools
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).parent
MODES = ("watch", "capture")
TIME_LIMIT_S = 900

RENAMED = {"test_unicode": "test_str"} if sys.version_info >= (3, 13) else {}
MODULES = [RENAMED.get(name, name) for name in (HERE / "modules.txt").read_text(encoding="utf-8").split()]
SAMPLE = MODULES[:16]  # without --full


@dataclass
class Run:
    outcomes: dict[str, list[str]]  # by test, in order
    output: str
    end: str  # "finished", or why not
    events: int = 0  # of which we were told: tests that start and end
    watched: int = 0  # by our interpreter, of these
    hits: int = 0  # calls that programs have made


@functools.cache
def run(module: str, mode: str) -> Run:
    core = os.environ.get("MAGNETO_CORE") or str(HERE.parents[2] / "python" / "magneto")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "outcomes"
        path.touch()
        command = [sys.executable, "-P", HERE / "child.py", module, mode, path]
        environment = {**os.environ, "MAGNETO_CORE": core, "PYTHONHASHSEED": "0"}
        try:
            result = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, errors="replace", timeout=TIME_LIMIT_S
            )
            end, output = f"exit status {result.returncode}", result.stderr
        except subprocess.TimeoutExpired as expired:
            end, output = f"took more than {TIME_LIMIT_S} s", (expired.stderr or b"").decode(errors="replace")
        outcomes: dict[str, list[str]] = {}
        for line in path.read_text(encoding="utf-8").splitlines():
            name, event = json.loads(line)
            outcomes.setdefault(name.removeprefix("test."), []).append(event)
    finished = outcomes.pop("", [])
    if finished and end == "exit status 0":
        end = "finished"
    return Run(outcomes, output, end, *map(int, finished[0].split()[1:] if finished else ()))


def differences(module: str, mode: str) -> dict[str, str]:
    """By test: what it is under Magneto, and what it should be. A run that does not end differs as a whole."""
    plain, ours = run(module, "plain"), run(module, mode)
    found = {}
    if ours.end != plain.end:
        last = list(ours.outcomes)[-1] if ours.outcomes else "nothing"
        found[module] = f"{ours.end} after {last}, not {plain.end}"
    for name in plain.outcomes | ours.outcomes:
        expected, actual = plain.outcomes.get(name), ours.outcomes.get(name)
        if expected != actual and (actual or ours.end == plain.end):
            found[name] = f"{shown(actual)}, not {shown(expected)}"
    return found


def shown(events: list[str] | None) -> str:
    return ", ".join(event for event in events if event != "started") if events else "not run"


def exceptions(module: str, mode: str) -> dict[str, str]:
    """By test: why it differs on this version of Python; a name with `?` only may."""
    version = f"{sys.version_info[0]}.{sys.version_info[1]}"
    found = {}
    for line in (HERE / "exceptions.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        versions, modes, name, reason = line.split(maxsplit=3)
        if version in versions.split(",") and mode in modes.split(",") and name.split(".")[0] == module:
            found[name] = reason
    return found


def verdict(found: Iterable[str], expected: Iterable[str]) -> tuple[set[str], set[str]]:
    """What differs although nobody expected it, and what should differ but does not."""
    must = {name for name in expected if not name.endswith("?")}
    may = {name.removesuffix("?") for name in expected}
    return set(found) - may, must - set(found)


def main(words: list[str]) -> None:
    modes = [word for word in words if word in MODES] or MODES
    for module in [word for word in words if word not in MODES] or MODULES:
        for mode in modes:
            found, expected = differences(module, mode), exceptions(module, mode)
            new, needless = verdict(found, expected)
            ours = run(module, mode)
            work = f"{ours.watched} of {ours.events} events watched" if mode == "watch" else f"{ours.hits} hits"
            print(f"{module} {mode}: {len(ours.outcomes)} tests, {len(found)} differ, {len(new)} new; {work}")
            for name in sorted(new):
                print(f"  {name}: {found[name]}")
            for name in sorted(needless):
                print(f"  {name}: differs no more")
            if new:
                print(ours.output)


if __name__ == "__main__":
    main(sys.argv[1:])
