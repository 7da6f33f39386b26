"""Callbacks around compilations, guard_failures, graph_break_reasons, orig_code_map, compile_times, and marks."""

import gc
import types

import magneto
import pytest
import torch
from magneto import eval_frame
from torch import nn

pytestmark = pytest.mark.usefixtures("fresh")


def test_callbacks_are_called_around_each_compilation():
    told = []

    @magneto.on_compile_start
    def starts(event):
        told.append(("start", event.name, magneto.is_compiling()))

    @magneto.on_compile_end
    def ends(event):
        told.append(("end", event.name, magneto.is_compiling()))

    def f(x):
        return x + len(told)

    compiled = magneto.compile(f)
    try:
        compiled(torch.ones(2))
        name = f.__qualname__
        assert told == [("start", name, False), ("end", name, False)]
        told.clear()
        compiled(torch.ones(2, 2))
        assert [kind for kind, _, _ in told] == ["start", "end"]
        told.clear()

        def fails(x):
            raise KeyError

        with pytest.raises(KeyError):
            magneto.compile(fails)(torch.ones(2))
        assert [kind for kind, _, _ in told] == ["start", "end"]
    finally:
        magneto.remove_callback(starts)
        magneto.remove_callback(ends)
    told.clear()
    magneto.compile(f)(torch.ones(2))
    assert told == []


def test_a_callback_that_raises_at_the_start_stops_the_call():
    runs = []

    @magneto.on_compile_start
    def refuses(event):
        raise RuntimeError("not now")

    compiled = magneto.compile(lambda x: (runs.append(1), x + 1)[1])
    try:
        with pytest.raises(RuntimeError, match="not now"):
            compiled(torch.ones(2))
        assert runs == []
    finally:
        magneto.remove_callback(refuses)
    compiled(torch.ones(2))
    assert runs == [1]


def test_guard_failures_are_told_by_code_object():
    def f(x):
        return x + 1

    compiled, module = magneto.compile(f), magneto.compile(nn.Linear(2, 2))
    assert magneto.guard_failures[f.__code__] == []
    assert f.__code__ not in magneto.guard_failures
    compiled(torch.ones(2))
    compiled(torch.ones(3))
    (reason,) = magneto.guard_failures[f.__code__]
    assert "f32[3], was f32[2]" in reason
    module(torch.ones(1, 2))
    module(torch.ones(2, 2))
    assert set(magneto.guard_failures) == {f.__code__, nn.Linear.forward.__code__}
    assert len(magneto.guard_failures) == 2
    magneto.reset()
    assert len(magneto.guard_failures) == 0


def test_graph_break_reasons_have_the_place():
    def f(x):
        magneto.graph_break("here: (or there)")
        return x + 1

    assert list(magneto.graph_break_reasons) == []
    magneto.compile(f)(torch.ones(2))
    (found,) = magneto.graph_break_reasons
    assert found.reason.endswith("here: (or there)")
    (frame,) = found.user_stack
    assert (frame.filename, frame.lineno) == (__file__, f.__code__.co_firstlineno + 1)
    assert frame.line == 'magneto.graph_break("here: (or there)")'
    assert magneto.graph_break_reasons[0] == found
    assert magneto.counters["unknown_call"]["magneto._C.graph_break"] == 1


def test_original_code_is_known_for_code_that_the_frame_hook_put_in():
    def f():
        return 1

    new = (lambda: 2).__code__
    gc.collect()
    before = [id(code) for code in magneto.orig_code_map]  # other tests may have left some

    def callback(frame, entry, state):
        return eval_frame.GuardedCode(new, lambda f_locals: True) if frame.f_code is f.__code__ else None

    eval_frame.set_eval_frame(callback)
    try:
        assert f() == 2
    finally:
        eval_frame.set_eval_frame(None)
    assert magneto.orig_code_map[new] is f.__code__
    assert sorted(id(code) for code in magneto.orig_code_map) == sorted([*before, id(new)])
    assert len(magneto.orig_code_map) == len(before) + 1
    same = new.replace()
    assert isinstance(same, types.CodeType)
    with pytest.raises(KeyError):
        magneto.orig_code_map[same]
    eval_frame.reset_code(f.__code__)
    assert sorted(id(code) for code in magneto.orig_code_map) == sorted(before)


def test_compile_times_by_phase_and_in_sum():
    magneto.compile(lambda x: x + 1, backend="eager")(torch.ones(2))
    magneto.compile(lambda x: x + 2)(torch.ones(2))
    names, values = magneto.compile_times(repr="csv")
    assert set(names) == {"watch", "build", "backend"}
    counts = {name: len(value.split(", ")) for name, value in zip(names, values, strict=True)}
    assert counts == {"watch": 2, "build": 2, "backend": 1}
    _, sums = magneto.compile_times(repr="csv", aggregate=True)
    for single, total in zip(values, sums, strict=True):
        assert abs(sum(map(float, single.split(", "))) - float(total)) < 1e-5
        assert float(total) > 0
    text = magneto.compile_times()
    assert all(name in text for name in names) and "seconds" in text
    magneto.reset()
    assert magneto.compile_times(repr="csv") == ([], [])


def test_reset_code_caches_keeps_the_counters():
    compiled = magneto.compile(lambda x: x + 1)
    compiled(torch.ones(2))
    magneto.reset_code_caches()
    assert compiled.state() == "new"
    assert magneto.counters["stats"]["captures"] == 1
    compiled(torch.ones(2))
    assert magneto.counters["stats"]["captures"] == 2


def test_marks_are_kept_on_the_tensor():
    t = torch.zeros(2, 3, 4)
    magneto.mark_dynamic(t, 0)
    magneto.mark_dynamic(t, [-1], min=2, max=64)
    assert t._magneto_dynamic == {0: (None, None), 2: (2, 64)}
    magneto.maybe_mark_dynamic(t, (1, 2))
    magneto.maybe_mark_dynamic(t, 1)
    assert t._magneto_maybe_dynamic == {1, 2}
    magneto.mark_static(t, 0)
    assert t._magneto_static == {0}
    magneto.mark_static(t)
    assert t._magneto_static == {0, 1, 2}
    magneto.mark_static_address(t, guard=True)
    assert t._magneto_static_address is True
    compiled = magneto.compile(lambda x: x + 1)
    for _ in range(2):
        assert torch.equal(compiled(t), t + 1)


def test_settings_are_patched_by_name_by_dict_and_by_pair():
    config = magneto.config
    before = config.cache_limit
    for patch in (
        config.patch(cache_limit=3),
        config.patch("cache_limit", 3),
        config.patch({"cache_limit": 3}),
    ):
        with patch:
            assert config.cache_limit == 3
        assert config.cache_limit == before

    @config.patch({"cache_limit": 3}, graph_limit=5)
    def decorated():
        return config.cache_limit, config.graph_limit

    assert decorated() == (3, 5)
    assert config.cache_limit == before
