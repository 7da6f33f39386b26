"""magneto.optimize and optimize_assert: as decorators, and as blocks in which every function is captured."""

import json
import os
import threading

import magneto
import pytest
import torch
from magneto.testing import CompileCounter
from torch import nn


@pytest.fixture(autouse=True)
def unhooked(fresh):
    yield
    assert not magneto._C.hook_installed()


def double(x):
    return x * 2


def work(x):
    return double(x).sin() + 1


def test_as_a_decorator_it_compiles():
    counter = CompileCounter()

    @magneto.optimize(counter)
    def decorated(x):
        return work(x)

    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(decorated(x), work(x))
    assert counter.frame_count == 1
    assert isinstance(magneto.optimize("eager")(nn.Linear(2, 2)), magneto.OptimizedModule)
    assert magneto.optimize(disable=True)(work) is work


def test_in_the_block_every_function_is_captured_and_outside_none():
    counter = CompileCounter()
    x = torch.randn(3)
    with magneto.optimize(counter):
        for _ in range(3):
            assert torch.equal(work(x), (x * 2).sin() + 1)
    assert (counter.frame_count, counter.op_count) == (1, 3)
    stats = dict(magneto.counters["stats"])
    assert (stats["captures"], stats["hits"]) == (1, 2)
    work(x)
    assert magneto.counters["stats"]["hits"] == 2
    with magneto.optimize(counter):
        work(x)
    assert (counter.frame_count, magneto.counters["stats"]["hits"]) == (1, 3)
    with magneto.optimize("native"):
        work(x)
        work(x)
    assert (counter.frame_count, magneto.counters["stats"]["captures"]) == (1, 2)


def test_modules_and_methods_are_captured_in_the_block():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.linear = nn.Linear(3, 2)

        def forward(self, x):
            return self.linear(x).relu()

    net, x = Net().eval(), torch.randn(4, 3)
    expected = net(x)
    with magneto.optimize():
        for _ in range(3):
            assert torch.equal(net(x), expected)
    assert magneto.counters["stats"]["hits"] == 2
    net.linear.weight.zero_()
    with magneto.optimize():
        assert torch.equal(net(x), net.linear.bias.relu().expand(4, 2))


def test_functions_of_the_library_are_captured_as_parts_only():
    with magneto.optimize():
        for _ in range(3):
            json.dumps({"a": [1, 2]})
            torch.nn.functional.relu(torch.ones(2))
    assert magneto.counters["stats"]["captures"] == 0


def test_where_an_outer_function_is_cut_results_and_effects_are_the_same():
    log = []

    @magneto.disable
    def unknown(x):
        log.append(len(log))
        return double(x)

    def outer(x):
        return unknown(work(x)) + 1

    x = torch.randn(3)
    with magneto.optimize():
        for _ in range(3):
            assert torch.equal(outer(x), ((x * 2).sin() + 1) * 2 + 1)
    assert log == [0, 1, 2]
    # Inside a disabled function nothing is captured.
    assert magneto.counters["stats"]["captures"] == 1


def test_nopython_makes_what_cannot_be_captured_an_error():
    unknown = magneto.disable(lambda x: x)

    def bad(x):
        return unknown(x + 1)

    for context in (magneto.optimize(nopython=True), magneto.optimize_assert()):
        with pytest.raises(magneto.UserError, match=r"(?s)bad could not be captured as one graph.*disabled"):
            with context:
                bad(torch.ones(2))
        with context:
            assert torch.equal(work(torch.ones(2)), (torch.ones(2) * 2).sin() + 1)
    with pytest.raises(magneto.UserError, match="could not be captured"):
        magneto.optimize_assert("eager")(bad)(torch.ones(2))


