"""magneto.record: what graphs look like, that they run like the function, and what is refused; in both modes."""

import contextlib
import functools
import gc
import weakref

import pytest
import torch
from magneto import DataDependent, RecordError, record
from torch import Tensor, nn
from torch.nn import functional as F
from zoo.compare import fresh, look

MODES = pytest.mark.parametrize("live", [False, True], ids=["trace", "live"])

SCALE = torch.full((3,), 2.0)


class Holder:
    __slots__ = ("__dict__", "inner")


HOLDER = Holder()
HOLDER.inner = [{"weight": torch.arange(3.0)}]


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


def agree(function, *args, live, **kwargs):
    """The graph gives what the function gives, and changes its arguments as the function does."""
    graph = record(function, *fresh(args), live=live, **kwargs)
    graph.verify()
    seen = []
    for candidate in (function, graph):
        torch.manual_seed(3)
        own = fresh(args)
        result = candidate(*own, **kwargs)
        result = result if isinstance(result, (list, tuple)) else [result]
        tensors = [t for t in (*own, *result) if isinstance(t, Tensor)]
        memories = [t.untyped_storage().data_ptr() for t in tensors]
        same_memory = [[memories.index(m), t.storage_offset()] for m, t in zip(memories, tensors, strict=False)]
        same_object = [next(i for i, other in enumerate(tensors) if other is t) for t in tensors]
        seen.append(([look(t) for t in tensors], same_memory, same_object, torch.get_rng_state().tolist()))
    assert seen[0] == seen[1]
    return graph


# ---- what is recorded


def in_place(x):
    y = x * 2
    y[0].add_(1)
    y.view(-1)[2:4].mul_(3)
    return y


def with_out(x):
    out = torch.empty(0)
    torch.add(x, 1, out=out)
    return out, torch.mul(x, 2, out=torch.empty_like(x))


def turned(x):
    y = x + 1
    y.t_().unsqueeze_(0)
    return y.squeeze_(0)


def mixed(x):
    n = x.long()
    return n.to(torch.float64) / 3, (n > 2) & (n < 5), torch.complex(x, -x).conj(), x.bfloat16() + x.half()


def random(x):
    return F.dropout(x, 0.5), torch.rand(2, 3), torch.randn_like(x).bernoulli_(0.3), torch.randperm(5)


def made(x):
    return (
        torch.zeros(2, 3),
        torch.arange(4),
        torch.full((2,), 7.5),
        torch.tensor([1.0, 2.0, 3.0]) * x,
        torch.eye(3) @ x.t(),
    )


def empty(x):
    nothing = x[2:]
    return nothing * 2, nothing.sum(), x.sum().reshape(()), torch.cat([nothing, x])


def cast(x):
    with torch.autocast("cpu", torch.bfloat16):
        return F.linear(x, torch.ones(4, 3)).relu()


PROGRAMS = {
    "arithmetic": lambda x: (x + 1) * x - x / 3,
    "views": lambda x: [x.t(), x[0], x.view(3, 2), x.reshape(-1)[1:], x.expand(2, 2, 3), x],
    "in place": in_place,
    "argument in place": lambda x: x.add_(1),
    "view of argument in place": lambda x: x[1].zero_(),
    "out=": with_out,
    "metadata in place": turned,
    "dtypes": mixed,
    "random": random,
    "factories": made,
    "empty and 0-dim": empty,
    "autocast": cast,
    "list of tensors": lambda x: torch.split(torch.stack([x, x * 2]), 1),
    "to": lambda x: [x.to(torch.float32), x.to(torch.int64), x.cpu(), x.double().float()],
    "vmap": lambda x: torch.func.vmap(lambda row: row.sin() * row.sum())(x),
    "grad": lambda x: torch.func.grad(lambda y: (y**3).sum())(x),
    "grad under vmap": lambda x: torch.func.vmap(torch.func.grad(lambda row: (row**2).sum()))(x),
    "global": lambda x: x * SCALE + HOLDER.inner[0]["weight"],
    "numbers": lambda x: [torch.where(x > 0, x, 0.0), x.clamp(0, 2), torch.pow(2, x), x // 2],
    "softmax": lambda x: F.log_softmax(F.layer_norm(x, (3,)), -1),
    "index": lambda x: [
        x[:, [2, 0]],
        x.index_select(1, torch.tensor([1])),
        x.gather(1, torch.zeros(2, 1, dtype=torch.long)),
    ],
    "sort": lambda x: list(x.sort(descending=True)),
    "same result twice": lambda x: [x.neg()] * 2,
}


@MODES
@pytest.mark.parametrize("name", PROGRAMS)
def test_a_graph_runs_like_its_program(name, live):
    agree(PROGRAMS[name], torch.arange(6.0).view(2, 3), live=live)


@pytest.mark.parametrize("name", PROGRAMS)
def test_both_modes_give_the_same_graph(name):
    x = torch.arange(6.0).view(2, 3)
    assert record(PROGRAMS[name], x).text == record(PROGRAMS[name], x.clone(), live=True).text


def test_tracing_neither_computes_nor_changes_anything():
    norm = nn.BatchNorm1d(3)
    before = {name: tensor.clone() for name, tensor in norm.state_dict().items()}
    x = torch.randn(4, 3)
    kept = x.clone()
    state = torch.get_rng_state()
    record(lambda y: F.dropout(norm(y.mul_(2))), x)
    assert torch.equal(x, kept)
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(tensor, before[name]) for name, tensor in norm.state_dict().items())


