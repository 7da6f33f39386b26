"""What CUDA graphs must keep: eager's results, random numbers, aliases and effects, on any stream and thread."""

import copy
import gc
import threading

import magneto
import pytest
import torch
from torch import Tensor, nn

pytestmark = pytest.mark.skipif(not torch.cuda.is_available(), reason="there is no GPU")

GPU = torch.device("cuda", 0)


@pytest.fixture(autouse=True, params=["operators", "kernels"])
def fresh(request: pytest.FixtureRequest):
    magneto.reset()
    torch.manual_seed(0)
    kernels = request.param == "kernels"
    with torch.no_grad(), magneto.config.patch(cuda_graphs=1, cuda_kernels=kernels, wait_for_kernels=kernels):
        yield
    magneto.reset()


def captured() -> int:
    """How often, but for the first capture of the same graph with kernels."""
    return sum(magneto.counters["cuda_graphs"].values()) + magneto.counters["cuda_kernels"].get("captured again", 0)


def refused() -> list[str]:
    return list(magneto.counters["cuda_graphs_refused"])


def rand(*sizes: int) -> Tensor:
    return torch.rand(*sizes, device=GPU)


def look(tensor: Tensor):
    base = None if tensor._base is None else tuple(tensor._base.shape)
    return tuple(tensor.shape), tensor.stride(), tensor.storage_offset(), tensor.dtype, tensor._version, base


def flat(result) -> list[Tensor]:
    return list(result) if isinstance(result, (tuple, list)) else [result]


def agree(function, *calls, graph=None):
    """Compares each call with eager on copies of the arguments, effects on them included."""
    graph = graph or magneto.record(function, *[a.clone() for a in calls[0]], live=True)
    for args in calls:
        seen = []
        for run in (lambda *own: flat(function(*own)), lambda *own: graph.run(list(own))):
            torch.manual_seed(7)
            own = [torch.empty_strided(a.shape, a.stride(), dtype=a.dtype, device=a.device).copy_(a) for a in args]
            results = run(*own)
            which = [next((i for i, a in enumerate(own) if a is r), None) for r in results]
            seen.append((results, own, which, torch.cuda.get_rng_state(GPU)))
        (expected, inputs, same, state), (got, own, same_here, state_here) = seen
        assert list(map(look, got)) == list(map(look, expected))
        assert list(map(look, own)) == list(map(look, inputs))
        assert same_here == same
        for a, b in zip([*got, *own, state_here], [*expected, *inputs, state], strict=True):
            assert_as_eager(a, b)
    return graph


def assert_as_eager(got: Tensor, expected: Tensor) -> None:
    """To the bit, unless kernels of our own may sum in another order."""
    exactly = {} if magneto.config.cuda_kernels else {"rtol": 0, "atol": 0}
    torch.testing.assert_close(got, expected, **exactly)


def replayed(function, *calls):
    """As `agree`, and all but the first run were launches of one graph."""
    graph = agree(function, *calls)
    assert captured() == 1, refused()
    return graph


def inputs_of(*sizes: int) -> list[tuple[Tensor, ...]]:
    return [(rand(*sizes),) for _ in range(6)]


@pytest.mark.parametrize(
    "function",
    [
        lambda x: (x.sin() * 2).cos(),
        lambda x: x @ x.t(),
        lambda x: (x * 2, x * 3, x.to(torch.bfloat16), x > 0.5, x.sum(1)),
        lambda x: torch.split(x * 2, 2),
        lambda x: [x * 2] * 2,
        lambda x: (lambda y: (y, y[0], y.t(), y.view(-1)[3:]))(x * 2),
        lambda x: (x * 2)[1:, ::2],
        lambda x: (x + 1).expand(2, 4, 6),
        lambda x: (x * 2).view(torch.int32),
        lambda x: (x * 1, x, x.t(), x[1:]),
        lambda x: (x.add_(1) * 2, x),
        lambda x: x[1].mul_(3) + x[0],
        lambda x: (x * 2).add_(1).mul_(3),
        lambda x: torch.zeros(3, 0, device=GPU) + x.sum(),
        lambda x: x.sort(dim=1),
        lambda x: x * torch.tensor([2.0] * 6, device=GPU) + torch.arange(6, device=GPU),
        lambda x: x.cumsum(0).masked_fill_(x > 0.5, 3.0),
        lambda x: nn.functional.dropout(x, 0.5) + torch.rand(4, 6, device=GPU),
        lambda x: nn.functional.scaled_dot_product_attention(*[x.view(1, 1, 4, 6)] * 3, dropout_p=0.3),
    ],
)
def test_launches_equal_eager(function):
    replayed(function, *inputs_of(4, 6))


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.t(),
        lambda x: x[:, ::2],
        lambda x: x[:1].expand(4, 6),
        lambda x: x[:0],
        lambda x: x.to(torch.complex64),
        lambda x: x > 0.5,
        lambda x: x[0, 0],
    ],
)
def test_arguments_of_any_layout(layout):
    calls = [(layout(x),) for (x,) in inputs_of(4, 6)]
    graph = magneto.record(lambda x: (x * 2).sum(), *calls[0], live=True)
    for (x,) in calls:
        assert_as_eager(graph.run([x])[0], (x * 2).sum())
    assert captured() == 1


