"""Under autocast a parameter is cast once in a block: compiled calls share the casts with each other and with eager."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from torch import Tensor, nn
from zoo import compare, harness

Wrap = Callable[[Any], Any]
Story = Callable[[Wrap, nn.Module], Any]
STORIES: dict[str, Story] = {}


@pytest.fixture(autouse=True)
def start_afresh(fresh: None) -> None:
    torch.manual_seed(0)


def story(tell: Story) -> Story:
    STORIES[tell.__name__] = tell
    return tell


def inputs(rows: int = 3) -> Tensor:
    return torch.randn(rows, 4)


def autocast(enabled: bool = True) -> torch.autocast:
    return torch.autocast("cpu", dtype=torch.bfloat16, enabled=enabled)


@story
def two_calls(wrap: Wrap, model: nn.Module) -> Any:
    call = wrap(model)
    with autocast():
        return [call(inputs()), call(inputs())]


@story
def one_block_after_the_other(wrap: Wrap, model: nn.Module) -> Any:
    call, results = wrap(model), []
    for _ in range(3):
        with autocast():
            results += [call(inputs()), call(inputs())]
    return results


@story
def an_eager_call_before_and_behind(wrap: Wrap, model: nn.Module) -> Any:
    call = wrap(model)
    with autocast():
        return [model(inputs()), call(inputs()), call(inputs()), model(inputs())]


@story
def two_functions_with_the_same_weights(wrap: Wrap, model: nn.Module) -> Any:
    one, other = wrap(lambda x: model(x).sin()), wrap(lambda x: model(x) * 2)
    with autocast():
        return [function(inputs()) for _ in range(3) for function in (one, other)]


@story
def parts_of_one_call(wrap: Wrap, model: nn.Module) -> Any:
    def twice(x: Tensor) -> Tensor:
        y = model(x)
        scale = y.sum().item()
        return model(x * scale)

    call = wrap(twice)
    with autocast():
        return [call(inputs()), call(inputs())]


@story
def a_call_without_gradients_first(wrap: Wrap, model: nn.Module) -> Any:
    call = wrap(model)
    with autocast():
        with torch.no_grad():
            first = [call(inputs()), call(inputs())]
        return [*first, call(inputs()), call(inputs())]


@story
def sizes_that_change(wrap: Wrap, model: nn.Module) -> Any:
    call = wrap(model)
    with autocast():
        return [call(inputs(rows)) for rows in (3, 5, 3, 7, 6)]


@story
def casts_of_the_program_itself(wrap: Wrap, model: nn.Module) -> Any:
    """Nobody keeps these."""

    def by_hand(x: Tensor) -> Tensor:
        with autocast(enabled=False):
            return x.bfloat16() @ model[0].weight.bfloat16()[:4]

    call = wrap(by_hand)
    with autocast():
        return [call(inputs()), call(inputs()), model(inputs())]


@story
def no_cache(wrap: Wrap, model: nn.Module) -> Any:
    call = wrap(model)
    with torch.autocast("cpu", dtype=torch.bfloat16, cache_enabled=False):
        return [call(inputs()) for _ in range(3)]


@story
def weights_that_change_in_the_block(wrap: Wrap, model: nn.Module) -> Any:
    """The casts keep what the weights were."""
    call, results = wrap(model), []
    with autocast():
        for _ in range(4):
            results.append(call(inputs()))
            model[0].weight.data.mul_(2)
    return results


def told(tell: Story, wrap: Wrap) -> list[Any]:
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2))
    with torch.enable_grad():
        results = tell(wrap, model)
        sum(result.float().square().sum() for result in results if result.requires_grad).backward()
    assert not torch.is_autocast_enabled("cpu")
    return [[result.detach() for result in results], [parameter.grad for parameter in model.parameters()]]


@pytest.mark.parametrize("name", STORIES)
def test_results_and_gradients_equal_eager(name: str) -> None:
    expected = told(STORIES[name], lambda function: function)
    actual = told(STORIES[name], magneto.compile)
    found = compare.difference(expected, actual)
    assert found is None, found
    assert harness.stat("hits") > 0


def test_a_cast_is_made_once_in_a_block() -> None:
    layer = nn.Linear(4, 4)
    call = magneto.compile(layer)

    def casts() -> int:
        with torch.profiler.profile() as profile, autocast():
            for _ in range(5):
                call(inputs())
        weights = [event for event in profile.events() if event.name == "aten::_to_copy"]
        return len(weights) - 5  # those of the inputs

    call(inputs())
    assert [casts() for _ in range(3)] == [2, 2, 2]
