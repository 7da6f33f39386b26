"""Recurrent networks with symbolic sizes: the kernels that eager runs, at any batch and length."""

import functools

import magneto
import pytest
import torch
from test_joint import step
from torch import nn

SIZES = ((2, 12), (5, 7), (4, 20), (6, 33), (9, 3))
VARIANTS = {
    "one layer": {},
    "batch first": {"batch_first": True, "num_layers": 2},
    "both ways": {"bidirectional": True, "num_layers": 2},
    "no biases": {"bias": False, "bidirectional": True},
    "dropout": {"dropout": 0.5, "num_layers": 3},
}
JOINT = pytest.mark.parametrize("joint", [False, True], ids=["inference", "joint"])


class Net(nn.Module):
    """Output and states in one, so that there is one gradient to hand in."""

    def __init__(self, rnn: nn.Module) -> None:
        super().__init__()
        self.rnn = rnn

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        output, state = self.rnn(x)
        states = state if isinstance(state, tuple) else (state,)
        return torch.cat([each.flatten() for each in (output, *states)])


def make(variant: str) -> tuple[nn.Module, bool]:
    torch.manual_seed(0)
    settings = VARIANTS[variant]
    return Net(nn.LSTM(8, 16, **settings)), "batch_first" in settings


def record(model: nn.Module, x: torch.Tensor, joint: bool, dynamic: object) -> magneto.Graph:
    with torch.set_grad_enabled(joint):
        return magneto.record(model, x, joint=joint, dynamic=dynamic)


@JOINT
@pytest.mark.parametrize("variant", VARIANTS)
def test_an_lstm_takes_any_batch_and_length(variant, joint):
    model, batch_first = make(variant)
    model.train(joint)
    graph = record(model, torch.randn(3, 10, 8), joint, {"x": [0, 1]})
    assert graph.guards == ["x.size(0) >= 2", "x.size(1) >= 2"]
    for batch, length in SIZES:
        x = torch.randn((batch, length, 8) if batch_first else (length, batch, 8))
        if joint:
            torch.manual_seed(3)
            tangent = torch.randn_like(model(x))
            torch.manual_seed(5)
            expected, gradients = step(model, (x,), tangent)
            torch.manual_seed(5)
            found, found_gradients = graph(x, gradients=[tangent])
            by_name = dict(zip((name for name, _ in graph.states), found_gradients, strict=True))
            for name, gradient in gradients.items():
                assert torch.equal(by_name[name], gradient), name
        else:
            with torch.no_grad():
                expected, found = model(x), graph(x)
        assert torch.equal(found, expected)


@JOINT
@pytest.mark.parametrize("variant", VARIANTS)
def test_symbolic_sizes_change_no_operator(variant, joint):
    model, _ = make(variant)
    model.train(joint)
    x = torch.randn(3, 10, 8)
    names = [[op.name for op in record(model, x, joint, dynamic).ops] for dynamic in (None, {"x": [0, 1]})]
    assert names[0] == names[1]
    assert any("mkldnn" in name for name in names[0]) == torch.backends.mkldnn.is_available()


def test_what_the_kernel_keeps_for_the_backward_has_a_size_of_its_own():
    model, _ = make("one layer")
    graph = record(model, torch.randn(3, 10, 8), True, {"x": [0, 1]})
    assert " unknown\n" in graph.text
    assert magneto.Graph.parse(graph.text, states=[tensor for _, tensor in graph.states]).hash == graph.hash
    assert [name for name, *_ in graph.symbols] == ["s0", "s1"]


UNROLLED = pytest.mark.parametrize("kind", [nn.GRU, nn.RNN, functools.partial(nn.RNN, nonlinearity="relu")])


@UNROLLED
def test_networks_that_are_unrolled_keep_their_length_for_gradients(kind):
    torch.manual_seed(0)
    model = Net(kind(8, 16, num_layers=2))
    graph = record(model, torch.randn(4, 3, 8), True, {"x": [0, 1]})
    assert "x.size(0) == 4" in graph.guards
    assert "x.size(1) >= 2" in graph.guards
    for batch in (2, 5, 7, 9, 16):
        x = torch.randn(4, batch, 8)
        with torch.no_grad():
            expected = model(x)
        assert torch.equal(graph(x, gradients=[torch.ones_like(expected)])[0], expected)
    with pytest.raises(ValueError, match=r"x\.size\(0\) == 4 does not hold"):
        graph(torch.randn(5, 3, 8), gradients=[torch.ones(1)])


@UNROLLED
@pytest.mark.parametrize("variant", VARIANTS)
def test_without_gradients_they_take_any_batch_and_length(kind, variant):
    torch.manual_seed(0)
    model = kind(8, 16, **VARIANTS[variant]).eval()
    graph = record(model, torch.randn(3, 10, 8), False, [(0, 1)])
    assert [op.name for op in graph.ops][1:] in (["aten::gru"], ["aten::rnn_tanh"], ["aten::rnn_relu"])
    for sizes in SIZES:
        x = torch.randn(*sizes, 8)
        with torch.no_grad():
            expected = model(x)
        for one, other in zip(graph(x), expected, strict=True):
            assert torch.equal(one, other)
            assert one.stride() == other.stride()


@UNROLLED
def test_what_is_random_or_cast_in_them_is_recorded_in_steps(kind):
    model = kind(8, 16, num_layers=2, dropout=0.5)
    x = torch.randn(4, 3, 8)
    assert "input.size(0) == 4" in record(model, x, False, [(0, 1)]).guards
    model.eval()
    with torch.autocast("cpu", torch.bfloat16):
        graph = record(model, x, False, [(0, 1)])
        assert "input.size(0) == 4" in graph.guards
        with torch.no_grad():
            expected = model(x)
        assert all(torch.equal(one, other) for one, other in zip(graph(x), expected, strict=True))
