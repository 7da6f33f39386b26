"""Results that stay in place from run to run: nobody can tell them from new ones."""

from __future__ import annotations

import os
import random
import re
import threading
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from torch import Tensor
from torch.nn import functional
from torch.utils._python_dispatch import TorchDispatchMode

KIB = 1024
FIRST = int(os.environ.get("MAGNETO_FUZZ", "0"))

# Each with operators whose results do not come out; a and b are of one shape, m is a square, i are indices.
PROGRAMS = """
    a + b; a - b; a * b; a / b; a + 1; 3 - a; a * 0.1; a / 3; torch.add(a, b, alpha=2); a + b[0]; a * m.sum(); -a
    a + 2j; a * a.t().t(); a[:, 1:] + b[:, :-1]; a.t() + b.t(); a + b.t().contiguous().t(); a.expand(3, 4, 4) * b
    a.tanh(); a.sigmoid(); a.relu(); a.exp(); a.log(); a.sqrt(); a.rsqrt(); a.reciprocal(); a.sin(); a.cos()
    a.erf(); functional.gelu(a); functional.gelu(a, approximate="tanh"); functional.silu(a)
    functional.leaky_relu(a, 0.2); functional.elu(a); functional.softplus(a); a ** 2; a ** 0.5; a ** b; 2 ** a
    a ** 0; torch.maximum(a, b); torch.minimum(a, b); a.clamp(-1, 1); a.clamp(min=0); a.clamp_min(-0.5)
    a.clamp_max(0.5); a == b; a != b; a < b; a <= b; a > b; a >= b; a == 1; a != 0; a < 0; a <= 0.5; a > 0; a >= -1
    ~(a > 0); torch.where(a > 0, a, b); a @ m; m.t() @ a; a.unsqueeze(0) @ m.unsqueeze(0); functional.linear(a, m)
    functional.linear(a, m, b[0]); functional.linear(a, m, b[:, 0]); torch.addmm(b, a, m)
    torch.addmm(b[0], a, m, beta=0.5, alpha=2); torch.addmm(b[0], a, m, beta=0); torch.addmm(b[:, :1], a, m)
    torch.addmm(b[0, :1], a, m); torch.addmm(b[0], a[:, :0], m[:0])
    torch.baddbmm(b.unsqueeze(0), a.unsqueeze(0), m.unsqueeze(0)); a.mean(0); a.mean(-1, keepdim=True); a.sum(1)
    a.sum((0, 1)); a.sum(None, keepdim=True); a.mean(None); torch.nanmean(a); a.sum(())
    a.sum(0, dtype=torch.float64); a.amax(0); a.amin((0, 1)); a.softmax(-1); a.softmax(0)
    a.log_softmax(1); a.half().softmax(1, dtype=torch.float32); torch.cat([a, b]); a.clone()
    torch.cat([a, b, a[:1]], 0); torch.cat([a.t(), b.t()], 1); torch.stack([a, b]); a.t().clone()
    a.expand(2, 4, 4).clone(); functional.layer_norm(a, (4,)); functional.layer_norm(a, (4,), b[0], b[1])
    functional.layer_norm(a, (4, 4), m, b); functional.layer_norm(a.t(), (4,))
    functional.layer_norm(a, (4,), b[:, 0]); functional.layer_norm(a[:, :1], (1,)); functional.embedding(i, a)
    functional.embedding(i[0], a); functional.embedding(i, a.t()); functional.embedding(i.t(), a)
    functional.embedding(i.int(), a); a.gather(1, i[:, :2]); a.index_select(0, i[0]); a.double(); a.long()
    a.to(torch.bool); a.to(torch.bfloat16); (a > 0) * 1.5; (a > 0) + (b > 0); i + 1; i / 2; i * 0.5
    i.float() * a[0, 0]; a.real * 2
"""  # fmt: skip
TYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8, torch.complex64]


def programs() -> list[str]:
    return [call.strip() for line in PROGRAMS.strip().splitlines() for call in line.split(";") if call.strip()]


def arguments(seed: int, dtype: torch.dtype = torch.float32) -> list[Tensor]:
    torch.manual_seed(seed)
    a, b, m = ((torch.randn(4, 4) * 3).to(torch.uint8 if dtype == torch.uint8 else dtype) for _ in range(3))
    if dtype.is_floating_point and seed % 2:
        a[0, 0], a[1, 1], b[2, 2] = float("nan"), -0.0, float("inf")
    return [a, b, m, torch.randint(0, 4, (4, 4))]


