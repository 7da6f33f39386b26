"""magneto.explain: what it reports, and that a person can read it."""

import re

import magneto
import pytest
import torch
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh")
KNOWN = torch.ones(3)


def work(x, factor=2.0):
    return torch.relu(x) * factor


@magneto.disable
def left_out(x):
    return x + 1


def calls_left_out(x):
    return left_out(x * 2)


def asks_which_one(x):
    return x * 2 if x is KNOWN else x + 1


def test_a_function_that_compiles():
    told = magneto.explain(work)(torch.ones(3), factor=3.0)
    assert told.state == "compiled"
    assert told.graph_count == 1
    assert told.op_count == 2
    assert len(told.graphs) == 1 and told.graphs[0]
    assert told.guard_count >= 1 and told.guards
    assert told.reasons == {} and told.recompiles == {}
    assert set(told.timings) == {"first_call", "second_call", "watch", "build"}
    assert all(value >= 0 for value in told.timings.values())
    text = str(told)
    assert text.startswith("work\n")
    assert "compiled: 1 graph, 2 operations" in text
    assert "guards are checked before each compiled call" in text and told.guards[0] in text
    assert "first call" in text and "second call" in text


def test_a_function_that_stays_eager_says_why_and_what_to_do():
    told = magneto.explain(asks_which_one)(torch.ones(3))
    assert told.state == "eager"
    assert (told.graph_count, told.op_count, told.graphs, told.guards) == (0, 0, [], [])
    assert len(told.reasons) == 1 and "whether an argument is an object" in next(iter(told.reasons))
    text = str(told)
    assert "not compiled because" in text and next(iter(told.reasons)) in text
    assert "with the same results" in text
    assert "Pass tensors, numbers, strings" in text


def test_a_function_that_calls_a_disabled_one_is_in_parts():
    told = magneto.explain(calls_left_out)(torch.ones(3))
    assert (told.state, told.reasons, told.graph_count) == ("compiled", {}, 1)
    (reason,) = told.breaks
    assert "left_out, which is disabled" in reason
    assert f"in several parts because {reason}" in str(told)


def test_calls_that_need_gradients_are_compiled_too():
    linear = nn.Linear(3, 2)
    with torch.enable_grad():
        told = magneto.explain(linear)(torch.ones(1, 3))
    assert (told.state, told.reasons) == ("compiled", {})
    assert "derives" in told.graphs[0]


def test_it_runs_the_function_twice_and_leaves_nothing_behind():
    runs = []

    def counts(x):
        runs.append(x)
        return x + 1

    magneto.explain(counts)(torch.ones(2))
    assert len(runs) == 2


def test_a_compiled_function_is_used_as_it_is():
    compiled = magneto.compile(work)
    compiled(torch.ones(2))
    told = magneto.explain(compiled)(torch.ones(5))
    assert told.graph_count == 2 == len(compiled.variants())
    assert sum(told.recompiles.values()) == 1
    assert "captured again because" in str(told)
    assert compiled.variants()[0]["hits"] == 1


def test_modules_and_compiled_modules():
    module = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)).eval()
    compiled = magneto.compile(module)
    for target in (module, compiled, magneto.compile(module, fullgraph=True)):
        told = magneto.explain(target)(torch.ones(1, 3))
        assert told.name == "Sequential"
        assert told.graph_count == 1 and told.op_count >= 3
    assert len(compiled._magneto_call.variants()) == 1


def test_methods_and_instances_of_compiled_classes():
    class Thing:
        @magneto.compile
        def fast(self, x):
            return x + 1

        def plain(self, x):
            return x + 1

    @magneto.compile
    class Module(nn.Module):
        def forward(self, x):
            return x + 1

    for target in (Thing().fast, Thing().plain, Module()):
        told = magneto.explain(target)(torch.ones(2))
        assert told.op_count == 1, str(told)


def test_fullgraph_is_explained_instead_of_raising():
    told = magneto.explain(magneto.compile(calls_left_out, fullgraph=True))(torch.ones(2))
    assert told.state == "eager"
    assert "disabled" in str(told)


def test_switched_off_is_given_as_the_reason():
    with magneto.config.patch(enabled=False):
        told = magneto.explain(work)(torch.ones(2))
    assert "not compiled because the setting magneto.config.enabled is False" in str(told)


def test_exceptions_of_the_function_surface():
    def fails(x):
        raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        magneto.explain(fails)(torch.ones(2))


def test_a_class_is_not_something_to_explain():
    with pytest.raises(magneto.UserError, match=r"explain expects a function, a method or an nn\.Module"):
        magneto.explain(nn.Linear)


@pytest.mark.parametrize(
    ("reason", "advice"),
    [
        ("a gradient that no recorded operator leads to (aten::mul)", r"under torch\.no_grad\(\)"),
        ("the call sets the attribute 'steps' of a Net", r"return the new value instead"),
        ("argument x is a tensor subclass MyTensor", r"plain torch\.Tensor"),
        (
            "the call runs sys._getframe, which looks at frames",
            r"Compile the functions that do the tensor work instead",
        ),
        ("argument x is a traceback, which is another one each time", r"lists, tuples or dicts of them"),
        ("something never heard of", r"Nothing is wrong with your program"),
    ],
)
def test_each_reason_comes_with_advice(reason, advice):
    times = {"first_call": 1.0, "second_call": 1.0, "watch": 0.0, "build": 0.0}
    told = magneto.Explanation("f", 0, 0, 0, [], [], {reason: 1}, {}, {}, times, "eager")
    lines = str(told).splitlines()
    place = lines.index(f"  not compiled because {reason}")
    assert re.search(rf"seen in 1 call\. .*{advice}", lines[place + 1])


def test_long_lists_of_guards_are_cut_in_the_text_only():
    times = {"first_call": 1.0, "second_call": 1.0, "watch": 0.5, "build": 0.5}
    guards = [f"x{i} matches the tensor it was" for i in range(20)]
    told = magneto.Explanation("f", 1, 1200, 1203, ["graph"], guards, {}, {}, {}, times, "compiled")
    text = str(told)
    assert "1 graph, 1,200 operations, 1,203 guards" in text
    assert "x7 matches" in text and "x8 matches" not in text and "and 12 more" in text


def test_programs_are_told_next_to_their_source_if_asked_for():
    def f(x):
        return x + 1

    told = magneto.explain(f)(torch.ones(2))
    assert len(told.programs) == 1
    assert "return x + 1" not in told.programs[0]
    with magneto.config.patch(listings=True):
        told = magneto.explain(f)(torch.ones(2))
    assert "    return x + 1" in told.programs[0]
    assert "tensor operation 0" in told.programs[0]
