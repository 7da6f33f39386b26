"""disable, run, graph_break, the rules about single functions, and stances: what runs, where programs are cut."""

import functools
import gc
import sys
import threading
import weakref

import magneto
import pytest
import torch
from torch import nn


@pytest.fixture(autouse=True)
def default_stance(fresh):
    yield
    magneto.set_stance("default")


def ops(compiled):
    return [variant["ops"] for variant in compiled.variants()]


# ---- disable


def test_a_program_goes_on_around_a_disabled_function():
    seen = []

    @magneto.disable
    def left_out(x):
        seen.append(magneto.is_compiling())
        return x + 1

    @magneto.compile
    def outer(x):
        y = left_out(x * 2)
        return y.relu() - 3

    for i in range(4):
        x = torch.full((2,), float(i))
        assert torch.equal(outer(x), (x * 2 + 1).relu() - 3)
    assert seen == [False] * 4
    assert outer.failures() == {}
    assert ops(outer) == [3]  # before and behind the call
    (reason,) = outer.breaks()
    assert "left_out, which is disabled" in reason
    assert "test_keeping_out.py" in reason
    assert magneto.counters["stats"]["captures"] == 1


def test_a_disabled_method_module_and_class_cut_the_program():
    class Thing:
        weight = 3.0

        @magneto.disable
        def scale(self, x):
            return x * self.weight

        @magneto.disable
        @staticmethod
        def shift(x):
            return x + 1

    @magneto.disable
    class Adder:
        def __call__(self, x):
            return x + 2

    thing, adder, linear = Thing(), Adder(), magneto.disable(nn.Linear(3, 3))

    @magneto.compile
    def outer(x):
        return linear(adder(thing.shift(thing.scale(x.relu())))).sin()

    x = torch.randn(2, 3)
    for _ in range(3):
        assert torch.equal(outer(x), linear._orig_mod((x.relu() * 3.0 + 1) + 2).sin())
    assert len(outer.breaks()) == 4
    assert outer.failures() == {}
    thing.weight = 4.0
    assert torch.equal(outer(x), linear._orig_mod((x.relu() * 4.0 + 1) + 2).sin())
    assert magneto.counters["stats"]["captures"] == 1


def test_a_disabled_function_that_raises_raises_out_of_the_compiled_one():
    @magneto.disable
    def picky(x):
        if x.sum() > 3:
            raise KeyError("too much")
        return x

    @magneto.compile
    def outer(x):
        try:
            return picky(x + 1) * 2
        except KeyError as error:
            return error.args[0]

    assert torch.equal(outer(torch.zeros(2)), torch.full((2,), 2.0))
    assert torch.equal(outer(torch.zeros(2)), torch.full((2,), 2.0))
    assert outer(torch.ones(2)) == "too much"


def test_recursive_disable_keeps_everything_inside_eager_and_the_other_does_not():
    inner = magneto.compile(lambda x: x.sin() + 1)

    def calls(x):
        return inner(x)

    everything, only_it = magneto.disable(calls), magneto.disable(calls, recursive=False)
    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(everything(x), x.sin() + 1)
    assert inner.state() == "new"
    for _ in range(3):
        assert torch.equal(only_it(x), x.sin() + 1)
    assert inner.state() == "compiled"


def test_compiled_functions_run_compiled_inside_a_disabled_one_inside_a_compiled_one():
    inner = magneto.compile(lambda x: x.sin() + 1)
    middle = magneto.disable(lambda x: inner(x), recursive=False)
    outer = magneto.compile(lambda x: middle(x * 2) * 3)
    x = torch.randn(3)
    for _ in range(4):
        assert torch.equal(outer(x), ((x * 2).sin() + 1) * 3)
    assert outer.state() == "compiled" and inner.state() == "compiled"
    assert inner.variants()[0]["hits"] >= 2


def test_disable_looks_like_the_original_and_dies_with_its_last_user():
    def local(x, y=1):
        """Doc."""
        return x + y

    disabled = magneto.disable(local)
    assert (disabled.__name__, disabled.__doc__, disabled.__wrapped__) == ("local", "Doc.", local)
    assert disabled(2, y=3) == 5
    assert "disabled" in repr(disabled)
    dead = weakref.ref(local)
    disabled.itself = disabled
    del local, disabled
    gc.collect()
    assert dead() is None


def test_called_by_c_code_a_disabled_function_ends_the_watch():
    key = magneto.disable(lambda x: -x)

    @magneto.compile
    def outer(x):
        return x + sorted([1, 2, 3], key=key)[0]

    for _ in range(3):
        assert torch.equal(outer(torch.zeros(2)), torch.full((2,), 3.0))


