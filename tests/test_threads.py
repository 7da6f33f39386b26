"""Compiled modules under many threads: right values, whoever captures first, and resets at any moment."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from zoo import harness, models

THREADS = 8


def in_threads(work: Callable[[int], None], count: int = THREADS) -> None:
    """Run the work in threads that start together; the first error of any thread is raised here."""
    barrier = threading.Barrier(count)
    errors: list[BaseException] = []

    def run(index: int) -> None:
        try:
            barrier.wait(timeout=60)
            # Both belong to the thread: the threads of one operation, which decide the last bits, and grad mode.
            torch.set_num_threads(1)
            with torch.no_grad():
                work(index)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(index,), daemon=True) for index in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=120)
    assert not any(thread.is_alive() for thread in threads), "threads wait for each other for ever"
    if errors:
        raise errors[0]


def expectations(module: torch.nn.Module, make_inputs: models.MakeInputs) -> dict[tuple[int, int], Any]:
    """Eager's result for every input that the threads use."""
    found = {}
    with torch.no_grad():
        for variant in (0, 1):
            for seed in range(THREADS):
                args, kwargs = make_inputs(variant, seed)
                found[variant, seed] = module(*args, **kwargs)
    return found


def check(compiled: Any, make_inputs: models.MakeInputs, expected: dict[tuple[int, int], Any], key: Any) -> None:
    args, kwargs = make_inputs(*key)
    found = harness.compare.difference(expected[key], compiled(*args, **kwargs))
    assert found is None, f"input {key}: {found}"


@pytest.mark.parametrize("name", harness.sample())
def test_first_calls_at_the_same_time(name: str) -> None:
    """Every thread's first call may be the one that is watched."""
    module, make_inputs = models.get(name)
    expected = expectations(module, make_inputs)
    compiled = magneto.compile(module)

    def work(index: int) -> None:
        for turn in range(6):
            check(compiled, make_inputs, expected, (0, (index + turn) % THREADS))

    in_threads(work)


@pytest.mark.parametrize("name", harness.sample())
def test_different_shapes_at_the_same_time(name: str) -> None:
    module, make_inputs = models.get(name)
    expected = expectations(module, make_inputs)
    compiled = magneto.compile(module)

    def work(index: int) -> None:
        for turn in range(8):
            check(compiled, make_inputs, expected, ((index + turn) % 2, (3 * index + turn) % THREADS))

    in_threads(work)


def test_different_modules_at_the_same_time() -> None:
    """Two threads may watch at once; neither may see the other's operations."""
    cases = []
    for name in harness.sample():
        module, make_inputs = models.get(name)
        cases.append((magneto.compile(module), make_inputs, expectations(module, make_inputs)))

    def work(index: int) -> None:
        for turn in range(6):
            compiled, make_inputs, expected = cases[(index + turn) % len(cases)]
            check(compiled, make_inputs, expected, (turn % 2, index))

    in_threads(work)


def test_an_eager_thread_beside_a_watched_one_is_left_alone() -> None:
    module, make_inputs = models.get("mlp")
    other, other_inputs = models.get("resnet")
    expected, other_expected = expectations(module, make_inputs), expectations(other, other_inputs)

    def work(index: int) -> None:
        for turn in range(10):
            if index % 2:
                check(other, other_inputs, other_expected, (turn % 2, index))
            else:
                check(magneto.compile(module), make_inputs, expected, (turn % 2, index))

    in_threads(work)


def test_reset_while_others_call() -> None:
    module, make_inputs = models.get("mlp")
    expected = expectations(module, make_inputs)
    compiled = magneto.compile(module)

    def work(index: int) -> None:
        if index == 0:
            for _ in range(30):
                magneto.reset()
                time.sleep(0.001)
        elif index == 1:
            for _ in range(30):
                harness.native(compiled).reset()
                time.sleep(0.001)
        else:
            for turn in range(60):
                check(compiled, make_inputs, expected, (turn % 2, (index + turn) % THREADS))

    in_threads(work)


def test_compile_and_drop_while_others_call() -> None:
    module, make_inputs = models.get("mlp")
    expected = expectations(module, make_inputs)
    shared = magneto.compile(module)

    def work(index: int) -> None:
        for turn in range(30):
            compiled = shared if index % 2 else magneto.compile(module)
            check(compiled, make_inputs, expected, (turn % 2, index))

    in_threads(work)


def test_a_weight_swapped_while_others_call_gives_one_of_both_results() -> None:
    module, make_inputs = models.get("mlp")
    linear = module.layers[0]
    weights = [linear.weight, torch.nn.Parameter(linear.weight.detach() * 0.5)]
    args, kwargs = make_inputs(0, 0)
    valid = []
    with torch.no_grad():
        for weight in weights:
            linear.weight = weight
            valid.append(module(*args, **kwargs))
    assert not torch.equal(*valid)
    compiled = magneto.compile(module)

    def work(index: int) -> None:
        for turn in range(40):
            if index == 0:
                linear.weight = weights[turn % 2]
                time.sleep(0.0005)
            else:
                result = compiled(*args, **kwargs)
                assert any(torch.equal(result, right) for right in valid), "a result that eager never gives"

    in_threads(work)


def test_gradient_mode_of_one_thread_does_not_leak_into_another() -> None:
    module, make_inputs = models.get("mlp")
    compiled = magneto.compile(module)

    def work(index: int) -> None:
        for turn in range(20):
            args, kwargs = make_inputs(0, turn)
            with torch.set_grad_enabled(index % 2 == 1):
                assert compiled(*args, **kwargs).requires_grad == (index % 2 == 1)

    in_threads(work)


def test_a_compiled_module_of_a_thread_that_ended_still_works() -> None:
    module, make_inputs = models.get("mlp")
    expected = expectations(module, make_inputs)
    made: list[Any] = []

    def work(index: int) -> None:
        made.append(magneto.compile(module))
        check(made[0], make_inputs, expected, (0, 0))

    in_threads(work, 1)
    with torch.no_grad():
        for seed in range(3):
            check(made[0], make_inputs, expected, (0, seed))


def test_the_hook_is_gone_when_all_threads_are_done() -> None:
    test_different_shapes_at_the_same_time("mlp")
    assert not magneto._C.hook_installed()
    assert not magneto.is_compiling()