# ---- names, roles, lines


@MODES
def test_inputs_and_state_have_roles_and_names(live):
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    graph = record(lambda x, extras: model(x) + extras["bias"], torch.randn(4, 3), {"bias": torch.ones(2)}, live=live)
    assert [value.name for value in graph.inputs] == ["x", "extras['bias']"]
    roles = {value.name: value.role for value in graph.state_values}
    assert roles["model.0.weight"] == roles["model.1.bias"] == "parameter"
    assert roles["model.1.running_mean"] == roles["model.1.num_batches_tracked"] == "buffer"
    assert dict(graph.states)["model.0.weight"] is model[0].weight


@MODES
def test_operators_know_their_lines(live):
    graph = record(in_place, torch.randn(2, 3), live=live)
    file, line, function = graph.ops[0].line
    assert file == __file__ and function == "in_place"
    assert line == in_place.__code__.co_firstlineno + 1


@MODES
def test_state_is_used_by_reference(live):
    linear = nn.Linear(3, 2)
    x = torch.randn(4, 3)
    graph = record(linear, x, live=live)
    with torch.no_grad():
        linear.weight.add_(1)
    assert torch.equal(graph(x), linear(x))


@MODES
def test_arguments_keep_their_structure(live):
    def function(pair, *rest, scale, flag=True):
        return {"sum": pair[0] + pair[1]["b"] + rest[0], "rest": (rest[1], scale * 2 if flag else scale, None, 3)}

    a, b, c, d, e = (torch.full((2,), float(i)) for i in range(5))
    graph = record(function, (a, {"b": b}), c, d, scale=e, live=live)
    result = graph((b, {"b": c}), d, e, scale=a)
    assert torch.equal(result["sum"], b + c + d)
    assert result["rest"][0] is e and torch.equal(result["rest"][1], a * 2) and result["rest"][2:] == (None, 3)
    with pytest.raises(TypeError, match="structure"):
        graph(a, b)
    with pytest.raises(ValueError, match="recorded with True where False"):
        graph2 = record(function, (a, {"b": b}), c, d, scale=e, flag=True, live=live)
        graph2((a, {"b": b}), c, d, scale=e, flag=False)


@MODES
def test_one_tensor_for_two_arguments(live):
    x, y = torch.randn(3), torch.randn(3)
    graph = record(torch.add, x, x, live=live)
    assert torch.equal(graph(y, y), y + y)
    with pytest.raises(ValueError, match="one tensor for two arguments"):
        graph(x, y)


@MODES
def test_state_is_found_where_programs_keep_it(live):
    weight = torch.randn(3)
    bound = functools.partial(lambda w, x, default=weight: w * x + default, weight.clone())
    graph = record(bound, torch.randn(3), live=live)
    assert len(graph.states) == 2 and all(name for name, _ in graph.states)


# ---- joint graphs


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)

    def forward(self, x):
        return F.relu(self.norm(self.conv(x))).mean((2, 3))


JOINT = {
    "linear": (lambda: nn.Linear(3, 2), (4, 3)),
    "mlp": (lambda: nn.Sequential(nn.Linear(3, 5), nn.GELU(), nn.Linear(5, 2), nn.LayerNorm(2)), (4, 3)),
    "conv and batch norm": (Block, (2, 3, 6, 6)),
    "encoder layer": (lambda: nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (2, 5, 8)),
    "lstm": (lambda: nn.LSTM(3, 4, batch_first=True), (2, 5, 3)),
}


