"""What the benchmarks that compile models share: the choice from the zoo, first calls, the peer."""

from __future__ import annotations

import argparse
import contextlib
import gc
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from _common import Options, cpu_ms, machine, use_the_zoo, versions

use_the_zoo()
from zoo import models  # noqa: E402

Model = tuple[torch.nn.Module, tuple[Any, ...], dict[str, Any]]


def prepare() -> None:
    """One thread per operation, inference, no warnings; says where this runs."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    warnings.simplefilter("ignore")
    print(", ".join(f"{key} {value}" for key, value in {**machine(), **versions()}.items()))


def add_models(parser: Options, default: str) -> None:
    """The option --models."""
    parser.add_argument("--models", default=default, help=f"names with commas between them, or all; default: {default}")


def parse(parser: Options, arguments: list[str]) -> argparse.Namespace:
    """With `models` as a list of names that exist."""
    options = parser.parse(arguments)
    options.models = models.names() if options.models == "all" else options.models.split(",")
    unknown = set(options.models) - set(models.names())
    if unknown:
        parser.error(f"no such models: {', '.join(sorted(unknown))}; there are: {', '.join(models.names())}")
    return options


def warm(name: str) -> Model:
    """A model and its inputs, after three eager calls."""
    module, make_inputs = models.get(name)
    args, kwargs = make_inputs(0, 0)
    for _ in range(3):
        module(*args, **kwargs)
    return module, args, kwargs


@dataclass
class FirstCall:
    """Times in ms."""

    eager: float
    calling: float
    compiling: float
    compiled: Any


def first_call(model: Model, compiler: Callable[[Any], Any]) -> FirstCall:
    """An eager call, then compile and call."""
    module, args, kwargs = model
    eager = cpu_ms(lambda: module(*args, **kwargs))
    made: list[Any] = []
    compiling = cpu_ms(lambda: made.append(compiler(module)))
    calling = cpu_ms(lambda: made[0](*args, **kwargs))
    return FirstCall(eager, calling, compiling, made[0])


def small_layers() -> tuple[torch.nn.Module, Any]:
    """Twenty layers and their arguments; around their kernels there is much to save."""
    layers = [layer for _ in range(20) for layer in (torch.nn.Linear(32, 32), torch.nn.ReLU())]
    return torch.nn.Sequential(*layers), ((torch.randn(4, 32),), {})


@contextlib.contextmanager
def collector_off() -> Iterator[None]:
    """As timeit does: a collection that happens to start in a call is not part of it."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def load_incumbent(*backends: str) -> None:
    """Loading the peer's own machinery is no part of its first call."""
    for backend in backends:
        torch._dynamo.reset()
        torch.compile(torch.nn.Linear(2, 2), backend=backend)(torch.ones(1, 2))
