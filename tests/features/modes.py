"""Modes of torch as blocks and decorators: gradients, inference, autocast, defaults; random numbers and seeds."""

from __future__ import annotations

import contextlib
import random
import types
from collections.abc import Iterator
from typing import Any

import numpy
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.profiler import record_function

from .runner import Case, feature, left_to_python, numbers


def switched(call: Any, **flags: Any) -> Case:
    """A function of a tensor and of flags, the first of which is turned at the change."""
    state = types.SimpleNamespace(**flags)
    name = next(iter(flags))
    return Case(lambda x: call(x, state), lambda: setattr(state, name, not getattr(state, name)))


@feature()
def no_grad_block() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with torch.no_grad():
            y = x * 2
            inside = torch.is_grad_enabled()
        return (y if state.first else y + 1), x + y, inside, torch.is_grad_enabled()

    return switched(call, first=True)


@feature()
def enable_grad_block() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with torch.enable_grad():
            y = x * 2
            inside = torch.is_grad_enabled()
        return y + 1 if state.first else y - 1, inside, torch.is_grad_enabled(), y.requires_grad

    return switched(call, first=True)


@feature()
def set_grad_enabled_block() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with torch.set_grad_enabled(state.on):
            y = x * 2
            inside = torch.is_grad_enabled()
        return y, inside, torch.is_grad_enabled()

    return switched(call, on=False)


@feature()
def set_grad_enabled_as_a_function() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        before = torch.is_grad_enabled()
        torch.set_grad_enabled(state.on)
        y = x * 3
        inside = torch.is_grad_enabled()
        torch.set_grad_enabled(before)
        return y, inside

    return switched(call, on=True)


@feature()
def inference_mode_block() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with torch.inference_mode(state.on):
            y = x * 2
            inside = torch.is_inference_mode_enabled()
        return y, inside, y.is_inference(), torch.is_inference_mode_enabled()

    return switched(call, on=True)


@feature()
def autocast_inside_and_outside_of_inference_mode() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with torch.inference_mode():
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=state.casts):
                a = x @ x.T
            b = x @ x.T
            b.view(-1).add_(1)
        with torch.autocast("cpu", dtype=torch.bfloat16):
            c = x @ x.T
        return a, b, c, x + 1, [t.is_inference() for t in (a, b, c)]

    return switched(call, casts=True)


@feature()
def modes_nested() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        seen = []
        with torch.no_grad():
            seen.append(torch.is_grad_enabled())
            with torch.enable_grad():
                y = x * 2
                seen.append(torch.is_grad_enabled())
                with torch.set_grad_enabled(state.on):
                    y = y + 1
                    seen.append(torch.is_grad_enabled())
            seen.append(torch.is_grad_enabled())
        return y, seen

    return switched(call, on=False)


@feature()
def modes_as_decorators() -> Case:
    @torch.no_grad()
    def without(x: Tensor) -> Any:
        return x * 2, torch.is_grad_enabled()

    @torch.enable_grad()
    def within(x: Tensor) -> Any:
        return x * 3, torch.is_grad_enabled()

    @torch.set_grad_enabled(False)
    def off(x: Tensor) -> Any:
        return x * 4, torch.is_grad_enabled()

    def call(x: Tensor, state: Any) -> Any:
        return without(x), within(x), off(x) if state.all else None

    return switched(call, all=True)


@feature()
def inference_mode_as_a_decorator() -> Case:
    @torch.inference_mode()
    def inner(x: Tensor) -> Any:
        return x * 2, torch.is_inference_mode_enabled()

    return switched(lambda x, state: (inner(x), x + state.shift), shift=True)


@feature()
def no_grad_decorates_a_forward() -> Case:
    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layer = nn.Linear(4, 4)

        @torch.no_grad()
        def forward(self, x: Tensor) -> Any:
            return self.layer(x), torch.is_grad_enabled()

    model = Model()
    return Case(model, lambda: model.layer.register_forward_hook(lambda m, args, y: y * 2), module=model)


