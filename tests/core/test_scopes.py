"""Scoped functions, rules, stances and capture scopes, without torch: what runs, what is cut, what is let go."""

import gc
import sys
import weakref

import _core
import pytest


@pytest.fixture(autouse=True)
def without_tensors():
    before = _core.get_setting("without_tensors")
    _core.set_setting("without_tensors", True)
    _core.reset_counters()
    yield
    _core.set_stance("default")
    _core.set_setting("without_tensors", before)
    assert not _core.hook_installed()


def test_a_program_is_cut_at_a_scoped_function_and_goes_on():
    log = []

    def unknown(x, *, y=0):
        log.append((x, y))
        return x + y

    scoped = _core.ScopedFunction(unknown, "eager")

    def f(a, b):
        c = scoped(a * 2, y=b)
        return c + a

    compiled = _core.CompiledFunction(f, "f")
    assert [compiled(3, 4) for _ in range(4)] == [13] * 4
    assert log == [(6, 4)] * 4
    assert compiled.failures() == {}
    assert compiled.variants()[0]["hits"] == 3


def test_a_scoped_method_is_bound_and_cut_at():
    class Thing:
        k = 5

        def add(self, x):
            return x + self.k

        add = _core.ScopedFunction(add, "eager")

    thing = Thing()
    compiled = _core.CompiledFunction(lambda a: thing.add(a) * 2, "f")
    assert [compiled(3) for _ in range(3)] == [16] * 3
    thing.k = 6
    assert compiled(3) == 18
    assert len(compiled.variants()) == 1 and compiled.failures() == {}
    assert Thing.add.fn.__name__ == "add"
    assert thing.add.__func__ is Thing.add


def test_scopes_nest_as_they_should():
    inner = _core.CompiledFunction(lambda x: x + 1, "inner")
    calls = lambda x: inner(x) * 2  # noqa: E731
    eager, skip, run = (_core.ScopedFunction(calls, scope) for scope in ("eager", "skip", "run"))
    for _ in range(3):
        assert eager(1) == run(1) == 4
    assert inner.state() == "new"
    assert _core.ScopedFunction(skip, "eager")(1) == 4
    assert inner.state() == "new"
    outer = _core.CompiledFunction(lambda x: skip(x) + 1, "outer")
    assert [outer(1) for _ in range(4)] == [5] * 4
    assert inner.state() == outer.state() == "compiled"
    assert run(2) == 6 and len(inner.variants()) == 1


def test_scoped_functions_leak_nothing():
    def once():
        def f(x):
            return x

        scoped = _core.ScopedFunction(f, "eager")
        scoped.itself = scoped
        compiled = _core.CompiledFunction(lambda a: scoped(a) + 1, "f")
        assert [compiled(1) for _ in range(3)] == [2] * 3
        return weakref.ref(f)

    dead = [once() for _ in range(20)]
    gc.collect()
    assert [reference() for reference in dead] == [None] * 20
    value = object()
    scoped = _core.ScopedFunction(lambda x: x, "eager")
    before = sys.getrefcount(value)
    for _ in range(100):
        scoped(value)
    assert sys.getrefcount(value) == before


def test_rules_cut_forbid_and_bake():
    log = []

    def helper(x):
        log.append(x)
        return len(log)

    def f(a):
        return helper(a) + a

    _core.set_rule(helper, "disallow")
    compiled = _core.CompiledFunction(f, "f")
    assert [compiled(10) for _ in range(3)] == [11, 12, 13]
    assert compiled.failures() == {} and len(compiled.breaks()) == 1
    _core.set_rule(helper, "forbid")
    compiled = _core.CompiledFunction(f, "f")
    for _ in range(5):
        with pytest.raises(_core.UserError, match="helper is forbidden"):
            compiled(10)
    assert len(log) == 3 and compiled.state() == "new"
    _core.set_rule(helper, "constant")
    compiled = _core.CompiledFunction(f, "f")
    assert [compiled(10) for _ in range(3)] == [14] * 3
    assert len(log) == 4
    _core.set_rule(helper, "none")
    compiled = _core.CompiledFunction(f, "f")
    assert [compiled(10) for _ in range(3)] == [15, 16, 17]


def test_numbers_that_are_carried_along_reach_a_disallowed_python_function():
    class State:
        n = 0

    state, log = State(), []

    def note(n):
        log.append(n)

    _core.set_rule(note, "disallow")

    def f():
        state.n += 1
        note(state.n)
        return state.n

    compiled = _core.CompiledFunction(f, "f")
    assert [compiled() for _ in range(5)] == [1, 2, 3, 4, 5] == log


