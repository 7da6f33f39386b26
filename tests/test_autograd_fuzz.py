"""Random autograd graphs, many threads, many times: compiled backwards equal eager ones and leave nothing behind."""

from __future__ import annotations

import collections
import contextlib
import functools
import itertools
import os
import random
from collections.abc import Callable, Iterator
from typing import Any

import autograd_programs as programs
import magneto
import pytest
import torch
import torch.nn.functional as F
from autograd_programs import backward, leaf, mlp, noted
from magneto import compiled_autograd
from test_compiled_autograd import Refused, Taping, counts, plain, refuse
from test_leaks import assert_flat
from test_threads import in_threads
from torch import Tensor, nn
from torch.autograd import Function
from zoo import harness
from zoo.compare import raised_by

pytestmark = pytest.mark.filterwarnings("ignore")

STEPS = 4
BATCH = 20
ORDINARY, FULL = 400, 8_000  # programs
FIRST = int(os.environ.get("MAGNETO_FUZZ", "0"))  # another seed to begin with
NODES = 250_000 if harness.FULL else 10_000  # at least
MEETINGS = 200_000 if harness.FULL else 40_000
tally: collections.Counter[str] = collections.Counter()


@pytest.fixture(autouse=True)
def counted(fresh_autograd: None) -> Iterator[None]:
    yield
    tally.update(dict(magneto.counters["compiled_autograd"]))


# ---- random programs


class Halves(Function):
    """Two outputs; what comes back depends on contents, and is None for outputs that were not used."""

    @staticmethod
    def forward(ctx: Any, x: Tensor) -> tuple[Tensor, Tensor]:
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x)
        return x / 2, x.sin()

    @staticmethod
    def backward(ctx: Any, half: Tensor | None, sine: Tensor | None) -> Tensor | None:
        (x,) = ctx.saved_tensors
        first = None if half is None else half / 2 if x.sum() > 0 else half * float(x.mean())
        second = None if sine is None else sine * x.cos()
        return second if first is None else first if second is None else first + second


def scaled(x: Tensor, by: float) -> Tensor:
    return x.tanh() * by