# ---- run


def test_run_uses_what_is_compiled_and_captures_nothing():
    compiled = magneto.compile(lambda x: x * 2 + 1)
    only = magneto.run(compiled)
    x = torch.randn(2)
    assert torch.equal(only(x), x * 2 + 1)
    assert compiled.state() == "new"
    compiled(x)
    hits = magneto.counters["stats"]["hits"]
    assert torch.equal(only(x), x * 2 + 1)
    assert magneto.counters["stats"]["hits"] == hits + 1
    assert torch.equal(only(torch.ones(5)), torch.full((5,), 3.0))
    assert len(compiled.variants()) == 1
    compiled(torch.ones(5))
    assert len(compiled.variants()) == 2


def test_run_of_a_function_holds_for_what_it_calls_and_for_modules():
    inner = magneto.compile(lambda x: x * 2)
    caller = magneto.run(lambda x: inner(x) + 1)
    assert torch.equal(caller(torch.ones(2)), torch.full((2,), 3.0))
    assert inner.state() == "new"

    module = magneto.compile(nn.Linear(3, 2))
    only = magneto.run(module)
    x = torch.randn(1, 3)
    assert torch.equal(only(x), module._orig_mod(x))
    assert module._magneto_call.state() == "new"
    module(x)
    only(x)
    assert module._magneto_call.variants()[0]["hits"] == 1
    assert list(only.state_dict()) == ["weight", "bias"]

    @magneto.run()
    def decorated(x):
        return inner(x)

    decorated(torch.ones(3))
    assert inner.state() == "new"


# ---- graph_break


def test_graph_break_cuts_in_two_and_tells_the_message():
    @magneto.compile
    def broken(x):
        y = x.sin()
        magneto.graph_break("on purpose")
        return y.cos()

    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(broken(x), x.sin().cos())
    assert len(broken.variants()[0]["graphs"]) == 2
    (reason,) = broken.breaks()
    assert "magneto.graph_break): on purpose" in reason
    assert magneto.graph_break() is None
    assert magneto.graph_break(msg="x") is None
    with pytest.raises(magneto.UserError, match=r"(?s)one graph.*magneto\.graph_break\): on purpose"):
        magneto.compile(broken, fullgraph=True)(x)


# ---- rules


def test_what_torch_compiler_disables_is_left_out():
    @torch.compiler.disable
    def odd(x):
        seen.append(len(x))
        return x * len(seen)

    seen = []
    compiled = magneto.compile(lambda x: odd(x.sin()).cos())
    x = torch.randn(3)
    for i in range(1, 5):
        assert torch.equal(compiled(x), (x.sin() * i).cos())
    assert ops(compiled) == [2] and any("left to Python as a whole" in reason for reason in compiled.breaks())


def test_a_call_goes_on_behind_transforms_of_functions_and_seeds():
    def fn(x, w):
        slope = torch.func.grad(lambda w: (x.relu() @ w).pow(2).sum())(w)
        rows = torch.vmap(lambda row: row.dot(row))(slope * 2)
        torch.manual_seed(5)
        return rows + torch.rand(4)

    compiled = magneto.compile(fn)
    for _ in range(6):
        x, w = torch.randn(3, 4), torch.randn(4, 4)
        assert torch.equal(compiled(x, w), fn(x, w))
    newest = compiled.variants()[0]
    assert newest["hits"] >= 2 and len(newest["graphs"]) == 2


def test_disallow_in_graph_cuts_at_python_and_at_torch_functions():
    def odd(x):
        return x * 3

    assert magneto.disallow_in_graph(odd) is odd

    @magneto.compile
    def outer(x):
        return odd(x + 1) - 2

    x = torch.randn(3)
    for _ in range(3):
        assert torch.equal(outer(x), (x + 1) * 3 - 2)
    assert any("odd, which is disallowed" in reason for reason in outer.breaks())

    magneto.disallow_in_graph(torch.sub)
    try:
        other = magneto.compile(lambda x: torch.sub(x.sin(), 1).cos())
        for _ in range(3):
            assert torch.equal(other(x), (x.sin() - 1).cos())
        assert ops(other) == [2]
        assert len(other.breaks()) == 1
    finally:
        magneto._C.set_rule(torch.sub, "none")
    again = magneto.compile(lambda x: torch.sub(x.sin(), 1).cos())
    again(x)
    assert ops(again) == [3]