def test_many_arguments_of_several_types():
    def function(*tensors):
        return [t * 2 for t in tensors]

    types = [torch.float32, torch.int64, torch.bfloat16, torch.float32, torch.int64, torch.float64]
    replayed(function, *[[(rand(5) * 9).to(dtype) for dtype in types] for _ in range(4)])


def test_results_stay_as_they_are():
    graph = magneto.record(lambda x: x.exp() * 2, rand(8), live=True)
    inputs = [rand(8) for _ in range(6)]
    results = [graph.run([x])[0] for x in inputs]
    for x, result in zip(inputs, results, strict=True):
        assert torch.equal(result, x.exp() * 2)


def test_results_that_hold_until_the_next_call_need_no_copy():
    graph = magneto.record(lambda x: x.exp() * 2, rand(8), live=True)
    for _ in range(4):
        graph.run([rand(8)])
    with magneto.config.patch(cuda_graph_copies=False):
        first = graph.run([rand(8)])[0]
        x = rand(8)
        second = graph.run([x])[0]
        assert first is not second
        assert first.data_ptr() == second.data_ptr()
        assert_as_eager(second, x.exp() * 2)


# ---- random numbers


def test_random_numbers_go_on_from_launch_to_launch():
    graph = magneto.record(lambda x: nn.functional.dropout(x, 0.5), rand(1000), live=True)
    x = rand(1000)
    torch.manual_seed(1)
    results = [graph.run([x])[0] for _ in range(5)] + [rand(3)]
    torch.manual_seed(1)
    expected = [nn.functional.dropout(x, 0.5) for _ in range(5)] + [rand(3)]
    assert captured() == 1
    assert all(map(torch.equal, results, expected))
    assert not torch.equal(results[3], results[4])


def test_a_generator_of_the_programs_own_is_not_captured():
    generator = torch.Generator(GPU).manual_seed(3)

    def function(x):
        return x + torch.rand(4, device=GPU, generator=generator)

    graph = magneto.record(function, rand(4), live=True)
    generator.manual_seed(3)
    results = [graph.run([torch.zeros(4, device=GPU)])[0] for _ in range(3)]
    generator.manual_seed(3)
    assert all(torch.equal(r, torch.rand(4, device=GPU, generator=generator)) for r in results)
    assert not captured()
    assert any("generator" in reason for reason in refused())


# ---- refusals


def positive(x):
    return x @ x.t() + torch.eye(4, device=GPU)


def test_an_operator_that_waits_for_the_gpu_leaves_everything_working():
    agree(lambda x: torch.linalg.cholesky(positive(x)) * 2, *inputs_of(4, 4))
    assert not captured()
    assert any("captur" in reason for reason in refused())
    replayed(lambda x: nn.functional.dropout(positive(x), 0.5), *inputs_of(4, 4))
    torch.cuda.synchronize()
    assert not torch.cuda.is_current_stream_capturing()


@pytest.mark.parametrize(
    ("function", "reason"),
    [
        (lambda x: x.sin().cpu() + 1, "a result on the host"),
        (lambda x: x.sin() + torch.tensor([1.0, 2.0, 3.0, 4.0]).to(GPU), "on the host"),
        (lambda x: x.unsqueeze_(0).sin(), "the layout of an older tensor changes"),
    ],
)
def test_what_is_not_captured_runs_operator_by_operator(function, reason):
    agree(function, *inputs_of(4))
    assert not captured()
    assert any(reason in text or "from the host" in text for text in refused()), refused()


def test_small_graphs_and_the_setting_off_are_not_captured():
    for least in (0, 5):
        with magneto.config.patch(cuda_graphs=least):
            agree(lambda x: (x.sin() * 2).cos(), *inputs_of(4))
    assert not captured()