@feature()
def no_grad_over_a_generator() -> Case:
    @torch.no_grad()
    def pieces(x: Tensor) -> Any:
        for row in x:
            yield row * 2, torch.is_grad_enabled()

    return switched(
        lambda x, state: [(y + state.shift, on, torch.is_grad_enabled()) for y, on in pieces(x)], shift=True
    )


def attention(x: Tensor) -> Tensor:
    q = x.reshape(1, 2, -1, 2)
    return F.scaled_dot_product_attention(q, q, q)


@feature()
def sdpa_kernel_block() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with sdpa_kernel(SDPBackend.MATH if state.math else SDPBackend.FLASH_ATTENTION):
            y = attention(x)
            inside = torch.backends.cuda.flash_sdp_enabled()
        return y, attention(x), inside, torch.backends.cuda.flash_sdp_enabled()

    return switched(call, math=True)


@feature()
def sdpa_kernel_by_priority() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        order = [SDPBackend.MATH, SDPBackend.FLASH_ATTENTION]
        with sdpa_kernel(order if state.math else order[::-1], set_priority=True):
            return attention(x) * state.math

    return switched(call, math=True)


@feature()
def flash_attention_switched_off_and_on() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        torch.backends.cuda.enable_flash_sdp(False)
        y = attention(x)
        torch.backends.cuda.enable_flash_sdp(True)
        return y * state.one

    return switched(call, one=True)


@feature(
    graphs=2,
    hits=4,
    cuts=("a fused operator (aten::_transformer_encoder_layer_fwd) with a choice of attention that the call made",),
    eager="a fused operator (aten::_transformer_encoder_layer_fwd) with a choice of attention that the call made",
)
def sdpa_kernel_around_a_fused_encoder_layer() -> Case:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval()

    def call(x: Tensor, state: Any) -> Any:
        with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
            return layer(x.reshape(1, -1, 4)) + state.one

    return switched(call, one=True)


@feature()
def record_function_block() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with record_function("outer"), record_function("inner", "arguments"):
            y = x * 2
        return y + state.one

    return switched(call, one=True)


@feature()
def record_function_as_a_decorator() -> Case:
    @record_function("decorated")
    def inner(x: Tensor) -> Tensor:
        return x * 2

    return switched(lambda x, state: inner(x) + state.one, one=True)


@feature()
def torch_functions_disabled_in_a_block() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with torch._C.DisableTorchFunctionSubclass():
            y = x * 2
            inside = torch._C._is_torch_function_enabled()
        return y + state.one, inside, torch._C._is_torch_function_enabled()

    return switched(call, one=True)


@feature()
def autocast_block() -> Case:
    layer = nn.Linear(4, 4)

    def call(x: Tensor, state: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=state.on):
            y = layer(x)
            z = y.sum() + x.softmax(-1)
            inside = torch.is_autocast_enabled("cpu"), torch.get_autocast_dtype("cpu")
        return y, z, layer(x), inside, torch.is_autocast_enabled("cpu")

    return switched(call, on=True)


@feature()
def autocast_nested_and_left() -> Case:
    layer = nn.Linear(4, 4)

    def call(x: Tensor, state: Any) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
            with torch.autocast("cpu", enabled=state.on):
                z = layer(y.float())
            w = layer(z)
        return y, z, w

    return switched(call, on=False)


@feature()
def autocast_as_a_decorator() -> Case:
    layer = nn.Linear(4, 4)

    @torch.autocast("cpu", dtype=torch.float16)
    def inner(x: Tensor) -> Tensor:
        return layer(x) @ x.T

    return Case(inner, lambda: layer.weight.data.neg_(), module=layer)


@feature()
def autocast_around_the_call() -> Case:
    layer, on = nn.Linear(4, 4), [torch.bfloat16]
    return Case(
        lambda x: (layer(x), x @ x.T),
        lambda: on.__setitem__(0, torch.float16),
        world=lambda: torch.autocast("cpu", dtype=on[0]),
    )


