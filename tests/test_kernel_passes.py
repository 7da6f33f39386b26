"""What changes in a graph before its operators are joined into kernels: products, convolutions, large sums."""

import copy
from collections.abc import Callable
from pathlib import Path

import magneto
import pytest
import torch
from kernels import HostCompiler
from torch import Tensor, nn


def fused(function: Callable, *args: Tensor, folder: Path) -> "tuple[magneto.Graph, magneto.Graph]":
    with torch.no_grad():
        graph = magneto.record(function, *args, live=True)
        joined = graph._fused(HostCompiler(folder))
    assert joined is not None
    return graph, joined


def small_numbers(*sizes: int) -> Tensor:
    """Whose products and sums bfloat16 holds exactly."""
    return torch.randint(-1, 2, sizes).to(torch.bfloat16)


@pytest.mark.parametrize(
    ("m", "k", "n"), [(264, 256, 257), (256, 259, 264), (259, 256, 256), (257, 261, 263), (256, 256, 256)]
)
@pytest.mark.parametrize("form", ["mm", "mm of t", "t of mm", "addmm", "addmm of a matrix"])
def test_products_of_odd_sizes_are_those_of_padded_matrices(m: int, k: int, n: int, form: str, tmp_path: Path):
    a, b = small_numbers(m, k), small_numbers(k, n)
    if "of t" in form:
        b = small_numbers(n, k)
    if form == "t of mm":
        a = small_numbers(k, m)
    bias = small_numbers(m, n) if form.endswith("matrix") else small_numbers(n)

    def function(a: Tensor, b: Tensor, bias: Tensor) -> Tensor:
        if form.startswith("addmm"):
            made = torch.addmm(bias, a, b)
        else:
            made = torch.mm(a.t() if form == "t of mm" else a, b.t() if form == "mm of t" else b)
        return made.relu() + 1

    graph, joined = fused(function, a, b, bias, folder=tmp_path)
    (expected,), (got,) = graph.run([a, b, bias]), joined.run([a, b, bias])
    assert torch.equal(got, expected) and got.stride() == expected.stride()
    is_odd = n % 8 or (m % 8 if form == "t of mm" else k % 8)
    assert ("constant_pad_nd" in joined.text) == bool(is_odd)


