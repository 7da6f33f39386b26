"""Magneto beside torch.compile: before, after, inside and around each other, results stay eager's."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from typing import Any

import magneto
import pytest
import torch
from torch import nn
from zoo import harness, models

pytestmark = pytest.mark.skipif(
    sys.platform == "win32" or not hasattr(torch, "compile"), reason="this torch has no torch.compile"
)
incumbent = functools.partial(torch.compile, backend="eager")


@pytest.fixture(autouse=True, scope="module")
def untouched_modules() -> Iterator[None]:
    """The incumbent's first compilation patches nn.Module for good; the tests of other files want torch as it was."""
    names = ("__init__", "__setstate__", "___needs_generation_tag_patch")
    before = {name: vars(nn.Module).get(name) for name in names}
    yield
    for name, value in before.items():
        if value is not None:
            setattr(nn.Module, name, value)
        elif name in vars(nn.Module):
            delattr(nn.Module, name)


@pytest.fixture(autouse=True)
def clean_slate() -> Iterator[None]:
    torch._dynamo.reset()
    magneto.reset()
    with torch.no_grad():
        yield
    torch._dynamo.reset()


def check(function: Callable[..., Any], eager: Callable[..., Any], make_inputs: models.MakeInputs) -> None:
    """The same bits as eager."""
    for variant, seed in ((0, 0), (0, 1), (0, 2), (1, 3), (0, 4)):
        args, kwargs = make_inputs(variant, seed)
        expected = eager(*args, **kwargs)
        found = harness.compare.difference(expected, function(*args, **kwargs))
        assert found is None, f"shape {variant}, input {seed}: {found}"


def check_roughly(function: Callable[..., Any], eager: Callable[..., Any], make_inputs: models.MakeInputs) -> None:
    """Eager's values up to rounding: the incumbent takes other paths through torch's attention."""
    for variant, seed in ((0, 0), (0, 1), (0, 2), (1, 3), (0, 4)):
        args, kwargs = make_inputs(variant, seed)
        expected, actual = eager(*args, **kwargs), function(*args, **kwargs)
        pairs = zip(harness.compare.tensors(expected), harness.compare.tensors(actual), strict=True)
        for left, right in pairs:
            torch.testing.assert_close(left, right)


NAMES = harness.sample() if harness.FULL else ["mlp", "transformer_encoder", "bert"]
NAMES = [name for name in NAMES if name in models.names()]


@pytest.mark.parametrize("name", NAMES)
def test_the_incumbent_first_then_magneto(name: str) -> None:
    module, make_inputs = models.get(name)
    theirs = incumbent(module)
    check_roughly(theirs, module, make_inputs)
    check(magneto.compile(module), module, make_inputs)
    check_roughly(theirs, module, make_inputs)


@pytest.mark.parametrize("name", NAMES)
def test_magneto_first_then_the_incumbent(name: str) -> None:
    module, make_inputs = models.get(name)
    ours = magneto.compile(module)
    check(ours, module, make_inputs)
    check_roughly(incumbent(module), module, make_inputs)
    check(ours, module, make_inputs)


@pytest.mark.parametrize("name", NAMES)
def test_call_by_call_in_turn(name: str) -> None:
    module, make_inputs = models.get(name)
    ours, theirs = magneto.compile(module), incumbent(module)
    for seed in range(4):
        args, kwargs = make_inputs(seed % 2, seed)
        expected = module(*args, **kwargs)
        assert harness.compare.difference(expected, ours(*args, **kwargs)) is None
        theirs(*args, **kwargs)
        assert harness.compare.difference(expected, ours(*args, **kwargs)) is None


def test_magneto_around_a_function_compiled_by_the_incumbent() -> None:
    module, make_inputs = models.get("mlp")
    inner = incumbent(module)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1) * 2

    check(magneto.compile(outer), lambda x: module(x + 1) * 2, make_inputs)


def test_the_incumbent_around_a_function_compiled_by_magneto() -> None:
    module, make_inputs = models.get("mlp")
    inner = magneto.compile(module)

    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1) * 2

    check_roughly(incumbent(outer), lambda x: module(x + 1) * 2, make_inputs)


def test_one_compiled_by_the_other() -> None:
    module, make_inputs = models.get("mlp")
    check(magneto.compile(incumbent(module)), module, make_inputs)
    check_roughly(incumbent(magneto.compile(module)), module, make_inputs)


def test_submodules_compiled_by_either() -> None:
    expected, make_inputs = models.get("mlp")
    mixed, _ = models.get("mlp")
    mixed.layers[0] = magneto.compile(mixed.layers[0])
    mixed.layers[1] = incumbent(mixed.layers[1])
    check(mixed, expected, make_inputs)
    check(magneto.compile(mixed), expected, make_inputs)
    check_roughly(incumbent(mixed), expected, make_inputs)


def test_magneto_inside_magneto() -> None:
    module, make_inputs = models.get("mlp")
    inner = magneto.compile(module)

    @magneto.compile
    def outer(x: torch.Tensor) -> torch.Tensor:
        return inner(x + 1) * 2

    check(outer, lambda x: module(x + 1) * 2, make_inputs)
    check(inner, module, make_inputs)
    check(outer, lambda x: module(x + 1) * 2, make_inputs)


