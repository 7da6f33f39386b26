"""Small programs that take gradients in every way torch offers, with all that can be seen of them noted.

A program is a generator, or a function of the number of a step, that makes what it needs from the seed and gives out
what is to be compared after each step. It does not know who runs its backwards: `run` tells it under whatever is
enabled, and what it told eagerly is what it must tell compiled.
"""

from __future__ import annotations

import functools
import inspect
import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from unittest import mock

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd import Function, graph
from torch.utils import _pytree as pytree
from torch.utils import checkpoint as checkpoints
from zoo import compare
from zoo.compare import raised_by

STEPS = 5

# ---- the table


@dataclass(frozen=True)
class Program:
    """What it tells, and what becomes of its backwards where they are compiled."""

    story: Callable[[], Iterator[Any]]
    captures: int | None = 1  # at most, of all its backwards; None: any number
    opaque: tuple[str, ...] | None = ()  # names of nodes called as they are; None: some, or none
    declined: str | None = ""  # in the reason for which some run in the eager engine, all if captures is 0; None: any


PROGRAMS: dict[str, Program] = {}


def enter(name: str, tell: Callable[..., Any], **expected: Any) -> None:
    steps = tell if inspect.isgeneratorfunction(tell) else lambda: (tell(index) for index in range(STEPS))
    PROGRAMS[name] = Program(steps, **expected)


def captured(times: int | None = 1, opaque: tuple[str, ...] | None = (), declined: str = "") -> Callable[..., None]:
    """Captured so many times at most; the nodes whose names are given are called as they are."""
    return lambda tell: enter(tell.__name__, tell, captures=times, opaque=opaque, declined=declined)


def declined(reason: str) -> Callable[..., None]:
    """Left to the eager engine, each time, for a reason in which this occurs."""
    return lambda tell: enter(tell.__name__, tell, captures=0, opaque=None, declined=reason)


def either(tell: Callable[..., Any]) -> None:
    """Captured or declined: only what it tells counts."""
    enter(tell.__name__, tell, captures=None, opaque=None, declined=None)


# ---- telling


@dataclass
class Told:
    events: list[Any]
    backwards: int  # how often the engine was asked


def noted(value: Any) -> Any:
    """What can be told of a value now, to be compared later."""
    if isinstance(value, BaseException):
        return type(value), str(value)
    if not isinstance(value, Tensor):
        return value
    form = (value.layout, value.requires_grad, value.is_leaf, value.grad_fn and value.grad_fn.name())
    if value.layout == torch.sparse_coo:
        inside = (noted(value._indices()), noted(value._values()))
        return form, tuple(value.shape), value.dtype, value.is_coalesced(), inside
    return (form, *compare.look(value if value.layout == torch.strided else value.to_dense()))


def event_noted(event: Any) -> Any:
    leaves = pytree.tree_leaves(event)
    return [noted(leaf) for leaf in leaves], [place[1:] for place in compare.aliasing(leaves, {})]


def tell(story: Callable[[], Iterator[Any]], seed: int = 0) -> Told:
    """All that a story tells, from a seed."""
    torch.manual_seed(seed)
    told, engine = Told([], 0), torch.autograd._engine_run_backward

    def counting(*args: Any, **kwargs: Any) -> Any:
        told.backwards += 1
        return engine(*args, **kwargs)

    with mock.patch.object(torch.autograd, "_engine_run_backward", counting):
        for event in story():
            told.events.append(event_noted(event))
    return told


def run(name: str, seed: int = 0) -> Told:
    return tell(PROGRAMS[name].story, seed)


def difference(expected: Told, actual: Told) -> str | None:
    """In words where two tellings of a program first differ, or None."""
    for step, (was, now) in enumerate(zip(expected.events, actual.events, strict=False)):
        for index, (a, b) in enumerate(zip(was[0], now[0], strict=False)):
            if a != b:
                return f"step {step}, value {index}: eager has\n{a}\nhere it is\n{b}"
        if len(was[0]) != len(now[0]):
            return f"step {step}: {len(was[0])} values in eager, {len(now[0])} here"
        if was[1] != now[1]:
            return f"step {step}: values share memory as {was[1]} in eager, as {now[1]} here"
    if len(expected.events) != len(actual.events):
        return f"{len(expected.events)} events in eager, {len(actual.events)} here"
    return None


