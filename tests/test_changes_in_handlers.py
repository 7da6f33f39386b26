"""Random numbers and changed tensors where the program also handles errors: a failed run leaves no trace."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import magneto
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

pytestmark = pytest.mark.usefixtures("fresh")

GOOD, BAD = torch.tensor([0, 2]), torch.tensor([0, 9])  # rows of a table with four
STORY = [GOOD, GOOD, BAD, GOOD, BAD, BAD, GOOD]


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def outcome(function: Callable[..., Any], *args: Any) -> Any:
    try:
        return function(*args)
    except Exception as error:
        return type(error).__name__, str(error).splitlines()[0]


def seen(state: dict[str, Tensor]) -> dict[str, Any]:
    return {name: (t.tolist(), tuple(t.shape), t._version) for name, t in state.items()}


def told(value: Any) -> Any:
    return value.tolist() if isinstance(value, Tensor) else value


def story(
    make: Callable[[], tuple[Callable[..., Any], dict[str, Tensor]]], compiles: bool, **options: Any
) -> list[Any]:
    """What a program answers, how it leaves its tensors, and which random numbers come next."""
    torch.manual_seed(0)
    function, state = make()
    if compiles:
        function = magneto.compile(function, **options)
    torch.manual_seed(1)
    chapters = []
    for indices in STORY:
        answer = told(outcome(function, torch.ones(4, 3), indices))
        chapters.append((answer, seen(state), torch.is_grad_enabled(), torch.get_rng_state().sum().item()))
    return chapters


def look_up(x: Tensor, indices: Tensor) -> Tensor:
    return functional.embedding(indices, x)


def draws_before_an_error() -> Any:
    def f(x: Tensor, indices: Tensor) -> Tensor:
        noise = torch.rand_like(x)
        try:
            return look_up(x + noise, indices)
        except IndexError:
            return torch.rand(2) + noise.sum()

    return f, {}


def draws_in_finally() -> Any:
    def f(x: Tensor, indices: Tensor) -> Tensor:
        try:
            return look_up(x + torch.randn(3), indices)
        finally:
            torch.rand(1)

    return f, {}


def draws_from_its_own_generator() -> Any:
    generator = torch.Generator().manual_seed(3)

    def f(x: Tensor, indices: Tensor) -> Tensor:
        try:
            return look_up(x + torch.rand(3, generator=generator), indices)
        except IndexError:
            return torch.rand(2, generator=generator)

    return f, {}


def dropout_in_a_block() -> Any:
    def f(x: Tensor, indices: Tensor) -> Tensor:
        with contextlib.suppress(IndexError):
            return look_up(functional.dropout(x, 0.5), indices)
        return functional.dropout(x, 0.5)

    return f, {}


def changes_a_buffer() -> Any:
    buffer = torch.zeros(3)

    def f(x: Tensor, indices: Tensor) -> Tensor:
        try:
            buffer.add_(1)
            return look_up(x + buffer, indices)
        except IndexError:
            return buffer * 2

    return f, {"buffer": buffer}


def changes_an_argument_through_views() -> Any:
    def f(x: Tensor, indices: Tensor) -> Any:
        try:
            x[0].mul_(3)
            x.t()[1] += 1
            return look_up(x, indices)
        except IndexError:
            return x.clone()

    return f, {}


def changes_what_overlaps_itself() -> Any:
    memory = torch.zeros(3)
    wide = memory.expand(4, 3)

    def f(x: Tensor, indices: Tensor) -> Any:
        try:
            wide[2].add_(1)
            return look_up(wide + x, indices)
        except IndexError:
            return wide.sum()

    return f, {"memory": memory}


def changes_two_views_of_one_memory() -> Any:
    memory = torch.zeros(8)
    first, second = memory[:6], memory[2:]

    def f(x: Tensor, indices: Tensor) -> Any:
        try:
            first.add_(1)
            second.mul_(2)
            return look_up(x, indices) + first[0] + second[5]
        except IndexError:
            return memory.clone()

    return f, {"memory": memory, "first": first, "second": second}


def trains_batch_norm() -> Any:
    norm = nn.BatchNorm1d(3)

    def f(x: Tensor, indices: Tensor) -> Any:
        y = norm(x * torch.arange(4.0).unsqueeze(1))
        try:
            return look_up(y, indices)
        except IndexError:
            return norm.running_mean + 0

    return f, dict(norm.named_buffers())


def writes_to_a_result_that_grows() -> Any:
    out = torch.zeros(2, 3)

    def f(x: Tensor, indices: Tensor) -> Any:
        try:
            torch.add(x[:2], 1, out=out)
            return look_up(x, indices) + out.sum()
        except IndexError:
            return out * 2

    return f, {"out": out}


def writes_with_the_operator_that_raises() -> Any:
    table = torch.zeros(4)

    def f(x: Tensor, indices: Tensor) -> Any:
        try:
            table.index_put_((indices,), torch.ones(2), accumulate=True)
            return table.clone()
        except IndexError:
            return table + 1

    return f, {"table": table}


def reaches_beyond_what_it_was_given() -> Any:
    memory = torch.zeros(8)
    part = memory[:2]

    def f(x: Tensor, indices: Tensor) -> Any:
        try:
            torch.as_strided(part, (8,), (1,)).add_(1)
            return look_up(x, indices) + part.sum()
        except IndexError:
            return memory.clone()

    return f, {"memory": memory}


def a_block_of_torch_inside_a_handler() -> Any:
    buffer = torch.zeros(3)

    def f(x: Tensor, indices: Tensor) -> Any:
        try:
            with torch.enable_grad(), torch.no_grad():
                buffer.add_(1)
                return look_up(x + buffer, indices)
        except IndexError:
            return buffer * 2

    return f, {"buffer": buffer}


class Forgiving(torch.no_grad):
    """Looks like torch's own block, but swallows errors."""

    def __exit__(self, *error: Any) -> bool:  # type: ignore[override]
        super().__exit__(*error)
        return True


