"""Compiled functions in other processes: forked children, workers of a DataLoader, and what is sent to them."""

from __future__ import annotations

import os
import pickle
import threading
from collections.abc import Callable

import magneto
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from zoo import compare


@pytest.fixture(autouse=True)
def fresh():
    magneto.reset()
    with torch.no_grad():
        yield


def model() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2)).eval()


def in_a_child(work: Callable[[], bool]) -> bool:
    """Whether the work succeeds in a forked process."""
    child = os.fork()
    if child == 0:
        good = False
        try:
            good = work()
        finally:
            os._exit(0 if good else 1)
    return os.waitpid(child, 0)[1] == 0


@pytest.mark.parametrize("calls", [0, 1, 3])
def test_a_forked_child_goes_on_with_what_was_compiled(calls: int) -> None:
    original = model()
    compiled, x = magneto.compile(original), torch.randn(3, 4)
    for _ in range(calls):
        compiled(x)

    def work() -> bool:
        same = all(compare.difference(original(x), compiled(x)) is None for _ in range(3))
        other = compare.difference(original(x.double()[:0].float()), compiled(x[:0])) is None
        return same and other and magneto.counters["stats"]["hits"] >= 2

    assert in_a_child(work)
    assert compare.difference(original(x), compiled(x)) is None


def test_a_child_that_is_forked_inside_a_watched_call_and_its_parent_both_go_on() -> None:
    def forks(x: Tensor) -> Tensor:
        y = x + 1
        child = os.fork()
        if child == 0:
            os._exit(0 if torch.equal(y * 2, torch.full((2,), 4.0)) else 1)
        return y * 2 + os.waitpid(child, 0)[1]

    compiled = magneto.compile(forks)
    for _ in range(3):
        assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 4.0))


def test_a_child_forked_while_another_thread_captures_is_not_held_up() -> None:
    original, x = model(), torch.randn(3, 4)
    stop = threading.Event()
    # A child hangs, eagerly too, if it is forked while another thread is the first to call one of torch's operators, or
    # holds the lock that autograd has in each parameter. So the thread is not the first, and has parameters of its own.
    magneto.compile(original)(x)
    other, y = model(), torch.randn(3, 4)

    def capture() -> None:
        with torch.no_grad():
            while not stop.is_set():
                magneto.compile(other)(y)

    thread = threading.Thread(target=capture)
    thread.start()
    try:
        for _ in range(10):
            assert in_a_child(lambda: compare.difference(original(x), magneto.compile(original)(x)) is None)
    finally:
        stop.set()
        thread.join()


class Transformed(Dataset):
    """Items that went through a compiled model."""

    def __init__(self, transform: Callable[[Tensor], Tensor]) -> None:
        self.transform = transform

    def __len__(self) -> int:
        return 8

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        with torch.no_grad():
            result = self.transform(torch.full((3, 4), float(index)))
        return result, magneto.counters["stats"]["hits"]


class Waits(torch.autograd.Function):
    """Its backward waits until it may go on."""

    begins, goes_on = threading.Event(), threading.Event()

    @staticmethod
    def forward(ctx: object, x: Tensor) -> Tensor:
        return x * 2

    @staticmethod
    def backward(ctx: object, gradient: Tensor) -> Tensor:
        Waits.begins.set()
        Waits.goes_on.wait(20)
        return gradient


def test_a_child_forked_while_another_thread_is_in_a_backward_compiles_its_own() -> None:
    def train(function: Callable[[Tensor], Tensor]) -> None:
        with torch.enable_grad(), magneto.compiled_autograd.enable():
            function(torch.ones(2, requires_grad=True)).sum().backward()

    def work() -> bool:
        for _ in range(2):
            train(torch.sin)
        return dict(magneto.counters["compiled_autograd"]) == {"captures": 1, "hits": 1}

    thread = threading.Thread(target=train, args=(Waits.apply,))
    thread.start()
    try:
        assert Waits.begins.wait(20)
        assert in_a_child(work)
    finally:
        Waits.goes_on.set()
        thread.join()


@pytest.mark.parametrize("warm", [False, True])
def test_workers_of_a_data_loader_compile_and_use_compiled_models(warm: bool) -> None:
    original = model()
    compiled = magneto.compile(original)
    if warm:
        compiled(torch.ones(3, 4)), compiled(torch.ones(3, 4))
    loader = DataLoader(Transformed(compiled), num_workers=2, batch_size=None, multiprocessing_context="fork")
    found = list(loader)
    expected = [original(torch.full((3, 4), float(index))) for index in range(8)]
    assert compare.difference(expected, [result for result, _ in found]) is None
    assert max(hits for _, hits in found) >= 3


@pytest.mark.full
def test_a_compiled_model_is_sent_to_spawned_workers() -> None:
    original, rows = model().requires_grad_(False), list(torch.randn(6, 3, 4))
    compiled = magneto.compile(original)
    compiled(rows[0]), compiled(rows[0])
    loader = DataLoader(rows, num_workers=1, batch_size=None, collate_fn=compiled, multiprocessing_context="spawn")
    assert compare.difference([original(row) for row in rows], list(loader)) is None


def test_a_pickled_compiled_module_is_compiled_in_the_child() -> None:
    original, x = model(), torch.randn(3, 4)
    written = pickle.dumps(magneto.compile(original))

    def work() -> bool:
        loaded = pickle.loads(written)
        same = all(compare.difference(original(x), loaded(x)) is None for _ in range(3))
        return same and magneto.counters["stats"]["hits"] == 2

    assert in_a_child(work)