@feature()
def autocast_with_a_weight_changed_in_between() -> Case:
    layer = nn.Linear(4, 4)

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            y = layer(x)
            with torch.no_grad():
                layer.weight.mul_(0.5)
            return y + layer(x)

    return Case(call, lambda: layer.weight.data.fill_(1), module=layer)


@feature()
def autocast_whose_cache_is_filled() -> Case:
    layer = nn.Linear(4, 4)

    @contextlib.contextmanager
    def world() -> Iterator[None]:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            layer(torch.ones(1, 4))
            yield

    return Case(layer, lambda: layer.weight.data.mul_(2), world=world, module=layer)


@feature(graphs=2, cuts=("torch._C._set_default_dtype",))
def default_dtype_changed_inside() -> Case:
    state = types.SimpleNamespace(dtype=torch.float64)

    def call(x: Tensor) -> Any:
        torch.set_default_dtype(state.dtype)
        y = torch.ones(2)
        torch.set_default_dtype(torch.float32)
        return y, torch.ones(2) + x[0, 0]

    return Case(call, lambda: setattr(state, "dtype", torch.float16))


@feature()
def default_dtype() -> Case:
    def call(x: Tensor) -> Any:
        return torch.ones(2) + 1, torch.tensor(1.5), x + torch.get_default_dtype().itemsize

    other = [torch.float32]

    class World:
        def __enter__(self) -> None:
            torch.set_default_dtype(other[0])

        def __exit__(self, *_: Any) -> None:
            torch.set_default_dtype(torch.float32)

    return Case(call, lambda: other.__setitem__(0, torch.float64), world=World)


def with_default_device(call: Any, **more: Any) -> Case:
    device = ["cpu"]

    class World:
        def __enter__(self) -> None:
            torch.set_default_device(device[0])

        def __exit__(self, *_: Any) -> None:
            torch.set_default_device(None)

    return Case(call, lambda: device.__setitem__(0, "meta"), world=World, **more)


@feature()
def default_device() -> Case:
    def call(x: Tensor) -> Any:
        made = (
            torch.ones(2),
            torch.arange(3),
            torch.tensor([1, 2]),
            torch.zeros_like(x),
            torch.full((2,), 3.0, device=None),
        )
        return (
            made,
            torch.zeros(1, device="cpu"),
            x.shape,
            x * 2 + x[0],
            -x,
            x.T,
            x.new_ones(2),
            bool(x.dtype.is_complex),
        )

    return with_default_device(call)


@feature()
def default_device_and_functions_in_python() -> Case:
    layer = nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4), nn.Dropout(0.0), nn.GELU())
    attention = nn.MultiheadAttention(4, 2, batch_first=True).eval()

    def call(x: Tensor) -> Any:
        with torch.no_grad():
            y = F.normalize(layer(x)).split(2)[0].norm(dim=1)
            return y, attention(x[None], x[None], x[None])[0], torch.rand(2).device, F.softmax(x, dim=-1)

    return with_default_device(call)


@feature(graphs=2, hits=4, settles=False)
def default_device_and_sizes_that_change() -> Case:
    def call(x: Tensor) -> Any:
        made = torch.ones(x.shape[0]), torch.arange(x.size(1)), F.layer_norm(x, x.shape[1:])
        return made, x.flatten() * x.shape[0]

    return with_default_device(call, inputs=lambda index: (torch.ones(2 + index, 3, device="cpu"),))


@left_to_python("stores a DeviceContext", "<lambda>", "call")
def default_device_as_a_block() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with torch.device("meta" if state.meta else "cpu"):
            y = torch.ones(3) * 2
        return y, y.device, x * 2

    return switched(call, meta=False)


@feature()
def mode_left_changed_by_an_exception() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        try:
            with torch.enable_grad():
                y = x * 2
                if state.fails:
                    raise ValueError("no")
        except ValueError:
            y = x - 1
        return y, torch.is_grad_enabled()

    return switched(call, fails=True)


# ---- random numbers