# ---- what programs are made of


def leaf(*shape: int, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, dtype=dtype).requires_grad_()


def gradients(module: nn.Module) -> list[Tensor | None]:
    return [parameter.grad for parameter in module.parameters()]


def backward(outputs: Any, **options: Any) -> list[Tensor]:
    """With random gradients of all outputs that have a history; gives out these."""
    ends = list({id(t): t for t in pytree.tree_leaves(outputs) if isinstance(t, Tensor) and t.requires_grad}.values())
    given = [torch.randn_like(t) for t in ends]
    torch.autograd.backward(ends, given, **options)
    return given


def mlp(*widths: int) -> nn.Sequential:
    """Layers with tanh between them."""
    layers = [part for i, o in itertools.pairwise(widths) for part in (nn.Linear(i, o), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def sgd(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)


def trained(
    model: nn.Module,
    loss_of: Callable[[int], Tensor],
    steps: int = STEPS,
    clear: Callable[[torch.optim.Optimizer, int], Any] = lambda optimizer, _: optimizer.zero_grad(),
) -> Iterator[Any]:
    optimizer = sgd(model)
    for index in range(steps):
        clear(optimizer, index)
        before = gradients(model)
        loss = loss_of(index)
        loss.backward()
        kept = [gradient is old for gradient, old in zip(gradients(model), before, strict=True)]
        told = loss, gradients(model), kept
        yield pytree.tree_map(lambda t: t.clone() if isinstance(t, Tensor) else t, told)
        optimizer.step()
        yield gradients(model), list(model.parameters()), list(model.buffers())


def training(make: Callable[[], nn.Module], loss_of: Callable[[nn.Module], Tensor], **options: Any) -> Any:
    def story() -> Iterator[Any]:
        model = make()
        yield from trained(model, lambda _: loss_of(model), **options)

    return story


def function(call: Callable[..., Any], *shapes: tuple[int, ...], dtype: torch.dtype = torch.float32) -> Any:
    """Calls it with new leaves in each step, and takes gradients of all outputs."""

    def step(_: int) -> Any:
        leaves = [leaf(*shape, dtype=dtype) for shape in shapes]
        return backward(call(*leaves)), [t.grad for t in leaves]

    return step


def enter_all(table: dict[str, Callable[..., Any]], **expected: Any) -> None:
    for name, tell_it in table.items():
        enter(name, tell_it, **expected)


# ---- models

MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module], Tensor]]] = {
    "mlp": (lambda: mlp(4, 8, 2), lambda model: F.mse_loss(model(torch.randn(3, 4)), torch.randn(3, 2))),
    "convolutions": (
        lambda: nn.Sequential(
            *(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.MaxPool2d(2)),
            *(nn.ConvTranspose2d(4, 3, 2), nn.GroupNorm(1, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(12, 3)),
        ),
        lambda model: F.cross_entropy(model(torch.randn(3, 2, 8, 8)), torch.randint(3, (3,))),
    ),
    "channels last": (
        lambda: nn.Sequential(nn.Conv2d(2, 4, 3), nn.ReLU(), nn.Conv2d(4, 2, 3)).to(memory_format=torch.channels_last),
        lambda model: model(torch.randn(2, 2, 6, 6).to(memory_format=torch.channels_last)).square().mean(),
    ),
    "an encoder layer": (
        lambda: nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, activation="gelu", batch_first=True),
        lambda model: model(torch.randn(2, 5, 8)).square().mean(),
    ),
    "an embedding": (
        lambda: nn.Sequential(nn.Embedding(9, 4, padding_idx=1, scale_grad_by_freq=True), nn.Linear(4, 9)),
        lambda model: F.cross_entropy(model(torch.randint(9, (12,))), torch.randint(9, (12,))),
    ),
    "dropout": (
        lambda: nn.Sequential(nn.Linear(4, 8), nn.Dropout(0.4), nn.RReLU(), nn.AlphaDropout(0.2), nn.Linear(8, 2)),
        lambda model: model(torch.randn(3, 4)).square().mean(),
    ),
    "float64": (lambda: mlp(4, 8, 2).double(), lambda model: model(torch.randn(3, 4).double()).pow(3).mean()),
    "complex": (
        lambda: nn.Linear(4, 3, dtype=torch.complex64),
        lambda model: model(torch.randn(2, 4, dtype=torch.complex64)).abs().sum(),
    ),
}
enter_all({name: training(*parts) for name, parts in MODELS.items()})
RECURRENT = {
    "a gru": (
        lambda: nn.GRU(3, 4, 2, bidirectional=True, dropout=0.3),
        lambda model: model(torch.randn(5, 2, 3))[0].square().mean(),
    ),
    "an lstm": (lambda: nn.LSTM(3, 4, 2), lambda model: model(torch.randn(5, 2, 3))[0].square().mean()),
}
enter_all({name: training(*parts) for name, parts in RECURRENT.items()}, opaque=None)


