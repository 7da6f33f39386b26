"""What each process of test_distributed.py does: it trains with its peers, eagerly and in another way, and notes it."""

from __future__ import annotations

import contextlib
import datetime
import os
import pickle
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import magneto
import torch
import torch.distributed as dist
from magneto import compiled_autograd
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel
from zoo import compare, models, training

WORLD, STEPS, TIME_LIMIT = 2, 20, 60
WIDTH, DEPTH = 24, 4
TINY_BUCKETS = WIDTH * WIDTH * 4 / 2**20  # one weight fills one


def same(value: Any) -> Any:
    return value


@dataclass(frozen=True)
class Way:
    """What is compiled: the module that torch wraps, that wrapper, what takes the loss, all of a step, its backward."""

    inside: Callable[[Any], Any] = same
    around: Callable[[Any], Any] = same
    loss: Callable[[Any], Any] = same
    step: Callable[[Any], Any] = same
    backward: Callable[[], contextlib.AbstractContextManager[Any]] = contextlib.nullcontext


NOTHING = "nothing"
WAYS = {
    NOTHING: Way(),
    "the module inside": Way(inside=magneto.compile),
    "the wrapper": Way(around=magneto.compile),
    "a function that takes the loss": Way(loss=magneto.compile),
    "forward and backward": Way(step=magneto.compile),
    "backward": Way(backward=compiled_autograd.enable),
    "the module inside and backward": Way(inside=magneto.compile, backward=compiled_autograd.enable),
}


def looks(tensors: Any) -> list[Any]:
    return [None if t is None else compare.look(t.to_local() if hasattr(t, "to_local") else t) for t in tensors]


def mlp() -> nn.Module:
    layers = [layer for _ in range(DEPTH) for layer in (nn.Linear(WIDTH, WIDTH), nn.Tanh())]
    return nn.Sequential(*layers)


def encoder() -> nn.Module:
    return training.encoder(layers=2, width=WIDTH)


