"""OptimizedModule: calls are compiled, everything else is the original module's."""

import collections.abc
import copy
import gc
import inspect
import io
import pathlib
import pickle
import sys
import threading
import weakref

import magneto
import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def seeded(fresh):
    torch.manual_seed(0)


class Net(nn.Module):
    """A module with a parameter of its own, a buffer, a submodule, a plain attribute and a method."""

    def __init__(self, width=4):
        super().__init__()
        self.linear = nn.Linear(width, 3)
        self.scale = nn.Parameter(torch.full((3,), 2.0))
        self.register_buffer("offset", torch.ones(3))
        self.dropout = nn.Dropout(0.5)
        self.power = 1

    def forward(self, x, *, extra=None):
        y = self.dropout(self.linear(x)) * self.scale + self.offset
        return y * self.power if extra is None else y * self.power + extra

    def describe(self, word):
        return f"{word} {self.power}"


def check_same(compiled, original, *args, calls=3, **kwargs):
    for _ in range(calls):
        assert torch.equal(compiled(*args, **kwargs), original(*args, **kwargs))


def test_calls_are_compiled_and_equal_eager():
    net = Net().eval()
    compiled = magneto.compile(net)
    x = torch.randn(2, 4)
    check_same(compiled, net, x)
    check_same(compiled, net, x, extra=torch.ones(3))
    check_same(compiled, net, torch.randn(5, 4))
    assert compiled._magneto_call.state() == "compiled"
    assert magneto.counters["stats"]["hits"] >= 6


def test_a_call_runs_no_python_of_magneto():
    net = Net().eval()
    compiled = magneto.compile(net)
    x = torch.randn(2, 4)
    compiled(x)
    compiled(x)
    package = str(pathlib.Path(magneto.__file__).parent)
    seen = []

    def note(frame, event, arg):
        if event == "call" and frame.f_code.co_filename.startswith(package):
            seen.append(frame.f_code.co_qualname)

    sys.setprofile(note)
    try:
        compiled(x)
        compiled.forward(x)
        called, seen = seen, []
        compiled.power  # noqa: B018  # reading through does run Python: the profiler works
    finally:
        sys.setprofile(None)
    assert called == []
    assert seen == ["ModuleProxy.__getattr__"]


def test_it_is_a_module_and_an_instance_of_the_original_class():
    net = Net()
    compiled = magneto.compile(net)
    assert isinstance(compiled, magneto.OptimizedModule)
    assert isinstance(compiled, nn.Module)
    assert isinstance(compiled, Net)
    assert not isinstance(compiled, nn.Linear)
    assert compiled.__class__ is Net
    assert compiled._orig_mod is net
    assert callable(compiled)
    assert bool(compiled)
    assert "OptimizedModule" in repr(compiled) and "(linear): Linear" in repr(compiled)


def test_notes_about_the_original_are_found_under_the_compiled_and_the_other_way_round():
    original, other = Net(), Net()
    compiled = magneto.compile(original)
    assert compiled == original == compiled == magneto.compile(original)
    assert compiled != other and compiled != magneto.compile(other) and compiled != 1
    assert {original: "noted"}[compiled] == {compiled: "noted"}[original] == "noted"
    noted = weakref.WeakKeyDictionary({original: "noted"})
    assert noted[compiled] == "noted" and other not in noted


def test_forward_has_the_original_signature_and_is_compiled():
    net = Net().eval()
    compiled = magneto.compile(net)
    assert inspect.signature(compiled.forward) == inspect.signature(net.forward)
    x = torch.randn(2, 4)
    for _ in range(2):
        assert torch.equal(compiled.forward(x), net(x))
    assert magneto.counters["stats"]["calls"] >= 2


def test_state_dict_keys_are_the_original_ones_and_round_trip():
    net, other = Net().eval(), Net().eval()
    compiled = magneto.compile(net)
    assert list(compiled.state_dict()) == list(net.state_dict())
    assert [name for name, _ in compiled.named_parameters()] == [name for name, _ in net.named_parameters()]
    assert [name for name, _ in compiled.named_buffers()] == ["offset"]
    assert all(a is b for a, b in zip(compiled.parameters(), net.parameters(), strict=True))
    x = torch.randn(2, 4)
    check_same(compiled, net, x)
    assert compiled.load_state_dict(other.state_dict()).missing_keys == []
    for _ in range(2):
        assert torch.equal(compiled(x), other(x))
    with pytest.raises(RuntimeError, match=r"Error\(s\) in loading state_dict for Net"):
        compiled.load_state_dict({})


