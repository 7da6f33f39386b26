"""Effects and unknown functions in the midst of tensor work: programs in several parts, results as in eager."""

import queue
from collections.abc import Callable
from typing import Any

import magneto
import numpy
import pytest
import torch

CALLS = 4


pytestmark = pytest.mark.usefixtures("fresh")


class Model(torch.nn.Module):
    """Counts its calls, keeps its last result, and tells a queue what it is doing."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = torch.nn.Linear(4, 4), torch.nn.Linear(4, 4)
        self.calls = 0
        self.seen: list[int] = []
        self.box: Any = queue.SimpleQueue()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        y = self.first(x).relu()
        self.seen.append(x.shape[0])
        self.box.put(y)
        z = self.second(y) + x
        self.box.put("half-way")
        return z * 2 + y.sum()


def story(model: Model, call: Callable[[torch.Tensor], torch.Tensor]) -> list[Any]:
    torch.manual_seed(1)
    told = []
    for _ in range(CALLS):
        result = call(torch.randn(3, 4))
        told.append((result, model.box.get(), model.box.get(), model.calls, list(model.seen)))
    return told


def same(a: list[Any], b: list[Any]) -> bool:
    return all(
        torch.equal(x[0], y[0]) and torch.equal(x[1], y[1]) and x[2:] == y[2:] for x, y in zip(a, b, strict=True)
    )


@pytest.fixture
def models() -> tuple[Model, Model]:
    torch.manual_seed(0)
    plain, ours = Model(), Model()
    ours.load_state_dict(plain.state_dict())
    return plain, ours


@pytest.mark.parametrize("leave", [0, 1, 2])
def test_a_model_that_talks_is_compiled_in_parts(models, leave):
    plain, ours = models
    compiled = magneto.compile(ours)
    with magneto.config.patch(leave_at_cut=leave):
        assert same(story(plain, plain), story(ours, compiled))
    assert magneto.counters["stats"]["captures"] == 1
    assert magneto.counters["stats"]["graphs"] == 3
    assert magneto.counters["stats"]["hits"] == CALLS - 1
    (reason, again) = magneto.counters["graph_break"]
    assert "SimpleQueue.put" in reason and "test_graph_breaks.py" in again


def test_explain_tells_of_the_parts(models):
    _, ours = models
    told = magneto.explain(ours)(torch.randn(3, 4))
    assert told.state == "compiled" and told.graph_count == 3 and not told.reasons
    assert "in several parts because the call runs SimpleQueue.put" in str(told)


def test_fullgraph_refuses_parts(models):
    _, ours = models
    with pytest.raises(magneto.UserError, match=r"SimpleQueue\.put"):
        magneto.compile(ours, fullgraph=True)(torch.randn(3, 4))


def test_a_counter_does_not_make_parts():
    class Counting(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.calls += 1
            return super().forward(x)

    model = Counting(4, 4)
    model.calls = 0
    compiled = magneto.compile(model, fullgraph=True)
    x = torch.randn(2, 4)
    for call in range(CALLS):
        assert torch.equal(compiled(x), torch.nn.functional.linear(x, model.weight, model.bias))
        assert model.calls == call + 1
    assert magneto.counters["stats"]["captures"] == 1


def test_a_result_that_is_kept_is_the_one_that_is_returned():
    class Keeping(torch.nn.Linear):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            self.last = super().forward(x)
            return self.last

    model = Keeping(4, 4)
    compiled = magneto.compile(model)
    for _ in range(CALLS):
        result = compiled(torch.randn(2, 4))
        assert model.last is result
    assert magneto.counters["stats"]["captures"] == 1


def test_what_an_unknown_function_changes_is_seen_behind_it():
    def f(x: torch.Tensor, memory: Any) -> torch.Tensor:
        y = x * 2
        fill(memory, 7)
        return y + x

    fill = numpy.ndarray.fill
    compiled = magneto.compile(f)
    for _ in range(CALLS):
        x = torch.randn(3)
        was = x.clone()
        assert torch.equal(compiled(x, x.numpy()), was * 2 + 7)
    assert magneto.counters["graph_break"]