def bits(tensor: Tensor) -> list[Any]:
    flat = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    return [tensor.dtype, tensor.shape, tensor.stride(), flat.contiguous().flatten().view(torch.uint8).tolist()]


def check_runs(program: Callable[..., Any], make: Callable[[int], list[Tensor]], runs: int = 4) -> magneto.Graph:
    graph = magneto.record(program, *make(0))
    for run in range(runs):
        results, wanted = graph.run(make(run)), program(*make(run))
        for result, expected in zip(results, wanted, strict=True):
            assert bits(result) == bits(expected)
    return graph


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("call", programs())
def test_results_have_every_bit_and_stride(call, dtype):
    space: dict[str, Any] = {"torch": torch, "functional": functional}
    # Both show the strides of the result.
    exec(
        f"def program(a, b, m, i):\n  r = {call}\n  return [torch.zeros_like(r).copy_(r), r.unsqueeze(0).clone()]",
        space,
    )
    program = space["program"]
    try:
        program(*arguments(0, dtype))
    except (RuntimeError, NotImplementedError, IndexError) as error:
        pytest.skip(f"eager refuses it: {error}")
    check_runs(program, lambda seed: arguments(seed, dtype))


def chain(x: Tensor, y: Tensor) -> list[Tensor]:
    h = (x * 2 + y).tanh()
    left, right = h.t()[:2].relu(), h[1:].sigmoid()
    return [left @ right.t()[:, :2] + 1] if x.shape[0] == 3 else [left.sum(0), (right * 3).exp().mean(1)]


def pair(seed: int) -> list[Tensor]:
    torch.manual_seed(seed)
    return [torch.randn(4, 4), torch.randn(4, 4)]


def test_results_are_kept_from_the_second_run_on():
    graph = check_runs(chain, pair)
    results, size, runs = graph._kept()
    assert results == 7 and 0 < size < KIB and runs == 3


def test_memory_is_shared_by_results_that_are_not_needed_at_the_same_time():
    def program(x: Tensor) -> Tensor:
        for _ in range(50):
            x = x.tanh()
        return x + 1

    graph = check_runs(lambda x: [program(x)], lambda seed: pair(seed)[:1])
    results, size, runs = graph._kept()
    assert results == 50 and size <= 2 * 64 and runs == 3


def test_large_results_are_not_kept_and_many_small_ones_are_bounded():
    def program(x: Tensor) -> list[Tensor]:
        parts = [x * i for i in range(100)]
        return [torch.stack(parts[::-1]).sum(0)]

    large = check_runs(program, lambda seed: [torch.arange(5000.0) - seed])
    assert large._kept() == (0, 0, 0)
    many = check_runs(program, lambda seed: [torch.arange(1000.0) + seed])
    results, size, _ = many._kept()
    assert 10 < results < 100 and size <= 256 * KIB


def test_what_comes_out_is_new_in_each_run():
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        base, other = x + y, x * y
        return [base[1:], other.t(), (base + other).view(-1)]

    graph = magneto.record(program, *pair(0))
    results = [graph.run(pair(seed)) for seed in range(4)]
    for seed, result in enumerate(results):
        assert [bits(r) for r in result] == [bits(r) for r in program(*pair(seed))]
    storages = {r.untyped_storage().data_ptr() for result in results for r in result}
    assert len(storages) == 12


def test_results_that_are_written_are_new():
    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        base = x + y
        base.t()[1:].mul_(2)
        turned = x * y
        turned.t_()
        turned.unsqueeze_(0)
        grown = x - y
        torch.add(x, y, out=grown)
        grown.zero_()
        return [base + 1, turned + 1, grown + x.exp()]

    graph = check_runs(program, pair)
    assert graph._kept()[0] == 1