def test_attributes_go_through_to_the_original():
    net = Net().eval()
    compiled = magneto.compile(net)
    x = torch.randn(2, 4)
    check_same(compiled, net, x)
    compiled.power = 3
    assert net.power == 3
    check_same(compiled, net, x)
    compiled.scale = nn.Parameter(torch.full((3,), 5.0))
    assert net._parameters["scale"] is compiled.scale
    check_same(compiled, net, x)
    compiled.linear = nn.Linear(4, 3)
    assert net.linear is compiled.linear
    check_same(compiled, net, x)
    assert compiled.describe("power") == "power 3"
    compiled.fresh = 1
    assert net.fresh == 1
    del compiled.fresh
    assert not hasattr(net, "fresh") and not hasattr(compiled, "fresh")
    assert {"linear", "power", "describe", "_orig_mod"} <= set(dir(compiled))
    with pytest.raises(AttributeError, match="'Net' object has no attribute 'nothing'"):
        compiled.nothing  # noqa: B018


def test_the_original_itself_cannot_be_swapped():
    compiled = magneto.compile(Net())
    with pytest.raises(magneto.UserError, match=r"call magneto\.compile on the other module"):
        compiled._orig_mod = Net()
    with pytest.raises(magneto.UserError, match="cannot be deleted"):
        del compiled._orig_mod


def test_train_eval_to_and_half_act_on_the_original_and_return_the_compiled():
    net = Net()
    compiled = magneto.compile(net)
    assert compiled.eval() is compiled and not net.training and not compiled.training and not net.dropout.training
    assert compiled.train() is compiled and net.training and net.dropout.training
    assert compiled.train(False) is compiled and not net.training
    assert compiled.to(torch.float64) is compiled and net.linear.weight.dtype is torch.float64
    x = torch.randn(2, 4, dtype=torch.float64)
    check_same(compiled, net, x)
    assert compiled.half() is compiled and net.scale.dtype is torch.float16
    assert compiled.float() is compiled and net.offset.dtype is torch.float32
    assert compiled.requires_grad_(False) is compiled and not net.scale.requires_grad
    assert compiled.apply(lambda module: None) is compiled
    check_same(compiled, net, x.float())


def test_train_mode_gives_fresh_dropout_and_eval_none():
    net = Net()
    compiled = magneto.compile(net)
    x = torch.randn(8, 4)
    check_same(compiled.eval(), net, x)
    compiled.train()
    for seed in range(3):
        torch.manual_seed(seed)
        expected = net(x)
        torch.manual_seed(seed)
        assert torch.equal(compiled(x), expected)
    check_same(compiled.eval(), net, x)


def test_hooks_are_registered_on_the_original_and_run():
    net = Net().eval()
    compiled = magneto.compile(net)
    x = torch.randn(2, 4)
    check_same(compiled, net, x)
    plain = net(x)
    handle = compiled.register_forward_hook(lambda module, args, output: output + 100)
    assert len(net._forward_hooks) == 1
    for _ in range(3):
        assert torch.equal(compiled(x), plain + 100)
    handle.remove()
    for _ in range(3):
        assert torch.equal(compiled(x), plain)
    handle = compiled.register_forward_pre_hook(lambda module, args: (args[0] * 2,))
    check_same(compiled, net, x)
    assert not torch.equal(compiled(x), plain)
    handle.remove()
    check_same(compiled, net, x)


def test_gradients_are_eager_ones():
    net = Net().eval()
    compiled = magneto.compile(net)
    x = torch.randn(2, 4)
    with torch.enable_grad():
        for _ in range(2):
            net.zero_grad()
            net(x).sum().backward()
            expected = [parameter.grad.clone() for parameter in net.parameters()]
            compiled.zero_grad()
            compiled(x).sum().backward()
            assert all(torch.equal(a, p.grad) for a, p in zip(expected, compiled.parameters(), strict=True))


