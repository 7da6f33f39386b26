"""A compiled model after something changed: results stay eager's, and only changes that matter cost a new capture."""

from __future__ import annotations

import contextlib
import copy
import functools

import magneto
import pytest
import torch
from zoo import changes, harness, models, programs

# Changes that altered the result of some model; filled by the tests, read by the last one.
altered: set[str] = set()
tried: set[tuple[str, str]] = set()


def compiled_pair(name: str) -> tuple[harness.Pair, models.MakeInputs]:
    """A model after its second call: compiled, where it can be."""
    module, make_inputs = models.get(name)
    pair = harness.Pair(module)
    for seed in range(2):
        pair.check(functools.partial(make_inputs, 0, seed), "before the change")
    return pair, make_inputs


@pytest.fixture(autouse=True)
def no_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("change", changes.CHANGES.values(), ids=lambda change: change.name)
@pytest.mark.parametrize("name", harness.sample())
def test_results_equal_eager_after_a_change_and_after_undoing_it(name: str, change: changes.Change) -> None:
    tried.add((name, change.name))
    pair, make_inputs = compiled_pair(name)
    inputs = functools.partial(make_inputs, 0, 7)
    before = pair.check(inputs, "before the change")
    try:
        context = change.apply(pair.module)
        context.__enter__()
    except changes.NotHere:
        pytest.skip("the model has nothing to change here")
    with contextlib.ExitStack() as stack:
        stack.push(context)
        after = pair.check(inputs, "first call after the change")
        pair.check(functools.partial(make_inputs, 0, 8), "second call after the change")
        pair.check(functools.partial(make_inputs, 0, 9), "third call after the change")
    if harness.compare.outcome_difference(before, after):
        altered.add(change.name)
    pair.check(inputs, "first call after undoing the change")
    pair.check(functools.partial(make_inputs, 0, 11), "second call after undoing the change")


@pytest.mark.parametrize("change", changes.UNRELATED.values(), ids=lambda change: change.name)
@pytest.mark.parametrize("name", harness.sample())
def test_changes_that_do_not_matter_cost_no_capture(name: str, change: changes.Change) -> None:
    pair, make_inputs = compiled_pair(name)
    if harness.state(pair.compiled) != "compiled":
        pytest.skip(f"stays eager: {harness.unsupported() or harness.why_eager(pair.compiled)}")
    try:
        context = change.apply(pair.module)
        captures = harness.stat("captures")
        with context:
            pair.check(functools.partial(make_inputs, 0, 7), "after the change")
        pair.check(functools.partial(make_inputs, 0, 8), "after undoing the change")
    except changes.NotHere:
        pytest.skip("the model has nothing to change here")
    assert harness.stat("captures") == captures, harness.native(pair.compiled).misses()


@pytest.mark.parametrize("name", harness.sample())
def test_many_changes_one_after_another(name: str) -> None:
    """The same compiled model lives through every change, as in a long notebook session."""
    pair, make_inputs = compiled_pair(name)
    for seed, change in enumerate([*changes.CHANGES.values(), *changes.UNRELATED.values()]):
        try:
            with change.apply(pair.module):
                pair.check(functools.partial(make_inputs, 0, seed), f"with {change.name}")
        except changes.NotHere:
            continue
        pair.check(functools.partial(make_inputs, 0, seed + 1), f"after {change.name}")


def trace_of(name: str, compile: bool) -> list[tuple[harness.compare.Outcome, object]]:
    """Build a program and call it again and again; what could be seen after each call."""
    case = programs.PROGRAMS[name]()
    call = magneto.compile(case.call) if compile else case.call
    looks_at_the_result = case.observe.__code__.co_argcount == 1 if hasattr(case.observe, "__code__") else False
    seen = []
    try:
        for index in range(programs.CALLS):
            case.step(index)
            torch.manual_seed(index)
            after = harness.compare.outcome(call, case.inputs(index), {}, None)
            shown = case.observe(after.result) if looks_at_the_result else case.observe()
            seen.append((after, copy.deepcopy(shown)))
    finally:
        case.close()
        torch.set_grad_enabled(False)
    return seen


@pytest.mark.parametrize("name", programs.load())
def test_small_programs_behave_as_in_eager_mode(name: str) -> None:
    pairs = zip(trace_of(name, False), trace_of(name, True), strict=True)
    for index, ((expected, expected_state), (actual, actual_state)) in enumerate(pairs):
        found = harness.compare.outcome_difference(expected, actual)
        assert found is None, f"call {index}: {found}"
        found = harness.compare.difference(expected_state, actual_state)
        assert found is None, f"after call {index}: {found}"


def test_the_sample_is_compiled_before_it_is_changed() -> None:
    """Otherwise the tests of this file compare eager with itself."""
    if harness.unsupported():
        pytest.skip(harness.unsupported())
    left = {}
    for name in ("mlp", "resnet", "transformer_encoder"):
        pair, _ = compiled_pair(name)
        if harness.state(pair.compiled) != "compiled":
            left[name] = harness.why_eager(pair.compiled)
    assert not left


def test_every_change_alters_some_model() -> None:
    """Runs last: a change that no model notices in eager mode would prove nothing."""
    if len(tried) < len(changes.CHANGES) * len(harness.sample()):
        pytest.skip("only a part of the changes was tried")
    assert {change.name for change in changes.CHANGES.values() if change.visible} <= altered
