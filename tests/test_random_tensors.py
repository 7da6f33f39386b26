"""Random programs of views, writes and arithmetic: values, layouts, versions, aliases and gradients are eager's."""

from __future__ import annotations

import os
import random
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from torch import Tensor

FIRST = int(os.environ.get("MAGNETO_FUZZ", "0"))
BATCH, ORDINARY, FULL = 50, 300, 10_000

VIEWS = """
    {a}.t(); {a}.mT; {a}.transpose(0, -1); {a}.permute(*range({a}.dim() - 1, -1, -1)); {a}.movedim(0, -1); {a}.real
    {a}.view(-1); {a}.reshape(-1); {a}.flatten(); {a}.view({a}.shape); {a}.unsqueeze(0); {a}.unsqueeze(-1)
    {a}.squeeze()
    {a}[1:]; {a}[:, :2]; {a}[0]; {a}[-1:]; {a}[::2]; {a}.select(-1, 0); {a}.narrow(0, 0, 1); {a}.diagonal()
    {a}.chunk(2)[0]; {a}.split(2)[-1]; {a}.unbind(0)[0]; {a}.expand(2, *{a}.shape); {a}.expand_as({b}); {a}.detach()
    {a}.as_strided((2,), (1,)); {a}.contiguous(); torch.atleast_2d({a})
"""
OTHERS = """
    {a} * 2; {a} - 1.5; 1 - {a}; {a} / 3; {a} + {b}; {a} * {a}; {a} + s; {a} * {a}.shape[0]; {a}.relu(); {a}.exp()
    {a}.abs().sqrt(); {a}.clamp(-1, 1); {a}.softmax(-1); {a}.cumsum(0); {a}.sum(); {a}.mean(-1, keepdim=True); {a}.max()
    {a}.clone(); {a}.flip(0); {a}.roll(1); {a}.matmul({b}); {a}.to(torch.float64); {a}.half().float()
    torch.cat([{a}.flatten(), {b}.flatten()]); torch.where({a} > 0, {a}, {b}); torch.zeros_like({a})
    {a}.new_ones({a}.shape); sum([{a}, {a}])
"""
WRITES = """
    {a}.add_(1); {a}.mul_({b}); {a}.zero_(); {a}.relu_(); {a}[0] = 2; {a}[1:] *= 3; {a}.copy_({b}); {a}.fill_(4)
    {a}.clamp_(-1, 1); {a} += s; {a}.sub_({a}); {a}.t_(); {a}.unsqueeze_(0); {a}.squeeze_(); {a}.transpose_(0, -1)
"""


def write_program(rng: random.Random) -> str:
    names, lines = ["x", "y"], []
    for number in range(rng.randint(3, 12)):
        (kind,) = rng.choices((VIEWS, OTHERS, WRITES), (10, 7, 3))
        calls = [call.strip() for line in kind.strip().splitlines() for call in line.split(";")]
        call = rng.choice(calls).format(a=rng.choice(names[-4:]), b=rng.choice(names))
        if kind is not WRITES:
            call = f"v{number} = {call}"
            names.append(f"v{number}")
        lines.append(call)
    results = rng.sample(names, min(len(names), rng.randint(1, 4)))
    return "\n  ".join(["def f(x, y, s):", *lines, f"return {', '.join(results)},"])


def arguments(seed: int, call: int, derives: bool) -> tuple[Tensor, Tensor, float]:
    torch.manual_seed(10 * seed + call)
    rows = 4 if call < 3 else 5
    x = torch.randn(rows, 4, requires_grad=derives) * 1  # not a leaf, so that it may be written
    return x, torch.randn(rows, 4) if seed % 3 else torch.randn(4, rows).t(), 2 if call < 2 else 3.5


def outcome(function: Callable[..., Any], args: tuple[Any, ...]) -> list[Any]:
    """What the call returns, as everybody can see it, and what has become of its arguments; or the error."""
    try:
        tensors = [*args[:2], *function(*args)]
        return [look(tensor, tensors) for tensor in tensors]
    except (RuntimeError, IndexError, TypeError) as error:
        return [type(error), first_line(error)]


def first_line(error: Exception) -> str:
    return str(error).split("\n")[0]


def look(tensor: Tensor, all_tensors: list[Tensor]) -> list[Any]:
    def places(matches: Callable[[Tensor], bool]) -> list[int]:
        return [place for place, other in enumerate(all_tensors) if matches(other)]

    memory = tensor.untyped_storage()._cdata
    # Of tensors with nothing in them, autograd's views have strides of any kind.
    strides = tensor.stride() if tensor.numel() else None
    return [
        (tensor.dtype, tensor.shape, strides, tensor.storage_offset(), tensor._version, tensor.requires_grad),
        tensor.grad_fn and tensor.grad_fn.name(),
        places(lambda other: other is tensor._base) if tensor._is_view() else None,
        places(lambda other: other is tensor),
        places(lambda other: other.untyped_storage()._cdata == memory),
        tensor.detach().contiguous().flatten().view(torch.uint8).tolist() if tensor.numel() else [],
    ]


def gradients(function: Callable[..., Any], args: tuple[Any, ...]) -> Any:
    try:
        results = [result for result in function(*args) if result.requires_grad]
        slopes = torch.autograd.grad([result.sum() for result in results], args[0], allow_unused=True)
    except (RuntimeError, IndexError, TypeError) as error:
        return first_line(error)
    return [slope if slope is None else slope.tolist() for slope in slopes]


def check(seed: int) -> bool:
    """Whether anything of the program was compiled."""
    source = write_program(random.Random(seed))
    space: dict[str, Any] = {"torch": torch}
    exec(source, space)
    plain = space["f"]
    derives = seed % 4 == 0
    compiled = magneto.compile(plain)
    with torch.set_grad_enabled(derives):
        for call in range(5):
            for compare in (outcome, gradients) if derives else (outcome,):
                expected = compare(plain, arguments(seed, call, derives))
                actual = compare(compiled, arguments(seed, call, derives))
                assert repr(actual) == repr(expected), f"seed {seed}, call {call}\n{source}"
    return compiled.state() == "compiled"


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    "first",
    [
        first if first < FIRST + ORDINARY else pytest.param(first, marks=pytest.mark.full)
        for first in range(FIRST, FIRST + FULL, BATCH)
    ],
)
def test_random_programs_are_as_in_eager(first: int) -> None:
    count = sum(check(seed) for seed in range(first, first + BATCH))
    magneto.reset()
    assert count > BATCH // 2