# ---- accumulation


def every_other(optimizer: torch.optim.Optimizer, index: int) -> None:
    if index % 2 == 0:
        optimizer.zero_grad()


MLP = MODELS["mlp"]
enter("gradients set to zero", training(*MLP, clear=lambda made, _: made.zero_grad(set_to_none=False)), captures=2)
enter("gradients never cleared", training(*MLP, clear=lambda *_: None), captures=2)
enter("gradients of two steps", training(*MLP, clear=every_other, steps=8), captures=2)


@captured(times=None)
def gradients_of_leaves_that_are_added_to_later(index: int) -> Any:
    """A gradient goes to a leaf and to a node where another one is added to it, in place if nobody else has it."""
    a, b, c = leaf(3, 4), leaf(4), leaf(3, 4)
    if index % 2:
        b.grad = torch.ones(4)
    y, z = c.sin(), c.cos()[:1]
    ends = (y * 2, z * 3, (a + y) * 5, (b.unsqueeze(0) + z) * 7)
    backward(ends)
    asked = torch.autograd.grad((a * 2 + a.exp()) * 3, [a], torch.ones(3, 4), retain_graph=True)
    return a.grad, b.grad, c.grad, asked


@captured(times=None)
def gradients_asked_for_where_others_are_added(_: int) -> Any:
    x = leaf(3, 4)
    y = x.sin()
    z = y * 2 + y.norm()
    return torch.autograd.grad(z.exp(), [x, y, z], torch.randn(3, 4))


@captured(times=2)
def a_gradient_that_the_user_put_there(index: int) -> Any:
    w = leaf(3, 4)
    w.grad = torch.ones(4, 3).t() if index % 2 else torch.ones(3, 4)
    put, view = w.grad, w.grad[0]
    (w * 2).sin().sum().backward()
    return w.grad, w.grad is put, view


@captured()
def batches_that_are_slices_of_one_tensor() -> Iterator[Any]:
    model, data = mlp(4, 8, 2), torch.randn(STEPS, 3, 4)
    yield from trained(model, lambda index: model(data[index]).square().mean())


@captured()
def shared_parameters() -> Iterator[Any]:
    embedding, head = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False)
    head.weight = embedding.weight
    model = nn.Sequential(embedding, nn.Linear(4, 4), nn.Tanh(), head)
    yield from trained(model, lambda _: F.cross_entropy(model(torch.randint(7, (5,))), torch.randint(7, (5,))))


@captured()
def frozen_parameters() -> Iterator[Any]:
    model = mlp(4, 8, 8, 2)
    model[0].requires_grad_(False)
    model[2].bias.requires_grad_(False)
    yield from trained(model, lambda _: model(torch.randn(3, 4)).square().mean())


@captured(times=3)
def what_requires_gradients_changes() -> Iterator[Any]:
    model = mlp(4, 8, 2)

    def loss(index: int) -> Tensor:
        model[0].requires_grad_(index % 3 != 1)
        model[2].requires_grad_(index % 3 != 2)
        return model(torch.randn(3, 4)).square().mean()

    yield from trained(model, loss, steps=9)


@captured(times=2)
def two_losses_over_one_model() -> Iterator[Any]:
    model, losses = mlp(4, 8, 2), (F.mse_loss, F.smooth_l1_loss)
    yield from trained(model, lambda index: losses[index % 2](model(torch.randn(3, 4)), torch.randn(3, 2)), steps=8)


