"""Nothing is left behind: compiled functions that go away take objects, memory blocks, tensors and the hook along."""

from __future__ import annotations

import contextlib
import gc
import sys
import weakref
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import magneto
import pytest
import torch
from zoo import harness, models

CYCLES = 10_000 if harness.FULL else 1000


def resident_bytes() -> int:
    """The process's resident memory now, or 0 where it cannot be read."""
    try:
        with open("/proc/self/statm") as file:
            return int(file.read().split()[1]) * 4096
    except OSError:
        return 0


def collect() -> None:
    for _ in range(3):
        gc.collect()


@dataclass
class Measure:
    """What the process holds now."""

    objects: int
    blocks: int
    tensors: int
    resident: int
    kinds: Counter[str]

    @classmethod
    def now(cls) -> Measure:
        for _ in range(3):
            gc.collect()
        kinds = Counter(type(item).__qualname__ for item in gc.get_objects())
        tensors = sum(issubclass(type(item), torch.Tensor) for item in gc.get_objects())
        return cls(len(gc.get_objects()), sys.getallocatedblocks(), tensors, resident_bytes(), kinds)

    def growth_since(self, before: Measure, cycles: int) -> str | None:
        """In words what grew; less than one piece for each cycle cannot be a leak of the cycle."""
        # Caches of the interpreter fill once; what is left after the measures themselves were counted is noise.
        allowed = max(80, cycles // 4)
        if self.objects > before.objects + allowed:
            grown = {kind: n - before.kinds[kind] for kind, n in self.kinds.items() if n > before.kinds[kind] + 5}
            return f"{self.objects - before.objects} more objects after {cycles} cycles: {grown}"
        if self.blocks > before.blocks + allowed:
            return f"{self.blocks - before.blocks} more memory blocks after {cycles} cycles"
        if self.tensors > before.tensors + 2:
            return f"{self.tensors - before.tensors} more tensors after {cycles} cycles"
        if self.resident > before.resident + max(2 << 20, 500 * cycles):
            return f"{(self.resident - before.resident) >> 10} KiB more resident after {cycles} cycles"
        return None


def assert_flat(cycle: Callable[[], Any], cycles: int, rounds: int = 6) -> None:
    """A leak grows in every round of cycles; what fills up once stops growing in one of them."""
    before = Measure.now()
    for _ in range(rounds):
        for _ in range(cycles):
            cycle()
        after = Measure.now()
        grown = after.growth_since(before, cycles)
        if grown is None:
            return
        before = after
    raise AssertionError(grown)


def test_the_measure_notices_a_leak() -> None:
    kept: list[Any] = []
    with pytest.raises(AssertionError, match="more objects"):
        assert_flat(lambda: kept.append([torch.zeros(1)]), 200)


@torch.no_grad()
def test_compile_call_drop_cycles_are_flat() -> None:
    module, make_inputs = models.get("mlp")
    args, kwargs = make_inputs(0, 0)

    def cycle() -> None:
        compiled = magneto.compile(module)
        compiled(*args, **kwargs)
        compiled(*args, **kwargs)

    assert_flat(cycle, CYCLES)


@torch.no_grad()
def test_cycles_with_a_new_module_each_time_are_flat() -> None:
    def cycle() -> None:
        module, make_inputs = models.get("mlp")
        compiled = magneto.compile(module)
        for variant in (0, 1, 0):
            args, kwargs = make_inputs(variant, 0)
            compiled(*args, **kwargs)

    assert_flat(cycle, CYCLES)


@pytest.mark.parametrize("name", [name for name in harness.sample() if name != "mlp"])
@torch.no_grad()
def test_cycles_with_larger_models_are_flat(name: str) -> None:
    module, make_inputs = models.get(name)
    args, kwargs = make_inputs(0, 0)

    def cycle() -> None:
        compiled = magneto.compile(module)
        compiled(*args, **kwargs)
        compiled(*args, **kwargs)

    assert_flat(cycle, 100)


@torch.no_grad()
def test_calls_of_a_compiled_module_are_flat() -> None:
    module, make_inputs = models.get("mlp")
    compiled = magneto.compile(module)
    args, kwargs = make_inputs(0, 0)
    assert_flat(lambda: compiled(*args, **kwargs), 5000)


@torch.no_grad()
def test_captures_and_resets_are_flat() -> None:
    module, make_inputs = models.get("mlp")
    compiled = magneto.compile(module)
    args, kwargs = make_inputs(0, 0)

    def cycle() -> None:
        compiled(*args, **kwargs)
        compiled(*args, **kwargs)
        magneto.reset()

    assert_flat(cycle, 300)


def test_captures_that_fail_are_flat() -> None:
    """A function that stays eager (gradients are needed, a value is asked for, an exception) leaves nothing either."""

    def asks(x: torch.Tensor) -> torch.Tensor:
        return x + 1 if x.sum().item() > 0 else x - 1

    def fails(x: torch.Tensor) -> torch.Tensor:
        raise ValueError("no")

    values = torch.ones(3)
    wanting = torch.ones(3, requires_grad=True)

    def cycle() -> None:
        magneto.compile(asks)(values)
        magneto.compile(lambda x: (x * 2).sum())(wanting).backward()
        with pytest.raises(ValueError, match="no"):
            magneto.compile(fails)(values)

    assert_flat(cycle, 300)


@torch.no_grad()
def test_entries_die_with_the_compiled_module() -> None:
    module, make_inputs = models.get("mlp")
    compiled = magneto.compile(module)
    for variant in (0, 1, 0):
        args, kwargs = make_inputs(variant, 0)
        compiled(*args, **kwargs)
    weight = weakref.ref(module.layers[0].weight)
    parts = [weakref.ref(module), weakref.ref(compiled), weakref.ref(harness.native(compiled))]
    del module, compiled
    collect()
    assert [part() for part in parts] == [None, None, None]
    assert weight() is None


@torch.no_grad()
def test_a_module_that_holds_its_own_compiled_form_is_freed() -> None:
    module, make_inputs = models.get("mlp")
    args, kwargs = make_inputs(0, 0)
    module.__dict__["me"] = magneto.compile(module)
    module.me(*args, **kwargs)
    module.me(*args, **kwargs)
    assert harness.unsupported() or harness.native(module.me).variants()
    parts = [weakref.ref(module), weakref.ref(module.me), weakref.ref(module.layers[0].weight)]
    del module
    gc.collect()
    assert [part() for part in parts] == [None, None, None]


@torch.no_grad()
def test_the_arguments_and_results_of_a_call_are_not_kept() -> None:
    module, make_inputs = models.get("mlp")
    compiled = magneto.compile(module)
    for seed in range(3):
        (x,), _ = make_inputs(0, seed)
        result = compiled(x)
        kept = [weakref.ref(x), weakref.ref(result)]
        del x, result
        collect()
        assert [item() for item in kept] == [None, None], f"call {seed}"


@torch.no_grad()
def test_a_replaced_parameter_is_let_go() -> None:
    """At the latest when the function was captured again, the old weight may not be held by anything."""
    module, make_inputs = models.get("mlp")
    compiled = magneto.compile(module)
    args, kwargs = make_inputs(0, 0)
    compiled(*args, **kwargs)
    old = weakref.ref(module.layers[0].weight)
    module.layers[0].weight = torch.nn.Parameter(torch.zeros_like(module.layers[0].weight))
    compiled(*args, **kwargs)
    compiled(*args, **kwargs)
    magneto.reset()
    collect()
    assert old() is None


@torch.no_grad()
def test_the_hook_is_gone_when_nothing_is_captured() -> None:
    module, make_inputs = models.get("mlp")
    compiled = magneto.compile(module)
    assert not magneto._C.hook_installed()
    for seed in range(3):
        args, kwargs = make_inputs(0, seed)
        compiled(*args, **kwargs)
        assert not magneto._C.hook_installed()


def test_the_hook_is_there_while_a_call_is_watched_and_gone_after_an_exception() -> None:
    if harness.unsupported():
        pytest.skip(harness.unsupported())
    seen = []

    def fails(x: torch.Tensor) -> torch.Tensor:
        seen.append((magneto._C.hook_installed(), magneto.is_compiling()))
        raise ValueError("no")

    compiled = magneto.compile(fails)
    with pytest.raises(ValueError, match="no"):
        compiled(torch.ones(1))
    assert seen == [(True, True)]
    assert not magneto._C.hook_installed()
    assert not magneto.is_compiling()


def test_a_model_that_only_guards_know_is_freed():
    """The compiled function goes on; what it read and used, weights included, does not live on with it."""
    world = {"model": models.get("mlp")[0]}

    @magneto.compile
    def run(x: torch.Tensor) -> torch.Tensor:
        return world["model"](x)

    args, _ = models.get("mlp")[1](0, 0)
    with torch.no_grad():
        expected = world["model"](*args)
        assert all(torch.equal(run(*args), expected) for _ in range(3))
    assert harness.state(run) == "compiled"
    parts = [weakref.ref(part) for part in (*world["model"].modules(), *world["model"].parameters())]
    world["model"] = torch.nn.Identity()
    collect()
    assert [part() for part in parts] == [None] * len(parts)
    with torch.no_grad():
        assert torch.equal(run(*args), args[0])


def test_a_weight_that_was_replaced_is_freed_at_once():
    model = torch.nn.Linear(4, 4)
    compiled = magneto.compile(model)
    x = torch.randn(2, 4)
    with torch.no_grad():
        compiled(x), compiled(x)
        old = weakref.ref(model.weight)
        model.weight = torch.nn.Parameter(torch.randn(4, 4))
        assert old() is None
        assert torch.equal(compiled(x), model(x))


@pytest.mark.parametrize("live", [False, True], ids=["trace", "live"])
def test_recordings_and_replays_are_flat(live: bool, request: pytest.FixtureRequest) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.BatchNorm1d(4), torch.nn.Dropout())
    x = torch.randn(3, 4, requires_grad=True)
    gradient = torch.ones(3, 4)

    def fails(x: torch.Tensor) -> torch.Tensor:
        return model(x) * x.sum().item()

    def cycle() -> None:
        with torch.enable_grad():
            graph = magneto.record(model, x, joint=True, live=live)
            graph(x, gradients=[gradient])
            with contextlib.suppress(magneto.DataDependent):
                magneto.record(fails, x, live=live)

    assert_flat(cycle, 10_000 if request.config.getoption("--full") else 100)
