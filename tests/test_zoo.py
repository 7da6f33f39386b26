"""Every model of the zoo: compiled equals eager, bit by bit, and most models are really compiled."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch
from zoo import harness, models

# How many architectures at least must be compiled, not just left eager.
MIN_ARCHITECTURES = 24
MIN_COMPILED = 16

outcomes: dict[str, tuple[str, str]] = {}


@pytest.mark.parametrize("name", models.names())
def test_compiled_equals_eager(name: str) -> None:
    module, make_inputs = models.get(name)
    assert harness.deterministic(module, make_inputs), "the model itself is not deterministic: fix the zoo"
    pair = harness.Pair(module)
    with torch.no_grad():
        # The first call is the watched one, the others of its shape should be compiled; then a new shape; then back.
        for variant, seed in ((0, 0), (0, 1), (0, 2), (1, 3), (1, 4), (0, 5), (1, 6)):
            pair.check(functools.partial(make_inputs, variant, seed), f"shape {variant}, input {seed}")
    outcomes[name] = (harness.state(pair.compiled), harness.why_eager(pair.compiled))


@pytest.mark.parametrize("name", harness.sample())
def test_compiled_equals_eager_in_inference_mode(name: str) -> None:
    module, make_inputs = models.get(name)
    pair = harness.Pair(module)
    with torch.inference_mode():
        for seed in range(3):
            pair.check(functools.partial(make_inputs, 0, seed), f"input {seed}")


@pytest.mark.parametrize("name", harness.sample())
def test_gradients_equal_eager(name: str) -> None:
    """With gradients needed a call may stay eager, but its gradients must be eager's."""
    module, make_inputs = models.get(name)
    pair = harness.Pair(module)
    for seed in range(2):
        gradients = []
        for function in (pair.eager, pair.compiled):
            args, kwargs = make_inputs(0, seed)
            found = [t for t in harness.compare.tensors(function(*args, **kwargs)) if t.requires_grad]
            torch.autograd.backward([t.float().pow(2).sum() for t in {id(t): t for t in found}.values()])
            gradients.append({n: p.grad for n, p in module.named_parameters()})
            module.zero_grad(set_to_none=True)
        assert any(g is not None for g in gradients[0].values())
        assert harness.compare.difference(*gradients) is None


def test_outputs_do_not_share_memory_across_calls() -> None:
    """A result that the caller keeps must not be overwritten by the next call."""
    module, make_inputs = models.get("mlp")
    pair = harness.Pair(module)
    with torch.no_grad():
        results = []
        for seed in range(4):
            args, kwargs = make_inputs(0, seed)
            result = pair.compiled(*args, **kwargs)
            results.append((result, result.clone()))
    assert all(torch.equal(kept, copy) for kept, copy in results)
    assert len({kept.data_ptr() for kept, _ in results}) == 4


def test_the_comparison_notices_differences() -> None:
    """The checks above can fail: each kind of difference is seen."""
    compare = harness.compare
    base = torch.arange(6.0).reshape(2, 3)
    assert compare.difference({"a": base}, {"a": base.clone()}) is None
    assert "values differ" in (compare.difference([base], [base + 1e-7]) or "")
    assert "values differ" in (compare.difference(torch.zeros(1), -torch.zeros(1)) or "")
    assert "dtype" in (compare.difference([base], [base.double()]) or "")
    assert "strides" in (compare.difference([base], [base.t().contiguous().t()]) or "")
    assert "type" in (compare.difference((base,), [base]) or "")
    assert "keys" in (compare.difference({"a": 1, "b": 2}, {"b": 2, "a": 1}) or "")
    assert "requires_grad" in (compare.difference(base, base.clone().requires_grad_()) or "")
    shared, separate = (base, base.view(3, 2)), (base, base.clone().view(3, 2))
    assert compare.difference(shared, separate) is None
    assert compare.aliasing(shared, {}) != compare.aliasing(separate, {})


def test_most_models_are_really_compiled(record_property: Callable[[str, object], None]) -> None:
    """Runs last: the list of what was compiled and what stayed eager, with the reasons."""
    if set(outcomes) != set(models.names()):
        pytest.skip("only a part of the zoo was run")
    if harness.unsupported():
        pytest.skip(harness.unsupported())
    compiled = [name for name, (state, _) in outcomes.items() if state == "compiled"]
    lines = [f"zoo: {len(compiled)} of {len(outcomes)} models compiled: {', '.join(compiled)}"]
    lines += [f"  {state}: {name}: {reason}" for name, (state, reason) in outcomes.items() if state != "compiled"]
    record_property("told", "\n".join(lines))
    architectures = {name.partition("-")[0] for name in compiled}
    if models.has_transformers():
        assert len(models.architectures()) >= MIN_ARCHITECTURES
        assert len(architectures & models.architectures()) >= MIN_COMPILED
    assert {"mlp", "resnet", "transformer_encoder"} <= architectures
