"""torch.autocast on the lazy device: it is that of the CPU, and what it does there it does here, to the bit."""

from __future__ import annotations

import contextlib
import itertools
import threading
from collections.abc import Callable
from typing import Any

import magneto
import pytest
import torch
from lazy_stories import BACKING, check, count, made_model, numbers
from magneto import lazy
from test_lazy_opinfo import OPS, UNDEFINED_CONTENTS, Sample, difference, name_of, outcome, stated
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from zoo import harness

pytestmark = [
    pytest.mark.filterwarnings("ignore"),
    pytest.mark.usefixtures("lazy_device"),
    pytest.mark.skipif(BACKING != "cpu", reason="torch casts other operators there"),
]
LOWER = (torch.bfloat16, torch.float16)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 8), nn.Linear(8, 3))


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.Linear(8, 24)
        self.convolution = nn.Conv1d(5, 5, 3, padding=1)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.parts(self.convolution(x)).chunk(3, -1)
        return torch.cat([F.scaled_dot_product_attention(q, k, v), x], -1)


# ---- blocks


@pytest.mark.parametrize("dtype", [*LOWER, None])
@pytest.mark.parametrize("make, shape", [(net, (4, 6)), (Attention, (2, 5, 8))])
def test_models_are_cast_as_on_the_cpu(
    make: Callable[[], nn.Module], shape: tuple[int, ...], dtype: torch.dtype | None
) -> None:
    def story(d: str) -> Any:
        model = made_model(make, d)
        x = numbers(d, *shape).requires_grad_()
        with torch.autocast(d, dtype):
            y = model(x)
            loss = F.mse_loss(y, torch.zeros_like(y))
        loss.backward()
        return [y, loss, x.grad, [p.grad for p in model.parameters()]]

    check(story)


def test_blocks_nest_and_end() -> None:
    def story(d: str) -> Any:
        x = numbers(d, 4, 4)
        found = [x @ x]
        with torch.autocast(d, torch.bfloat16):
            found.append(x @ x)
            with torch.autocast(d, torch.float16):
                found.append(x @ x)
                with torch.autocast(d, enabled=False):
                    found.append(x @ x)
                found.append(x @ x)
            found.append(x @ x)
        with contextlib.suppress(ValueError), torch.autocast(d, torch.bfloat16):
            raise ValueError
        return [*found, x @ x]

    check(story)


def test_the_block_of_the_cpu_is_the_same_block() -> None:
    x = numbers("lazy", 3, 3)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.is_autocast_enabled("lazy")
        assert (x @ x).dtype == torch.bfloat16
    assert not torch.is_autocast_enabled("lazy")
    with torch.autocast("lazy", torch.float16):
        assert torch.is_autocast_enabled("cpu")
        assert torch.get_autocast_dtype("lazy") == torch.get_autocast_dtype("cpu") == torch.float16
        assert (x.cpu() @ x.cpu()).dtype == torch.float16


def test_a_block_of_another_device_does_nothing() -> None:
    x = numbers("lazy", 3, 3)
    with torch.autocast("xla", torch.bfloat16):
        assert (x @ x).dtype == torch.float32


def test_decorators_and_custom_functions() -> None:
    class Double(torch.autograd.Function):
        @staticmethod
        @torch.amp.custom_fwd(device_type="lazy", cast_inputs=torch.float32)
        def forward(ctx: Any, x: Tensor) -> Tensor:
            return x @ x

        @staticmethod
        @torch.amp.custom_bwd(device_type="lazy")
        def backward(ctx: Any, gradient: Tensor) -> Tensor:
            return gradient @ gradient

    def story(d: str) -> Any:
        @torch.autocast(d, torch.bfloat16)
        def product(x: Tensor) -> Tensor:
            return Double.apply(x) + x @ x

        x = numbers(d, 3, 3).requires_grad_()
        y = product(x)
        y.sum().backward()
        return [y, x.grad]

    check(story)


def test_a_backward_inside_the_block() -> None:
    """It runs on another thread, which has to know the dtype."""

    def story(d: str) -> Any:
        a, b = (numbers(d, 4, 4, seed=seed).requires_grad_() for seed in (1, 2))
        with torch.autocast(d, torch.bfloat16):
            first = torch.autograd.grad((a @ b).float().square().sum(), [a, b], create_graph=True)
            sum(grad.square().sum() for grad in first).backward()
        return [first, a.grad, b.grad]

    check(story)


def test_checkpoints_compute_again_under_the_same_block() -> None:
    def story(d: str) -> Any:
        model = made_model(net, d)
        x = numbers(d, 4, 6).requires_grad_()
        with torch.autocast(d, torch.bfloat16):
            y = checkpoint(model, x, use_reentrant=False)
        y.float().sum().backward()
        return [y, x.grad, [p.grad for p in model.parameters()]]

    check(story)


def test_each_thread_has_its_own() -> None:
    x = numbers("lazy", 3, 3)
    found = []
    with torch.autocast("lazy", torch.bfloat16):
        thread = threading.Thread(target=lambda: found.append((x @ x).dtype))
        thread.start()
        thread.join()
    assert found == [torch.float32]


# ---- parameters


