"""Everything that PyTorch programs do, one small program each: values, effects, graphs, gradients, changed state."""

from __future__ import annotations

import pytest
import torch
from features import arguments, extensions, modes, modules, runner, tensors, values, writers

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