@MODES
@pytest.mark.parametrize("name", JOINT)
def test_joint_graphs_equal_eager(name, live):
    make, shape = JOINT[name]
    models = []
    for _ in range(2):
        torch.manual_seed(0)
        models.append(make())
    model, peer = models
    buffers = {key: value.clone() for key, value in model.named_buffers()}
    x = torch.randn(shape, requires_grad=True)
    graph = record(model, x, joint=True, live=live)
    with torch.no_grad():
        for key, value in model.named_buffers():
            value.copy_(buffers[key])  # a live recording has trained them
    torch.manual_seed(5)
    expected = peer(x)
    ends = [t for t in torch.utils._pytree.tree_leaves(expected) if t.requires_grad]
    tangents = [torch.randn_like(t) for t in ends]
    used = [dict(peer.named_parameters())[n] for n, t in graph.states if t.requires_grad]
    wanted = torch.autograd.grad(ends, [x, *used], tangents)
    torch.manual_seed(5)
    result, gradients = graph(x, gradients=tangents)
    for a, b in zip(torch.utils._pytree.tree_leaves(expected), torch.utils._pytree.tree_leaves(result), strict=False):
        assert look(a) == look(b)
    assert [look(g) for g in gradients] == [look(g) for g in wanted]
    assert all(look(a) == look(b) for a, b in zip(model.buffers(), peer.buffers(), strict=False))


# ---- refusals


@MODES
@pytest.mark.parametrize(
    ("function", "operator"),
    [
        (lambda x: x * x.sum().item(), "_local_scalar_dense"),
        (lambda x: x if x.sum() > 0 else -x, "_local_scalar_dense"),
        (lambda x: x.nonzero(), "nonzero"),
        (lambda x: x[x > 0], "nonzero|index"),
        (lambda x: print(x), "masked_select|aten::"),
        (lambda x: x.unique(), "unique"),
        (lambda x: int(x[0]), "_local_scalar_dense"),
        (lambda x: torch.equal(x, x), "equal"),
    ],
)
def test_what_needs_a_value_is_refused(function, operator, live):
    with pytest.raises(DataDependent, match=operator) as error:
        record(function, torch.arange(3.0), live=live)
    assert f"{__file__}:{function.__code__.co_firstlineno}" in str(error.value)
    assert isinstance(error.value, RecordError)


@MODES
def test_a_swallowed_refusal_still_refuses(live):
    def function(x):
        with contextlib.suppress(DataDependent):
            x.sum().item()
        return x + 1

    with pytest.raises(DataDependent):
        record(function, torch.randn(3), live=live)


class Subclass(torch.Tensor):
    pass


@MODES
def test_tensors_that_cannot_be_seen_through_are_refused(live):
    with pytest.raises(RecordError, match="subclass"):
        record(torch.neg, torch.randn(3).as_subclass(Subclass), live=live)
    with pytest.raises(RecordError, match="sparse"):
        record(torch.neg, torch.eye(3).to_sparse(), live=live)
    with pytest.raises(RecordError, match="functorch"):
        torch.func.vmap(lambda x: record(torch.neg, x, live=live))(torch.randn(2, 3))


@MODES
def test_nested_recordings_are_refused(live):
    with pytest.raises(RecordError, match="active already"):
        record(lambda x: record(torch.neg, x, live=live), torch.randn(3), live=live)


@MODES
def test_exceptions_of_the_program_come_through(live):
    with pytest.raises(ZeroDivisionError):
        record(lambda x: x / (1 // 0), torch.randn(3), live=live)
    with pytest.raises(RuntimeError, match=r"must match|size"):
        record(lambda x: x + torch.ones(4), torch.randn(3), live=live)
    assert torch.equal(torch.ones(2) + 1, torch.full((2,), 2.0))  # the dispatcher is as it was


def test_wrong_arguments_say_what_was_expected():
    with pytest.raises(TypeError, match="function or a module"):
        record(3)
    graph = record(torch.neg, torch.randn(3))
    with pytest.raises(ValueError, match=r"expected f32\[3\], got f32\[4\]"):
        graph(torch.randn(4))


# ---- life


@MODES
def test_an_exception_leaves_no_tensor_behind(live):
    held = []

    def function(x):
        y = x + 1
        held.append(weakref.ref(y))
        raise KeyError("stop")

    with pytest.raises(KeyError):
        record(function, torch.randn(3), live=live)
    gc.collect()
    assert held[0]() is None


@MODES
def test_graphs_keep_their_state_alive_and_nothing_else(live):
    linear = nn.Linear(2, 2)
    weight, module = weakref.ref(linear.weight), weakref.ref(linear)
    graph = record(linear, torch.randn(1, 2), live=live)
    del linear
    gc.collect()
    assert weight() is not None and module() is None
    assert graph(torch.zeros(1, 2)).shape == (1, 2)
    del graph
    gc.collect()
    assert weight() is None


def test_autocast_remembers_no_trace_tensors():
    weight = torch.ones(3, 3, requires_grad=True)
    with torch.autocast("cpu", torch.bfloat16):
        record(lambda x: F.linear(x, weight), torch.randn(2, 3))
        assert F.linear(torch.ones(2, 3), weight).tolist() == [[3.0] * 3] * 2