def test_arguments_on_the_host_are_not_captured():
    graph = magneto.record(lambda x, y: (x * y).sin(), rand(4), torch.tensor(2.0), live=True)
    for scale in (2.0, 3.0, 4.0):
        x = rand(4)
        assert torch.equal(graph.run([x, torch.tensor(scale)])[0], (x * scale).sin())
    assert not captured()


# ---- effects and state


def test_a_written_argument_that_shares_memory_is_seen_under_its_other_name():
    def function(x, y):
        x.add_(1)
        return x + y

    graph = magneto.record(function, rand(4), rand(4), live=True)
    for _ in range(3):
        x = rand(4)
        other = x.clone()
        assert torch.equal(graph.run([x, rand(4) * 0])[0], other + 1)
    assert captured() == 1
    x = rand(4)
    other = x.clone()
    assert torch.equal(graph.run([x, x.view(4)])[0], 2 * (other + 1))


class Images(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem, self.pool = nn.Conv2d(3, 64, 7, 2, 3, bias=False), nn.MaxPool2d(3, 2, 1)
        self.narrow, self.wide = nn.Conv2d(64, 264, 1, bias=False), nn.Conv2d(264, 512, 3, 2, 1, bias=False)
        self.way = nn.Conv2d(64, 512, 1, 2, bias=False)
        self.norms = nn.ModuleList(nn.BatchNorm2d(channels) for channels in (64, 264, 512, 512))

    def forward(self, x: Tensor) -> Tensor:
        first, second, third, fourth = self.norms
        x = self.pool(first(self.stem(x)).relu())
        y = third(self.wide(second(self.narrow(x)).relu()))
        return (y + fourth(self.way(x))).relu().mean((2, 3))


def trained_in_double(module: nn.Module, x: Tensor) -> list[Tensor]:
    exact = copy.deepcopy(module).double()
    return list(torch.autograd.grad(exact(x.double()).square().mean(), list(exact.parameters())))


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("size", [64, 225])
def test_convolutions_and_batch_norms_are_trained_as_well_as_eagerly(size: int, dtype: torch.dtype):
    eager = Images().to(GPU)
    module = copy.deepcopy(eager)

    def loss(model: nn.Module, x: Tensor) -> Tensor:
        with torch.autocast(GPU.type, dtype):
            return model(x).float().square().mean()

    one = torch.ones((), device=GPU)
    with torch.enable_grad():
        graph = magneto.record(lambda x: loss(module, x), rand(4, 3, size, size), live=True, joint=True)
    module.load_state_dict(eager.state_dict())
    trained = [tensor for _, tensor in graph.states if tensor.requires_grad]
    place = {id(parameter): i for i, parameter in enumerate(module.parameters())}
    order = [place[id(tensor)] for tensor, has in zip(trained, graph.calling.gradients, strict=True) if has]
    for step in range(5):
        x = rand(4, 3, size, size) + step
        with torch.enable_grad():
            exact = trained_in_double(eager, x)
            expected = loss(eager, x)
            gradients = torch.autograd.grad(expected, list(eager.parameters()))
        before = copy.deepcopy(module.state_dict())
        value, *got = graph.run([x, one])
        after = copy.deepcopy(module.state_dict())
        module.load_state_dict(before)
        again = graph.run([x, one])
        assert step < 2 or all(torch.equal(a, b) for a, b in zip(again, [value, *got], strict=True))
        torch.testing.assert_close(value, expected.detach(), rtol=0.01, atol=0)
        for gradient, index in zip(got, order, strict=True):
            of_eager, right = gradients[index], exact[index]
            error, usual = ((tensor - right).abs().max() / right.abs().max() for tensor in (gradient, of_eager))
            assert error <= 1.5 * usual + 0.01, "what rounding does is large: activations that are nearly zero turn"
            assert gradient.stride() == of_eager.stride()
        for name, tensor in eager.state_dict().items():
            torch.testing.assert_close(after[name], tensor, rtol=0.02, atol=0.01, msg=name)
    assert not refused() and not magneto.counters["cuda_kernels_refused"]


def test_batch_norm_keeps_its_statistics():
    norms = [nn.BatchNorm1d(6).to(GPU), nn.BatchNorm1d(6).to(GPU)]
    graph = magneto.record(lambda x: norms[0](x).relu(), rand(8, 6), live=True)
    norms[0].load_state_dict(norms[1].state_dict())
    versions = [norm.running_mean._version for norm in norms]
    for _ in range(5):
        x = rand(8, 6)
        assert torch.equal(graph.run([x])[0], norms[1](x).relu())
        assert torch.equal(norms[0].running_mean, norms[1].running_mean)
        assert torch.equal(norms[0].running_var, norms[1].running_var)
        assert torch.equal(norms[0].num_batches_tracked, norms[1].num_batches_tracked)
    raised = [norm.running_mean._version - version for norm, version in zip(norms, versions, strict=True)]
    assert raised[0] == raised[1]
    assert captured() == 1


def test_results_that_are_state_or_views_of_it():
    layer = nn.Linear(4, 4).to(GPU)
    graph = magneto.record(lambda x: (layer(x), layer.weight.t(), layer.bias), rand(2, 4), live=True)
    for _ in range(3):
        x = rand(2, 4)
        out, weight, bias = graph.run([x])
        assert torch.equal(out, layer(x))
        assert weight.data_ptr() == layer.weight.data_ptr()
        assert weight.stride() == (1, 4)
        assert bias is layer.bias
    assert captured() == 1


def test_state_that_moves_is_captured_again_but_not_forever():
    layer = nn.Linear(4, 4).to(GPU)
    graph = magneto.record(lambda x: layer(x).relu(), rand(2, 4), live=True)
    keep = []
    for i in range(30):
        if i % 2:
            keep.append(layer.weight.data)
            layer.weight.data = rand(4, 4)
        x = rand(2, 4)
        assert torch.equal(graph.run([x])[0], layer(x).relu())
    assert 2 < captured() < 15
    assert any("keeps moving" in reason for reason in refused())


def test_state_that_changes_in_place_is_read_at_each_launch():
    layer = nn.Linear(4, 4).to(GPU)
    graph = magneto.record(lambda x: layer(x).relu(), rand(2, 4), live=True)
    for _ in range(5):
        layer.weight.add_(0.1)
        x = rand(2, 4)
        assert torch.equal(graph.run([x])[0], layer(x).relu())
    assert captured() == 1


def test_marked_arguments_are_used_in_place():
    cache = rand(4)
    magneto.mark_static_address(cache)
    graph = magneto.record(lambda cache, x: cache.add_(x) * 2, cache.clone(), rand(4), live=True)
    expected = cache.clone()
    for _ in range(5):
        x = rand(4)
        expected += x
        assert torch.equal(graph.run([cache, x])[0], expected * 2)
        assert torch.equal(cache, expected)
    assert captured() == 1
    other, x = rand(4), rand(4)
    assert torch.equal(graph.run([other.clone(), x])[0], (other + x) * 2)
    assert captured() == 2


def test_marking_something_else_is_an_error():
    with pytest.raises(TypeError, match=r"expects a torch\.Tensor"):
        magneto.mark_static_address(3)


def test_the_precision_of_products_is_the_present_one():
    x = torch.randn(256, 256, device=GPU)
    graph = magneto.record(lambda x: (x @ x).relu(), x, live=True)
    before = torch.backends.cuda.matmul.fp32_precision
    try:
        for precision in ("ieee", "tf32", "ieee"):
            torch.backends.cuda.matmul.fp32_precision = precision
            for _ in range(3):
                assert torch.equal(graph.run([x])[0], (x @ x).relu())
    finally:
        torch.backends.cuda.matmul.fp32_precision = before
    assert captured() == 3


# ---- streams, threads, other captures


def slow(x):
    for _ in range(20):
        x = (x @ x).tanh()
    return x


def test_launches_on_several_streams_do_not_meet_in_the_buffers():
    streams = [torch.cuda.Stream() for _ in range(3)]
    graph = magneto.record(slow, rand(512, 512), live=True)
    inputs = [torch.randn(512, 512, device=GPU) for _ in range(12)]
    expected = [slow(x) for x in inputs]
    torch.cuda.synchronize()
    results = []
    for i, x in enumerate(inputs):
        with torch.cuda.stream(streams[i % 3]):
            results.append(graph.run([x])[0])
    torch.cuda.synchronize()
    assert captured() == 1
    assert all(map(torch.equal, results, expected))


def test_threads_share_a_graph():
    graph = magneto.record(slow, rand(64, 64), live=True)
    inputs = [[torch.randn(64, 64, device=GPU) for _ in range(50)] for _ in range(4)]
    wrong: list[object] = []

    def work(mine):
        with torch.no_grad(), torch.cuda.stream(torch.cuda.Stream()):
            for x in mine:
                try:
                    if not torch.equal(graph.run([x])[0], slow(x)):
                        wrong.append("another result")
                except Exception as error:
                    wrong.append(error)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work, args=(mine,)) for mine in inputs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong
    assert captured() == 1


