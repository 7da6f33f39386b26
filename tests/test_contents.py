"""magneto.record and what operators do not show: contents, memory, gradients, generators; left alone or refused."""

import gc
import pickle
import threading

import numpy
import pytest
import torch
from magneto import DataDependent, RecordError, record
from torch import nn
from torch.nn import functional as F
from torch.utils import checkpoint, dlpack
from zoo.compare import look

MODES = pytest.mark.parametrize("live", [False, True], ids=["trace", "live"])
BUFFER = torch.arange(1.0, 4.0)
WORLD = {"x": BUFFER}


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


# ---- contents that are the same in every run


def branch(x):
    return x + 1 if torch.arange(3).sum() == 3 else x - 1


def written_in_place(x):
    flags = torch.zeros(4, dtype=torch.bool)
    flags[1] = True
    flags[2:].logical_not_()
    return x * flags.sum().item(), flags.nonzero() + x.long()[0]


def turned(x):
    table = torch.arange(6).view(2, 3).clone()
    table.t_()
    return x * table[2, 1].item()


def masked(x):
    mask = torch.ones(3, 3, dtype=torch.bool).triu(1)
    return torch.outer(x, x)[mask], torch.outer(x, x).masked_select(mask)


FIXED = {
    "branch": branch,
    "in place": written_in_place,
    "layout in place": turned,
    "mask": masked,
    "literal": lambda x: x[: int(torch.tensor([2, 1]).max())],
    "sizes": lambda x: x.repeat_interleave(torch.tensor([1, 2, 3])),
    "list": lambda x: [x * n for n in torch.linspace(0, 1, 3).tolist()],
    "text": lambda x: x * len(f"{torch.eye(2)}"),
    "after an effect": lambda x: x.add_(1) * torch.arange(3)[1].item(),
    "cov": lambda x: torch.cov(torch.stack([x, -x]), fweights=torch.tensor([1, 2, 3])),
    "quantile": lambda x: x.quantile(0.3),
    "combinations": torch.combinations,
}


@MODES
@pytest.mark.parametrize("name", FIXED)
def test_questions_about_fixed_contents_are_answered(name, live):
    function, x = FIXED[name], torch.randn(3)
    graph = record(function, x.clone(), live=live)
    graph.verify()
    assert not [op for op in graph.ops if op.name in ("aten::_local_scalar_dense", "aten::equal")]
    for _ in range(2):
        x = torch.randn(3)
        expected, result = function(x.clone()), graph(x.clone())
        for a, b in zip(*(t if isinstance(t, (list, tuple)) else [t] for t in (expected, result)), strict=True):
            assert look(a) == look(b)


def from_argument(x):
    made = torch.zeros(3)
    made[0] = x[0]
    return x * made[1].item()


def from_view_of_written(x):
    made = torch.zeros(3)
    part = made[1:]
    made.copy_(x)
    return x * part[0].item()


def from_out(x):
    made = torch.zeros(3)
    torch.mul(x, 2, out=made)
    return x * made[0].item()


def from_resized(x):
    made = torch.zeros(1)
    made.resize_(3)
    return x * made[2].item()


VARYING = {
    "argument": lambda x: x * x[0].item(),
    "state": lambda x: x * WORLD["x"][0].item(),
    "random": lambda x: x * torch.rand(()).item(),
    "random in place": lambda x: x * torch.zeros(1).uniform_().item(),
    "uninitialised": lambda x: x * torch.empty(1).item(),
    "written from an argument": from_argument,
    "a view of what is written": from_view_of_written,
    "out=": from_out,
    "resized": from_resized,
    "too much": lambda x: x * torch.zeros(10**7)[0].item(),
}


@pytest.mark.parametrize("name", VARYING)
def test_questions_about_other_contents_are_refused(name):
    with pytest.raises(DataDependent):
        record(VARYING[name], torch.randn(3))
    if name != "too much":
        with pytest.raises(RecordError):
            record(VARYING[name], torch.randn(3), live=True)


