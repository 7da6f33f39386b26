"""The lazy device beside what is around a program: random numbers, precision, loaders, threads and memory."""

from __future__ import annotations

import copy
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

import pytest
import torch
from lazy_stories import check, conv_net, made_model, numbers, seen, small_model, train
from magneto import lazy
from test_leaks import assert_flat
from test_threads import in_threads
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset
from zoo import compare, harness

STEPS = 2000 if harness.FULL else 200
pytestmark = [pytest.mark.filterwarnings("ignore"), pytest.mark.usefixtures("lazy_device")]


# ---- random numbers

DRAWS: dict[str, Callable[..., Tensor]] = {
    "rand": lambda d, **k: torch.rand(5, device=d, **k),
    "randn": lambda d, **k: torch.randn(40, device=d, **k),
    "randint": lambda d, **k: torch.randint(0, 100, (5,), device=d, **k),
    "randperm": lambda d, **k: torch.randperm(9, device=d, **k),
    "normal": lambda d, **k: torch.normal(0.0, 2.0, (5,), device=d, **k),
    "normal_tensors": lambda d, **k: torch.normal(torch.zeros(4, device=d), torch.ones(4, device=d), **k),
    "bernoulli": lambda d, **k: torch.bernoulli(torch.full((9,), 0.5, device=d), **k),
    "multinomial": lambda d, **k: torch.multinomial(torch.ones(5, device=d), 3, **k),
    "poisson": lambda d, **k: torch.poisson(torch.full((5,), 3.0, device=d), **k),
    "uniform_": lambda d, **k: torch.empty(5, device=d).uniform_(1, 2, **k),
    "exponential_": lambda d, **k: torch.empty(5, device=d).exponential_(**k),
    "random_": lambda d, **k: torch.empty(5, device=d).random_(10, **k),
    "geometric_": lambda d, **k: torch.empty(5, device=d).geometric_(0.5, **k),
    "cauchy_": lambda d, **k: torch.empty(5, device=d).cauchy_(**k),
    "log_normal_": lambda d, **k: torch.empty(5, device=d).log_normal_(**k),
}


@pytest.mark.parametrize("name", DRAWS)
def test_draws_are_those_of_a_cpu_generator_with_the_same_seed(name: str) -> None:
    draw, generator = DRAWS[name], torch.Generator().manual_seed(11)
    expected = [draw("cpu", generator=generator) for _ in range(3)]
    for _ in range(2):
        torch.manual_seed(11)
        assert [seen(draw("lazy")) for _ in range(3)] == [seen(x) for x in expected]
    lazy.manual_seed(11)
    assert seen(draw("lazy")) == seen(expected[0])


@pytest.mark.parametrize("name", DRAWS)
def test_a_generator_that_is_given_is_drawn_from_in_the_order_of_the_program(name: str) -> None:
    draw = DRAWS[name]

    def story(d: str) -> Any:
        generator = torch.Generator().manual_seed(5)
        first = draw(d, generator=generator)
        between = draw("cpu", generator=generator)
        second = draw(d, generator=generator)
        state = generator.get_state()
        generator.manual_seed(6)
        return [first, between, second, state, draw(d, generator=generator)]

    check(story)


@pytest.mark.parametrize(
    "drop",
    [
        lambda x: F.dropout(x, 0.3),
        lambda x: F.dropout(x, 0.3, inplace=True),
        lambda x: F.alpha_dropout(x, 0.3, training=True),
        lambda x: F.feature_alpha_dropout(x, 0.3, training=True),
        lambda x: F.dropout2d(x, 0.3),
        lambda x: F.dropout1d(x, 0.5),
        lambda x: F.dropout(x, 1.0),
        lambda x: F.dropout(x, 0.0),
        lambda x: F.dropout(x, 0.5, training=False),
        lambda x: F.rrelu(x, training=True),
        lambda x: F.gumbel_softmax(x),
        lambda x: torch.native_dropout(x, 0.5, True)[0],
    ],
)
def test_noise_is_that_of_the_cpu(drop: Callable[[Tensor], Tensor]) -> None:
    def story(d: str) -> Any:
        x = numbers(d, 2, 4, 5).requires_grad_()
        y = drop(x * 1)
        y.sum().backward()
        return [y, x.grad]

    check(story)


