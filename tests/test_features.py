"""Everything that PyTorch programs do, one small program each: values, effects, graphs, gradients, changed state."""

from __future__ import annotations

import magneto
import pytest
import torch
from features import arguments, extensions, modes, modules, runner, tensors, values, writers
from zoo import compare

assert (
    arguments and extensions and modes and modules and tensors and values and writers
)  # importing them registers their features


@pytest.fixture(autouse=True)
def without_gradients():
    with torch.no_grad():
        yield


@pytest.mark.parametrize("name", runner.FEATURES)
def test_a_feature_is_compiled_as_expected_and_equals_eager(name: str) -> None:
    expected = runner.FEATURES[name]
    found = runner.examine(expected)
    if expected.varies:
        return
    assert (found.graphs, found.hits, found.python) == (expected.graphs, expected.hits, expected.python), found
    assert len(found.cuts) == len(expected.cuts), found.cuts
    assert all(any(text in cut for cut in found.cuts) for text in expected.cuts), found.cuts
    assert any(expected.eager in reason for reason in found.failures) if expected.eager else not found.failures
    assert (found.settles, found.raises) == (expected.settles, expected.raises)


@pytest.mark.parametrize("name", runner.FEATURES)
def test_the_change_of_a_feature_matters(name: str) -> None:
    assert runner.change_matters(runner.FEATURES[name])


@pytest.mark.parametrize("name", runner.FEATURES)
def test_gradients_through_a_feature_equal_eager(name: str) -> None:
    found = runner.gradient_difference(runner.FEATURES[name])
    assert found is None, found


@pytest.mark.xfail(strict=True, reason="a replay casts weights anew where eager finds the casts of an earlier call")
def test_weights_that_change_inside_an_autocast_block_are_seen_as_late_as_in_eager() -> None:
    results = []
    for compiled in (False, True):
        layer = torch.nn.Linear(4, 4, bias=False)
        torch.nn.init.ones_(layer.weight)
        call = magneto.compile(layer) if compiled else layer
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results.append([(call(torch.ones(1, 4)), layer.weight.mul_(2))[0] for _ in range(4)])
    found = compare.difference(*results)
    assert found is None, found
