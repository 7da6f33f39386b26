"""What does it cost to find out that nothing has changed? Our guards against torch.compile's guard manager.

Method: one process, processor time, minima of repeats in which the contenders take turns. The same function of the same
module is compiled by both. Ours is the time of the look-up alone, by the compiled function itself. The peer's is the
`check` of the guard manager in its cache entry, less what an empty manager takes, so that the way from Python to C++ is
not counted. "by hand" is a manager of `magneto.guards` with guards on every class, flag, dict of children and parameter
of the tree, timed in the same way as the peer's.

On CPython 3.11 ours finds out that no dict of the process was made or changed since the last look-up, and then looks at
none. The goals are about unchanged state, where that is so. "dict us" is the same look-up where it never is so: before
each, a dict changes that has nothing to do with it. That is what a program sees which makes dicts between its calls.

Ten entries: calls that differ in a number (an argument, or an attribute of the module) take turns, so that each finds
its entry behind the nine others. Ours is the look-up of the first entry (as in "dict us": such calls change dicts) plus
what a call costs more than one that finds its entry first. The peer's is the sum of the ten checks.
"""

from __future__ import annotations

import functools
import sys
import warnings
from collections.abc import Callable
from typing import Any

import magneto
import magneto.guards
import torch
from _common import Goal, Options, finish, goal, least, machine, table, us, use_the_zoo, versions

use_the_zoo()
from zoo import harness  # noqa: E402

COLUMNS = {
    "case": "guards of",
    "modules": "modules",
    "parameters": "parameters",
    "ours_us": "ours us",
    "dict_us": "dict us",
    "by_hand_us": "by hand us",
    "incumbent_us": "tc us",
    "gain": "tc/ours",
    "guards": "our guards",
}
SIZES = (20, 50, 200)
ENTRIES = 10


class Block(torch.nn.Module):
    """Four modules, of which two have a weight and a bias."""

    def __init__(self) -> None:
        super().__init__()
        self.linear = torch.nn.Linear(4, 4)
        self.act = torch.nn.ReLU()
        self.norm = torch.nn.LayerNorm(4)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.norm(self.act(self.linear(x)))


