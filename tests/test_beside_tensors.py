"""What models use beside tensors: weak references, cached functions, scripts, attributes of tensors, own functions."""

from __future__ import annotations

import functools
import queue
import threading
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import magneto
import magneto.testing
import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture(autouse=True)
def no_gradients() -> Iterator[None]:
    with torch.no_grad():
        yield


def hits() -> int:
    return magneto.counters["stats"]["hits"]


def graphs() -> int:
    return magneto.counters["stats"]["graphs"]


def same(a: Any, b: Any) -> bool:
    return magneto.testing.same(a, b, tol=0)


def check(function: Callable[[Tensor], Any], calls: int = 4, first: int = 1) -> Any:
    """Equal to eager in every call, and compiled by the one after `first`."""
    compiled = magneto.compile(function)
    for call in range(calls):
        x = torch.full((2, 3), float(call + 1))
        assert same(compiled(x), function(x))
    assert hits() == calls - first, (dict(magneto.counters["eager"]), dict(magneto.counters["recompile"]))
    return compiled


# ---- weak references


@pytest.mark.parametrize("options", [{}, {"bidirectional": True}, {"num_layers": 2, "batch_first": True}])
@pytest.mark.parametrize("kind", [nn.LSTM, nn.GRU, nn.RNN])
def test_recurrent_modules_are_compiled(kind: type[nn.RNNBase], options: dict[str, Any]) -> None:
    module = kind(3, 5, **options)
    check(lambda x: module(x.unsqueeze(0)))


def test_a_weight_that_is_replaced_is_noticed() -> None:
    module = nn.LSTM(3, 5)
    compiled = check(module)
    x = torch.ones(2, 3)
    module.weight_ih_l0 = nn.Parameter(torch.zeros(20, 3))
    assert same(compiled(x), module(x))
    module.load_state_dict(nn.LSTM(3, 5).state_dict())
    assert same(compiled(x), module(x))


class Model:
    """Something to refer to."""

    def __init__(self, weight: float) -> None:
        self.weight = torch.full((3,), weight)


def test_a_weak_reference_keeps_nothing_alive() -> None:
    model = Model(2)
    reference = weakref.ref(model)

    def f(x: Tensor) -> Tensor:
        found = reference()
        return x if found is None else x * found.weight

    compiled = check(f)
    x = torch.ones(2, 3)
    model.weight = torch.zeros(3)
    assert torch.equal(compiled(x), torch.zeros(2, 3))
    del model
    assert reference() is None
    assert torch.equal(compiled(x), x)


def test_a_tensor_may_be_found_by_a_weak_reference() -> None:
    weight = torch.full((3,), 2.0)
    reference = weakref.ref(weight)
    compiled = check(lambda x: x * reference())
    weight.zero_()
    assert torch.equal(compiled(torch.ones(2, 3)), torch.zeros(2, 3))


# ---- cached functions


@pytest.mark.parametrize("limit", [None, 1, 8])
def test_a_cached_tensor_is_used_as_it_is_now(limit: int | None) -> None:
    made = []

    @functools.lru_cache(maxsize=limit)
    def table(size: int) -> Tensor:
        made.append(torch.full((size,), float(len(made))))
        return made[-1]

    compiled = check(lambda x: x + table(3))
    x = torch.zeros(2, 3)
    table(3).fill_(7)
    assert torch.equal(compiled(x), torch.full((2, 3), 7.0))
    table.cache_clear()
    assert torch.equal(compiled(x), torch.full((2, 3), 1.0))
    table(5), table(3)
    assert torch.equal(compiled(x), x + table(3))


def test_what_a_cached_function_does_while_it_fills_its_cache_is_no_part_of_the_program() -> None:
    noise: list[Tensor] = []

    @functools.lru_cache
    def scale(name: str) -> float:
        noise.append(torch.rand(3).mul_(2))
        threading.RLock().acquire()  # which no watch understands
        return 2.0

    torch.manual_seed(0)
    compiled = check(lambda x: (x + 1) * scale("a"))
    assert len(noise) == 1
    assert graphs() == 1
    scale("b")  # leaves the entry alone
    assert torch.equal(compiled(torch.ones(2, 3)), torch.full((2, 3), 4.0))
    assert magneto.counters["stats"]["captures"] == 1
    scale.cache_clear()
    assert torch.equal(compiled(torch.ones(2, 3)), torch.full((2, 3), 4.0))
    assert len(noise) == 3
    assert "has forgotten a result" in next(iter(magneto.counters["recompile"]))


# ---- script functions


@torch.jit.script
def scaled(x: Tensor, scale: int) -> Tensor:
    return x / torch.sqrt(torch.tensor(x.size(-1) * scale, dtype=torch.float))


def test_a_script_that_makes_a_tensor_from_numbers_cuts() -> None:
    check(lambda x: scaled(x + 1, 2) * 3)
    assert graphs() == 2


# ---- attributes of tensors


