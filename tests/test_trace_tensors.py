"""Recording on trace tensors: the same graphs as live recording, nothing computed, nothing changed, nothing left."""

import gc
import weakref

import magneto
import pytest
import torch
from magneto import record
from test_opinfo import OPS, SEED, name_of, samples, tensors_of
from torch import nn
from torch.nn import functional as F
from zoo.compare import fresh


class Block(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.first = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm = nn.BatchNorm2d(channels)
        self.second = nn.Conv2d(channels, channels, 3, stride=2)

    def forward(self, x):
        x = F.relu(self.norm(self.first(x)), inplace=True) + x
        return self.second(x).flatten(1)


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.split = nn.Linear(16, 48)
        self.register_buffer("scale", torch.tensor(0.5))

    def forward(self, x):
        query, key, value = (part.unflatten(-1, (4, 4)).transpose(1, 2) for part in self.split(x).chunk(3, -1))
        mixed = F.scaled_dot_product_attention(query, key, value, is_causal=True)
        return mixed.transpose(1, 2).reshape(x.shape) * self.scale


MODELS = {
    "mlp": lambda: (nn.Sequential(nn.Linear(8, 16), nn.GELU(), nn.Linear(16, 4)), torch.randn(3, 8)),
    "block": lambda: (Block(4), torch.randn(2, 4, 6, 6)),
    "channels_last": lambda: (Block(4), torch.randn(2, 4, 6, 6).to(memory_format=torch.channels_last)),
    "attention": lambda: (Attention(), torch.randn(2, 5, 16)),
    "encoder": lambda: (nn.TransformerEncoderLayer(16, 2, 32, batch_first=True), torch.randn(2, 5, 16)),
    "lstm": lambda: (nn.LSTM(6, 8, 2, batch_first=True, dropout=0.2), torch.randn(2, 5, 6)),
    "embedding": lambda: (
        nn.Sequential(nn.Embedding(9, 8), nn.LayerNorm(8), nn.Dropout(0.1)),
        torch.randint(0, 9, (2, 5)),
    ),
}


def both(function, *args, **kwargs):
    # One line, so that the graphs name the same place.
    return [record(function, *args, live=live, **kwargs) for live in (False, True)]


@pytest.mark.parametrize("joint", [False, True], ids=["forward", "joint"])
@pytest.mark.parametrize("train", [False, True], ids=["eval", "train"])
@pytest.mark.parametrize("name", MODELS)
def test_both_modes_give_the_same_graph(name, train, joint):
    torch.manual_seed(0)
    model, x = MODELS[name]()
    model.train(train)
    with torch.set_grad_enabled(joint):
        traced, live = both(model, x, joint=joint)
    assert str(traced) == str(live)
    assert traced.hash == live.hash


def resized(x):
    out = torch.empty(0)
    torch.add(x, 1, out=out)
    return out, x.clone().resize_(2, 5)


def turned(x):
    x = x.clone()
    x.t_().unsqueeze_(0)
    x.squeeze_().add_(1)
    return x


PROGRAMS = {
    "views": lambda x: (x.t(), x[1:, ::2], x.unfold(1, 2, 1), x.expand(2, 3, 4), x.movedim(0, 1), x.diagonal()),
    "slices of a part": lambda x: [part.mul(2) for part in x.split([1, 2])],
    "in place": lambda x: (
        x.clone().mul_(2).masked_fill_(x > 0, 1.0).clamp_(max=3).index_add_(0, torch.tensor([0]), x[:1])
    ),
    "through a view": lambda x: (y := x.clone(), y[0].zero_(), y[:, 1].copy_(x[:, 0]))[0],
    "layout in place": turned,
    "resized": resized,
    "its argument": lambda x: x.to(torch.float32).contiguous(),
    "factories": lambda x: (
        torch.zeros(2, 3), torch.arange(5), torch.full_like(x, 2), torch.linspace(0, 1, 4), x.new_ones(3),
    ),
    "random": lambda x: (
        torch.randn(3), torch.rand_like(x), torch.randperm(4), F.dropout(x), x.clone().bernoulli_(0.5),
    ),
    "data": lambda x: x + torch.tensor([1.0, 2.0, 3.0, 4.0]),
    "numbers": lambda x: (x * 2 + 1.5, x // 2, 2 - x, x**2, x > 0),
    "dtypes": lambda x: (x.double() + x, x.to(torch.int64) / 2, (x > 0) + 1, x.half() @ x.half().t(), x * 1j),
    "complex": lambda x: (
        torch.view_as_complex(x.reshape(-1, 2)).conj() * 2, torch.fft.rfft(x), torch.view_as_real(x + 0j),
    ),
    "reductions": lambda x: (
        x.sum(), x.mean(0, keepdim=True), x.max(1), x.std(), x.cumsum(0), x.argmax(), torch.var_mean(x, 1),
    ),
    "indexing": lambda x: (
        x[torch.tensor([0, 2])], x.gather(1, torch.zeros(3, 1, dtype=torch.long)), x.take(torch.tensor([3])),
    ),
    "sorting": lambda x: (*x.sort(1), *x.topk(2), x.flip(0), x.roll(1)),
    "joining": lambda x: (torch.cat([x, x.t()[:3, :3].mT], 1), torch.stack([x, x]), F.pad(x, (1, 2)), x.repeat(2, 1)),
    "linear algebra": lambda x: (torch.linalg.qr(x), torch.linalg.svd(x), torch.linalg.inv_ex(x @ x.t())),
    "pooling": lambda x: (
        F.max_pool2d(x[None], 2), F.avg_pool1d(x, 2), F.adaptive_avg_pool2d(x[None], 1), F.max_pool1d(x, 2),
    ),
    "upsampling": lambda x: F.interpolate(x[None, None], scale_factor=2, mode="bilinear"),
    "nothing": lambda x: (x[:0] * 2, x[:0].sum(0), x.new_empty(0, 4).mm(x.t())),
    "no dimensions": lambda x: (x[0, 0] + 1, x[0, 0].expand(2, 2), x.sum() * x),
    "lists": lambda x: torch._foreach_add([x, x.t()], 1),
    "autocast": lambda x: torch.autocast("cpu", torch.bfloat16)(lambda: x @ x.t() + x.sum())(),
    "grad": lambda x: torch.func.grad(lambda y: (y.sin() * y).sum())(x),
    "vmap": lambda x: torch.func.vmap(lambda row: row.softmax(0) @ row)(x),
}  # fmt: skip


@pytest.mark.parametrize("grad", [False, True], ids=["no_grad", "grad"])
@pytest.mark.parametrize("name", PROGRAMS)
def test_both_modes_agree_on(name, grad):
    torch.manual_seed(0)
    with torch.set_grad_enabled(grad):
        try:
            live = record(PROGRAMS[name], torch.randn(3, 4), live=True)
        except magneto.RecordError as refusal:
            with pytest.raises(type(refusal)):
                record(PROGRAMS[name], torch.randn(3, 4))
        else:
            assert without_lines(record(PROGRAMS[name], torch.randn(3, 4))) == without_lines(live)


def without_lines(graph):
    return [line.split("  # ")[0] for line in str(graph).splitlines()]


def graph_or_refusal(op, tree, joint, live):
    args, kwargs = fresh(tree)
    torch.manual_seed(SEED)
    try:
        return without_lines(record(op.op, *args, joint=joint, live=live, **kwargs))
    except Exception as error:
        return type(error)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("op", [op for op in OPS if "empty" not in op.name], ids=name_of)
def test_both_modes_agree_on_what_torchs_samples_look_like(op, request):
    # Replays could be right where the noted sizes and strides are wrong. (Unwritten memory is refused live only.)
    for tree, joint in samples(op, None if request.config.getoption("--full") else 1):
        if all(t.layout == torch.strided for t in tensors_of(tree)):
            assert graph_or_refusal(op, tree, joint, live=False) == graph_or_refusal(op, tree, joint, live=True)


def test_a_state_that_is_also_the_argument_is_one_input():
    x = torch.randn(3)
    traced, live = both(lambda y: y + x, x)
    assert str(traced) == str(live)


def test_memory_shared_by_arguments_and_state_stays_shared():
    memory = torch.randn(6)
    traced, live = both(lambda a, b: (a.mul(2), b.view(3), memory[1:].add(1)), memory[:3], memory[3:])
    assert str(traced) == str(live)


def test_nothing_is_computed_drawn_or_changed():
    model, x = Block(4), torch.randn(2, 4, 6, 6)
    before = {name: (value, value.clone()) for name, value in model.state_dict(keep_vars=True).items()}
    random_state = torch.get_rng_state()
    graph = record(lambda x: model(F.dropout(x)), x, joint=True)
    assert len(graph) > 10
    assert torch.equal(torch.get_rng_state(), random_state)
    for name, value in model.state_dict(keep_vars=True).items():
        old, contents = before[name]
        assert value is old and torch.equal(value, contents) and value.grad is None, name


def test_an_exception_half_way_leaves_nothing_behind():
    seen = []

    def fails(x):
        y = x + 1
        seen.append(weakref.ref(y))
        raise KeyError("half-way")

    x = torch.randn(3)
    for _ in range(3):
        with pytest.raises(KeyError):
            record(fails, x)
    gc.collect()
    assert [ref() for ref in seen] == [None] * 3
    assert torch.equal(x + 1, torch.add(x, 1))
    assert (x + 1).sum().item() == pytest.approx(x.sum().item() + 3, abs=1e-5)


def test_mistakes_raise_what_eager_raises():
    def wrong_sizes(x):
        return x @ x

    def wrong_in_place(x):
        return x.clone().add_(torch.zeros(7, 3, 4))

    def wrong_copy(x):
        return x.clone().copy_(torch.zeros(5))

    for wrong in (wrong_sizes, wrong_in_place, wrong_copy):
        x = torch.randn(3, 4)
        with pytest.raises(RuntimeError) as eager:
            wrong(x)
        with pytest.raises(RuntimeError) as traced:
            record(wrong, x)
        assert str(traced.value) == str(eager.value)


@pytest.mark.parametrize(
    "ask", [lambda x: x.sum().item(), lambda x: bool(x.any()), lambda x: x.nonzero(), lambda x: x[x > 0], torch.equal]
)
def test_what_depends_on_contents_is_refused(ask):
    x = torch.randn(3)
    with pytest.raises(magneto.DataDependent):
        record(lambda x: ask(x, x) if ask is torch.equal else ask(x), x)


def test_data_is_refused_in_words():
    with pytest.raises((RuntimeError, magneto.DataDependent)) as error:
        record(lambda x: x.numpy(), torch.randn(3))
    assert "recorded" in str(error.value) or "contents" in str(error.value)


def test_trace_tensors_that_escaped_raise_errors():
    kept = []
    record(lambda x: kept.append(x) or x * 2, torch.randn(3))
    with pytest.raises(RuntimeError):
        (kept[0] + 1).sum().item()


def test_models_need_no_meta_kernels():
    before = dict(magneto.counters["meta_kernels"])
    for make in MODELS.values():
        model, x = make()
        record(model, x, joint=True)
    assert dict(magneto.counters["meta_kernels"]) == before
