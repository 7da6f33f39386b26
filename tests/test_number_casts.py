"""Numbers that replays keep in the type in which operators compute: results keep every bit."""

import math

import magneto
import pytest
import torch

NUMBERS = [1, -3, 0.1, 1e300, -math.inf, math.nan, -0.0, 2**53 + 1, 2**62, True, 1e-46, 16777217]
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.int8, torch.bool,
         torch.complex64]  # fmt: skip


def arithmetic(t: torch.Tensor, number: float) -> list[torch.Tensor]:
    made = [t + number, number + t, t * number, t / number, number / t, torch.add(t, number, alpha=2)]
    return made if t.dtype == torch.bool else [*made, t - number, number - t]


def bits(tensor: torch.Tensor) -> list[int]:
    return list(tensor.contiguous().flatten().view(torch.uint8)) if tensor.dim() else bits(tensor.view(1))


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("number", NUMBERS)
@pytest.mark.parametrize("shape", [(3, 5), ()], ids=["matrix", "no_dimension"])
def test_results_keep_every_bit(number, dtype, shape):
    def tensor():
        return (torch.randn(shape, dtype=torch.float64) * 50).to(dtype)

    torch.manual_seed(0)
    try:
        arithmetic(tensor(), number)
    except RuntimeError as error:
        pytest.skip(f"eager refuses it: {error}")
    graph = magneto.record(lambda t: arithmetic(t, number), tensor())
    other = tensor()
    for result, wanted in zip(graph.run([other]), arithmetic(other, number), strict=True):
        assert result.dtype == wanted.dtype and bits(result) == bits(wanted)


def test_writes_in_place_keep_every_bit():
    def program(t):
        return t.add_(0.1).mul_(3).sub_(1e-3, alpha=0.5).div_(7)

    graph = magneto.record(program, torch.randn(3, 5))
    ours, theirs = torch.linspace(-9, 9, 15), torch.linspace(-9, 9, 15)
    assert torch.equal(graph.run([ours.view(3, 5)])[0].flatten(), program(theirs)) and torch.equal(ours, theirs)


def test_nothing_is_cast_in_a_run():
    tensor = torch.randn(4)
    graph = magneto.record(lambda t: (t + 1) * 0.5 / 3, tensor)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        graph.run([tensor])
    assert {event.name for event in profile.events() if event.name.startswith("aten::")} == {
        "aten::add", "aten::mul", "aten::div",
    }  # fmt: skip


def test_nodes_of_autograd_keep_the_number_as_it_was_given():
    compiled = magneto.compile(lambda t: t.sin() * 2)
    t = torch.randn(4, requires_grad=True)
    assert [compiled(t).grad_fn._saved_other.dtype for _ in range(3)] == [torch.int64] * 3