def test_a_disallowed_function_gets_numbers_that_are_carried_along():
    seen = []

    def note(n):
        seen.append(n)

    magneto.disallow_in_graph(note)

    class Counter:
        steps = 0

    counter = Counter()

    @magneto.compile
    def outer(x):
        counter.steps += 1
        note(counter.steps)
        return x + 1

    for _ in range(5):
        outer(torch.ones(2))
    assert seen == [1, 2, 3, 4, 5]


def test_forbid_in_graph_is_an_error_each_time_and_none_outside():
    def never(x):
        return x

    magneto.forbid_in_graph(never)

    @magneto.compile
    def outer(x):
        return never(x + 1)

    for _ in range(magneto.config.capture_attempts + magneto.config.recapture_limit + 2):
        with pytest.raises(magneto.UserError, match=r"never is forbidden.*test_keeping_out\.py:\d+ in .*outer"):
            outer(torch.ones(2))
    assert never(3) == 3
    with magneto.config.patch(enabled=False):
        assert torch.equal(outer(torch.ones(2)), torch.full((2,), 2.0))


def test_allow_in_graph_takes_the_tensor_work_and_leaves_the_python_alone():
    calls = []

    @magneto.allow_in_graph
    def opaque(x, factor):
        calls.append(magneto.is_compiling())
        return (x * factor).relu()

    @magneto.compile(fullgraph=True)
    def outer(x):
        return opaque(x + 1, 2.0) - 1

    x = torch.randn(4)
    for _ in range(3):
        assert torch.equal(outer(x), ((x + 1) * 2.0).relu() - 1)
    assert calls == [False]  # the list is not the program's business
    assert ops(outer) == [4]
    y = torch.randn(4)
    assert torch.equal(outer(y), ((y + 1) * 2.0).relu() - 1)


def test_assume_constant_result_bakes_in_what_came_out():
    state = {"value": 2}
    calls = []

    @magneto.assume_constant_result
    def setting():
        calls.append(1)
        return state["value"]

    @magneto.compile
    def outer(x):
        return x * setting()

    x = torch.ones(2)
    for _ in range(3):
        assert torch.equal(outer(x), x * 2)
    state["value"] = 5
    assert torch.equal(outer(x), x * 2)
    assert calls == [1]
    magneto.reset()
    assert torch.equal(outer(x), x * 5)


def test_assume_constant_result_with_a_tensor_and_with_a_config_object():
    weight = torch.full((2,), 3.0)

    class Config:
        def __init__(self):
            self.factor = 2.0

    config = Config()
    tensor = magneto.assume_constant_result(lambda: weight)
    settings = magneto.assume_constant_result(lambda: config)
    outer = magneto.compile(lambda x: x * tensor() + settings().factor)
    for _ in range(3):
        assert torch.equal(outer(torch.ones(2)), torch.full((2,), 5.0))
    assert outer.state() == "compiled"


def test_rules_take_lists_and_do_not_keep_functions_alive():
    def one(x):
        return x

    def two(x):
        return x

    assert magneto.disallow_in_graph([one, two]) == [one, two]
    dead = weakref.ref(one)
    del one
    gc.collect()
    assert dead() is None

    @functools.wraps(two)
    def wrapper(x):
        return two(x) + 1

    outer = magneto.compile(lambda x: wrapper(x * 2))
    for _ in range(3):
        assert torch.equal(outer(torch.ones(2)), torch.full((2,), 3.0))
    reasons = outer.breaks()  # the rule is not the wrapper's
    assert any("two, which is disallowed (" in reason and "wrapper" in reason for reason in reasons), reasons


# ---- stances


def test_force_eager_runs_eagerly_everywhere():
    compiled = magneto.compile(lambda x: x + 1)
    with magneto.set_stance("force_eager"):
        for _ in range(3):
            compiled(torch.ones(2))
        assert compiled.state() == "new"
        # fullgraph=True is about captures.
        with_cut = magneto.compile(lambda x: magneto.disable(abs)(x), fullgraph=True)
        assert torch.equal(with_cut(torch.ones(2)), torch.ones(2))
    compiled(torch.ones(2))
    assert compiled.state() == "compiled"


@pytest.mark.parametrize("stance", ["eager_on_recompile", "fail_on_recompile"])
def test_without_recompiles_what_fits_still_runs_compiled(stance):
    compiled = magneto.compile(lambda x: x + 1)
    compiled(torch.ones(2))
    magneto.set_stance(stance)
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    assert compiled.variants()[0]["hits"] == 1
    if stance == "eager_on_recompile":
        assert torch.equal(compiled(torch.ones(3)), torch.full((3,), 2.0))
    else:
        with pytest.raises(magneto.UserError, match=r"fail_on_recompile.*f32\[3\], was f32\[2\]"):
            compiled(torch.ones(3))
        with pytest.raises(magneto.UserError, match="not compiled before"):
            magneto.compile(lambda x: x + 2)(torch.ones(2))
    assert len(compiled.variants()) == 1
    magneto.set_stance("default")
    compiled(torch.ones(3))
    assert len(compiled.variants()) == 2