# ---- memory

MEMORY = {
    "numpy": (lambda x: x.numpy(), "Tensor.numpy"),
    "numpy(force)": (lambda x: x.numpy(force=True), "Tensor.numpy"),
    "tolist": (lambda x: x.tolist(), "Tensor.tolist"),
    "tolist of a result": (lambda x: (x + 1).tolist(), "Tensor.tolist"),
    "numpy.asarray": (lambda x: numpy.asarray(x), "Tensor.numpy"),
    "numpy.add": (lambda x: numpy.add(x, 1), "Tensor.numpy"),
    "from C": (lambda x: list(map(torch.Tensor.tolist, [x])), "Tensor.tolist"),
    "print": (lambda x: print(x), "aten::"),
    "repr": (lambda x: repr(x), "aten::"),
    "f-string": (lambda x: f"{x}", "aten::"),
    "f-string of a number": (lambda x: f"{x[0]:.2f}", "aten::_local_scalar_dense"),
    "data_ptr": (lambda x: x.data_ptr(), "Tensor.data_ptr"),
    "untyped_storage": (lambda x: x.untyped_storage(), "Tensor.untyped_storage"),
    "storage": (lambda x: x._typed_storage().tolist(), "Tensor.untyped_storage"),
    "dlpack": (lambda x: numpy.from_dlpack(x), "_to_dlpack"),
    "to_dlpack": (lambda x: dlpack.to_dlpack(x), "_to_dlpack"),
    "deepcopy": (lambda x: x.__deepcopy__({}), "Tensor.untyped_storage"),
    "pickle": (lambda x: pickle.dumps(x), "Tensor.untyped_storage"),
    "state": (lambda x: x * WORLD["x"].tolist()[0], "Tensor.tolist"),
}


@MODES
@pytest.mark.parametrize("name", MEMORY)
def test_asking_for_memory_is_refused(name, live):
    function, asked = MEMORY[name]
    with pytest.raises(DataDependent, match=asked) as error:
        record(function, torch.arange(3.0), live=live)
    assert f"{__file__}:{function.__code__.co_firstlineno}" in str(error.value)
    # Nothing is left behind: doors open again, and so does the recorder.
    assert torch.arange(3.0).numpy().tolist() == torch.arange(3.0).tolist() == [0, 1, 2]
    assert BUFFER.data_ptr() == BUFFER.untyped_storage().data_ptr()
    assert len(record(torch.neg, BUFFER, live=live)) == 1
    squares = torch.func.vmap(torch.func.grad(lambda row: (row**2).sum()))
    assert look(record(squares, torch.ones(2, 3), live=live)(torch.ones(2, 3))) == look(torch.full((2, 3), 2.0))


@MODES
def test_other_threads_may_ask_for_memory(live):
    seen = []

    def function(x):
        thread = threading.Thread(target=lambda: seen.append(BUFFER.tolist()))
        thread.start()
        thread.join()
        return x + 1

    record(function, torch.randn(3), live=live)
    assert seen == [[1, 2, 3]]


# ---- nothing changes