# ---- ways to ask for gradients


@captured()
def the_function_grad(index: int) -> Any:
    x, w, unused = leaf(3, 4), leaf(4, 2), leaf(2)
    y = torch.tanh(x @ w)
    some = torch.autograd.grad(y.sum(), [w, unused, x, y], allow_unused=True, materialize_grads=index % 2 == 0)
    return some, x.grad, w.grad


@captured(times=2, opaque=None)
def gradients_of_some_inputs_only(index: int) -> Any:
    x, w = leaf(3, 4), leaf(4, 2)
    y = x @ w
    y.tanh().sum().backward(inputs=[y, w] if index % 2 else [w])
    return x.grad, w.grad, y.retains_grad and y.grad


@captured(times=None, declined="saved")
def some_inputs_and_then_others(_: int) -> Any:
    """What the first did not need it has not released."""
    x, w = leaf(3, 4), leaf(3, 4)
    y = x.exp() * 2 + w.sin()
    y.sum().backward(inputs=[w])
    second = raised_by(lambda: y.sum().backward(inputs=[x]))
    third = raised_by(lambda: y.sum().backward(inputs=[w]))
    return second, third, x.grad, w.grad


@captured()
def several_roots(_: int) -> Any:
    x, w = leaf(3, 4), leaf(4)
    y = x * w
    given = torch.randn(4, 3).t(), torch.randn(1, 4).expand(3, 4)
    torch.autograd.backward([y.sin(), y.exp().sum(), y, y, x], [given[0], None, given[1], given[0], given[1]])
    return given, x.grad, w.grad


@captured(times=2)
def gradient_edges(_: int) -> Any:
    x, w = leaf(3), leaf(3)
    y = x * w
    edge = graph.get_gradient_edge(y)
    first = torch.autograd.grad(y.sin().sum(), edge)[0]
    return first, torch.autograd.grad([edge], [x, w], [first])


@captured(times=None, declined="saved")
def a_graph_kept_and_used_again(_: int) -> Any:
    x, w = leaf(3, 4), leaf(4, 2)
    loss = torch.tanh(x @ w).square().sum()
    loss.backward(retain_graph=True)
    first = x.grad.clone()
    loss.backward()
    return first, x.grad, w.grad, raised_by(loss.backward), x.grad


@captured(times=None, declined="saved")
def a_graph_used_again_that_was_not_kept(_: int) -> Any:
    x, w = leaf(3), leaf(3)
    loss = (x.exp() + w * 2).sum()
    loss.backward()
    return raised_by(loss.backward), x.grad, w.grad


@captured(times=None, declined="saved")
def two_graphs_over_a_common_part(_: int) -> Any:
    x = leaf(3)
    common = x + 1
    common.sum().backward()
    (common * 2).sum().backward()
    freed = raised_by(common.exp().sum().backward)
    return freed, x.grad


# ---- graphs of all shapes


EYE, ONE = torch.eye(3), torch.tensor([1])


def slices_written(x: Tensor, w: Tensor) -> Tensor:
    y = x * 2
    y[0] = w
    y[:, 1].mul_(w[:3])
    y.view(-1)[::5].add_(1)
    y.t()[2:].exp_()
    return y.sin()


def written_through_views(x: Tensor) -> tuple[Tensor, ...]:
    base = x.clone()
    first, rest = base[0], base[1:]
    rest.mul_(first.clone())
    flat = base.view(-1).as_strided((2, 3), (3, 1), 1)
    flat.sigmoid_()
    return base, first, rest, flat


def deep(x: Tensor) -> Tensor:
    for _ in range(1500):
        x = x * 1.0001
    return x


def wide(x: Tensor) -> Tensor:
    return torch.stack([x * index for index in range(200)]).sum(0)


def lattice(x: Tensor, y: Tensor) -> Tensor:
    """Each value is used twice: gradients are added up in the engine's order."""
    for _ in range(12):
        x, y = x.sin() + y, x * y.cos()
    return x * y


def without_history(x: Tensor) -> Tensor:
    with torch.no_grad():
        scale = x.abs().max()
    return x / scale * x.detach()


