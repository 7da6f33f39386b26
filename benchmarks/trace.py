"""What does watching cost, and what do calls cost then? Plain-Python functions, without tensors, against CPython.

Method: one process, processor time, minima of repeats in which the contenders take turns. Each has a world of its own
(the cases are loaded once for each, as CPython adapts code to the objects it meets), and results are compared first. A
call is made in a `for` loop as a program would write it; what the empty loop takes is not counted. Calls compile
although there are no tensors in them (`without_tensors`), by `_core`, the part of Magneto that knows no torch.
"partial ns" is a functools.partial of the function, for comparison: no callable written in C is much faster than that
without knowing what the function does.

"first us" is the first call of a freshly compiled function, with all that is allocated and built, when CPython's code
is warm. "watch ns" is the part of it that is the call itself, for each instruction that the call executes; "CPython ns"
is the same for CPython. Where a call is short, what any watch costs is most of it: the goal is about long ones.

torch.compile (backend="eager") is measured in the same way, where torch is there, after all of Magneto's figures. It
compiles nothing without a tensor, so its figures show what its frame hook costs.
"""

from __future__ import annotations

import functools
import gc
import importlib.util
import itertools
import os
import sys
import time
import warnings
from collections.abc import Callable
from typing import Any

from _common import ROOT, Goal, Options, finish, goal, machine, table, versions

sys.path.insert(0, os.environ.get("MAGNETO_CORE") or str(ROOT / "python" / "magneto"))
import _core
from _trace_cases import READS, WATCH, Call, Case

COLUMNS = {
    "case": "function",
    "kind": "kind",
    "state": "state",
    "bytecodes": "bytecodes",
    "cpython_ns": "CPython ns",
    "partial_ns": "partial ns",
    "steady_ns": "steady ns",
    "steady_ratio": "steady/CPython",
    "incumbent_ns": "tc ns",
    "first_us": "first us",
    "first_ratio": "first/CPython",
    "incumbent_first_us": "tc first us",
    "watch_ns": "watch ns",
    "bytecode_ns": "CPython ns",
    "watch_ratio": "watch/CPython",
}
SAMPLE_NS = 50_000
Timer = Callable[[int], int]


def load_cases() -> list[Case]:
    """With code of their own."""
    spec = importlib.util.find_spec("_trace_cases")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module.cases


def make_timer(call: Call, function: Callable[..., Any] | None) -> Timer:
    """From a number of calls to what they take in ns. Without a function, of the loop alone."""
    names = [f"a{i}" for i in range(len(call.args))]
    passed = [*(["each"] if call.varying else []), *names, *(f"{name}={name}" for name in call.kwargs)]
    body = f"function({', '.join(passed)})" if function else "pass"
    source = f"""
def timer({", ".join(["function", *names, *call.kwargs])}):
    def run(count):
        values = islice(cycle(varying), count) if varying else repeat(None, count)
        start = now()
        for each in values:
            try:
                {body}
            except Exception:
                pass
        return now() - start
    return run
"""
    scope: dict[str, Any] = {
        "islice": itertools.islice,
        "cycle": itertools.cycle,
        "repeat": itertools.repeat,
        "varying": call.varying,
        "now": time.process_time_ns,
    }
    exec(source, scope)
    return scope["timer"](function, *call.args, **call.kwargs)


def outcome(call: Call, function: Callable[..., Any], turn: int) -> Any:
    varying = [call.varying[turn % len(call.varying)]] if call.varying else []
    try:
        return function(*varying, *call.args, **call.kwargs)
    except Exception as error:
        return repr(error)


def count_bytecodes(call: Call) -> int:
    """Of one call of the function, as it is written, and of all that it calls."""
    count = 0

    def trace(frame: Any, event: str, _: Any) -> Any:
        nonlocal count
        if frame.f_code is outcome.__code__:
            return None
        frame.f_trace_opcodes, frame.f_trace_lines = True, False
        count += event == "opcode"
        return trace

    sys.settrace(trace)
    try:
        outcome(call, call.function, 0)
    finally:
        sys.settrace(None)
    return count


def take_turns(timers: dict[str, Timer], count: int, repeats: int) -> dict[str, float]:
    """The least ns of a call."""
    best = dict.fromkeys(timers, float("inf"))
    for _ in range(repeats):
        for name, timer in timers.items():
            best[name] = min(best[name], timer(count) / count)
    return best


def measure_first(case: Case, repeats: int) -> dict[str, float]:
    """The least of a first call in us, and of its watch in ns."""
    calls = [case.make() for _ in range(repeats)]
    compiled = [_core.CompiledFunction(call.function, case.name) for call in calls]
    timers = [make_timer(call, function) for call, function in zip(calls, compiled, strict=True)]
    firsts = [timer(1) / 1e3 for timer in timers]
    watches = [variant["watch_ms"] * 1e6 for function in compiled for variant in function.variants()]
    return {"first_us": min(firsts), **({"watched_ns": min(watches)} if watches else {})}