def test_inside_a_capture_of_the_user_the_operators_run_one_by_one():
    graph = magneto.record(slow, rand(64, 64), live=True)
    for _ in range(3):
        graph.run([rand(64, 64)])
    x = torch.randn(64, 64, device=GPU)
    expected = slow(x)
    theirs = torch.cuda.CUDAGraph()
    with torch.cuda.graph(theirs):
        (result,) = graph.run([x])
    theirs.replay()
    assert torch.equal(result, expected)


def test_a_recording_sees_the_operators_of_a_captured_graph():
    graph = magneto.record(lambda x: x.sin() * 2, rand(4), live=True)
    for _ in range(3):
        graph.run([rand(4)])
    outer = magneto.record(lambda x: graph.run([x])[0] + 1, rand(4), live=True)
    for _ in range(4):
        x = rand(4)
        assert torch.equal(outer.run([x])[0], x.sin() * 2 + 1)


# ---- memory


def test_a_graph_that_goes_away_takes_its_memory_along():
    def cycle():
        graph = magneto.record(slow, rand(1024, 1024), live=True)
        results = [graph.run([rand(1024, 1024)]) for _ in range(3)]
        assert len(results) == 3

    def reserved():
        gc.collect()
        torch.cuda.synchronize()
        torch.cuda.empty_cache()
        return torch.cuda.memory_reserved()

    cycle()
    before = reserved()
    for _ in range(5):
        cycle()
    assert captured() == 6
    assert reserved() == before


