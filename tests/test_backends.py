"""Backends: the registry, entry points, what a backend is given, what its callable may do, and the built-in ones."""

import gc
import importlib.metadata
import pickle
import threading
import weakref

import magneto
import pytest
import torch
from magneto.testing import CompileCounter, CompileCounterWithBackend, same
from torch import fx, nn

pytestmark = pytest.mark.usefixtures("fresh")


@pytest.fixture
def unregister():
    before = set(magneto.backends._backends)
    yield
    for name in set(magneto.backends._backends) - before:
        del magneto.backends._backends[name], magneto.backends._tags[name]


def work(x, y):
    return torch.relu(x @ y) + x.sum()


ARGUMENTS = (torch.randn(3, 3), torch.randn(3, 3))


@pytest.mark.parametrize("backend", ["native", "eager", "aten_eager"])
def test_built_in_backends_give_eagers_results(backend):
    net = nn.Sequential(nn.Linear(4, 8), nn.LayerNorm(8), nn.GELU(), nn.Dropout(0.5), nn.Linear(8, 2)).eval()
    x = torch.randn(5, 4)
    compiled = magneto.compile(net, backend=backend)
    for _ in range(3):
        assert torch.equal(compiled(x), net(x))
    assert compiled._magneto_call.variants()[0]["hits"] == 2
    net[0].weight.mul_(2)
    assert torch.equal(compiled(x), net(x))


@pytest.mark.parametrize("backend", ["native", "eager", "aten_eager"])
def test_effects_on_arguments_and_state_are_the_same_on_every_backend(backend):
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("total", torch.zeros(3))

        def forward(self, x, out):
            self.total.add_(x)
            out[1:] = self.total[1:] * 2
            return out, self.total, x, x.view(3, 1), x + 1

    eager, compiled = Net(), magneto.compile(Net(), backend=backend)
    for _ in range(4):
        x = torch.randn(3)
        ours, theirs = torch.zeros(3), torch.zeros(3)
        got, expected = compiled(x, ours), eager(x, theirs)
        assert same(expected, got, tol=0.0)
        assert got[0] is ours and got[1] is compiled.total and got[2] is x
        assert got[3].data_ptr() == x.data_ptr()
    assert compiled._magneto_call.variants()[0]["hits"] == 3


def test_a_callable_is_given_a_graph_module_and_examples_and_its_result_runs():
    given = []

    def backend(gm, example_inputs):
        given.append((gm, example_inputs))
        return lambda *inputs: [output * 10 for output in gm(*inputs)]

    compiled = magneto.compile(work, backend=backend)
    x, y = ARGUMENTS
    assert torch.equal(compiled(x, y), work(x, y))  # the real run
    ((gm, examples),) = given
    assert isinstance(gm, fx.GraphModule)
    assert [node.op for node in gm.graph.nodes].count("placeholder") == 2
    assert [(e.shape, e.dtype, e.stride()) for e in examples] == [(t.shape, t.dtype, t.stride()) for t in ARGUMENTS]
    assert torch.equal(gm(x, y)[0], work(x, y))
    assert torch.equal(compiled(x, y), work(x, y) * 10)
    assert len(given) == 1
    compiled(torch.randn(4, 4), torch.randn(4, 4))
    assert len(given) == 2


def test_each_part_of_a_cut_program_is_compiled_once():
    counter = CompileCounterWithBackend("eager")

    @magneto.compile(backend=counter)
    def broken(x):
        y = x.sin() + 1
        magneto.graph_break()
        return y.cos() * 2

    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(broken(x), (x.sin() + 1).cos() * 2)
    assert (counter.frame_count, counter.op_count, len(counter.graphs)) == (2, 4, 2)


def test_forms_that_are_added_behind_a_cut_are_compiled_too():
    counter = CompileCounter()

    @magneto.compile(backend=counter)
    def decides(x):
        y = x.sin()
        return y + 1 if y.sum() > 0 else y - 1

    plus, minus = torch.full((2,), 0.5), torch.full((2,), -0.5)
    for x in (plus, plus, minus, minus, minus, minus, plus):
        assert torch.equal(decides(x), x.sin() + 1 if x.sum() > 0 else x.sin() - 1)
    assert counter.frame_count == 3


def test_what_runs_behind_a_backend_is_neither_watched_nor_captured():
    seen = []
    inner = magneto.compile(lambda x: x + 1)

    def backend(gm, example_inputs):
        seen.append(magneto.is_compiling())

        def runs(*inputs):
            seen.append((magneto.is_compiling(), torch.is_grad_enabled()))
            inner(inputs[0])
            return gm(*inputs)

        return runs

    compiled = magneto.compile(work, backend=backend)
    with torch.enable_grad():
        compiled(*ARGUMENTS)
        compiled(*ARGUMENTS)
    assert seen == [False, (False, False)]
    assert inner.state() == "new"


