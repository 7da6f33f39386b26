"""Forward and backward of real models as one graph, recorded in both modes and replayed: equal to eager to the bit."""

import magneto
import pytest
import torch
from torch import nn
from zoo import training

MODES = pytest.mark.parametrize("live", [False, True], ids=["trace", "live"])


def step(model: nn.Module, arguments: tuple[torch.Tensor, ...], tangent: torch.Tensor):
    """Eager's output and gradients, by the names of the parameters."""
    output = model(*arguments)
    used = dict(model.named_parameters())
    gradients = torch.autograd.grad(output, list(used.values()), tangent, allow_unused=True)
    return output, dict(zip(used, gradients, strict=True))


def same(a: torch.Tensor, b: torch.Tensor) -> bool:
    return a.dtype == b.dtype and a.stride() == b.stride() and torch.equal(a, b)


def check(graph: magneto.Graph, model: nn.Module, peer: nn.Module, arguments: tuple[torch.Tensor, ...]) -> None:
    """`model`, whose graph it is, and `peer` start out equal."""
    torch.manual_seed(7)
    tangent = torch.randn_like(peer(*arguments))
    peer.load_state_dict(model.state_dict())  # that call may have trained its buffers
    torch.manual_seed(9)
    output, expected = step(peer, arguments, tangent)
    torch.manual_seed(9)
    result, gradients = graph(*arguments, gradients=[tangent])
    assert same(result, output)
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    targets = [names[id(tensor)] for _, tensor in graph.states if tensor.requires_grad]
    assert len(targets) == len(gradients) > 0
    for name, gradient in zip(targets, gradients, strict=True):
        assert (gradient is None) == (expected[name] is None), name
        assert gradient is None or same(gradient, expected[name]), name
    for (name, buffer), other in zip(model.named_buffers(), peer.buffers(), strict=True):
        assert same(buffer, other), name


@MODES
@pytest.mark.parametrize("name", training.names())
def test_joint_graphs_of_models_equal_eager(name, live):
    (model, batch), (peer, _) = training.make(name), training.make(name)
    arguments = batch(2, 12)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    graph = magneto.record(model, *arguments, joint=True, live=live)
    changed = [key for key, value in model.state_dict().items() if not torch.equal(value, before[key])]
    assert live or not changed
    model.load_state_dict(before)
    for _ in range(2):
        check(graph, model, peer, arguments)


@pytest.mark.parametrize("name", training.names())
def test_both_modes_give_the_same_joint_graph(name):
    model, batch = training.make(name)
    arguments = batch(2, 12)
    traced, live = (magneto.record(model, *arguments, joint=True, live=live).text for live in (False, True))
    assert traced == live