def test_states_and_arguments_are_still_written():
    class Counter(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.register_buffer("total", torch.zeros(4, 4))

        def forward(self, x: Tensor) -> Tensor:
            self.total.add_(x * 2)
            x.mul_((x + 1).sigmoid())
            return (self.total * 2).relu() + x

    ours, theirs = Counter(), Counter()
    graph = magneto.record(ours, pair(9)[0])
    before = ours.total.clone()
    theirs.total.copy_(before)
    for seed in range(4):
        x, y = pair(seed)[0], pair(seed)[0]
        assert torch.equal(graph.run([x])[0], theirs(y))
        assert torch.equal(x, y) and torch.equal(ours.total, theirs.total) and x._version == y._version


def test_threads_in_one_graph_do_not_meet():
    graph = magneto.record(chain, *pair(0))
    wanted = [[bits(r) for r in chain(*pair(seed))] for seed in range(8)]
    inputs = [pair(seed) for seed in range(8)]
    start, failures = threading.Barrier(4), []

    def work(first: int) -> None:
        start.wait()
        for run in range(400):
            seed = (first + run) % 8
            if [bits(r) for r in graph.run(inputs[seed])] != wanted[seed]:
                failures.append(seed)

    threads = [threading.Thread(target=work, args=(2 * i,)) for i in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not failures and graph._kept()[2] >= 1599


@pytest.fixture
def overrides(recwarn):
    library = torch.library.Library("aten", "IMPL")
    yield lambda name, kernel: library.impl(name, kernel, "CPU")
    library._destroy()


def test_a_run_inside_a_run_has_tensors_of_its_own(overrides):
    graphs, inside = [], []

    def runs_again(x: Tensor) -> Tensor:
        if graphs and not inside:
            inside.append(True)
            graphs[0].run([x * 100, x])
            inside.pop()
        return x.clone()

    def program(x: Tensor, y: Tensor) -> list[Tensor]:
        before = x * y
        return [before.tanh() + (x + y).erfinv().exp()]

    overrides("erfinv", runs_again)
    graph = magneto.record(program, *pair(0))
    graphs.append(graph)
    for seed in range(4):
        assert [bits(r) for r in graph.run(pair(seed))] == [bits(r) for r in program(*pair(seed))]
    assert graph._kept()[0] == 3 and graph._kept()[2] == 11


def test_kernels_of_others_may_hold_on_to_their_arguments(overrides):
    held: list[Tensor] = []

    def holds(x: Tensor) -> Tensor:
        held.append(x)
        return x.clone()

    overrides("erfinv", holds)
    graph = magneto.record(lambda x, y: [(x + y).t()[1:].erfinv().exp() + 1], *pair(0))
    held.clear()
    for seed in range(4):
        graph.run(pair(seed))
    for seed, tensor in enumerate(held):
        x, y = pair(seed)
        assert torch.equal(tensor, (x + y).t()[1:])
    assert graph._kept()[0] == 1 and graph._kept()[2] == 3


def test_a_kernel_in_place_of_torchs_is_called(overrides):
    overrides("tanh", lambda x: x + 100)
    graph = magneto.record(lambda x: x.tanh().exp().log() + 1, torch.zeros(3))
    for _ in range(3):
        assert torch.equal(graph.run([torch.zeros(3)])[0], torch.full((3,), torch.inf))


def test_after_an_error_half_way_runs_go_on():
    def program(table: Tensor, indices: Tensor) -> list[Tensor]:
        before = table * 2
        rows = functional.embedding(indices, before + 1)
        picked = before.index_select(0, indices[0])
        return [rows.sum(0) + picked.exp().sum()]

    good, bad = torch.tensor([[0, 3], [1, 2]]), torch.tensor([[0, 1], [2, 9]])
    graph = magneto.record(program, torch.randn(4, 4), good)
    for run in range(6):
        table = pair(run)[0]
        if run % 2 == 0:
            assert bits(graph.run([table, good])[0]) == bits(program(table, good)[0])
            continue
        with pytest.raises(IndexError) as ours:
            graph.run([table, bad])
        with pytest.raises(IndexError) as theirs:
            program(table, bad)
        assert str(ours.value).split("\n")[0] == str(theirs.value).split("\n")[0]


def test_modes_and_profilers_see_every_operator():
    class Tape(TorchDispatchMode):
        def __torch_dispatch__(self, function, types, args=(), kwargs=None):
            seen.append(function.name())
            return function(*args, **(kwargs or {}))

    seen: list[str] = []
    graph = check_runs(lambda x, y: [(x + y).tanh() * 2], pair)
    runs = graph._kept()[2]
    inputs = pair(0)
    with Tape():
        graph.run(inputs)
    assert seen == ["aten::add.Tensor", "aten::tanh", "aten::mul.Tensor"]
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        graph.run(inputs)
    assert [event.name for event in profile.events() if event.name.startswith("aten::")] == [
        "aten::add", "aten::tanh", "aten::mul",
    ]  # fmt: skip
    assert len(magneto.record(lambda x, y: graph.run([x, y])[0], *pair(0), live=True)) == 3
    assert graph._kept()[2] == runs


def test_modes_of_the_caller_make_no_difference():
    graph = magneto.record(chain, *pair(0))
    for seed, mode in enumerate([torch.no_grad, torch.inference_mode, torch.enable_grad] * 3):
        with mode():
            results = graph.run(pair(seed))
            assert all(result.is_inference() == (mode is torch.inference_mode) for result in results)
        assert [bits(r) for r in results] == [bits(r) for r in chain(*pair(seed))]


def test_the_default_type_is_asked_in_each_run():
    graph = magneto.record(lambda i: [(i / 3) * 1, (i * 0.5).exp()], torch.arange(4))
    graph.run([torch.arange(4)])
    torch.set_default_dtype(torch.float64)
    try:
        results = [graph.run([torch.arange(4)]) for _ in range(3)][-1]
    finally:
        torch.set_default_dtype(torch.float32)
    assert torch.equal(results[0], torch.arange(4, dtype=torch.float64) / 3)


def test_conjugates_and_other_layouts_than_those_recorded_are_read_right():
    def program(x: Tensor) -> list[Tensor]:
        return [(x * 2 + 1) * x]

    square = torch.randn(4, 4, dtype=torch.complex64)
    compiled = magneto.compile(program)
    graph = magneto.record(program, square)
    with torch.no_grad():
        for tensor in (square, square.t(), square.conj(), square.conj().t(), square.real.to(torch.complex64)) * 3:
            assert torch.equal(compiled(tensor)[0], program(tensor)[0])
            if tensor.is_contiguous():
                assert torch.equal(graph.run([tensor])[0], program(tensor)[0])


def write_program(rng: random.Random) -> str:
    """Small results, views of them, and now and then something that is written or comes out."""
    calls = [re.sub(r"\b([abmi])\b", r"{\1}", call) for call in programs()] + [
        "{a}.t() + {b}", "{a}[1:2] * {b}", "{a}.view(-1)[:4] + {b}", "{a}.add_(1)", "{a}.t()", "{a}[1:]", "{a}[:, :2]",
        "{a}.mul_({b})", "{a}[0] + {b}", "{a}.unsqueeze(0)[0]", "{a}.contiguous() * 1", "{a}.t_()",
    ]  # fmt: skip
    space: dict[str, Any] = {"torch": torch, "functional": functional}
    space.update(zip("abmi", arguments(0), strict=True))
    names, lines = ["a", "b", "m"], []
    while len(names) < rng.randint(8, 28):
        chosen = {"a": rng.choice(names[-5:]), "b": rng.choice(names), "m": rng.choice(["m", *names[-3:]]), "i": "i"}
        line = f"v{len(names)} = {rng.choice(calls).format(**chosen)}"
        try:
            exec(line, space)
        except (RuntimeError, IndexError, NotImplementedError):
            continue
        names.append(f"v{len(names)}")
        lines.append(line)
    return "\n  ".join(["def program(a, b, m, i):", *lines, f"return [{', '.join(rng.sample(names[3:], 3))}]"])


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("first", range(FIRST, FIRST + 300, 50))
def test_random_programs_are_as_in_eager(first: int) -> None:
    kept = 0
    for seed in range(first, first + 50):
        source = write_program(random.Random(seed))
        space: dict[str, Any] = {"torch": torch, "functional": functional}
        exec(source, space)
        try:
            graph = magneto.record(space["program"], *arguments(0))
        except magneto.UserError:
            continue
        for run in range(4):
            ours, theirs = arguments(run), arguments(run)
            try:
                wanted = space["program"](*theirs)
            except (RuntimeError, IndexError):  # what the operators find in the tensors
                with pytest.raises((RuntimeError, IndexError)):
                    graph.run(ours)
                continue
            results = graph.run(ours)
            assert [bits(t) for t in [*results, *ours]] == [bits(t) for t in [*wanted, *theirs]], source
        kept += graph._kept()[2] if graph._kept()[0] else 0
    assert kept > 50