def test_small_products_and_those_of_wide_types_are_left(tmp_path: Path):
    for a, b in [(small_numbers(264, 100), small_numbers(100, 257)), (torch.ones(264, 257), torch.ones(257, 257))]:
        _, joined = fused(lambda a, b: torch.mm(a, b).relu() + 1, a, b, folder=tmp_path)
        assert "constant_pad_nd" not in joined.text


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, bias=False)
        self.norm, self.pool = nn.BatchNorm2d(8), nn.MaxPool2d(3, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        y = self.first(x).relu()
        z = self.norm(self.second(y)) + y[:, :, 1:-1:2, 1:-1:2]
        return y, z, self.pool(z).flatten(1)


def test_convolutions_run_channels_last_and_results_lie_as_ever(tmp_path: Path):
    module = Block().eval()
    module.norm.running_mean.uniform_(-1, 1)
    module.norm.running_var.uniform_(0.5, 1.5)
    module = module.to(torch.bfloat16)
    x = torch.randn(2, 3, 17, 17).to(torch.bfloat16)
    graph, joined = fused(module, x, folder=tmp_path)
    assert joined.text.count("aten.clone") >= 2 and "native_batch_norm" not in joined.text
    for got, expected in zip(joined.run([x]), graph.run([x]), strict=True):
        torch.testing.assert_close(got, expected, rtol=0.02, atol=0.02)
        assert got.stride() == expected.stride()


def test_convolutions_of_wide_types_keep_their_layout(tmp_path: Path):
    _, joined = fused(Block().eval(), torch.randn(2, 3, 17, 17), folder=tmp_path)
    assert "aten.clone" not in joined.text


class Residual(nn.Module):
    """Two of its weights have kernels of one pixel; one batch norm is used twice, one's statistics are read before."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, 8, 5, 2, 2, bias=False), nn.MaxPool2d(3, 2, 1)
        self.narrow, self.wide = nn.Conv2d(8, 8, 1, bias=False), nn.Conv2d(8, 8, 3, padding=1, bias=False)
        self.way = nn.Conv2d(8, 8, 1)
        self.norms = nn.ModuleList(nn.BatchNorm2d(8) for _ in range(3))

    def forward(self, x: Tensor) -> Tensor:
        first, twice, read = self.norms
        before = read.running_mean.sum()
        x = self.pool(first(self.stem(x)).relu())
        y = twice(self.wide(twice(self.narrow(x)).relu()))
        y = (y + read(self.way(x))).relu()
        return y.mean((2, 3)).float() + before


def results_and_state(
    graph: magneto.Graph, module: nn.Module, x: Tensor, gradient: Tensor | None = None
) -> tuple[list[Tensor], dict[str, Tensor]]:
    before = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    results = graph.run([x, torch.ones(()) if gradient is None else gradient])
    after = {name: tensor.clone() for name, tensor in module.state_dict().items()}
    module.load_state_dict(before)
    return results, after


def assert_same_step(module: nn.Module, loss: Callable, x: Tensor, folder: Path) -> str:
    """The text of the joined graph."""
    graph = magneto.record(loss, x, live=True, joint=True)
    joined = graph._fused(HostCompiler(folder))
    assert joined is not None
    expected, left = results_and_state(graph, module, x)
    got, left_by_kernels = results_and_state(joined, module, x)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=0.05, atol=0.02)
        assert one.stride() == other.stride() and one.dtype == other.dtype
    for name, tensor in left.items():
        torch.testing.assert_close(left_by_kernels[name], tensor, rtol=0.02, atol=0.02, msg=name)
        assert tensor.dtype != torch.int64 or left_by_kernels[name] == tensor
    return joined.text


@pytest.mark.parametrize("image", [(17, 17), (32, 24), (8, 8)])
def test_training_runs_channels_last_and_leaves_the_same(image: tuple[int, int], tmp_path: Path):
    torch.manual_seed(0)
    module = Residual()

    def loss(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return module(x).square().mean()

    text = assert_same_step(module, loss, torch.randn(4, 3, *image), tmp_path)
    convolutions = [line for line in text.splitlines() if "aten.convolution" in line]
    assert len(convolutions) == 8 and all("]{" in line for line in convolutions), "their results lie channels last"
    assert "batch_norm" not in text and "batch_moments" not in text and "batch_gradients" not in text
    assert text.count("aten._foreach_copy_") == 2 and "aten.copy_" not in text


def test_batch_norms_write_statistics_that_nobody_else_looks_at(tmp_path: Path):
    torch.manual_seed(0)
    module = Residual()
    text = assert_same_step(module, lambda x: module(x).square().mean(), torch.randn(4, 3, 16, 16), tmp_path)
    assert text.count("aten._native_batch_norm_legit(") == 1, "one is used twice, and one is read"
    assert text.count("aten._native_batch_norm_legit_functional(") == 3
    assert text.count("aten._foreach_copy_") == 2 and "aten.copy_" not in text


def normed(x: Tensor, module: nn.BatchNorm2d, weights: Tensor) -> tuple[Tensor, ...]:
    """The result, the statistics, and the gradients."""
    module = copy.deepcopy(module)
    x = x.clone().requires_grad_()
    y = module(x)
    gradients = torch.autograd.grad((y * weights).sum(), [x, module.weight, module.bias])
    return y.detach(), module.running_mean, module.running_var, *gradients


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize(
    "sizes", [(2, 2, 1, 1), (3, 6, 5, 4), (1, 24, 40, 30), (2, 96, 9, 9), (2, 264, 3, 3), (2, 7, 4, 4)]
)
def test_sums_of_batch_norms_are_as_good_as_those_of_torch(sizes: tuple[int, ...], dtype: torch.dtype, tmp_path: Path):
    torch.manual_seed(0)
    channels = sizes[1]
    module = nn.BatchNorm2d(channels, momentum=0.3, eps=1e-3)
    with torch.no_grad():
        for tensor in (module.weight, module.bias, module.running_mean):
            tensor.uniform_(-1, 1)
    x = (
        (torch.randn(sizes) + 50 * torch.randn(1, channels, 1, 1))
        .to(dtype)
        .contiguous(memory_format=torch.channels_last)
    )
    x[:, 0] = 3  # no deviation at all
    weights = torch.randn(sizes).to(dtype)
    exact = normed(x.double(), copy.deepcopy(module).double(), weights.double())

    def loss(x: Tensor) -> Tensor:
        return (module(x) * weights).sum()

    graph = magneto.record(loss, x.requires_grad_(), live=True, joint=True)
    joined = graph._fused(HostCompiler(tmp_path))
    assert joined is not None and ("native_batch_norm" in joined.text) == bool(channels % 2)
    (_, *gradients), state = results_and_state(joined, module, x, torch.ones((), dtype=dtype))
    assert [tensor.shape for tensor in gradients] == [x.shape, (channels,), (channels,)]
    got = (state["running_mean"], state["running_var"], *gradients)
    eager = normed(x.detach(), module, weights)[1:]
    for one, of_torch, right in zip(got, eager, exact[1:], strict=True):
        error, usual = (
            (tensor.double() - right).abs().max() / right.abs().max().clamp(min=1e-3) for tensor in (one, of_torch)
        )
        assert error <= max(2 * usual, 1e-5)
        assert one.dtype == of_torch.dtype and one.stride() == of_torch.stride()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sizes", [(64, 1024), (3, 5, 7000), (8, 16, 1031), (70_000,)])
@pytest.mark.parametrize("how", [torch.sum, torch.mean])
def test_large_sums_of_what_a_kernel_makes_are_sums_of_rows(how: Callable, sizes: tuple, dtype: torch.dtype, tmp_path):
    x = torch.randn(sizes, dtype=dtype) + 0.5
    graph, joined = fused(lambda x: (how(x.square() * 0.5), x + 1), x, folder=tmp_path)
    (expected, _), (got, _) = graph.run([x]), joined.run([x])
    torch.testing.assert_close(got, expected, rtol=1e-5 if dtype == torch.float32 else 1e-12, atol=0)
    assert got.dtype == dtype and got.shape == ()
    assert "aten.mul.Tensor" not in joined.text and joined.text.count("aten.sum") == 1, (
        "the rows are summed by a kernel"
    )


def test_sums_in_half_precision_of_rows_of_no_good_length_and_small_ones_are_left(tmp_path: Path):
    for x in (torch.ones(64, 1024).to(torch.bfloat16), torch.ones(1000, 97), torch.ones(8, 8)):
        _, joined = fused(lambda x: (x.square() * 0.5).relu().sum(), x, folder=tmp_path)
        assert joined.text.count("aten.sum(") == 1


def test_who_casts_outputs_gets_them_as_they_were_before(tmp_path: Path):
    x = torch.randn(8, 16)

    def function(x: Tensor) -> tuple[Tensor, ...]:
        y, z = x.to(torch.bfloat16) * 2, (x + 1).to(torch.float64)
        used = y.sin().float()
        return y.cos().float(), used, used * 2, y.float(), y, z, x.double(), y.t().exp().double(), y.long()

    with torch.no_grad():
        graph = magneto.record(function, x, live=True)
        joined = graph._fused(HostCompiler(tmp_path), casts_outputs=True)
    assert joined is not None
    expected, got = function(x), joined.run([x])
    half, single, double = torch.bfloat16, torch.float32, torch.float64
    assert [one.dtype for one in got] == [half, single, single, single, half, single, double, half, torch.int64]
    for one, other in zip(got, expected, strict=True):
        assert one.stride() == other.stride()
        torch.testing.assert_close(one.to(other.dtype), other, rtol=1e-2, atol=1e-2)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
@pytest.mark.parametrize(
    "view", [lambda x: x[:, :1031], lambda x: x[:, 3:], lambda x: x.t(), lambda x: x.view(128, 8, 131).permute(1, 0, 2)]
)
def test_large_copies_to_another_layout_are_kernels(view: Callable, dtype: torch.dtype, tmp_path: Path):
    x = torch.randn(128, 1048).to(dtype)
    graph, joined = fused(lambda x: view(x).clone(memory_format=torch.contiguous_format), x, folder=tmp_path)
    assert "aten.clone" not in joined.text and "magneto.kernel" in joined.text
    (expected,), (got,) = graph.run([x]), joined.run([x])
    assert torch.equal(got, expected) and got.stride() == expected.stride()


def test_what_is_computed_for_rows_and_expanded_is_joined_with_what_takes_it(tmp_path: Path):
    x, y = torch.randn(6, 4, 64), torch.randn(6, 4, 64)

    def function(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        share = ((x * y).sum(-1, keepdim=True) * -0.5).expand(6, 4, 64)
        return share * x + y, share.to(torch.bfloat16)

    graph, joined = fused(function, x, y, folder=tmp_path)
    assert joined.text.count("magneto.kernel") == 1 and "aten.add" not in joined.text
    for got, expected in zip(joined.run([x, y]), graph.run([x, y]), strict=True):
        torch.testing.assert_close(got, expected)
        assert got.stride() == expected.stride()


def test_rows_that_end_within_a_dimension_are_summed_where_they_are_made(tmp_path: Path):
    x = torch.randn(2, 3, 29 * 1733)

    def function(x: Tensor) -> tuple[Tensor, Tensor]:
        y = x * 3
        return y.square().mean(), y.to(torch.bfloat16)

    graph, joined = fused(function, x, folder=tmp_path)
    assert joined.text.count("magneto.kernel") == 1 and joined.text.count("aten.sum(") == 1
    for got, expected in zip(joined.run([x]), graph.run([x]), strict=True):
        torch.testing.assert_close(got, expected)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float32, torch.float64])
@pytest.mark.parametrize(
    ("sizes", "dims", "keepdim"),
    [((65, 513), [0], False), ((1024, 768), [0], True), ((3, 40, 600), [1, 0], True), ((70, 2, 300), [0], False)],
)
def test_sums_along_the_first_dimensions_are_kernels(sizes, dims, keepdim, dtype: torch.dtype, tmp_path: Path):
    x = torch.randint(-3, 4, sizes).to(dtype)  # sums that are exact in any order
    graph, joined = fused(lambda x: x.sum(dims, keepdim=keepdim), x, folder=tmp_path)
    assert "aten.sum" not in joined.text
    (expected,), (got,) = graph.run([x]), joined.run([x])
    assert torch.equal(got, expected) and got.stride() == expected.stride() and got.dtype == dtype


def test_sums_of_few_columns_of_strided_memory_and_of_integers_are_left(tmp_path: Path):
    for x in (torch.ones(1024, 64), torch.ones(768, 1024).t(), torch.ones(512, 512).long(), torch.ones(9000, 512)):
        _, joined = fused(lambda x: (x.sum(0), (x * 2).relu() + 1), x, folder=tmp_path)
        assert "aten.sum" in joined.text
    _, joined = fused(lambda x: (x.sum(1), (x * 2) + 1), torch.ones(4, 600, 600), folder=tmp_path)
    assert "aten.sum" in joined.text


def test_small_casts_of_weights_are_one_kernel(tmp_path: Path):
    layers = [nn.Linear(24, 24) for _ in range(130)]
    model = nn.Sequential(*layers)

    def function(x: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16):
            return model(x)

    graph, joined = fused(function, torch.randn(3, 24), folder=tmp_path)
    assert "_to_copy" in graph.text and "_to_copy" not in joined.text
    assert joined.text.count("magneto.kernel") == 3  # 261 casts
    x = torch.randn(3, 24)
    (expected,), (got,) = graph.run([x]), joined.run([x])
    assert torch.equal(got, expected)
    with torch.no_grad():
        for layer in layers:
            layer.weight.mul_(-2)
            layer.bias.add_(1)
    (expected,), (got,) = graph.run([x]), joined.run([x])
    assert torch.equal(got, expected), "weights are read at each run"