def check(case: Case, ours: Call, compiled: Any, plain: Call) -> None:
    """Settles both, too: what is to be compiled is, what is given up is."""
    for turn in range(300):
        expected, actual = outcome(plain, plain.function, turn), outcome(ours, compiled, turn)
        if repr(expected) != repr(actual):  # their classes are not the same
            raise SystemExit(f"{case.name}: {actual!r} in place of {expected!r}")


def measure(case: Case, plain_case: Case, repeats: int) -> dict[str, Any]:
    plain, ours = plain_case.make(), case.make()
    compiled = _core.CompiledFunction(ours.function, case.name)
    check(case, ours, compiled, plain)
    timers = {
        "loop_ns": make_timer(plain, None),
        "cpython_ns": make_timer(plain, plain.function),
        "partial_ns": make_timer(plain, functools.partial(plain.function)),
        "steady_ns": make_timer(ours, compiled),
    }
    once = timers["cpython_ns"](20) / 20
    row = take_turns(timers, max(5, round(SAMPLE_NS / once)), repeats)
    cpython_ns, partial_ns, steady_ns = (
        row[f"{name}_ns"] - row["loop_ns"] for name in ("cpython", "partial", "steady")
    )
    bytecodes = count_bytecodes(plain_case.make())
    first = measure_first(case, min(repeats, 100))
    result = {
        "case": case.name,
        "kind": case.kind,
        "unit": "ns",
        "state": compiled.state(),
        "bytecodes": bytecodes,
        "cpython_ns": cpython_ns,
        "partial_ns": partial_ns,
        "steady_ns": steady_ns,
        "steady_ratio": steady_ns / cpython_ns,
        "first_us": first["first_us"],
        "first_ratio": first["first_us"] * 1e3 / cpython_ns,
        "bytecode_ns": cpython_ns / bytecodes,
    }
    if "watched_ns" in first:
        result["watch_ns"] = first["watched_ns"] / bytecodes
        result["watch_ratio"] = first["watched_ns"] / cpython_ns
    if variants := compiled.variants():
        result["guards"] = variants[0]["guard_count"]
    if why := [*compiled.failures(), *compiled.breaks()]:
        result["reason"] = why[0].partition(" (")[0]
    return result


def measure_incumbent(case: Case, row: dict[str, Any], repeats: int) -> None:
    import torch

    torch._dynamo.reset()
    call = case.make()
    compiled: Any = torch.compile(call.function, backend="eager")
    row["incumbent_first_us"] = make_timer(call, compiled)(1) / 1e3
    for turn in range(20):
        outcome(call, compiled, turn)
    timers = {"loop_ns": make_timer(call, None), "incumbent_ns": make_timer(call, compiled)}
    best = take_turns(timers, max(5, round(SAMPLE_NS / row["cpython_ns"])), repeats)
    row["incumbent_ns"] = best["incumbent_ns"] - best["loop_ns"]


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    def of(name: str, figure: str, kind: str | None, bound: float) -> Goal:
        found = [(row[figure], row["case"]) for row in rows if kind in (None, row["kind"]) and figure in row]
        return goal(name, found, "<=", bound)

    return [
        of("watching, in CPython's time for an instruction", "watch_ratio", WATCH, 3),
        of("a steady call that only reads state, in CPython's time", "steady_ratio", READS, 0.25),
        of("any steady call, in CPython's time", "steady_ratio", None, 1.1),
    ]


def main(arguments: list[str]) -> int:
    parser = Options("trace", __doc__, repeats=200)
    parser.add_argument("--only", metavar="WORDS", default="", help="only functions with these words in their names")
    parser.add_argument("--alone", action="store_true", help="without torch.compile")
    options = parser.parse(arguments)
    if why := _core.supported():
        print(f"nothing to measure: {why}")
        return 0
    _core.set_setting("without_tensors", True)
    print(", ".join(f"{key} {value}" for key, value in {**machine(), **versions()}.items()))
    worlds = zip(load_cases(), load_cases(), load_cases(), strict=True)
    chosen = [cases for cases in worlds if options.only in cases[0].name]
    gc.collect()
    gc.disable()
    rows = [measure(case, plain, options.repeats) for case, plain, _ in chosen]
    if not options.alone and versions()["torch"] != "absent":
        warnings.simplefilter("ignore")
        for (_, _, case), row in zip(chosen, rows, strict=True):
            measure_incumbent(case, row, options.repeats)
    print(table(COLUMNS, rows))
    print("\nprocessor time, minima, of a call or, in the last three columns, an instruction; tc = torch.compile")
    finish("trace", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
