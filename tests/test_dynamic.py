"""Graphs that are recorded once, with symbolic sizes, and run at others: equal to eager, behind few guards."""

import magneto
import pytest
import torch
from test_joint import check
from zoo import training

SIZES = ((2, 12), (5, 7), (4, 20), (6, 33), (8, 16))
ONLY_BATCH = {"mlp", "resnet18", "vit"}  # the other dimensions of their inputs are those of the model


def record(name: str, joint: bool):
    model, batch = training.make(name)
    model.train(joint)
    arguments = batch(3, 10)
    sizes = [{0: "batch"} if name in ONLY_BATCH else {0: "batch", 1: f"length{i}"} for i in range(len(arguments))]
    with torch.set_grad_enabled(joint):
        return model, batch, magneto.record(model, *arguments, joint=joint, dynamic=sizes)


@pytest.mark.parametrize("name", training.names())
def test_inference_at_other_sizes_equals_eager(name):
    model, batch, graph = record(name, joint=False)
    for size in SIZES:
        arguments = batch(*size)
        with torch.no_grad():
            assert torch.equal(graph(*arguments), model(*arguments))


@pytest.mark.parametrize("name", training.names())
def test_training_at_other_sizes_equals_eager(name):
    model, batch, graph = record(name, joint=True)
    peer, _ = training.make(name)
    for size in SIZES:
        check(graph, model, peer, batch(*size))


@pytest.mark.parametrize("joint", [False, True], ids=["inference", "joint"])
@pytest.mark.parametrize("name", training.names())
def test_guards_are_few(name, joint):
    _, _, graph = record(name, joint)
    inputs = [value.name for value in graph.inputs]
    for _, source, dimension, _, _ in graph.symbols:
        about = [guard for guard in graph.guards if f"{inputs[source]}.size({dimension})" in guard]
        assert len(about) <= 2, about
    assert graph.symbols and not any("==" in guard for guard in graph.guards)


def test_sizes_may_be_wished_for_in_several_ways():
    x, y = torch.randn(3, 4), torch.randn(3, 4)
    for dynamic in (
        True,
        {"x": [0], "y": 0},
        {"x": {0: "n"}, "y": {0: ("n", 2, 9)}},
        [True, (0, 1)],
        [{-2: True}, [0]],
    ):
        graph = magneto.record(lambda x, y: x * y + x.shape[0], x, y, dynamic=dynamic)
        assert torch.equal(graph(torch.ones(5, 4), torch.ones(5, 4)), torch.full((5, 4), 6.0))
        with pytest.raises(ValueError, match="size"):
            graph(torch.ones(5, 4), torch.ones(6, 4))


def test_a_size_of_one_is_never_dynamic():
    graph = magneto.record(lambda x: x + 1, torch.ones(1, 3), dynamic=True)
    with pytest.raises(ValueError, match=r"expected .*1"):
        graph(torch.ones(2, 3))


def test_what_the_program_asks_of_a_size_becomes_a_guard():
    graph = magneto.record(lambda x: x * 2 if x.shape[0] % 2 == 0 else x, torch.ones(4), dynamic=True)
    assert any("% 2 == 0" in guard for guard in graph.guards)
    assert torch.equal(graph(torch.ones(6)), torch.full((6,), 2.0))
    with pytest.raises(ValueError, match="% 2 == 0"):
        graph(torch.ones(5))


def test_a_size_is_an_output_like_others():
    graph = magneto.record(lambda x: (x, x.shape[0]), torch.ones(4), dynamic=True)
    assert graph(torch.ones(7))[1] == 7
    assert magneto.record(lambda x: (x, x.shape[0]), torch.ones(4))(torch.ones(4))[1] == 4


def test_wrong_wishes_say_what_was_expected():
    x = torch.ones(3)
    with pytest.raises(ValueError, match="the tensors are: x"):
        magneto.record(lambda x: x, x, dynamic={"y": True})
    with pytest.raises(ValueError, match="no dimension 1"):
        magneto.record(lambda x: x, x, dynamic={"x": [1]})
    with pytest.raises(ValueError, match="2 items for 1 tensors"):
        magneto.record(lambda x: x, x, dynamic=[True, True])
    with pytest.raises(ValueError, match="live=False"):
        magneto.record(lambda x: x, x, dynamic=True, live=True)