def test_tracing_counts_no_writes():
    norm = nn.BatchNorm1d(3)
    shared = norm.running_mean.detach()
    before = [t._version for t in (*norm.state_dict().values(), shared)]

    def function(x):
        y = norm(x)
        shared.add_(1)
        norm.running_mean.mul_(2)
        return y

    x = torch.randn(4, 3)
    record(function, x)
    assert [t._version for t in (*norm.state_dict().values(), shared)] == before
    with pytest.raises(ZeroDivisionError):
        record(lambda y: (shared.add_(1), 1 // 0), x)
    assert shared._version == before[-1] and x._version == 0


def test_a_swallowed_refusal_does_not_run_the_rest():
    kept = BUFFER.clone()

    def function(x):
        try:
            x.sum().item()
        except DataDependent:
            BUFFER.add_(1)

    with pytest.raises(DataDependent):
        record(function, torch.randn(3))
    assert torch.equal(BUFFER, kept)


def train(model, x, **how):
    model(x).sum().backward(**how)


@MODES
@pytest.mark.parametrize("fill", [False, True])
def test_gradients_that_a_program_replaces_are_refused_and_put_back(live, fill):
    model, x = nn.Linear(3, 2), torch.randn(4, 3, requires_grad=True)
    gradients = [torch.ones_like(p) if fill else None for p in model.parameters()]
    for parameter, gradient in zip(model.parameters(), gradients, strict=True):
        parameter.grad = gradient

    def replace(y):
        model.zero_grad()
        train(model, y)

    for function in (
        replace,
        lambda y: train(model, y, create_graph=True),
        lambda y: setattr(model.bias, "grad", y[0]),
    ):
        with pytest.raises(RecordError, match=r"\.grad of a tensor was replaced.*torch\.autograd\.grad"):
            record(function, x, live=live)
        assert x.grad is None
        assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))


@MODES
def test_a_recording_that_is_over_leaves_gradients_alone(live):
    model, x = nn.Linear(3, 2), torch.randn(4, 3)
    with pytest.raises(RecordError) as error:
        record(lambda y: train(model, y), x, live=live)
    train(model, x)
    gradients = [parameter.grad for parameter in model.parameters()]
    del error  # and with it the recording
    gc.collect()
    assert all(p.grad is g for p, g in zip(model.parameters(), gradients, strict=True))


@MODES
def test_gradients_that_a_program_adds_to_are_recorded(live):
    models = [nn.Linear(3, 2), nn.Linear(3, 2)]
    models[1].load_state_dict(models[0].state_dict())
    for parameter in (*models[0].parameters(), *models[1].parameters()):
        parameter.grad = torch.ones_like(parameter)
    x = torch.randn(4, 3)
    graph = record(lambda y: train(models[0], y), x, live=live)
    for parameter in models[0].parameters():
        parameter.grad.fill_(1)  # a live recording has added to them
    graph(x)
    train(models[1], x)
    ours, theirs = ([look(p.grad) for p in model.parameters()] for model in models)
    assert ours == theirs


OWN = torch.Generator()
OTHER_STATE = torch.Generator().manual_seed(9).get_state()
SEEDERS = {
    "manual_seed": (lambda x: torch.manual_seed(3), "manual_seed"),
    "seed": (lambda x: torch.seed(), "Generator.seed"),
    "set_rng_state": (lambda x: torch.set_rng_state(OTHER_STATE), "set_state"),
    "generator": (lambda x: torch.rand(3, generator=OWN.manual_seed(3)), "manual_seed"),
    "fork_rng around draws": (lambda x: forked(F.dropout, x), "set_state"),
}


def forked(function, x):
    with torch.random.fork_rng(devices=[]):
        return function(x)


@MODES
@pytest.mark.parametrize("name", SEEDERS)
def test_setting_a_generator_is_refused(name, live):
    function, asked = SEEDERS[name]
    x, state, own = torch.randn(3), torch.get_rng_state(), OWN.get_state()
    with pytest.raises(RecordError, match=f"generator was set.*{asked}.*before the program"):
        record(function, x, live=live)
    has_drawn = live and "draws" in name
    assert torch.equal(torch.get_rng_state(), state) != has_drawn and torch.equal(OWN.get_state(), own)


@MODES
def test_a_generator_may_be_put_back_where_it_is(live):
    model, x = nn.Linear(3, 3), torch.randn(2, 3, requires_grad=True)
    graph = record(lambda y: checkpoint.checkpoint(model, y, use_reentrant=False), x, joint=True, live=live)
    result, (gradient, *_) = graph(x, gradients=[torch.ones(2, 3)])
    assert look(result) == look(model(x)) and torch.equal(gradient, torch.ones(2, 3) @ model.weight)
    assert look(record(lambda y: forked(torch.neg, y), x, live=live)(x)) == look(-x)