def test_containers_pass_through_what_the_original_has():
    sequential = nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 2))
    compiled = magneto.compile(sequential)
    assert len(compiled) == 3
    assert compiled[1] is sequential[1]
    assert list(compiled) == list(sequential)
    assert isinstance(compiled, collections.abc.Iterable) and isinstance(compiled, collections.abc.Sized)
    x = torch.randn(2, 4)
    check_same(compiled, sequential, x)
    compiled[1] = nn.Tanh()
    assert isinstance(sequential[1], nn.Tanh)
    check_same(compiled, sequential, x)
    compiled += nn.Sequential(nn.ReLU())
    assert isinstance(compiled, magneto.OptimizedModule) and len(sequential) == 4
    check_same(compiled, sequential, x)
    named = magneto.compile(nn.ModuleDict({"a": nn.ReLU()}))
    assert "a" in named and "b" not in named and list(named.keys()) == ["a"]


def test_containers_are_not_pretended_for_other_modules():
    compiled = magneto.compile(nn.Linear(2, 2))
    assert not isinstance(compiled, collections.abc.Sized)
    with pytest.raises(TypeError, match="no len"):
        len(compiled)
    with pytest.raises(TypeError, match="not iterable"):
        iter(compiled)
    with pytest.raises(TypeError):
        compiled | compiled


def test_deepcopy_gives_a_compiled_copy_of_a_copied_original():
    net = Net().eval()
    compiled = magneto.compile(net)
    x = torch.randn(2, 4)
    check_same(compiled, net, x)
    twin = copy.deepcopy(compiled)
    assert isinstance(twin, magneto.OptimizedModule)
    assert twin._orig_mod is not net and twin._magneto_call is not compiled._magneto_call
    assert twin.linear.weight is not net.linear.weight
    check_same(twin, net, x)
    twin.scale.fill_(7.0)
    assert not torch.equal(twin(x), compiled(x))
    check_same(twin, twin._orig_mod, x)
    check_same(compiled, net, x)


def test_copy_gives_a_compiled_copy():
    compiled = magneto.compile(Net().eval())
    twin = copy.copy(compiled)
    assert isinstance(twin, magneto.OptimizedModule) and twin._orig_mod is not compiled._orig_mod
    assert twin.linear is compiled.linear


def test_deepcopy_of_a_module_that_holds_its_own_compiled_self():
    net = Net().eval()
    object.__setattr__(net, "fast", magneto.compile(net))
    twin = copy.deepcopy(net.fast)
    assert twin._orig_mod.fast is twin
    assert twin._orig_mod is not net


@pytest.mark.parametrize("fullgraph", [False, True])
def test_pickling_pickles_the_original_and_compiles_again(fullgraph):
    net = Net().eval()
    compiled = magneto.compile(net, fullgraph=fullgraph)
    x = torch.randn(2, 4)
    check_same(compiled, net, x)
    loaded = pickle.loads(pickle.dumps(compiled))
    assert isinstance(loaded, magneto.OptimizedModule) and type(loaded._orig_mod) is Net
    assert loaded._magneto_call.whole is fullgraph
    check_same(loaded, net, x)


def test_torch_save_and_load():
    net = Net().eval()
    buffer = io.BytesIO()
    torch.save(magneto.compile(net), buffer)
    buffer.seek(0)
    loaded = torch.load(buffer, weights_only=False)
    assert isinstance(loaded, magneto.OptimizedModule)
    check_same(loaded, net, torch.randn(2, 4))


def test_as_a_submodule_it_keeps_names_and_follows_the_parent():
    net = Net()
    plain = nn.Sequential(net, nn.Linear(3, 2))
    parent = nn.Sequential(magneto.compile(net), plain[1])
    assert list(parent.state_dict()) == list(plain.state_dict())
    assert [n for n, _ in parent.named_parameters()] == [n for n, _ in plain.named_parameters()]
    assert [n for n, _ in parent.named_modules()] == [n for n, _ in plain.named_modules()]
    parent.eval()
    assert not net.training
    x = torch.randn(2, 4)
    check_same(parent, plain, x)
    assert isinstance(parent[0], magneto.OptimizedModule)
    other = copy.deepcopy(plain)
    for parameter in other.parameters():
        parameter.add_(1)
    parent.load_state_dict(other.state_dict())
    for _ in range(2):
        assert torch.equal(parent(x), other(x))
    parent.double()
    assert net.scale.dtype is torch.float64
    twin = copy.deepcopy(parent)
    assert isinstance(twin[0], magneto.OptimizedModule) and twin[0]._orig_mod is not net
    check_same(twin, parent, x.double())
    assert "OptimizedModule" in repr(parent)