def test_a_call_that_needs_gradients_stays_with_the_native_tier():
    counter = CompileCounter()
    compiled = magneto.compile(work, backend=counter)
    gradients = []
    with torch.enable_grad():
        for call in (work, compiled, compiled):
            x, y = (argument.clone().requires_grad_() for argument in ARGUMENTS)
            call(x, y).sum().backward()
            gradients.append((x.grad, y.grad))
    assert same(gradients[1], gradients[0]) and same(gradients[2], gradients[0])
    assert magneto.counters["stats"]["hits"] == 1
    assert counter.frame_count == 0
    assert sum(magneto.counters["backend_skipped"].values()) == 1


def test_a_backend_that_fails_is_an_error_with_its_cause():
    def broken(gm, example_inputs):
        raise ZeroDivisionError("inside")

    compiled = magneto.compile(work, backend=broken)
    for _ in range(magneto.config.recapture_limit + 2):
        with pytest.raises(magneto.BackendError, match=r"broken failed on a graph of 4 operators.*inside") as caught:
            compiled(*ARGUMENTS)
        assert isinstance(caught.value.__cause__, ZeroDivisionError)
    assert compiled.variants() == []
    with pytest.raises(magneto.BackendError, match="must return a callable, but returned 3"):
        magneto.compile(work, backend=lambda gm, example_inputs: 3)(*ARGUMENTS)


@pytest.mark.parametrize("outputs", [None, (), (1,), "x"])
def test_a_callable_with_wrong_outputs_leaves_the_results_right(outputs):
    compiled = magneto.compile(work, backend=lambda gm, example_inputs: lambda *inputs: outputs)
    for _ in range(3):
        assert torch.equal(compiled(*ARGUMENTS), work(*ARGUMENTS))


def test_errors_of_operators_are_handled_where_the_program_handles_them():
    @magneto.compile(backend="eager")
    def looks_up(x, index):
        try:
            return torch.index_select(x, 0, index) + 1
        except IndexError:
            return "out of range"

    x, good, bad = torch.arange(3.0), torch.tensor([1]), torch.tensor([7])
    for _ in range(3):
        assert torch.equal(looks_up(x, good), torch.tensor([2.0]))
    assert looks_up(x, bad) == "out of range"
    assert sum(magneto.counters["backend_error"].values()) == 1


def test_numbers_that_are_relied_on_stay_with_the_native_tier():
    counter = CompileCounter()
    compiled = magneto.compile(lambda x: x * int(x.sum().item()), backend=counter, fullgraph=True)
    for value in (1.0, 1.0, 2.0, 1.0):
        x = torch.full((2,), value)
        assert torch.equal(compiled(x), x * int(x.sum().item()))
    assert counter.frame_count == 0
    assert sum(magneto.counters["backend_skipped"].values()) == 2


def test_the_registry_knows_names_tags_and_decorators(unregister):
    @magneto.register_backend
    def plain(gm, example_inputs):
        return gm.forward

    @magneto.register_backend(name="for_debugging", tags=("debug",))
    def other(gm, example_inputs):
        return gm.forward

    assert magneto.lookup_backend("plain") is plain
    assert magneto.lookup_backend(other) is other
    assert {"native", "eager", "aten_eager", "inductor", "plain"} <= set(magneto.list_backends())
    assert "for_debugging" not in magneto.list_backends()
    assert "for_debugging" in magneto.list_backends(exclude_tags=())
    assert "for_debugging" in magneto.list_backends(exclude_tags=None)
    assert magneto.list_backends() == sorted(magneto.list_backends())
    with pytest.raises(magneto.UserError, match="there is a backend 'plain' already"):
        magneto.register_backend(plain)
    compiled = magneto.compile(work, backend="plain")
    compiled(*ARGUMENTS)
    assert torch.equal(compiled(*ARGUMENTS), work(*ARGUMENTS))


@pytest.mark.parametrize("group", ["magneto_backends", "torch_dynamo_backends"])
def test_entry_points_give_backends(unregister, monkeypatch, group):
    point = importlib.metadata.EntryPoint("from_elsewhere", "magneto.backends:eager", group)
    monkeypatch.setattr("magneto.backends.entry_points", lambda group: [point] if group == point.group else [])
    assert "from_elsewhere" in magneto.list_backends()
    assert magneto.lookup_backend("from_elsewhere") is magneto.lookup_backend("eager")
    compiled = magneto.compile(work, backend="from_elsewhere")
    compiled(*ARGUMENTS)
    assert torch.equal(compiled(*ARGUMENTS), work(*ARGUMENTS))