def test_an_attribute_of_a_new_tensor_cuts() -> None:
    def f(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x + 1
        y.mark = [1, 2]
        return y, y * 2

    compiled = check(f)
    y, double = compiled(torch.zeros(2, 3))
    assert y.mark == [1, 2]
    assert not hasattr(double, "mark")
    assert graphs() == 2


def test_an_attribute_of_an_argument_is_set_each_time() -> None:
    def f(x: Tensor) -> Tensor:
        x.mark = "seen"
        return x * 2

    compiled = magneto.compile(f)
    for call in range(4):
        x = torch.full((2,), float(call))
        assert torch.equal(compiled(x), x * 2)
        assert x.mark == "seen"
    assert hits() == 3


def test_an_attribute_that_torch_refuses() -> None:
    def f(x: Tensor) -> Any:
        y = x + 1
        try:
            y.shape = (1,)
        except AttributeError as error:
            return y * 2, type(error).__name__
        return y

    compiled = magneto.compile(f)
    for _ in range(4):
        assert same(compiled(torch.ones(2)), f(torch.ones(2)))


@pytest.mark.parametrize("leave", [1, 2])
def test_cpython_can_go_on_where_attributes_are_set(leave: int) -> None:
    def f(x: Tensor) -> tuple[Tensor, int, int]:
        y = x + 1
        y.a = 1
        z = y * 2
        z.b = y.a + 1
        return z, y.a, z.b

    compiled = magneto.compile(f)
    with magneto.config.patch(leave_at_cut=leave):
        for call in range(4):
            x = torch.full((2,), float(call))
            assert same(compiled(x), f(x))


def test_attributes_that_unknown_code_may_have_set_are_read_each_time() -> None:
    weight, box = torch.ones(3), queue.SimpleQueue[Any]()

    def f(x: Tensor) -> Tensor:
        y = x + 1
        box.put((weight, y))
        return x * weight.scale * getattr(y, "scale", 1.0)

    compiled = magneto.compile(f)
    for scale in (2.0, 2.0, 3.0, 4.0):
        weight.scale = scale
        assert compiled(torch.ones(3)).tolist() == [scale] * 3


# ---- locks


def test_a_lock_is_taken_and_let_go_each_time() -> None:
    lock = threading.Lock()

    def f(x: Tensor) -> Tensor:
        y = x + 1
        with lock:
            y = y * 2
        return y - 1

    check(f)
    assert not lock.locked()
    assert graphs() == 3


def test_a_lock_is_let_go_if_an_operator_raises_while_it_is_held() -> None:
    lock, count = threading.Lock(), torch.zeros(3)

    def f(x: Tensor, indices: Tensor) -> Tensor:
        with lock:
            count.add_(1)
            return nn.functional.embedding(indices, x) + count

    compiled = magneto.compile(f)
    good, bad = torch.tensor([0]), torch.tensor([9])
    for number, indices in enumerate([good, good, bad, good, bad]):
        if indices is bad:
            with pytest.raises(IndexError):
                compiled(torch.ones(4, 3), indices)
        else:
            compiled(torch.ones(4, 3), indices)
        assert count.tolist() == [number + 1.0] * 3
        assert not lock.locked()
    assert hits()


# ---- autograd.Function


class Cube(torch.autograd.Function):
    """Saves what its backward needs."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, scale: float) -> Tensor:
        ctx.save_for_backward(x)
        ctx.scale = scale
        return x**3 * scale

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        return grads[0] * 3 * x**2 * ctx.scale, None


class Split(torch.autograd.Function):
    """Gets its context afterwards, and returns an argument among its results."""

    @staticmethod
    def forward(x: Tensor) -> tuple[Tensor, Tensor]:
        return x, x * 2

    @staticmethod
    def setup_context(ctx: Any, inputs: Any, output: Any) -> None:
        ctx.mark_non_differentiable(output[1])
        ctx.set_materialize_grads(False)


class InPlace(torch.autograd.Function):
    """Changes its argument, and says so."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        ctx.mark_dirty(x)
        return x.add_(1)


def test_a_function_of_its_own_is_followed() -> None:
    check(lambda x: Cube.apply(x + 1, 0.5) * 2)
    assert graphs() == 1


def test_gradients_through_a_function_of_its_own() -> None:
    compiled = magneto.compile(lambda x: Cube.apply(x, 0.5) * 2)
    with torch.enable_grad():
        for requires_grad in (False, True, False, True, True):
            x = torch.full((3,), 2.0, requires_grad=requires_grad)
            y = compiled(x)
            assert y.tolist() == [8.0] * 3
            assert y.requires_grad == requires_grad
            if requires_grad:
                y.sum().backward()
                assert x.grad is not None and x.grad.tolist() == [12.0] * 3


def test_a_function_of_its_own_that_returns_its_argument() -> None:
    def f(x: Tensor) -> tuple[bool, Tensor, Tensor]:
        same, double = Split.apply(x)
        return same is x, same, double

    compiled = magneto.compile(f)
    for call in range(4):
        x = torch.full((3,), float(call))
        was, should_be = compiled(x), f(x)
        assert same(was, should_be)
        assert was[1].data_ptr() == x.data_ptr() and should_be[1].data_ptr() == x.data_ptr()


def test_a_function_of_its_own_that_changes_its_argument() -> None:
    compiled = magneto.compile(lambda x: InPlace.apply(x) * 2)
    for call in range(4):
        x, y = torch.full((3,), float(call)), torch.full((3,), float(call))
        assert torch.equal(compiled(x), InPlace.apply(y) * 2)
        assert torch.equal(x, y)
        assert x._version == y._version


def test_a_changed_forward_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    compiled = check(lambda x: Cube.apply(x, 1.0))
    monkeypatch.setattr(Cube, "forward", staticmethod(lambda ctx, x, scale: x - scale))
    assert compiled(torch.ones(2, 3)).tolist() == torch.zeros(2, 3).tolist()


def test_what_a_context_keeps_is_let_go() -> None:
    compiled = check(lambda x: Cube.apply(x, 1.0))
    x = torch.ones(2, 3)
    seen = weakref.ref(x)
    compiled(x)
    del x
    assert seen() is None