Unary = Callable[["Step", Tensor], Tensor]
UNARY: list[Unary] = [
    lambda _, x: x.sin(),
    lambda _, x: x.tanh().exp(),
    lambda _, x: x.sigmoid() * x,
    lambda _, x: x.relu(),
    lambda _, x: x.abs().sqrt(),
    lambda _, x: (x.abs() + 1).log().reciprocal(),
    lambda _, x: x.square().neg(),
    lambda step, x: scaled(x, step.choose.choice((0.5, 2, -1))),
    lambda step, x: x * step.number(),
    lambda step, x: F.leaky_relu(x, abs(step.number())),
    lambda step, x: x.clamp(-1, step.choose.choice((0.5, 1, None))),
    lambda step, x: x.tanh().pow(step.choose.choice((1, 2, 3))),
    lambda _, x: x.softmax(-1) if x.dim() else x,
    lambda _, x: F.gelu(x) - F.silu(x),
    lambda _, x: F.layer_norm(x, x.shape[-1:]) if x.dim() else x,
    lambda step, x: x.sum(step.dim(x), keepdim=True),
    lambda step, x: x.mean(step.dim(x), keepdim=step.choose.random() < 0.5),
    lambda step, x: x.amax(step.dim(x), keepdim=True),
    lambda step, x: x.max(step.dim(x)).values,
    lambda step, x: x.tanh().prod(step.dim(x), keepdim=True),
    lambda _, x: x.round().prod().tanh(),
    lambda step, x: x.cumsum(step.dim(x)),
    lambda step, x: x.tanh().cumprod(step.dim(x)),
    lambda step, x: x.sort(step.dim(x)).values,
    lambda step, x: x.logsumexp(step.dim(x), keepdim=True),
    lambda _, x: x.norm() + x,
    lambda step, x: x.roll(1, step.dim(x)).flip(0) if x.dim() else x,
    lambda _, x: x.double().sin().float(),
    lambda _, x: x.to(torch.bfloat16).float(),
    lambda _, x: torch.view_as_real(torch.polar(x.abs(), x) * 1j).sum(-1),
    lambda _, x: torch.where(x > 0, x, x.exp().clamp(max=2)),
    lambda _, x: x.masked_fill(x < 0, 0.5),
    lambda _, x: x[x > 0].sin().sum() + x,
    lambda _, x: x * torch.nonzero(x.detach() > 0).shape[0],
    lambda step, x: x[step.randint(x.shape[0], 3)] if x.dim() else x,
    lambda step, x: x.gather(0, step.randint(x.shape[0], *x.shape)) if x.dim() and x.numel() else x,
    lambda step, x: x * (torch.rand(x.shape, generator=step.data) > 0.3),
    lambda _, x: F.pad(x, (1, 0)) if x.dim() else x,
    lambda _, x: Halves.apply(x)[0],
    lambda _, x: sum(Halves.apply(x)),
    lambda _, x: x.detach() * x,
    lambda _, x: x.detach(),
]
VIEWS: list[Unary] = [
    lambda _, x: x.t() if x.dim() <= 2 else x.transpose(0, 1),
    lambda _, x: x.reshape(-1),
    lambda _, x: x.unsqueeze(-1),
    lambda _, x: x.squeeze(),
    lambda _, x: x.expand(2, *x.shape) if x.dim() < 3 else x[0],
    lambda step, x: x.select(step.dim(x), 0) if x.dim() else x,
    lambda step, x: x.narrow(step.dim(x), 0, max(1, x.shape[0] // 2)) if x.dim() else x,
    lambda step, x: step.choose.choice(x.chunk(2)) if x.dim() else x,
    lambda step, x: step.choose.choice(x.split(1)) if x.dim() else x,
    lambda _, x: x[::2] if x.dim() else x,
    lambda _, x: x.diagonal() if x.dim() == 2 else x,
    lambda _, x: x.as_strided((2,), (1,)) if x.numel() >= 2 else x,
    lambda _, x: x.contiguous().view(-1, 1),
]
BINARY: list[Callable[[Step, Tensor, Tensor], Tensor]] = [
    lambda _, x, y: x * y,
    lambda step, x, y: torch.add(x, y, alpha=step.choose.choice((1, 2, -0.5))),
    lambda _, x, y: x - y,
    lambda _, x, y: x / (y.abs() + 1),
    lambda _, x, y: torch.maximum(x, y),
    lambda _, x, y: torch.atan2(x, y.abs() + 1),
    lambda _, x, y: torch.where(x > y, x, y * 2),
    lambda step, x, y: torch.lerp(x, y, step.choose.choice((0.25, 0.75))),
    lambda _, x, y: torch.addcmul(x, x, y),
    lambda _, x, y: torch.stack([x, y, x]).sum(0),
    lambda _, x, y: torch.cat([x.reshape(-1), y.reshape(-1)]),
    lambda _, x, y: (x @ y.transpose(-1, -2)).tanh() if x.dim() == y.dim() == 2 else x + y,
    lambda _, x, y: torch.outer(x.reshape(-1)[:3], y.reshape(-1)[:4]),
]
IN_PLACE: list[Callable[[Step, Tensor, Tensor], Any]] = [
    lambda _, x, y: x.mul_(y),
    lambda step, x, y: x.add_(y, alpha=step.choose.choice((1, 3))),
    lambda _, x, y: x.sin_(),
    lambda _, x, y: x.relu_(),
    lambda _, x, y: x.copy_(y),
    lambda _, x, y: x.fill_(0.5),
    lambda _, x, y: x[0].copy_(y),
    lambda _, x, y: x.reshape(-1)[:2].mul_(2),
    lambda _, x, y: x.t().exp_() if x.dim() <= 2 else x.zero_(),
    lambda step, x, y: x.index_put_((step.randint(x.shape[0], 2),), y.sum(), accumulate=step.choose.random() < 0.5),
    lambda _, x, y: x.masked_fill_(x > 0, 2),
    lambda _, x, y: x.detach().mul_(1),
]


class Step:
    """One step of a program: what is done comes from the seed of the program, with what from that of the step."""

    def __init__(self, seed: int, index: int, parameters: list[Tensor]) -> None:
        self.choose, self.index = random.Random(seed), index
        self.data = torch.Generator().manual_seed(1000 * seed + index)
        self.varies = self.choose.random() < 0.3  # sizes and numbers differ from step to step
        self.size = (3, 3, 5, 4, 1)[index % 5] if self.varies else 3
        self.nodes = 0
        self.log: list[Any] = []
        self.kept: list[Tensor] = []
        self.parameters = parameters
        self.leaves = [*parameters, *(self.tensor(*shape) for shape in self.choose.sample(self.shapes(), 2))]
        self.pool = list(self.leaves)

    def shapes(self) -> list[tuple[int, ...]]:
        return [(self.size, 4), (self.size, 1), (self.size,), (1, 4), (), (2, self.size, 4)]

    def tensor(self, *shape: int) -> Tensor:
        made = torch.randn(shape, generator=self.data)
        return made.requires_grad_(self.choose.random() < 0.8)

    def number(self) -> float:
        return self.choose.choice((0.5, -2.0, 3)) + (self.index * 0.25 if self.varies else 0)

    def dim(self, x: Tensor) -> int:
        return self.choose.randrange(2) % max(1, x.dim())

    def randint(self, below: int, *shape: int) -> Tensor:
        return torch.randint(max(1, below), shape, generator=self.data)

    # -- making the graph

    def any(self) -> Tensor:
        """Rather one of those that were made last."""
        count = len(self.pool)
        return self.pool[max(self.choose.randrange(count), self.choose.randrange(count))]

    def grow(self) -> None:
        """One more value, or a change of one; what torch refuses is not done."""
        kind = self.choose.choices(("unary", "view", "binary", "in place", "hook", "no grad"), (9, 4, 8, 3, 2, 1))[0]
        x, y, kept_apart = self.any(), self.any(), self.choose.random() < 0.6
        table: Any = {"unary": UNARY, "view": VIEWS, "binary": BINARY, "in place": IN_PLACE}.get(kind)
        work = self.choose.choice(table) if table else None
        state, made = self.choose.getstate(), x
        with contextlib.suppress(RuntimeError, IndexError, ValueError):
            if kind in ("unary", "view"):
                made = work(self, x)
            elif kind == "binary":
                made = work(self, x, y)
            elif kind == "in place":
                made = x.clone() if x.is_leaf or kept_apart else x
                work(self, made, y.mean())
            elif kind == "hook" and (x.grad_fn is not None or x.requires_grad):
                self.hook(x)  # torch crashes if a stale view gets one before its `grad_fn` is looked at
            elif kind == "no grad":
                with torch.no_grad():
                    made = x.sin()
        self.choose.setstate(state)
        self.choose.random()
        self.pool.append(made if made.numel() < 200 and made.dim() <= 3 else made.mean())

    def look(self, label: str, *given: Any) -> None:
        self.log.append((label, [noted(value) for value in programs.pytree.tree_leaves(given)]))

    def hook(self, x: Tensor) -> None:
        label, kind = f"value {len(self.pool)}", self.choose.randrange(8)
        if kind == 0:
            x.register_hook(lambda g: self.look(label, g))
        elif kind == 1:
            x.register_hook(lambda g: g * 2)
        elif kind == 2:
            x.register_hook(self.kept.append)
        elif kind == 3 and not x.is_leaf:
            x.retain_grad()
            self.leaves.append(x)
        elif kind == 4 and x.grad_fn is not None:
            x.grad_fn.register_prehook(lambda gradients: self.look(label, gradients))
        elif kind == 5 and x.grad_fn is not None:
            x.grad_fn.register_hook(lambda inputs, outputs: self.look(label, inputs, outputs))
        elif kind == 6 and x.is_leaf:
            x.register_post_accumulate_grad_hook(lambda t: self.look(label, t.grad))
        elif kind == 7:
            x.register_hook(lambda g: raise_if(self.index == 2, label))

    # -- taking gradients

    def derive(self) -> Any:
        ends = [t for t in self.pool[len(self.pool) // 2 :] if t.requires_grad and t.grad_fn is not None]
        ends = self.choose.sample(ends, min(len(ends), self.choose.choice((1, 1, 2, 3))))
        wanted = [t for t in self.leaves if t.requires_grad]
        some = self.choose.sample(wanted, self.choose.randrange(len(wanted) + 1)) or wanted
        between = [t for t in self.choose.sample(self.pool, 2) if t.requires_grad]
        way, given = self.choose.randrange(8), [torch.randn(t.shape, generator=self.data).to(t.dtype) for t in ends]
        self.nodes = count_nodes(ends)
        if not ends:
            return None
        if way <= 2:
            return sum(t.sum() for t in ends).backward()
        if way == 3:
            return torch.autograd.backward(ends, given)
        if way == 4:
            return torch.autograd.backward(ends, given, inputs=some)
        if way == 5:
            return torch.autograd.grad(ends, some + between, given, allow_unused=True)
        torch.autograd.backward(ends, given, retain_graph=way == 6)
        return torch.autograd.backward(
            ends, given
        )  # without the graph being retained an error, where tensors were saved

    def tell(self) -> Any:
        for _ in range(self.choose.randrange(8, 40)):
            self.grow()
        found: list[Any] = []
        error = raised_by(lambda: found.append(self.derive()))
        return self.nodes, error, found, [t.grad for t in self.leaves], self.kept, str(self.log)


def raise_if(wrong: bool, label: str) -> None:
    if wrong:
        raise ValueError(label)


def count_nodes(ends: list[Tensor]) -> int:
    nodes = {t.grad_fn for t in ends}
    todo = list(nodes)
    while todo:
        new = {node for node, _ in todo.pop().next_functions if node is not None} - nodes
        nodes |= new
        todo += new
    return len(nodes)


def play(seed: int) -> list[Any]:
    """What all steps of a program tell; some parameters live through them."""
    rng, data = random.Random(-seed), torch.Generator().manual_seed(seed)
    parameters = [torch.randn(shape, generator=data).requires_grad_() for shape in ((4,), (3, 4))]
    told = []
    for index in range(STEPS):
        told.append(programs.event_noted(Step(seed, index, parameters).tell()))
        for parameter in parameters:
            parameter._backward_hooks = parameter._post_accumulate_grad_hooks = None
            kind = rng.randrange(4)
            if kind == 0:
                parameter.grad = None
            elif kind == 1 and parameter.grad is not None:
                parameter.grad.zero_()
            elif kind == 2 and parameter.grad is not None:
                parameter.data.sub_(parameter.grad.tanh())
    return told


def compiled(seed: int) -> list[Any]:
    with compiled_autograd.enable(dynamic=(None, True, False)[seed % 3]):
        return play(seed)


def compare_steps(seed: int, expected: list[Any], actual: list[Any]) -> None:
    tally["nodes"] += sum(values[0] for values, _ in expected)
    tally["errors"] += sum(isinstance(values[1], tuple) for values, _ in expected)
    found = programs.difference(programs.Told(expected, 0), programs.Told(actual, 0))
    assert found is None, f"seed {seed}, {found}"


BATCHES = [
    seed if seed < FIRST + ORDINARY else pytest.param(seed, marks=pytest.mark.full)
    for seed in range(FIRST, FIRST + FULL, BATCH)
]


@pytest.mark.parametrize("first_seed", BATCHES)
def test_random_programs_tell_what_they_tell_in_eager(first_seed: int) -> None:
    for seed in range(first_seed, first_seed + BATCH):
        with magneto.config.patch(compiled_autograd_verify=seed % 5 == 0):
            compare_steps(seed, play(seed), compiled(seed))


@pytest.mark.parametrize("first_seed", BATCHES[:: 5 if harness.FULL else 10])
def test_random_programs_in_several_threads_tell_what_they_tell_in_eager(first_seed: int) -> None:
    expected = {seed: play(seed) for seed in range(first_seed, first_seed + BATCH)}

    def work(thread: int) -> None:
        with torch.enable_grad():
            for seed in expected:
                seed = first_seed + (seed + 5 * thread) % BATCH
                compare_steps(seed, expected[seed], compiled(seed))

    in_threads(work, 4)


def test_random_programs_were_many_and_mostly_compiled(record_property: Callable[[str, object], None]) -> None:
    record_property("told", f"random autograd graphs: {dict(tally)}")
    assert tally["nodes"] >= NODES
    assert tally["hits"] > tally["captures"] > 0


# ---- threads


def test_captured_by_several_threads_at_once_models_train_as_in_eager() -> None:
    def train(model: nn.Module, batches: Tensor) -> None:
        for batch in batches:
            model.zero_grad()
            model(batch).square().mean().backward()
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter -= parameter.grad

    own, peers = [[mlp(4, 8 + i % 2, 2) for i in range(4)] for _ in range(2)]
    for model, peer in zip(own, peers, strict=True):
        peer.load_state_dict(model.state_dict())
    batches = torch.randn(4, 40, 3, 4)

    def work(index: int) -> None:
        with torch.enable_grad(), compiled_autograd.enable() if index != 3 else contextlib.nullcontext():
            train(own[index], batches[index])

    in_threads(work, 4)
    for index, peer in enumerate(peers):
        train(peer, batches[index])
        assert all(torch.equal(a, b) for a, b in zip(own[index].parameters(), peer.parameters(), strict=True))
    captures, hits, left = counts()
    assert captures + hits + left == 120 and hits > 0
    assert set(magneto.counters["compiled_autograd_declined"]) <= {"another thread runs a backward"}


def test_captured_by_several_threads_the_gradients_of_a_shared_leaf_add_up() -> None:
    """Small integers, so that the order of additions does not matter."""
    shared = torch.ones(5, requires_grad=True)

    def work(index: int) -> None:
        with torch.enable_grad(), compiled_autograd.enable():
            for turn in range(50):
                (shared * shared * (index + turn)).sum().backward()

    in_threads(work, 4)
    total = sum(2 * (index + turn) for index in range(4) for turn in range(50))
    assert torch.equal(shared.grad, torch.full((5,), float(total)))


def test_eager_backwards_of_several_threads_do_not_meet_once_it_was_on() -> None:
    """The engine has one hook for all threads, and refuses threads that come by at the same time."""
    with compiled_autograd.enable():
        plain()
    raised: list[BaseException] = []

    def work(_: int) -> None:
        with torch.enable_grad():
            x = torch.ones(3, requires_grad=True)
            loss = functools.reduce(lambda y, _: y.sin() * y, range(3), x).sum()
            errors = (raised_by(functools.partial(loss.backward, retain_graph=True)) for _ in range(MEETINGS))
            raised.extend(error for error in errors if error)

    in_threads(work, 4)
    assert not raised, f"{len(raised)} times: {raised[0]}"


def test_the_cache_may_be_cleared_while_others_use_it() -> None:
    expected = plain()

    def work(index: int) -> None:
        with torch.enable_grad(), compiled_autograd.enable():
            for turn in range(100):
                if index == 0 and turn % 3 == 0:
                    compiled_autograd.clear_cache()
                assert torch.equal(plain(), expected)

    in_threads(work, 4)


# ---- nothing is left behind


def miss() -> None:
    compiled_autograd.clear_cache()
    plain()


def refused() -> None:
    (y := leaf(3).sin()).register_hook(refuse(Refused))
    assert raised_by(y.exp().sum().backward)


def hooked() -> None:
    x = leaf(3)
    x.register_hook(lambda g: g * 2)
    backward(Halves.apply(x.sin())[0] * x)


sizes = itertools.cycle(range(2, 9))


def changing_size() -> None:
    plain(next(sizes))


def python_compiled() -> None:
    with compiled_autograd.enable(Taping):
        miss()
        plain()
    compiled_autograd.clear_cache()


@pytest.mark.parametrize("cycle", [plain, miss, refused, hooked, changing_size, python_compiled])
def test_many_backwards_leave_nothing_behind(cycle: Callable[[], Any]) -> None:
    with compiled_autograd.enable():
        for _ in range(20):
            cycle()
        assert_flat(cycle, 2000 if cycle in (plain, refused, changing_size) else 300)