def test_a_compiled_parent_with_a_compiled_child():
    child = magneto.compile(Net().eval())
    parent = nn.Sequential(child, nn.ReLU()).eval()
    compiled = magneto.compile(parent)
    x = torch.randn(2, 4)
    for _ in range(3):
        assert torch.equal(compiled(x), child._orig_mod(x).relu())
    assert next(iter(compiled.state_dict())) == "0.scale"


def test_overridden_methods_of_the_original_are_used():
    class Special(nn.Linear):
        def state_dict(self, *args, **kwargs):
            return {"answer": torch.tensor(42)}

        def train(self, mode=True):
            self.asked = mode
            return super().train(mode)

        def extra_repr(self):
            return "special"

    compiled = magneto.compile(Special(2, 2))
    assert compiled.state_dict()["answer"] == 42
    assert compiled.train(False) is compiled and compiled.asked is False
    assert "special" in repr(compiled)
    assert compiled.extra_repr() == "special"


def test_functional_call_works():
    net = Net().eval()
    compiled = magneto.compile(net)
    x = torch.randn(2, 4)
    zeros = {name: torch.zeros_like(value) for name, value in net.state_dict().items()}
    for _ in range(2):
        assert torch.equal(torch.func.functional_call(compiled, zeros, (x,)), torch.zeros(2, 3))
        check_same(compiled, net, x, calls=2)


def test_a_dropped_compiled_module_takes_the_original_along():
    net = Net().eval()
    compiled = magneto.compile(net)
    x = torch.randn(2, 4)
    compiled(x)
    compiled(x)
    dead = [
        weakref.ref(net),
        weakref.ref(compiled),
        weakref.ref(net.linear.weight),
        weakref.ref(compiled._magneto_call),
    ]
    del net, compiled
    gc.collect()
    assert [ref() for ref in dead] == [None] * 4


def test_the_original_outlives_the_compiled_one_unharmed():
    net = Net().eval()
    x = torch.randn(2, 4)
    expected = net(x)
    compiled = magneto.compile(net)
    compiled(x)
    compiled(x)
    del compiled
    gc.collect()
    assert torch.equal(net(x), expected)


def test_threads_may_call_one_compiled_module():
    net = Net().eval()
    compiled = magneto.compile(net)
    errors = []

    def work(seed):
        try:
            with torch.no_grad():
                for i in range(100):
                    x = torch.full((1 + (seed + i) % 3, 4), float(i))
                    assert torch.equal(compiled(x), net(x))
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []


def test_disabled_module_is_the_original_in_every_other_respect():
    net = Net().eval()
    disabled = magneto.disable(net)
    x = torch.randn(2, 4)
    check_same(disabled, net, x)
    assert isinstance(disabled, Net) and disabled.eval() is disabled
    twin = pickle.loads(pickle.dumps(copy.deepcopy(disabled)))
    assert type(twin) is type(disabled)
    check_same(twin, net, x)
    assert magneto.compile(disabled)._orig_mod is net


def test_constructing_it_directly_compiles():
    net = Net().eval()
    check_same(magneto.OptimizedModule(net), net, torch.randn(2, 4))


def test_a_compiled_module_is_part_of_the_graph_of_a_compiled_function():
    net = Net().eval()
    compiled = magneto.compile(net)
    outer = magneto.compile(lambda x: compiled(x) + compiled.forward(x), fullgraph=True)
    x = torch.randn(2, 4)
    for _ in range(3):
        assert torch.equal(outer(x), net(x) + net(x))
    assert compiled._magneto_call.state() == "new"
    (variant,) = outer.variants()
    assert (variant["hits"], len(variant["graphs"])) == (2, 1)