def test_a_stance_is_a_block_a_decorator_and_a_function():
    compiled = magneto.compile(lambda x: x + 1)

    def stance():
        now = magneto._C.set_stance("default")
        magneto._C.set_stance(now)
        return now

    @magneto.set_stance("force_eager")
    def eager(x):
        assert stance() == "force_eager"
        return compiled(x)

    assert stance() == "default"
    eager(torch.ones(2))
    assert (stance(), compiled.state()) == ("default", "new")
    with magneto.set_stance("force_eager"):
        with magneto.set_stance("eager_on_recompile"):
            assert stance() == "eager_on_recompile"
        assert stance() == "force_eager"
        with pytest.raises(KeyError), magneto.set_stance("default"):
            raise KeyError
        assert stance() == "force_eager"
    assert stance() == "default"
    again = magneto.set_stance("force_eager")
    assert stance() == "force_eager"
    magneto.set_stance()
    with again, again:
        assert stance() == "force_eager"


def test_a_stance_holds_in_other_threads():
    compiled = magneto.compile(lambda x: x + 1)
    with magneto.set_stance("force_eager"):
        thread = threading.Thread(target=lambda: compiled(torch.ones(2)))
        thread.start()
        thread.join()
    assert compiled.state() == "new"


# ---- fullgraph


def test_fullgraph_names_reason_file_line_code_and_a_way_out():
    marker = magneto.disable(lambda x: x)

    def bad(x):
        y = x + 1
        return marker(y)  # here

    with pytest.raises(magneto.UserError) as caught:
        magneto.compile(bad, fullgraph=True)(torch.ones(2))
    text = str(caught.value)
    line = bad.__code__.co_firstlineno + 2
    assert "which is disabled" in text
    assert f"test_keeping_out.py:{line} in " in text
    assert "return marker(y)  # here" in text
    assert "compile without fullgraph=True" in text


def test_fullgraph_lets_functions_without_tensor_work_and_errors_of_the_user_be():
    nothing = magneto.compile(lambda a, b: a + b, fullgraph=True)
    for _ in range(5):
        assert nothing(1, 2) == 3

    def fails(x, really):
        if really:
            raise KeyError("mine")
        return x + 1

    compiled = magneto.compile(fails, fullgraph=True)
    for _ in range(5):
        with pytest.raises(KeyError, match="mine"):
            compiled(torch.ones(2), True)
    assert torch.equal(compiled(torch.ones(2), False), torch.full((2,), 2.0))


def test_fullgraph_is_no_error_under_a_debugger():
    compiled = magneto.compile(lambda x: x + 1, fullgraph=True)
    sys.settrace(lambda *event: None)
    try:
        result = compiled(torch.ones(2))
    finally:
        sys.settrace(None)
    assert torch.equal(result, torch.full((2,), 2.0))


def test_rules_hold_where_sizes_and_numbers_are_open():
    @magneto.allow_in_graph
    def opaque(x, factor):
        return (x * factor).relu()

    outer = magneto.compile(lambda x, n: opaque(x + 1, n) - n)
    for size, n in ((2, 3), (3, 4), (5, 6), (7, 8), (2, 3), (5, 7)):
        x = torch.randn(size)
        assert torch.equal(outer(x, n), ((x + 1) * n).relu() - n)

    def never(x):
        return x

    magneto.forbid_in_graph(never)
    forbidden = magneto.compile(lambda x: never(x + 1), dynamic=True)
    for size in range(2, 2 + magneto.config.recapture_limit + 2):
        with pytest.raises(magneto.UserError, match="never is forbidden"):
            forbidden(torch.ones(size))


def test_functions_that_are_disabled_get_open_numbers_and_sizes():
    seen = []

    @magneto.disable
    def note(x, n):
        seen.append((tuple(x.shape), n))
        return x * n

    outer = magneto.compile(lambda x, n: note(x + n, n + 1) - 1)
    for size, n in ((2, 3), (3, 4), (5, 6), (7, 8)):
        x = torch.randn(size)
        assert torch.equal(outer(x, n), (x + n) * (n + 1) - 1)
    assert seen == [((size,), n + 1) for size, n in ((2, 3), (3, 4), (5, 6), (7, 8))]