def test_a_graph_break_of_the_incumbent_around_a_compiled_call() -> None:
    module, make_inputs = models.get("mlp")
    inner = magneto.compile(module)

    def outer(x: torch.Tensor) -> torch.Tensor:
        y = inner(x)
        torch._dynamo.graph_break()
        return inner(x) + y

    check_roughly(incumbent(outer), lambda x: module(x) + module(x), make_inputs)


def test_the_incumbent_started_by_a_watched_call() -> None:
    """The first call is watched while, inside it, torch.compile compiles something."""

    class Lazy(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner, _ = models.get("mlp")
            self.fast: Any = None

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            if self.fast is None:
                self.__dict__["fast"] = incumbent(self.inner)
            return self.fast(x) + 1

    module, (inner, make_inputs) = Lazy(), models.get("mlp")
    check(magneto.compile(module), lambda x: inner(x) + 1, make_inputs)


def test_resetting_one_leaves_the_other_working() -> None:
    module, make_inputs = models.get("mlp")
    ours, theirs = magneto.compile(module), incumbent(module)
    check(ours, module, make_inputs)
    check_roughly(theirs, module, make_inputs)
    torch._dynamo.reset()
    check(ours, module, make_inputs)
    magneto.reset()
    check_roughly(theirs, module, make_inputs)
    check(ours, module, make_inputs)


def test_training_through_the_incumbent_beside_magneto() -> None:
    module, make_inputs = models.get("mlp")
    (x,), _ = make_inputs(0, 0)
    ours, theirs = magneto.compile(module), incumbent(module)
    gradients = []
    with torch.enable_grad():
        for function in (module, theirs, ours):
            function(x).sum().backward()
            gradients.append([p.grad.clone() for p in module.parameters()])
            module.zero_grad(set_to_none=True)
    assert harness.compare.difference(gradients[0], gradients[2]) is None
    for eager, other in zip(gradients[0], gradients[1], strict=True):
        torch.testing.assert_close(eager, other)


@pytest.mark.parametrize("name", ["mlp", "transformer_encoder"])
def test_torch_export_of_the_original_still_works(name: str) -> None:
    module, make_inputs = models.get(name)
    ours = magneto.compile(module)
    check(ours, module, make_inputs)
    args, _ = make_inputs(0, 0)
    exported = torch.export.export(module, args).module()
    torch.testing.assert_close(exported(*args), module(*args))
    check(ours, module, make_inputs)


def test_transforms_over_a_compiled_function() -> None:
    """vmap and functional gradients go through a compiled function as through the original."""
    module, make_inputs = models.get("mlp")
    (x,), _ = make_inputs(0, 0)
    ours = magneto.compile(module)
    for _ in range(3):
        ours(x)
        assert harness.compare.difference(torch.func.vmap(module)(x), torch.func.vmap(ours)(x)) is None
        expected = torch.func.grad(lambda v: module(v).sum())(x)
        actual = torch.func.grad(lambda v: ours(v).sum())(x)
        assert harness.compare.difference(expected, actual) is None


def test_a_profiler_around_compiled_calls() -> None:
    module, make_inputs = models.get("mlp")
    ours = magneto.compile(module)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        check(ours, module, make_inputs)
    assert any("addmm" in event.key for event in profile.key_averages())


def test_fake_tensors_pass_through() -> None:
    from torch._subclasses.fake_tensor import FakeTensorMode

    module, make_inputs = models.get("mlp")
    ours = magneto.compile(module)
    check(ours, module, make_inputs)
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        (x,), _ = make_inputs(0, 0)
        fake = mode.from_tensor(x) if not isinstance(x, torch._subclasses.FakeTensor) else x
        expected, actual = module(fake), ours(fake)
    assert type(expected) is type(actual)
    assert expected.shape == actual.shape
    check(ours, module, make_inputs)


# ---- what it leaves in the process


def test_modules_that_are_made_in_the_call() -> None:
    """torch.compile patches nn.Module, so that each new module is noted somewhere, weakly."""

    def call(x: torch.Tensor) -> torch.Tensor:
        return nn.Softmax(dim=-1)(x) + nn.CrossEntropyLoss()(x, torch.zeros(len(x), dtype=torch.long))

    x = torch.randn(3, 4)
    incumbent(lambda x: x + 1)(x)
    compiled = magneto.compile(call, fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(x), call(x))
    assert compiled.variants()[0]["hits"] == 3


def test_tensors_that_it_has_marked() -> None:
    x = torch.randn(3, 4)
    incumbent(lambda x: x.sin(), dynamic=True)(x)
    torch._dynamo.mark_static(x, 0)
    assert any(name.startswith("_dynamo_") for name in vars(x))
    compiled = magneto.compile(lambda x: x.cos() * 2, fullgraph=True)
    for _ in range(4):
        assert torch.equal(compiled(x), x.cos() * 2)
    assert compiled.variants()[0]["hits"] == 3


def test_marks_for_it_that_the_call_makes() -> None:
    def call(x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        y = x * 2
        torch._dynamo.mark_static_address(y)
        return y + 1, y

    x = torch.randn(3, 4)
    incumbent(lambda x: x + 1)(x)
    _, marked = call(x)
    compiled = magneto.compile(call)
    for _ in range(6):
        result, y = compiled(x)
        assert torch.equal(result, x * 2 + 1)
        assert vars(y) == vars(marked)
    assert compiled.variants()[-1]["hits"] >= 2