# ---- models


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(32, 4, dropout=0.1, batch_first=True)
        self.norm, self.up, self.down = nn.LayerNorm(32), nn.Linear(32, 64), nn.Linear(64, 32)
        self.drop = nn.Dropout(0.1)

    def forward(self, x: Tensor) -> Tensor:
        y = self.norm(x + self.attention(x, x, x, need_weights=False)[0])
        return y + self.drop(self.down(nn.functional.gelu(self.up(y))))


@pytest.mark.parametrize("training", [False, True])
def test_inference_under_autocast(training):
    model = nn.Sequential(Block(), Block()).to(GPU).train(training)

    def function(x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x)

    replayed(function, *inputs_of(2, 8, 32))


def test_forward_and_backward_with_dropout():
    model = nn.Sequential(Block(), Block()).to(GPU)
    x = rand(2, 8, 32)

    def loss(x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x).square().mean()

    with torch.enable_grad():
        graph = magneto.record(loss, x, live=True, joint=True)
    states = [p for p in model.parameters() if p.requires_grad]
    for step in range(5):
        torch.manual_seed(step)
        value, *gradients = graph.run([x, torch.ones((), device=GPU)])
        torch.manual_seed(step)
        with torch.enable_grad():
            expected = loss(x)
            by_eager = torch.autograd.grad(expected, states)
        torch.testing.assert_close(value, expected.detach())
        left = list(by_eager)
        for gradient in gradients:  # in the order of first use
            match = [g for g in left if g.shape == gradient.shape and torch.allclose(g, gradient, 1e-2, 1e-4)]
            assert match
            left = [g for g in left if g is not match[0]]
        assert not left
    assert captured() == 1, refused()


def test_gradients_of_weights_under_autocast_are_cast_as_they_are_given_out():
    model = nn.Sequential(nn.Linear(64, 128), nn.GELU(), nn.Linear(128, 64, bias=False)).to(GPU)
    x = rand(32, 64)

    def loss(x):
        with torch.autocast("cuda", torch.bfloat16):
            return model(x).square().mean()

    with torch.enable_grad():
        graph = magneto.record(loss, x, live=True, joint=True)
        expected = loss(x)
        by_eager = torch.autograd.grad(expected, list(model.parameters()))
    runs = [graph.run([x, torch.ones((), device=GPU) * scale]) for scale in (1, 1, 1, 1, 2, 4)]
    for scale, (value, *gradients) in zip((1, 1, 1, 1, 2, 4), runs, strict=True):
        assert_as_eager(value, expected.detach())
        for gradient in gradients:  # in the order of first use
            (other,) = [one for one in by_eager if one.shape == gradient.shape]
            assert gradient.dtype == torch.float32 and gradient.stride() == other.stride()
            torch.testing.assert_close(gradient, other * scale, rtol=1e-2, atol=1e-5)
    memories = {gradient.data_ptr() for _, *gradients in runs for gradient in gradients}
    assert len(memories) == len(runs) * len(by_eager)
    assert captured() == 1, refused()
    assert magneto.counters["cuda_kernels"].get("captured", 0) == magneto.config.cuda_kernels