def test_mode_and_options_reach_the_backends_that_take_them():
    given = []

    def takes_both(gm, example_inputs, *, mode=None, options=None):
        given.append((mode, options))
        return gm.forward

    magneto.compile(work, backend=takes_both, mode="max-autotune")(*ARGUMENTS)
    magneto.compile(work, backend=takes_both, options={"a": 1})(*ARGUMENTS)
    magneto.compile(work, backend=takes_both)(*ARGUMENTS)
    assert given == [("max-autotune", None), (None, {"a": 1}), (None, None)]
    magneto.compile(work, backend="eager", mode="default")(*ARGUMENTS)
    with pytest.raises(magneto.UserError, match="backend 'eager' has no options"):
        magneto.compile(work, backend="eager", options={"a": 1})


def test_built_in_backends_take_graphs_of_others():
    gm = fx.symbolic_trace(lambda x: torch.ops.aten.sin.default(x))
    x = torch.randn(3)
    for name in ("native", "eager", "aten_eager"):
        (result,) = [magneto.lookup_backend(name)(gm, [x])(x)]
        result = result[0] if isinstance(result, (tuple, list)) else result
        assert torch.equal(result, x.sin())


def test_copies_and_pickles_keep_the_backend():
    module = magneto.compile(nn.Linear(2, 2), backend="eager", fullgraph=True)
    loaded = pickle.loads(pickle.dumps(module))
    assert loaded._magneto_how == module._magneto_how
    assert loaded._magneto_how.backend == "eager"


@pytest.mark.full
def test_the_inductor_adapter_gives_close_results():
    net = nn.Sequential(nn.Linear(4, 8), nn.GELU(), nn.Linear(8, 2)).eval()
    x = torch.randn(5, 4)
    compiled = magneto.compile(net, backend="inductor")
    for _ in range(2):
        assert same(net(x), compiled(x), tol=1e-5)
    assert compiled._magneto_call.variants()[0]["hits"] == 1


def test_compile_counters_count_and_clear():
    counter = CompileCounter()
    compiled = magneto.compile(work, backend=counter)
    for _ in range(3):
        compiled(*ARGUMENTS)
    assert (counter.frame_count, counter.op_count) == (1, 4)
    counter.clear()
    assert (counter.frame_count, counter.op_count) == (0, 0)


def test_same_compares_deeply():
    a = {"x": [torch.ones(2), (1, 2.0)], "y": None}
    b = {"x": [torch.ones(2) + 1e-6, (1, 2.0)], "y": None}
    assert same(a, b)
    assert not same(a, b, tol=1e-8)
    assert not same(torch.ones(2), torch.ones(2, dtype=torch.float64))
    assert same(torch.ones(2), torch.ones(2, dtype=torch.float64), exact_dtype=False)
    assert not same([1], (1,))
    assert not same(torch.ones(2), torch.ones(3))
    nan = torch.tensor([float("nan")])
    assert not same(nan, nan)
    assert same(nan, nan, equal_nan=True)
    assert not same({"a": 1, "b": 2}, {"b": 2, "a": 1})
    assert same({1, 2}, {2, 1}) and not same({1}, {2})
    assert not same(torch.tensor([1]), torch.tensor([2]))


def test_a_dropped_function_takes_its_graphs_and_weights_along():
    dead = []
    for _ in range(3):
        module = nn.Linear(2, 2)
        held = []

        def backend(gm, example_inputs, held=held):
            held.append(gm)
            return lambda *inputs, held=held: gm(*inputs)

        compiled = magneto.compile(module, backend=backend)
        held.append(compiled)  # which leads back to what the backend made
        for _ in range(3):
            compiled(torch.ones(1, 2))
        dead += [weakref.ref(module), weakref.ref(module.weight), weakref.ref(held[1])]
        del module, held, backend, compiled
    gc.collect()
    assert [reference() for reference in dead] == [None] * 9


def test_threads_may_compile_run_and_reset_with_a_backend():
    counter = CompileCounter()
    compiled = magneto.compile(work, backend=counter)
    errors = []

    def calls(seed):
        try:
            with torch.no_grad():
                for i in range(40):
                    x = torch.full((2 + (seed + i) % 3,) * 2, float(i))
                    assert torch.equal(compiled(x, x + 1), work(x, x + 1))
                    if seed == 0 and i % 10 == 9:
                        magneto.reset()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=calls, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    assert counter.frame_count >= 3


def test_aten_eager_runs_batch_norm_in_training_at_any_size() -> None:
    norms = [torch.nn.BatchNorm1d(2) for _ in range(2)]
    compiled = magneto.compile(norms[0], backend="aten_eager")
    with torch.no_grad():
        for length in (5, 6, 7, 8):
            x = torch.randn(2, 2, length)
            assert torch.equal(compiled(x), norms[1](x))
    assert torch.equal(norms[0].running_var, norms[1].running_var)