def test_a_seed_counts_from_where_it_was_set() -> None:
    torch.manual_seed(1)
    first = torch.rand(3, device="lazy")
    torch.manual_seed(1)
    second = torch.rand(3, device="lazy")
    third = torch.rand(3, device="lazy")
    assert first.tolist() == second.tolist() != third.tolist()


def test_the_generators_of_the_devices_do_not_disturb_each_other() -> None:
    torch.manual_seed(1)
    expected = torch.rand(3).tolist()
    torch.manual_seed(1)
    torch.rand(30, device="lazy").tolist()
    torch.randperm(30, device="lazy").tolist()
    torch.multinomial(torch.ones(4, device="lazy"), 2).tolist()
    assert torch.rand(3).tolist() == expected


def test_draws_that_nobody_keeps_still_count() -> None:
    torch.manual_seed(1)
    torch.rand(3, device="lazy")
    kept = torch.rand(3, device="lazy")
    generator = torch.Generator().manual_seed(1)
    torch.rand(3, generator=generator)
    assert kept.tolist() == torch.rand(3, generator=generator).tolist()


# ---- mixed precision


def test_lower_precision_is_the_same() -> None:
    def story(d: str) -> Any:
        model = made_model(lambda: nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.Linear(8, 2)), d)
        half = copy.deepcopy(model).to(torch.bfloat16)
        x = numbers(d, 3, 4)
        y = half(x.to(torch.bfloat16)).float() + model(x)
        y.sum().backward()
        return [y, [p.grad for p in half.parameters()], [p.grad for p in model.parameters()]]

    check(story)


# ---- data


@pytest.mark.parametrize("workers", [0, 2])
def test_a_loader_feeds_the_device(workers: int) -> None:
    data = TensorDataset(torch.arange(24.0).reshape(8, 3), torch.arange(8))

    def story(d: str) -> Any:
        generator = torch.Generator().manual_seed(0)
        loader = DataLoader(data, 3, shuffle=True, num_workers=workers, generator=generator)
        model = small_model(d)
        optimizer = torch.optim.SGD(model.parameters(), 0.001)
        losses = []
        for _ in range(2):
            for x, y in loader:
                loss = F.cross_entropy(model(x.to(d)), y.to(d) % 2)
                loss.backward()
                optimizer.step()
                losses.append(loss)
        return losses

    check(story, 1)


def test_a_loader_collates_lazy_items() -> None:
    items = [(torch.full((2,), float(i), device="lazy"), i) for i in range(4)]
    batches = list(DataLoader(items, 2))
    assert [(x.device.type, x.tolist(), y.tolist()) for x, y in batches] == [
        ("lazy", [[0, 0], [1, 1]], [0, 1]),
        ("lazy", [[2, 2], [3, 3]], [2, 3]),
    ]


# ---- threads


def test_threads_train_their_own_models() -> None:
    def trained(d: str, index: int) -> list[Any]:
        with torch.enable_grad():
            model = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Linear(4, 2))
            with torch.no_grad():
                for i, p in enumerate(model.parameters()):
                    p.copy_(numbers("cpu", *p.shape, seed=10 * index + i))
            model.to(d)
            optimizer = torch.optim.AdamW(model.parameters(), 0.1)
            return [*train(model, optimizer, d, 20), [seen(p) for p in model.parameters()]]

    expected = [trained("cpu", index) for index in range(4)]

    def work(index: int) -> None:
        assert trained("lazy", index) == expected[index]

    in_threads(work, 4)


def test_threads_move_modules_while_others_load_theirs() -> None:
    """Parameters are swapped on the way to the device, and only there: what weak references point to is not."""

    def work(number: int) -> None:
        for _ in range(100):
            module = nn.Linear(3, 3)
            if number % 2:
                module.to("lazy")
            else:
                reference = weakref.ref(module.weight)
                module.load_state_dict(nn.Linear(3, 3).state_dict())
                assert reference() is module.weight

    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        in_threads(work, 4)
    finally:
        sys.setswitchinterval(interval)
    assert not torch.__future__.get_swap_module_params_on_conversion()