def test_blocks_nest_and_exceptions_end_them():
    inner, outer = CompileCounter(), CompileCounter()
    x = torch.randn(2)
    with magneto.optimize(outer):
        work(x)
        with magneto.optimize(inner):
            work(x)
        with pytest.raises(KeyError), magneto.optimize(inner):
            raise KeyError
        double(x)
    assert (inner.frame_count, outer.frame_count) == (1, 2)
    context = magneto.optimize(inner)
    with context, context:
        work(x)
    assert inner.frame_count == 1
    with magneto.optimize(disable=True):
        work(torch.ones(7))
    assert (inner.frame_count, outer.frame_count) == (1, 2)


def test_a_block_holds_for_its_thread_only():
    thread = threading.Thread(target=work, args=(torch.ones(2),))
    with magneto.optimize():
        thread.start()
        thread.join()
        assert magneto.counters["stats"]["captures"] == 0
        work(torch.ones(2))
    assert magneto.counters["stats"]["captures"] == 1


def test_stances_and_settings_hold_in_the_block():
    with magneto.optimize(), magneto.set_stance("force_eager"):
        work(torch.ones(2))
    with magneto.optimize(), magneto.config.patch(enabled=False):
        work(torch.ones(2))
    with magneto.optimize(), magneto.set_stance("eager_on_recompile"):
        work(torch.ones(2))
    assert magneto.counters["stats"]["captures"] == 0


def test_guard_functions_are_told_what_is_guarded_and_what_fails():
    exported, failed = [], []

    @magneto.optimize(guard_export_fn=exported.append, guard_fail_fn=failed.append)
    def decorated(x, flag):
        return x + 1 if flag else x - 1

    decorated(torch.ones(2), True)
    assert len(exported) == 1 and "args[1] == True" in exported[0]
    assert failed == []
    decorated(torch.ones(2), False)
    assert len(exported) == 2
    (fail,) = failed
    assert "True" in fail.reason
    assert fail.orig_code is decorated.fn.__code__

    def stops(reason):
        raise ZeroDivisionError

    again = magneto.optimize(guard_fail_fn=stops)(lambda x: x + 1)
    again(torch.ones(2))
    with pytest.raises(ZeroDivisionError):
        again(torch.ones(3))


def test_reset_forgets_what_blocks_compiled():
    counter = CompileCounter()
    for expected in (1, 2):
        with magneto.optimize(counter):
            work(torch.ones(2))
            work(torch.ones(2))
        assert counter.frame_count == expected
        magneto.reset_code_caches()


def test_functions_that_die_take_what_was_compiled_along():
    def make():
        return lambda x: x + 1

    with magneto.optimize():
        for _ in range(50):
            assert torch.equal(make()(torch.ones(2)), torch.full((2,), 2.0))


def test_generators_and_comprehensions_in_the_block_are_pythons():
    def generate(x):
        for i in range(3):
            yield x + i

    def uses(x):
        return sum(generate(x)) + sum([x * i for i in range(3)])

    x = torch.randn(2)
    expected = uses(x)
    with magneto.optimize():
        for _ in range(3):
            assert torch.equal(uses(x), expected)


def test_functions_of_the_other_compiler_work_in_the_block():
    other = torch.compile(lambda x: x * 2 + 1, backend="eager")

    def uses(x):
        return other(x) + 1

    x = torch.randn(3)
    with magneto.optimize():
        for _ in range(4):
            assert torch.equal(uses(x), x * 2 + 1 + 1)
        assert torch.equal(other(torch.ones(5)), torch.full((5,), 3.0))
    assert torch.equal(uses(torch.ones(4)), torch.full((4,), 4.0))


def test_a_forked_child_goes_on_in_the_block():
    with magneto.optimize():
        work(torch.ones(2))
        child = os.fork()
        if child == 0:
            good = torch.equal(work(torch.ones(2)), (torch.ones(2) * 2).sin() + 1)
            os._exit(0 if good and magneto.counters["stats"]["hits"] == 1 else 1)
        assert os.waitpid(child, 0)[1] == 0
        work(torch.ones(2))