def test_a_graph_break_is_a_cut_with_its_message():
    def f(a):
        _core.graph_break(msg="because")
        return a + 1

    compiled = _core.CompiledFunction(f, "f")
    assert [compiled(1) for _ in range(3)] == [2] * 3
    (reason,) = compiled.breaks()
    assert "because" in reason and compiled.failures() == {}
    with pytest.raises(_core.UserError, match=r"(?s)one graph.*because.*_core\.graph_break\(msg=\"because\"\)"):
        _core.CompiledFunction(f, "f", True)(1)


def test_whole_functions_raise_before_they_run_once_it_is_known():
    runs = []
    unknown = _core.ScopedFunction(lambda: None, "eager")

    def f():
        runs.append(1)
        unknown()

    compiled = _core.CompiledFunction(f, "f", True)
    texts = set()
    for _ in range(6):
        with pytest.raises(_core.UserError) as caught:
            compiled()
        texts.add(str(caught.value))
    assert len(texts) == 1 and len(runs) == _core.get_setting("capture_attempts")
    assert compiled.whole


def helper(x):
    return x * 2


def work(x):
    return helper(x) + 1


def test_every_function_is_captured_in_a_scope_and_only_there():
    scope = _core.CaptureScope(False, None, None, None, [], [])
    outer = scope.enter()
    try:
        for _ in range(3):
            assert work(3) == 7
    finally:
        scope.leave(outer)
    stats = _core.counters()["stats"]
    assert stats["captures"] == 1 and stats["hits"] == 2
    assert work(3) == 7
    assert _core.counters()["stats"]["hits"] == 2


def test_a_scope_skips_files_and_keeps_some_of_their_folders():
    here = __file__
    for skipped, kept, captures in (([here], [], 0), ([here[:-3]], [here], 1), ([here], [here[:-3]], 0)):
        _core.reset_counters()
        scope = _core.CaptureScope(False, None, None, None, skipped, kept)
        outer = scope.enter()
        try:
            work(3)
        finally:
            scope.leave(outer)
        assert _core.counters()["stats"].get("captures", 0) == captures


def test_exceptions_recursion_and_generators_in_a_scope():
    def fails(n):
        if n == 0:
            raise KeyError(n)
        return fails(n - 1)

    def count(n):
        yield from range(n)

    def deep(n):
        return 0 if n == 0 else 1 + deep(n - 1)

    scope = _core.CaptureScope(False, None, None, None, [], [])
    outer = scope.enter()
    try:
        for _ in range(4):
            with pytest.raises(KeyError) as caught:
                fails(3)
            assert [entry.name for entry in caught.traceback][-4:] == ["fails"] * 4
            assert list(count(3)) == [0, 1, 2]
            assert deep(200) == 200
    finally:
        scope.leave(outer)


def test_functions_that_die_in_a_scope_are_forgotten_and_the_scope_may_die_first():
    scope = _core.CaptureScope(False, None, None, None, [], [])
    kept = []
    outer = scope.enter()
    try:
        for i in range(20):
            f = lambda x, i=i: x + i  # noqa: E731
            assert [f(1) for _ in range(3)] == [1 + i] * 3
            kept.append(f) if i % 2 else None
    finally:
        scope.leave(outer)
    dead = weakref.ref(kept[0])
    del scope, f
    kept.clear()
    gc.collect()
    assert dead() is None


def test_star_calls_of_unknown_functions_are_cut_at_where_the_stack_allows_it():
    log = []
    scoped = _core.ScopedFunction(lambda *args, **kwargs: log.append((args, kwargs)) or len(args), "eager")

    def wrapper(*args, **kwargs):
        return scoped(*args, **kwargs) + 1

    def f(a, b):
        c = wrapper(a * 2, b, key=a)
        d = scoped(*[a, c])
        return c + d

    compiled = _core.CompiledFunction(f, "f")
    assert [compiled(3, 4) for _ in range(4)] == [5] * 4
    assert log == [((6, 4), {"key": 3}), ((3, 3), {})] * 4
    if sys.version_info < (3, 13):
        assert compiled.failures() == {} and len(compiled.breaks()) == 2
        assert all("ScopedFunction, which is disabled" in reason for reason in compiled.breaks())
        assert compiled.variants()[0]["hits"] == 3


def test_star_calls_that_raise_leave_as_python_would():
    def picky(*args):
        if len(args) > 1:
            raise KeyError(args)
        return args

    scoped = _core.ScopedFunction(picky, "eager")
    things = [1]

    def f():
        try:
            return scoped(*things)
        except KeyError as error:
            return error.args[0]

    compiled = _core.CompiledFunction(f, "f")
    assert [compiled() for _ in range(3)] == [(1,)] * 3
    things.append(2)
    assert [compiled() for _ in range(3)] == [(1, 2)] * 3
