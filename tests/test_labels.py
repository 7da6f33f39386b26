"""Regions that programs name for profilers, in compiled calls: torch.profiler.record_function."""

from typing import Any

import magneto
import pytest
import torch
from torch import Tensor
from torch.profiler import profile, record_function

pytestmark = pytest.mark.usefixtures("fresh")


def names(call: Any, *args: Any) -> list[str]:
    with profile(activities=[torch.profiler.ProfilerActivity.CPU]) as seen:
        call(*args)
    return [event.name for event in seen.events()]


def test_the_watched_call_has_the_region_and_compiled_ones_have_none():
    @magneto.compile
    def f(x: Tensor) -> Tensor:
        with record_function("region"):
            return x + 1

    f(torch.ones(2))
    f(torch.ones(2))
    magneto.reset()
    x = torch.ones(2)
    assert "region" in names(f, x)
    assert "region" not in names(f, x)
    assert magneto.counters["stats"]["captures"] == 1


def test_where_cpython_takes_over_the_region_ends_as_ever():
    class Odd:
        pass

    def f(x: Tensor, held: dict[str, Any]) -> Tensor:
        with record_function("region"):
            y = x + 1
            print(end="")
            if "odd" in held:
                raise KeyError(held["odd"])
        return y * 2

    compiled = magneto.compile(f)
    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(compiled(x, {}), f(x, {}))
    assert magneto.counters["stats"]["hits"] == 2
    odd = Odd()
    with pytest.raises(KeyError) as caught:
        compiled(x, {"odd": odd})
    assert caught.value.args == (odd,)
    assert names(lambda: torch.ones(1)).count("region") == 0, "the region is over"


def test_a_region_that_is_open_behind_the_call_can_be_ended():
    def begin(x: Tensor) -> tuple[Tensor, record_function]:
        region = record_function("region")
        region.__enter__()
        return x + 1, region

    compiled = magneto.compile(begin)
    for _ in range(3):
        y, region = compiled(torch.ones(2))
        assert torch.equal(y, torch.full((2,), 2.0))
        region.__exit__(None, None, None)
    assert magneto.counters["stats"]["hits"] == 2

    def both() -> None:
        _, region = compiled(torch.ones(2))
        region.__exit__(None, None, None)

    assert names(both).count("region") == 1


def test_a_region_that_is_kept_on_a_module_is_over_in_each_call():
    class Model(torch.nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            self.region = record_function("region")
            with self.region:
                return x * 2

    model = Model()
    compiled = magneto.compile(model)
    for _ in range(3):
        first = model.__dict__.get("region")
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
        assert model.region is not first
    assert magneto.counters["stats"]["hits"] == 2