FUNCTIONS: dict[str, Callable[..., Any]] = {
    "broadcasting": function(lambda x, y, z: (x * y - z).div(y.exp() + 1) + 2, (3, 4), (4,), (3, 1)),
    "many uses": function(lambda x: (x.sin(), x * x + x.exp() * x, x.cos() - x), (3,)),
    "mixed types": function(lambda x, y: x.double() * y + y.to(torch.bfloat16).float(), (3,), (3,)),
    "complex numbers": function(lambda x: (x * x.conj() + x.real, x.abs(), x.angle()), (3,), dtype=torch.complex128),
    "conjugates of what is saved": function(lambda x, y: y * x.reciprocal(), (3,), (3,), dtype=torch.complex64),
    "views": function(lambda x: (x.t()[1], x.reshape(-1)[2:7], x.expand(2, 3, 4), x.diagonal(), x[..., None]), (3, 4)),
    "aliased gradients": function(lambda x, y, z: x + y.reshape(6) + z.t().reshape(6), (6,), (2, 3), (2, 3)),
    "expanded gradients": function(lambda x, y: x.expand(3, 4).sum() + y.sum(), (4,), (2, 2)),
    "pieces": function(lambda x: [p.sin() for p in (*x.chunk(2), *x.split([1, 2, 1]), *x.unbind(1))], (4, 3)),
    "pieces partly used": function(lambda x: (x.chunk(4)[1].exp(), x.unbind()[2] * 2, x.split(3)[0]), (4, 3)),
    "joined": function(lambda x, y: (torch.cat([x, y, x]), torch.stack([x, x]), F.pad(x, (1, 2))), (3,), (2,)),
    "outputs unused": function(lambda x: (x.max(0).values, x.topk(2).values.sum(), x.sort().values), (4, 3)),
    "indices": function(lambda x: (x[[0, 2, 0]], x.gather(0, ONE[None]), x.index_select(1, ONE)), (4, 3)),
    "written by index": function(lambda x, y: x.clone().index_put_((ONE,), y).scatter(0, ONE[None], 3), (4, 3), (1, 3)),
    "matrices": function(lambda x: (torch.linalg.inv(x + 9 * EYE), torch.logdet(x @ x.t() + EYE)), (3, 3)),
    "attention": function(F.scaled_dot_product_attention, (2, 5, 4), (2, 6, 4), (2, 6, 4)),
    "changed in place": function(lambda x: x.clone().add_(1).mul_(3).sub_(x).sigmoid_() * x, (3, 4)),
    "slices written": function(slices_written, (3, 4), (4,)),
    "written through views": function(written_through_views, (3, 4)),
    "deep": function(deep, (2,)),
    "wide": function(wide, (2,)),
    "a lattice": function(lattice, (3,), (3,)),
    "without history": function(without_history, (3,)),
    "nothing in it": function(lambda x: (x[:0] * 2, x[:0].sum(), x.sin()), (3, 4)),
}
enter_all(FUNCTIONS)
TIES = function(lambda x: (x.sign().amax(0), x.sign().max(), x.clamp(-1, 1), x.median()), (4, 3))
enter("extremes with ties", TIES, opaque=None)

# ---- what differs from step to step


@captured(times=None)
def numbers_in_nodes(index: int) -> Any:
    x, n = leaf(3, 4), index + 1
    y = torch.add(x.pow(n), x * (n / 2), alpha=n) + x.sum(index % 2, keepdim=True) + F.leaky_relu(x, n / 10)
    y = y.clamp(-n, n) + F.dropout(x, n / 8) + x.roll(n, 0) + F.elu(x, n) + x.transpose(0, n % 2).reshape(3, 4)
    (y.select(index % 2, n % 3).sum() / n + y.narrow(0, index % 2, 2).std(correction=index % 2)).backward()
    return x.grad


@captured(times=None, opaque=None)
def layouts_and_types(index: int) -> Any:
    x, w = leaf(4, 3).t() if index % 2 else leaf(3, 4), leaf(3, 4)
    x = x.double() if index == 2 else x
    x.retain_grad()
    given = backward(x * w.cos())
    return given, x.grad, w.grad