def test_threads_share_a_tensor() -> None:
    shared = torch.zeros(4, device="lazy")
    base = torch.arange(8.0, device="lazy")
    lock = threading.Lock()

    def work(index: int) -> None:
        for i in range(100):
            with lock:
                shared.add_(1)
            part = base[index : index + 2] * (i + 1)
            assert part.tolist() == [(i + 1.0) * index, (i + 1.0) * (index + 1)]
            if i % 10 == index:
                lazy.mark_step(wait=False)

    in_threads(work, 4)
    assert shared.tolist() == [400.0] * 4


def test_operators_have_as_many_threads_as_the_program_gives_them() -> None:
    """Also where a step runs on a thread of its own: told by the processor time of products that others could share."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        x = torch.randn(700, 700, device="lazy")
        for _ in range(3):
            wall, processor = time.perf_counter(), time.process_time()
            y = x
            for _ in range(20):
                y = y @ x
            lazy.mark_step()
            y.sum().item()
            wall, processor = time.perf_counter() - wall, time.process_time() - processor
            assert processor < 1.5 * wall
    finally:
        torch.set_num_threads(before)


def test_threads_read_one_pending_value() -> None:
    for _ in range(20):
        x = torch.ones(50, device="lazy")
        for _ in range(20):
            x = x + 1

        def work(index: int, x: Tensor = x) -> None:
            assert x.sum().item() == 21 * 50

        in_threads(work, 4)


def test_threads_clear_the_cache_while_others_record() -> None:
    def work(index: int) -> None:
        for i in range(100):
            if index == 0:
                lazy.clear_ir_cache()
            x = torch.full((3,), float(i), device="lazy")
            assert (x + index).tolist() == [float(i + index)] * 3

    in_threads(work, 4)


# ---- memory


def test_memory_is_flat_over_many_steps() -> None:
    model = made_model(conv_net, "lazy")
    optimizer = torch.optim.AdamW(model.parameters(), 0.01)

    def cycle() -> None:
        optimizer.zero_grad()
        loss = model(torch.randn(4, 3, 8, 8).to("lazy")).pow(2).mean()
        loss.backward()
        optimizer.step()
        loss.item()

    for _ in range(20):
        cycle()
    assert_flat(cycle, STEPS)


def test_memory_is_flat_without_reads() -> None:
    model = small_model("lazy")
    optimizer = torch.optim.SGD(model.parameters(), 0.01)

    def cycle() -> None:
        model(torch.ones(2, 3, device="lazy")).sum().backward()
        optimizer.step()

    assert_flat(cycle, STEPS)


@pytest.mark.parametrize(
    "cycle",
    [
        lambda: torch.arange(5000, device="lazy").nonzero(),
        lambda: torch.unique(torch.arange(5000, device="lazy")),
        lambda: compare.raised_by(lambda: torch.ones(5000, device="lazy") @ torch.ones(7, device="lazy")),
        lambda: torch.arange(5000.0).to("lazy").tolist(),
        lambda: torch.ones(5000, device="lazy").view(50, 100).t().contiguous().cpu(),
        lambda: (lazy.get_tensors_text([torch.ones(500, device="lazy") + 1]), lazy.mark_step()),
        lambda: (lazy.clear_ir_cache(), (torch.ones(5000, device="lazy") + 1).cpu()),
        lambda: torch.ones(5000, device="lazy").resize_(2, 3).cpu(),
    ],
)
def test_memory_is_flat_whatever_a_step_does(cycle: Callable[[], Any]) -> None:
    for _ in range(20):
        cycle()
    assert_flat(cycle, STEPS)


def test_memory_is_flat_when_nothing_is_recorded_at_last() -> None:
    state = [torch.arange(5000, device="lazy")]
    lazy.mark_step()

    def cycle() -> None:
        state[0] = torch.unique(torch.masked_select(state[0], state[0].cpu() >= 0))

    assert_flat(cycle, STEPS)


def test_dead_values_are_freed_while_a_step_runs() -> None:
    import resource

    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    x = torch.ones(1000, 1000, device="lazy")
    for _ in range(200):
        x = x + 1
    assert x[0, 0].item() == 201.0
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < before + 100 * 1024