class Tree(torch.nn.Module):
    def __init__(self, modules: int) -> None:
        super().__init__()
        self.blocks = torch.nn.ModuleList(Block() for _ in range((modules - 2) // 4))
        self.scale = 1

    def forward(self, x: torch.Tensor, number: int = 1) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        return x * (number * self.scale)


def tiny(x: torch.Tensor) -> torch.Tensor:
    return x + 1


def guard_by_hand(module: torch.nn.Module, f_locals: dict[str, Any]) -> magneto.guards.RootGuardManager:
    root = magneto.guards.RootGuardManager()
    root.local_manager("x").add_tensor_guard(f_locals["x"])
    root.add_global_state_guard()

    def add(place: Any, module: torch.nn.Module) -> None:
        place.add_type_guard(type(module))
        place.getattr_manager("training").add_equals_guard(module.training)
        for name, parameter in module._parameters.items():
            place.getattr_manager("_parameters").getitem_manager(name).add_tensor_guard(parameter)
        place.getattr_manager("_modules").add_keys_guard(module._modules)
        for name, child in module._modules.items():
            add(place.getattr_manager("_modules").getitem_manager(name), child)

    add(root.local_manager("self"), module)
    return root


def peer_checks(code: Any, f_locals: dict[str, Any]) -> list[Callable[[], Any]]:
    """The checks of the peer's cache entries, ready to be called."""
    from torch._C._dynamo.eval_frame import _debug_get_cache_entry_list

    entries = _debug_get_cache_entry_list(code)
    return [functools.partial(entry.guard_manager.root.check, f_locals) for entry in entries]


def peer_overhead(f_locals: dict[str, Any]) -> Callable[[], Any]:
    from torch._C._dynamo.guards import RootGuardManager

    return functools.partial(RootGuardManager().check, f_locals)


def measure(case: str, module: torch.nn.Module | None, repeats: int) -> dict[str, Any]:
    """One entry, unchanged state."""
    x = torch.ones(1, 4)
    target: Any = module or tiny
    code = Tree.forward.__code__ if module else tiny.__code__
    f_locals = {"self": module, "x": x, "number": 1} if module else {"x": x}
    ours = magneto.compile(target)
    ours(x)
    native = harness.native(ours)
    if harness.state(ours) != "compiled":
        raise SystemExit(f"{case}: stays eager: {harness.why_eager(ours)}")
    torch._dynamo.reset()
    torch.compile(target, backend="eager")(x)
    checks = peer_checks(code, f_locals)
    if len(checks) != 1 or not checks[0]():
        raise SystemExit(f"{case}: the peer has {len(checks)} entries, and they do not fit")
    timers = {
        "ours_us": lambda: native.guard_ns(200, x) / 1e3,
        "dict_us": lambda: native.guard_ns_after_change(200, x) / 1e3,
        "incumbent_us": lambda: us(checks[0], 100),
        "overhead_us": lambda: us(peer_overhead(f_locals), 100),
    }
    if module:
        by_hand = guard_by_hand(module, f_locals)
        assert by_hand.check(f_locals), by_hand.check_verbose(f_locals)
        timers["by_hand_us"] = lambda: us(functools.partial(by_hand, f_locals), 100)
        timers["by_hand_overhead_us"] = lambda: us(functools.partial(magneto.guards.RootGuardManager(), f_locals), 100)
    row = least(timers, repeats)
    row["incumbent_us"] -= row.pop("overhead_us")
    if module:
        row["by_hand_us"] -= row.pop("by_hand_overhead_us")
    return {
        "case": case,
        "unit": "us",
        "modules": len(list(module.modules())) if module else 0,
        "parameters": len(list(module.parameters())) if module else 0,
        "guards": native.variants()[0]["guard_count"],
        **row,
        "gain": row["incumbent_us"] / row["ours_us"],
    }


def measure_ten(case: str, by_argument: bool, repeats: int) -> dict[str, Any]:
    """Ten entries that differ in a number; each call finds its own behind the nine others."""
    module, x = Tree(SIZES[0]), torch.ones(1, 4)

    def call(function: Any, number: int) -> Any:
        if by_argument:
            return function(x, number)
        module.scale = number
        return function(x)

    ours = magneto.compile(module, dynamic=False)
    theirs = torch.compile(module, backend="eager", dynamic=False)
    torch._dynamo.reset()
    # Twice: the entries of the second round are the ones that are found again.
    for number in [*range(ENTRIES)] * 2:
        call(ours, number)
        call(theirs, number)
    native = harness.native(ours)
    f_locals = {"self": module, "x": x, "number": 0 if by_argument else 1}
    module.scale = 0 if not by_argument else module.scale
    checks = peer_checks(Tree.forward.__code__, f_locals)
    if (
        len(native.variants()) != ENTRIES
        or len(checks) != ENTRIES
        or sum(map(bool, [check() for check in checks])) != 1
    ):
        raise SystemExit(f"{case}: {len(native.variants())} entries of ours, {len(checks)} of the peer")
    turns = [functools.partial(call, ours, number) for number in range(ENTRIES)]
    stays = [functools.partial(call, ours, 0) for _ in range(ENTRIES)]

    def all_of(functions: list[Callable[[], Any]]) -> Callable[[], Any]:
        return lambda: [function() for function in functions]

    arguments = (x, 0) if by_argument else (x,)
    call(ours, 0)
    timers = {
        "first_us": lambda: call(ours, 0) is None or native.guard_ns_after_change(200, *arguments) / 1e3,
        "turns_us": lambda: us(all_of(turns), 10) / ENTRIES,
        "stays_us": lambda: us(all_of(stays), 10) / ENTRIES,
        "incumbent_us": lambda: us(all_of(checks), 10),
        "overhead_us": lambda: us(all_of([peer_overhead(f_locals)] * ENTRIES), 10),
    }
    row = least(timers, repeats)
    ours_us = row["first_us"] + max(0.0, row["turns_us"] - row["stays_us"])
    return {
        "case": case,
        "unit": "us",
        "modules": len(list(module.modules())),
        "parameters": len(list(module.parameters())),
        "guards": native.variants()[0]["guard_count"],
        "ours_us": ours_us,
        "incumbent_us": row["incumbent_us"] - row["overhead_us"],
        "gain": (row["incumbent_us"] - row["overhead_us"]) / ours_us,
        "first_us": row["first_us"],
        "per_first": ours_us / row["first_us"],
    }


def goals(rows: list[dict[str, Any]]) -> list[Goal]:
    def of(name: str, figure: str, case: str, limit: str, bound: float) -> Goal:
        return goal(name, [(row[figure], row["case"]) for row in rows if row["case"].startswith(case)], limit, bound)

    return [
        of("guards of a tiny function in us", "ours_us", "a tiny function", "<", 0.2),
        of("guards of 200 modules in us", "ours_us", "200 modules", "<", 2),
        of("torch.compile's guards of 200 modules over ours", "gain", "200 modules", ">=", 20),
        of("the last of ten entries, in look-ups of the first", "per_first", "the last of ten", "<", ENTRIES),
    ]


def main(arguments: list[str]) -> int:
    options = Options("guards", __doc__, repeats=300).parse(arguments)
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    torch._dynamo.config.recompile_limit = magneto.config.cache_limit = 2 * ENTRIES
    print(", ".join(f"{key} {value}" for key, value in {**machine(), **versions()}.items()))
    rows = [measure("a tiny function", None, options.repeats)]
    rows += [measure(f"{size} modules", Tree(size).eval(), options.repeats) for size in SIZES]
    rows += [
        measure_ten("the last of ten, by an argument", True, options.repeats),
        measure_ten("the last of ten, by state", False, options.repeats),
    ]
    print(table(COLUMNS, rows))
    print("\nprocessor time, minima, tc = torch.compile")
    finish("guards", arguments, options.json, rows, goals(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