@captured(times=None)
def strides_of_saved_tensors(index: int) -> Any:
    x, w = leaf(3, 4), torch.randn(4, 3).t() if index % 2 else torch.randn(3, 4)
    w = w[:, :1].expand(3, 4) if index == 4 else w
    y = torch.randn(5, 3, 4).permute(index % 2, 1 - index % 2, 2).reshape(5, 12)[:3, :4]
    given = backward((x * w, x.sin() * y, (x @ w.t()).exp()))
    return given, x.grad


@captured(times=None, opaque=None)
def what_is_broadcast() -> Iterator[Any]:
    for a, b, c in (((3, 4), (4,), (3, 1)), ((4,), (3, 4), (1,)), ((5, 4), (1, 4), (5, 4)), ((1, 4), (6, 1), ())):
        yield function(lambda x, y, z: (x * y + z).exp(), a, b, c)(0)


def with_zeros(index: int) -> Tensor:
    """None at first, then one, two, one in each row, and none again."""
    x = torch.randn(3, 4) + 4
    x[[0] * (index > 0) + [2] * (index > 1), 1] = 0
    x[:, 2] *= index != 3
    return (x if index < 4 else x.abs() + 1).requires_grad_()


@captured(times=None, opaque=("ProdBackward0", "ProdBackward1"))
def products_with_zeros(index: int) -> Any:
    x = with_zeros(index)
    given = backward((x.prod(), x.prod(1), x.cumprod(0)))
    return given, x.grad


@captured(times=None, opaque=None)
def masks(index: int) -> Any:
    x, y = leaf(3, 4), leaf(12)
    mask = x > (9 if index == 2 else index / 4 - 0.5)
    filled = x.masked_fill(mask, 2).masked_scatter(mask, y)
    put = (x * 2).index_put((mask,), y[: int(mask.sum())], accumulate=index % 2 == 0)
    given = backward((x[mask].sin(), x.masked_select(~mask) * 2, filled, put, torch.where(mask, x, x * x)))
    return given, x.grad, y.grad


@captured(times=None, opaque=None)
def places_found_in_contents(_: int) -> Any:
    x = leaf(4, 3)
    rows = x.detach().sum(1).gt(0).nonzero().flatten()
    repeats = torch.randint(3, (4,))
    parts = x[rows] * 2, x.index_add(0, rows, x[rows]), x.repeat_interleave(repeats, 0), x[x.argmax() % 4]
    return backward(parts), x.grad


@captured(times=None, opaque=None)
def sequences_of_some_lengths() -> Iterator[Any]:
    model = nn.GRU(3, 4)
    for lengths in ((5, 3, 2), (5, 4, 1), (5, 3, 2), (4, 4, 4)):
        x = leaf(lengths[0], 3, 3)
        out, last = model(nn.utils.rnn.pack_padded_sequence(x, torch.tensor(lengths)))
        (out.data.sin().sum() + last.sum()).backward()
        yield x.grad, gradients(model)


@captured()
def autocast() -> Iterator[Any]:
    model = mlp(4, 8, 2)

    def loss(_: int) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return (model(torch.randn(3, 4)).float() + model(torch.randn(3, 4)).float()).square().mean()

    yield from trained(model, loss)


# ---- sparse gradients


