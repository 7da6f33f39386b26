"""Forward and backward of real models as one graph, recorded in both modes and replayed: equal to eager to the bit."""

import copy
import threading

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


class Cosine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x.cos()

    @staticmethod
    def backward(ctx, gradient):
        return -gradient * ctx.saved_tensors[0].sin()


def with_hook(x):
    y = x.exp()
    y.register_hook(lambda gradient: gradient * 3)
    return torch.autograd.grad(y.sum(), x)


def of_fans(x):
    a = x * 2
    b = a + a
    c = a * b + a
    return torch.autograd.grad((c.t() + c).sum() + b.sum(), [a, x])


def with_two_roots(x):
    a = x * 2
    return torch.autograd.grad([a.sin(), a @ a], [x, a], [torch.ones_like(a)] * 2)


def twice(x):
    (first,) = torch.autograd.grad((x * x.sin()).sum(), x, create_graph=True)
    return torch.autograd.grad((first * first).sum(), x)


BACKWARDS = {
    "of what is asked for": lambda x: torch.autograd.grad(y := x * 2, y, torch.ones_like(y)),
    "of a leaf": lambda x: torch.autograd.grad(x, x, torch.ones(3, 3)),
    "of fans": of_fans,
    "with two roots": with_two_roots,
    "of a backward": twice,
    "with a hook": with_hook,
    "with a Python function": lambda x: torch.autograd.grad(Cosine.apply(x * 2).sum(), x),
    "of writes": lambda x: torch.autograd.grad((x * 1).add_(x).mul_(2)[:2].exp_().sum(), x),
    "without some gradients": lambda x: torch.autograd.grad(sum(torch.split(x, 1)[:2]).sum(), x),
}


@pytest.mark.parametrize("name", BACKWARDS)
def test_backwards_in_programs_are_those_of_the_engine(name):
    x = torch.randn(3, 3, requires_grad=True)
    assert magneto.record(BACKWARDS[name], x).text == magneto.record(BACKWARDS[name], x, live=True).text


def test_gradients_add_up_as_the_engine_adds_them():
    x, weight = torch.randn(3, 3), torch.randn(3, 3, requires_grad=True)
    weight.grad = torch.zeros(3, 3)

    def program(x):
        (x @ weight).sum().backward(inputs=[weight])
        (weight * weight).sum().backward()
        return x + 1

    text = magneto.record(program, x).text
    assert text == magneto.record(program, x, live=True).text
    assert text.count("aten.add_.Tensor") == 2 + 1  # into .grad, and the two gradients of a square


def test_an_error_in_a_recorded_backward_is_the_engines():
    def freed(x):
        y = (x * x).sum()
        return torch.autograd.grad(y, x), torch.autograd.grad(y, x)

    with pytest.raises(RuntimeError, match="Trying to backward through the graph a second time"):
        magneto.record(freed, torch.randn(3, requires_grad=True))


def test_other_threads_train_while_backwards_are_recorded():
    model, batch = training.make("mlp")
    peer = copy.deepcopy(model).eval()
    arguments = batch(2, 12)
    expected = torch.autograd.grad(peer(*arguments).sum(), list(peer.parameters()), allow_unused=True)
    stop, wrong = threading.Event(), []

    def train():
        while not stop.is_set():
            found = torch.autograd.grad(peer(*arguments).sum(), list(peer.parameters()), allow_unused=True)
            wrong.extend(a for a, b in zip(found, expected, strict=True) if not (a is b or same(a, b)))

    thread = threading.Thread(target=train)
    thread.start()
    try:
        texts = {magneto.record(model, *arguments, joint=True).text for _ in range(50)}
    finally:
        stop.set()
        thread.join()
    assert len(texts) == 1 and not wrong