class Branches(nn.Module):
    """Uses one of two branches, as it was told before, and a third never."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(WIDTH, WIDTH)
        self.branches = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(3))
        self.chosen = 0

    def forward(self, x: Tensor) -> Tensor:
        return self.branches[self.chosen](self.stem(x).relu())


def batches(rank: int, shape: tuple[int, ...]) -> Iterator[Tensor]:
    """Other data and other random numbers for each process."""
    torch.manual_seed(100 + rank)
    return (torch.randn(shape) for _ in range(STEPS))


@dataclass
class Step:
    """What can be compared of one step."""

    loss: Any
    gradients: list[Any]
    parameters: list[Any]
    buffers: list[Any]
    order: list[tuple[str, Any]]


def train(
    call: Callable[[Tensor], Tensor],
    model: nn.Module,
    way: Way,
    inputs: Iterator[Tensor],
    order: list[tuple[str, Any]] | None = None,
    around: Callable[[int], contextlib.AbstractContextManager[Any]] = lambda _: contextlib.nullcontext(),
    updates: Callable[[int], bool] = lambda _: True,
) -> Iterator[Step]:
    order = [] if order is None else order
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    loss_of = way.loss(lambda x: call(x).square().mean())

    def forward_and_backward(x: Tensor) -> Tensor:
        loss = loss_of(x)
        with way.backward():
            loss.backward()
        return loss.detach()

    step = way.step(forward_and_backward)
    for index, x in enumerate(inputs):
        with around(index):
            loss = step(x)
        gradients = looks(p.grad for p in model.parameters())
        if updates(index):
            optimizer.step()
            optimizer.zero_grad()
        yield Step(looks([loss]), gradients, looks(model.parameters()), looks(model.buffers()), [*order])
        order.clear()


Story = Callable[[Way, int], Iterator[Step]]


def data_parallel(build: Callable[[], nn.Module], *shape: int, **options: Any) -> Story:
    """Steps of a model inside DistributedDataParallel."""

    def story(way: Way, rank: int) -> Iterator[Step]:
        model = build()
        call = way.around(DistributedDataParallel(way.inside(model), **options))
        return train(call, model, way, batches(rank, shape))

    return story


def accumulation(way: Way, rank: int) -> Iterator[Step]:
    """Gradients of three steps are added up, and reduced in the third."""
    model = mlp()
    parallel = DistributedDataParallel(way.inside(model))

    def last_of_three(index: int) -> bool:
        return index % 3 == 2

    def around(index: int) -> contextlib.AbstractContextManager[Any]:
        return contextlib.nullcontext() if last_of_three(index) else parallel.no_sync()

    call, inputs = way.around(parallel), batches(rank, (4, WIDTH))
    return train(call, model, way, inputs, around=around, updates=last_of_three)


def noting_reduction(order, bucket):  # torch looks at its annotations, which must not be texts
    order.append(("bucket", bucket.index()))
    return default_hooks.allreduce_hook(None, bucket)


def buckets(way: Way, rank: int) -> Iterator[Step]:
    """Notes when each gradient is there and when each bucket is handed over to be reduced."""
    model, order = mlp(), []
    parallel = DistributedDataParallel(way.inside(model), bucket_cap_mb=TINY_BUCKETS)
    parallel.register_comm_hook(order, noting_reduction)
    for name, parameter in model.named_parameters():
        parameter.register_hook(lambda _, name=name: order.append(("gradient", name)))
    return train(way.around(parallel), model, way, batches(rank, (4, WIDTH)), order)


def unused(way: Way, rank: int) -> Iterator[Step]:
    """In each step a branch is used by this process only, by others only, by all, or by none."""
    model = Branches()
    parallel = DistributedDataParallel(way.inside(model), find_unused_parameters=True)

    def inputs() -> Iterator[Tensor]:
        for index, x in enumerate(batches(rank, (4, WIDTH))):
            model.chosen = 0 if index % 3 == 0 else (rank + index) % 2
            yield x

    return train(way.around(parallel), model, way, inputs())


def sharded(way: Way, rank: int) -> Iterator[Step]:
    """FSDP2, which changes modules in place: each layer, and the whole."""
    model, mesh = mlp(), init_device_mesh("cpu", (WORLD,))
    for layer in model:
        if isinstance(layer, nn.Linear):
            fully_shard(layer, mesh=mesh)
    return train(way.around(way.inside(fully_shard(model, mesh=mesh))), model, way, batches(rank, (4, WIDTH)))


def sharded_layers(compiled_first: bool) -> Story:
    """The layers are compiled one by one, before or after each is sharded, and then the whole is sharded."""

    def story(way: Way, rank: int) -> Iterator[Step]:
        mesh = init_device_mesh("cpu", (WORLD,))

        def layer() -> nn.Module:
            made = nn.Linear(WIDTH, WIDTH)
            if compiled_first:
                return fully_shard(way.inside(made), mesh=mesh)
            return way.inside(fully_shard(made, mesh=mesh))

        model = fully_shard(nn.Sequential(*(layer() for _ in range(DEPTH))), mesh=mesh)
        return train(model, model, way, batches(rank, (4, WIDTH)))

    return story


STORIES: dict[str, Story] = {
    "mlp": data_parallel(mlp, 4, WIDTH),
    "encoder": data_parallel(encoder, 2, 6, WIDTH),
    "batch norm": data_parallel(lambda: models.ResNet((8, 8, 16)), 2, 3, models.IMAGE_SIZE, models.IMAGE_SIZE),
    "gradients as views of buckets": data_parallel(mlp, 4, WIDTH, gradient_as_bucket_view=True),
    "a static graph": data_parallel(mlp, 4, WIDTH, static_graph=True),
    "accumulation": accumulation,
    "buckets": buckets,
    "unused parameters": unused,
    "sharded": sharded,
    "layers compiled, then sharded": sharded_layers(True),
    "layers sharded, then compiled": sharded_layers(False),
}


@dataclass
class Told:
    """What one process saw in one way of training."""

    steps: list[Step]
    counters: dict[str, dict[str, int]]


def tell(story: str, way: Way, rank: int) -> Told:
    magneto.reset()
    torch.manual_seed(0)
    steps = list(STORIES[story](way, rank))
    return Told(steps, {name: dict(group) for name, group in magneto.counters.items()})


def output_file(folder: Path, rank: int) -> Path:
    return folder / f"output of {rank}"


def told_file(folder: Path, rank: int, way: str) -> Path:
    return folder / f"{rank} trained with {way} compiled"


def work(rank: int, folder: Path, story: str, ways: list[str]) -> None:
    """Runs in a process of its own; after each of the ways it leaves a `Told` in the folder."""
    output = os.open(output_file(folder, rank), os.O_WRONLY | os.O_CREAT)
    os.dup2(output, 1)
    os.dup2(output, 2)
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=(folder / "meeting").as_uri(),
        rank=rank,
        world_size=WORLD,
        timeout=datetime.timedelta(seconds=TIME_LIMIT / 2),
    )
    for way in ways:
        told_file(folder, rank, way).write_bytes(pickle.dumps(tell(story, WAYS[way], rank)))
    dist.destroy_process_group()