@captured(times=None, opaque=None)
def sparse_gradients() -> Iterator[Any]:
    model = nn.Sequential(nn.Embedding(9, 4, sparse=True), nn.Linear(4, 2))
    for index in range(STEPS):
        if index % 3 == 0:
            model.zero_grad()
        model(torch.randint(9, (3 + index // 3,))).square().mean().backward()
        yield gradients(model)


@captured(times=None, opaque=None)
def sparse_and_dense_gradients_of_one_weight(index: int) -> Any:
    w = leaf(9, 4)
    parts = F.embedding(torch.randint(9, (3,)), w, sparse=True).sum(), w.sin().sum()
    (parts[index % 2] + parts[1 - index % 2]).backward()
    F.embedding(torch.randint(9, (3,)), w, sparse=True).exp().sum().backward()
    return w.grad


# ---- hooks

Log = list[Any]


def looks(log: Log, label: str) -> Callable[..., None]:
    """A hook that notes what it was given, and under which circumstances."""

    def hook(*given: Any) -> None:
        modes = torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch._C._current_graph_task_id() >= 0
        log.append((label, [noted(value) for value in pytree.tree_leaves(given)], modes))

    return hook


def hooked(tell: Callable[[int, Log, Tensor, Tensor], Any]) -> Callable[[int], Any]:
    """A step with a log and two leaves, whose gradients are told after what it returns."""

    @functools.wraps(tell)
    def step(index: int) -> Any:
        log: Log = []
        x, w = leaf(3, 4), leaf(4)
        return tell(index, log, x, w), x.grad, w.grad, str(log)

    return step


@captured(opaque=("MulBackward0",))
@hooked
def tensor_hooks(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    y = x * w
    for hook in (looks(log, "first"), lambda g: g * 2, looks(log, "second"), lambda g: (g.add_(1), None)[1]):
        y.register_hook(hook)
    x.register_hook(lambda g: (looks(log, "leaf")(g), g.t().contiguous().t())[1])
    w.register_hook(looks(log, "other leaf"))
    y.register_hook(looks(log, "gone")).remove()
    y.sin().sum().backward()


@captured(opaque=None)
@hooked
def gradients_that_hooks_keep(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    """Who else holds a gradient decides whether it becomes `.grad` or is copied."""
    kept: list[Tensor] = []
    (y := x * 2).register_hook(kept.append)
    for tensor in (x, w):
        tensor.register_hook(kept.append)
    (y + w).backward(given := torch.randn(3, 4))
    return given, kept, x.grad, w.grad, y.retains_grad


@captured(times=2, opaque=None)
def gradients_that_reach_leaves_through_views(_: int) -> Any:
    x, w, kept = leaf(1, 4), leaf(1, 4), []
    (y := x.t()).register_hook(kept.append)
    z, product = w.t(), w.prod(1)
    asked = torch.autograd.grad(product, [product, w], torch.randn(1), retain_graph=True)
    return asked, backward((y.exp(), z.round().prod(), torch.where(z > 0, z, 0))), kept, x.grad, w.grad


@captured(opaque=None)
@hooked
def retained_gradients(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    (y := x * w).retain_grad()
    y.register_hook(lambda g: g * 2)
    (z := y[1]).retain_grad()
    y.mul_(2)
    (y.sin() * z).sum().backward()
    return y.grad, z.grad


@captured(opaque=("MulBackward0", "SinBackward0", "torch::autograd::AccumulateGrad"))
@hooked
def hooks_of_nodes(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    z = (y := x * w).sin()
    end = x.expand_as(x).grad_fn.next_functions[0][0]
    z.grad_fn.register_prehook(looks(log, "before sin"))
    z.grad_fn.register_hook(lambda inputs, outputs: (looks(log, "sin")(inputs, outputs), (inputs[0] * outputs[0],))[1])
    y.grad_fn.register_prehook(lambda gradients: (gradients[0] * 2,))
    y.grad_fn.register_hook(looks(log, "mul"))
    end.register_prehook(looks(log, "before the end"))
    end.register_hook(lambda *given: (looks(log, "end")(*given), log.append(noted(x.grad)))[1])
    z.sum().backward()


@captured(times=None, opaque=("torch::autograd::AccumulateGrad",))
@hooked
def hooks_after_accumulation(index: int, log: Log, x: Tensor, w: Tensor) -> Any:
    """An optimizer inside of the backward."""

    def update(parameter: Tensor) -> None:
        looks(log, "update")(parameter.grad)
        with torch.no_grad():
            parameter.sub_(parameter.grad)
        parameter.grad = None if index % 2 else parameter.grad

    x.register_post_accumulate_grad_hook(update)
    w.register_post_accumulate_grad_hook(update)
    (x * w.exp() + w).sum().backward()
    return x, w


@captured(opaque=None)
@hooked
def hooks_of_several_tensors(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    y, unused = x.sin(), x * 2
    graph.register_multi_grad_hook((y, w, unused), looks(log, "all"))
    graph.register_multi_grad_hook((y, w), looks(log, "any"), mode="any")
    queue = torch.autograd.Variable._execution_engine.queue_callback
    y.register_hook(lambda g: queue(lambda: log.append(("at the end", noted(x.grad)))))
    (y * w).sum().backward()


@captured(opaque=None)
@hooked
def hooks_of_modules(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    layer = nn.Linear(4, 2)
    layer.register_full_backward_pre_hook(lambda _, outputs: (outputs[0] * 2,))
    layer.register_full_backward_hook(lambda _, inputs, outputs: looks(log, "layer")(inputs, outputs))
    layer(x * w).sum().backward()
    return gradients(layer)


# ---- nodes written in Python


class Sometimes(Function):
    """Its gradients depend on contents in Python, and are None now and then."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, name: str) -> Tensor:
        ctx.save_for_backward(x, w)
        return x * w

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor | None, ...]:
        x, w = ctx.saved_tensors
        first = None if x.sum() > 0 else gradient * w * float(x.mean())
        return first, gradient * x, None


class Several(Function):
    """Two outputs, of which one may be unused, and an input that it changes."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor) -> tuple[Tensor, ...]:
        ctx.set_materialize_grads(False)
        ctx.mark_dirty(x)
        count = torch.tensor(3)
        ctx.mark_non_differentiable(count)
        ctx.save_for_backward(w)
        ctx.wanted = w.shape
        return x.mul_(w), w.sin(), count

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx: Any, a: Tensor | None, b: Tensor | None, _: None) -> tuple[Tensor | None, ...]:
        (w,) = ctx.saved_tensors
        of_w = None if b is None else (b * w.cos()).expand(2, *ctx.wanted).double()  # reduced and cast by the engine
        return None if a is None or not ctx.needs_input_grad[0] else a * w, of_w


@captured(times=None, opaque=("SometimesBackward",))
def functions_that_depend_on_contents(_: int) -> Any:
    x, w = leaf(3, 4), leaf(3, 4)
    y = Sometimes.apply(x.sin(), w, "name") + Sometimes.apply(x * 2, w, "other")
    return backward(y), x.grad, w.grad


@captured(times=None, opaque=("SeveralBackward",))
def functions_with_several_outputs(index: int) -> Any:
    x, w = leaf(4) if index % 2 else torch.randn(4), leaf(4)
    a, b, count = Several.apply(x.clone(), w)
    ends = [(a.exp(), b), (a * 2,), (b * 3,)][index % 3]
    return backward(ends), x.grad, w.grad, count


@captured(times=None, opaque=("SometimesBackward",))
def a_checkpoint() -> Iterator[Any]:
    """Packed tensors: the forward runs once more when the first is wanted."""
    model = mlp(4, 8, 4)

    def twice(x: Tensor) -> Tensor:
        return Sometimes.apply(F.dropout(model(x), 0.3), x, "inner")

    def loss(_: int) -> Tensor:
        inner = checkpoints.checkpoint(twice, torch.randn(3, 4), use_reentrant=False)
        return checkpoints.checkpoint(model, inner, use_reentrant=False).square().mean()

    yield from trained(model, loss)


@captured(times=None, opaque=("CheckpointFunctionBackward",))
def a_reentrant_checkpoint() -> Iterator[Any]:
    """A backward inside of each backward."""
    model = mlp(4, 8, 4)

    def loss(_: int) -> Tensor:
        inner = checkpoints.checkpoint(lambda x: F.dropout(model(x), 0.3), leaf(3, 4), use_reentrant=True)
        return checkpoints.checkpoint(model, inner, use_reentrant=True).square().mean()

    yield from trained(model, loss)


@captured(times=None, opaque=None)
@hooked
def hooks_of_saved_tensors(index: int, log: Log, x: Tensor, w: Tensor) -> Any:
    def unpack(packed: Any) -> Tensor:
        log.append(("unpacked", packed[0]))
        return packed[1] * (index + 1)

    with graph.saved_tensors_hooks(lambda t: (len(log), t.detach()), unpack) if index != 2 else graph.save_on_cpu():
        y = (x * w).exp()
    (y.tanh() * w).sum().backward()


@captured(times=None, opaque=None)
@hooked
def a_hook_of_one_saved_tensor(_: int, log: Log, x: Tensor, w: Tensor) -> Any:
    y = x * w
    y.grad_fn._raw_saved_self.register_hooks(lambda t: noted(t) and t * 2, lambda t: (log.append(noted(t)), t)[1])
    y.sum().backward()