def a_block_that_only_looks_like_one_of_torch() -> Any:
    buffer = torch.zeros(3)

    def f(x: Tensor, indices: Tensor) -> Any:
        with Forgiving():
            buffer.add_(1)
            return look_up(x + buffer, indices)
        return buffer * 2

    return f, {"buffer": buffer}


COMPILED = [
    draws_before_an_error,
    draws_in_finally,
    dropout_in_a_block,
    changes_a_buffer,
    changes_an_argument_through_views,
    changes_what_overlaps_itself,
    changes_two_views_of_one_memory,
    trains_batch_norm,
    writes_to_a_result_that_grows,
    writes_with_the_operator_that_raises,
    a_block_of_torch_inside_a_handler,
    a_block_that_only_looks_like_one_of_torch,
    draws_from_its_own_generator,
]
EAGER = [reaches_beyond_what_it_was_given]


@pytest.mark.parametrize("make", COMPILED + EAGER)
def test_errors_that_are_handled_leave_what_eager_leaves(make: Callable[[], Any]) -> None:
    expected, actual = story(make, compiles=False), story(make, compiles=True)
    for number, (should_be, was) in enumerate(zip(expected, actual, strict=True)):
        assert was == should_be, f"call {number}"
    assert bool(magneto.counters["stats"]["hits"]) == (make in COMPILED), magneto.counters["eager"]


@pytest.mark.parametrize("make", [changes_a_buffer, draws_before_an_error, trains_batch_norm])
def test_a_backend_that_fails_midway_leaves_what_eager_leaves(make: Callable[[], Any]) -> None:
    expected, actual = story(make, compiles=False), story(make, compiles=True, backend="eager")
    assert actual == expected


def in_no_grad(x: Tensor) -> Tensor:
    with torch.no_grad():
        return x + torch.rand_like(x)


@torch.no_grad()
def decorated(x: Tensor) -> Tensor:
    return x + torch.rand_like(x)


def in_autocast(x: Tensor) -> Tensor:
    with torch.autocast("cpu", dtype=torch.bfloat16):
        return (x @ x.T) + torch.rand(2, 2)


def from_the_right(x: Tensor) -> Tensor:
    return (1 - x) / (2 / (x + 1)) + torch.rand_like(x)


def in_place_in_no_grad(x: Tensor) -> Tensor:
    with torch.set_grad_enabled(False):
        return x.add_(1) * 2


@pytest.mark.parametrize("function", [in_no_grad, decorated, in_autocast, from_the_right, in_place_in_no_grad])
@pytest.mark.parametrize("gradients", [False, True])
def test_blocks_and_operators_of_torch_cost_nothing(function: Callable[[Tensor], Tensor], gradients: bool) -> None:
    compiled = magneto.compile(function)
    with torch.set_grad_enabled(gradients):
        for call in range(4):
            x = torch.full((2, 3), float(call))
            torch.manual_seed(call)
            y, expected = x.clone(), function(x)
            torch.manual_seed(call)
            assert torch.equal(compiled(y), expected)
            assert torch.equal(x, y)
            assert torch.is_grad_enabled() == gradients
    assert magneto.counters["stats"]["hits"] == 3, magneto.counters["eager"]


def test_an_error_inside_blocks_of_torch_is_that_of_eager() -> None:
    def make() -> Any:
        buffer = torch.zeros(3)

        def f(x: Tensor, indices: Tensor) -> Tensor:
            with torch.enable_grad(), torch.autocast("cpu"), torch.no_grad():
                buffer.add_(1)
                return look_up(x + buffer, indices)

        return f, {"buffer": buffer}

    assert story(make, compiles=True) == story(make, compiles=False)
    assert magneto.counters["stats"]["hits"]
    assert not torch.is_autocast_enabled("cpu")