@pytest.mark.parametrize("shares", [True, False])
def test_a_block_casts_a_parameter_once(shares: bool) -> None:
    """So its gradients are added in the lower precision, unless the block is told not to."""

    def story(d: str) -> Any:
        layer = made_model(lambda: nn.Linear(6, 6), d)
        for _ in range(2):
            with torch.autocast(d, torch.bfloat16, cache_enabled=shares):
                y = numbers(d, 4, 6)
                for _ in range(5):
                    y = layer(y)
            y.float().sum().backward()
        return [y, layer.weight.grad, layer.bias.grad]

    check(story)


def test_inference_mode_around_and_inside_the_block() -> None:
    def story(d: str) -> Any:
        layer = made_model(lambda: nn.Linear(6, 6), d)
        x = numbers(d, 4, 6)
        with torch.inference_mode(), torch.autocast(d, torch.bfloat16):
            first = layer(layer(x))
        with torch.autocast(d, torch.bfloat16):
            with torch.inference_mode():
                second = layer(x)
            third = layer(x.clone())
        return [part.clone() for part in (first, second, third.detach())]

    check(story)


def test_casts_do_not_outlive_the_block() -> None:
    layer = made_model(lambda: nn.Linear(3, 3, bias=False), "lazy")
    x = numbers("lazy", 2, 3)
    with torch.autocast("lazy", torch.bfloat16):
        layer(x)
    with torch.no_grad():
        layer.weight.zero_()
    with torch.autocast("lazy", torch.bfloat16):
        assert layer(x).count_nonzero().item() == 0


def test_compiled_functions_have_blocks_of_their_own() -> None:
    layer = nn.Linear(4, 4)

    def call(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return layer(x) * 2

    x = torch.ones(2, 4)
    with torch.no_grad():
        compiled = magneto.compile(call, fullgraph=True)
        for _ in range(3):
            assert torch.equal(compiled(x), call(x))
    assert compiled.variants()[0]["hits"] == 2


# ---- training


@pytest.mark.parametrize("dtype", LOWER)
def test_training_with_a_scaler(dtype: torch.dtype) -> None:
    def story(d: str) -> Any:
        model = made_model(net, d)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
        scaler = torch.amp.GradScaler(d, init_scale=1024.0, growth_interval=2)
        losses = []
        for turn in range(6):
            optimizer.zero_grad()
            with torch.autocast(d, dtype):
                loss = model(numbers(d, 4, 6, seed=turn)).square().mean()
            scaler.scale(loss).backward()
            if turn == 3:  # is left out
                next(model.parameters()).grad[0, 0] = float("inf")
            scaler.step(optimizer)
            scaler.update()
            losses.append(loss.detach())
        return [losses, list(model.parameters()), scaler.get_scale()]

    check(story, times=1)


def test_a_step_is_one_graph() -> None:
    model = made_model(net, "lazy")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-2)
    x = numbers("lazy", 4, 6)

    def steps(times: int) -> tuple[int, int]:
        before = count("graphs made"), count("steps")
        for _ in range(times):
            optimizer.zero_grad()
            with torch.autocast("lazy", torch.bfloat16):
                loss = model(x).float().square().mean()
            loss.backward()
            optimizer.step()
        lazy.mark_step()
        return count("graphs made") - before[0], count("steps") - before[1]

    steps(4)
    assert steps(10) == (0, 10)


# ---- all operators

NAMES = torch._C._dispatch_get_all_op_names()
CAST = {name for name in NAMES if torch._C._dispatch_has_kernel_for_dispatch_key(name, "AutocastCPU")}
PLAIN = {name.partition("::")[2].partition(".")[0] for name in CAST}
DIFFERENT = {
    "linalg.pinv": "on the CPU its backward multiplies tensors of different dtypes, which is an error",
    "linalg.pinv.hermitian": "the same",
    "nn.functional.bilinear": "its kernel calls other operators, which are cast on the CPU",
}


def is_cast(op: Any) -> bool:
    name = op.name.removeprefix("nn.functional.").replace(".", "_")
    return bool({name, op.aten_name, name.partition("_")[0]} & PLAIN)


@pytest.mark.parametrize("dtype", LOWER)
@pytest.mark.parametrize(
    "op", [op for op in OPS if torch.float32 in op.dtypes and (harness.FULL or is_cast(op))], ids=name_of
)
def test_an_operator_is_cast_as_on_the_cpu(op: Any, dtype: torch.dtype) -> None:
    refused = stated().keys() - {"cat", "matmul"}  # they only are with out=
    if name_of(op) in DIFFERENT or name_of(op) in refused or op.name in UNDEFINED_CONTENTS:
        pytest.skip(DIFFERENT.get(name_of(op), "it is no different without autocast"))

    def call(*args: Any, **kwargs: Any) -> Any:
        with torch.autocast("cpu", dtype):
            return op.op(*args, **kwargs)

    for given in itertools.islice(op.sample_inputs("cpu", torch.float32, requires_grad=op.supports_autograd), 3):
        sample = Sample("", call, ((given.input, *given.args), dict(given.kwargs)))
        expected, again = (outcome(sample, "cpu", True) for _ in range(2))
        if not difference(expected, again):
            assert not difference(expected, outcome(sample, "lazy", True))
