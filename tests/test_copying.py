"""Copies and pickles of compiled functions: those of functions, and a method goes with the copy of its object."""

from __future__ import annotations

import copy
import pickle
from typing import Any

import magneto
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh")


@magneto.compile
def compiled(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@magneto.disable
def disabled(x: torch.Tensor) -> torch.Tensor:
    return x + 1


@pytest.mark.parametrize("function", [compiled, disabled], ids=["compiled", "disabled"])
def test_a_function_is_its_own_copy(function: Any) -> None:
    assert copy.copy(function) is function
    assert copy.deepcopy({"f": [function]})["f"][0] is function
    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        assert pickle.loads(pickle.dumps(function, protocol)) is function


def test_a_module_with_compiled_functions_is_copied() -> None:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(3, 3)
            self.act = magneto.compile(torch.nn.functional.gelu)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.act(self.layer(x))

    model, x = Model(), torch.ones(1, 3)
    ema = copy.deepcopy(model)
    assert ema.act is model.act and torch.equal(ema(x), model(x))


@pytest.mark.parametrize("wrap", [magneto.compile, magneto.disable], ids=["compiled", "disabled"])
def test_a_method_belongs_to_the_copy_of_its_object(wrap: Any) -> None:
    model, x = nn.Linear(3, 3), torch.ones(1, 3)
    model.forward = wrap(model.forward)
    twin = copy.deepcopy(model)
    assert twin.forward is not model.forward and twin.forward.fn.__self__ is twin
    twin.weight.zero_()
    twin.bias.zero_()
    for _ in range(3):
        assert twin(x).abs().sum() == 0 and model(x).abs().sum() > 0
    if wrap is magneto.compile:
        assert twin.forward.state() == "compiled"
        magneto.reset()
        assert twin.forward.state() == "new"


@pytest.mark.parametrize(
    ("make", "error"),
    [
        (lambda: magneto.compile(lambda x: x), pickle.PicklingError),
        (lambda: magneto.compile(nn.Linear(1, 1).forward), pickle.PicklingError),
        (lambda: magneto.compile(type("Called", (), {"__call__": lambda self, x: x})()), TypeError),
    ],
)
def test_what_cannot_be_found_by_its_name_cannot_be_pickled(make: Any, error: type[Exception]) -> None:
    with pytest.raises((error, AttributeError), match=r"(?i)pickle"):
        pickle.dumps(make())