@feature()
def random_functions() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        made = [torch.rand(3), torch.randn(2, 2), torch.randint(0, 9, (4,)), torch.randperm(5), torch.rand_like(x)]
        made += [torch.randn_like(x), torch.bernoulli(x.sigmoid()), torch.normal(x, 0.1), torch.poisson(x.exp())]
        made += [torch.multinomial(x.softmax(-1), 2), x.clone().uniform_(), x.clone().exponential_()]
        return [*made, F.dropout(x), torch.rand(2) if state.more else None]

    return switched(call, more=False)


@feature(
    hits=2,
    cuts=(
        "the call reads a torch._C.Generator, whose contents cannot be guarded",
        "the call reads a torch._C.Generator, whose contents cannot be guarded",
        "the call reads a torch._C.Generator, whose contents cannot be guarded",
    ),
    eager="the call reads a torch._C.Generator, whose contents cannot be guarded",
)
def generator_of_ones_own() -> Case:
    own = torch.Generator().manual_seed(5)

    def call(x: Tensor) -> Any:
        return (
            torch.rand(3, generator=own) + x[0, :3],
            x.clone().normal_(generator=own),
            torch.randperm(4, generator=own),
        )

    return Case(call, lambda: own.manual_seed(99), observe=own.get_state)


@feature(varies="the new object may have the address of the one before")
def generator_as_an_argument() -> Case:
    def inputs(i: int) -> Any:
        return *numbers(i), torch.Generator().manual_seed(i)

    def call(x: Tensor, own: torch.Generator) -> Any:
        return x + torch.rand(3, 4, generator=own), own.initial_seed()

    return Case(call, inputs=inputs)


@feature(varies="whether torch.compile has run in the process")
def seed_set_inside() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        torch.manual_seed(3 if state.three else 4)
        return x + torch.rand(4)

    return switched(call, three=True)


@feature(
    hits=4,
    cuts=(
        "the call reads a torch._C.Generator, whose contents cannot be guarded",
        "the call runs Generator.initial_seed, which is not understood",
        "the call runs Generator.manual_seed, which is not understood",
    ),
    eager="the call reads a torch._C.Generator, whose contents cannot be guarded",
)
def generator_seeded_inside() -> Case:
    own = torch.Generator()

    def call(x: Tensor, state: Any) -> Any:
        own.manual_seed(3 if state.three else 4)
        return x + torch.rand(4, generator=own), own.initial_seed()

    case = switched(call, three=True)
    case.observe = own.get_state
    return case


@feature(
    hits=2,
    cuts=(
        "the call runs torch._C.Generator, which is not understood",
        "the call uses a builtin_function_or_method that an unknown function may have changed",
        "the call uses a torch._C.Generator that an unknown function may have changed",
        "the call uses a torch._C.Generator that an unknown function may have changed",
    ),
    eager="the call uses a builtin_function_or_method that an unknown function may have changed",
)
def generator_made_inside() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        own = torch.Generator().manual_seed(3 if state.three else 4)
        return x + torch.rand(4, generator=own)

    return switched(call, three=True)


@feature(graphs=2, cuts=("Generator.get_state", "Generator.set_state", "_accelerator_getAccelerator"))
def fork_rng() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        with torch.random.fork_rng(devices=[]):
            y = x + torch.rand(4)
        return y, torch.rand(2), y * state.one

    return switched(call, one=True)


@feature(graphs=2, cuts=("Generator.get_state", "Generator.set_state"))
def rng_state_put_back() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        saved = torch.get_rng_state()
        y = torch.rand(4)
        torch.set_rng_state(saved)
        return y == torch.rand(4), x * state.one

    return switched(call, one=True)


@feature(
    graphs=3,
    hits=4,
    cuts=(
        "the call runs Random.getrandbits, which is not understood",
        "the call runs Random.random, which is not understood",
        "the call runs numpy.random.RandomState.rand, which is not understood",
    ),
    eager="the call runs numpy.random.RandomState.rand, which is not understood",
)
def python_and_numpy_random() -> Case:
    def call(x: Tensor, state: Any) -> Any:
        return x * random.random() + float(numpy.random.rand()), random.randint(0, 100), x * state.one

    return switched(call, one=True)
