"""The frame hook: who is asked when, what the callback sees, guards, caches, skipping and run-only mode."""

import asyncio
import dis
import sys
import traceback
import types

import _core
import pytest

from core.frames import Callback, always, back_chain, call_replaced, guarded, hooked, replacing

pytestmark = pytest.mark.skipif(bool(_core.why_no_frame_hook()), reason=_core.why_no_frame_hook() or "hooks")

FRAME_GONE = "can be used only while the callback runs"


@pytest.fixture(autouse=True)
def hook_is_gone():
    assert not _core.hook_installed()
    yield
    assert _core.set_eval_frame(None) is None
    assert not _core.hook_installed()


def make():
    """Functions with code objects of their own."""

    def old(a, b=2):
        return ("old", a, b)

    def new(a, b):
        return ("new", a, b)

    # Code objects of one definition are shared: give each test its own.
    for function in (old, new):
        function.__code__ = function.__code__.replace(co_name=function.__name__)
    return old, new


def entries(function):
    return _core.debug_get_cache_entry_list(function.__code__)


# -- turning it on and off --------------------------------------------------------------------------------------------


def test_it_returns_what_was_set_before():
    def callback(*args):
        return None

    set_eval_frame = _core.set_eval_frame
    seen = [set_eval_frame(value) for value in (callback, False, False, None, None)]
    assert seen == [None, callback, False, False, None]


@pytest.mark.parametrize("wrong", [True, 0, 1, "callback", [], ()])
def test_anything_but_none_false_or_a_callable_is_refused(wrong):
    with pytest.raises(TypeError, match=r"None \(off\), False \(run only\) or a callable"):
        _core.set_eval_frame(wrong)


def test_the_hook_is_installed_while_it_is_on():
    _core.set_eval_frame(False)
    on = _core.hook_installed()
    _core.set_eval_frame(None)
    assert (on, _core.hook_installed()) == (True, False)


@pytest.mark.parametrize("name", ["reset_code", "skip_code", "debug_get_cache_entry_list"])
@pytest.mark.parametrize("wrong", [None, 1, lambda: 1])
def test_functions_of_code_objects_refuse_others(name, wrong):
    with pytest.raises(TypeError, match="expected a code object"):
        getattr(_core, name)(wrong)


# -- asking -----------------------------------------------------------------------------------------------------------


def test_the_callback_is_asked_once_and_then_the_cache():
    old, new = make()
    callback = replacing(old, new)
    with hooked(callback):
        results = [old(1), old(1, b=5)]
    assert results == [("new", 1, 2), ("new", 1, 5)]
    assert callback.asked == ["old"]
    assert old(1) == ("old", 1, 2)


def test_none_skips_the_code_from_then_on():
    old, _ = make()
    callback = Callback({old: lambda *args: None})
    with hooked(callback):
        results = [old(1), old(2)]
    assert results == [("old", 1, 2), ("old", 2, 2)]
    assert callback.asked == ["old"]


def test_callees_of_new_and_of_skipped_code_are_asked_too():
    old, new = make()

    def caller():
        return old(1)

    def other():
        return old(2)

    callback = Callback({old: guarded(new), caller: guarded(other), other: lambda *args: None})
    with hooked(callback):
        results = [caller(), other()]
    assert results == [("new", 2, 2), ("new", 2, 2)]
    assert callback.asked == ["caller", "old", "other"]


def test_the_callback_itself_runs_unhooked():
    old, new = make()
    inner, _ = make()
    states = []

    def answer(frame, cache_entry, frame_state):
        states.append(_core.set_eval_frame(None))
        inner(1)
        return guarded(new)

    callback = Callback({old: answer, inner: guarded(new)})
    with hooked(callback):
        assert old(1) == ("new", 1, 2)
        assert _core.set_eval_frame(callback) is callback
    assert states == [None]
    assert callback.asked == ["old"]


def test_what_the_callback_turns_on_ends_with_it():
    old, new = make()

    def answer(frame, cache_entry, frame_state):
        _core.set_eval_frame(False)
        return guarded(new)

    callback = Callback({old: answer})
    with hooked(callback):
        assert old(1) == ("new", 1, 2)
        assert _core.set_eval_frame(callback) is callback


@pytest.mark.parametrize(
    "wrong",
    [
        1,
        "code",
        make()[1].__code__,
        types.SimpleNamespace(code=make()[1].__code__),
        types.SimpleNamespace(code="x", check_fn=always),
        types.SimpleNamespace(code=make()[1].__code__, check_fn=1),
        types.SimpleNamespace(code=make()[1].__code__, check_fn=always, trace_annotation=5),
    ],
)
def test_any_other_answer_is_a_type_error(wrong):
    old, _ = make()
    with hooked(Callback({old: wrong})):
        with pytest.raises(TypeError, match="must return None or a guarded code"):
            old(1)
    assert not entries(old)


def test_an_error_of_the_callback_comes_out_of_the_call():
    old, new = make()
    answers = [ZeroDivisionError("in the callback"), guarded(new)]

    def answer(*args):
        found = answers.pop(0)
        if isinstance(found, Exception):
            raise found
        return found

    callback = Callback({old: answer})
    with hooked(callback):
        with pytest.raises(ZeroDivisionError, match="in the callback"):
            old([1])
        assert old(1) == ("new", 1, 2)


# -- the view of the frame --------------------------------------------------------------------------------------------


def test_the_view_shows_the_frame():
    free = "free"

    def old(a, *args, k=3, **kwargs):
        inner = lambda: (a, later)  # noqa: E731
        later = free
        return inner

    seen = {}

    def answer(frame, cache_entry, frame_state):
        for name in ("f_func", "f_globals", "f_builtins", "f_locals", "f_code", "f_lasti", "f_lineno", "closure"):
            seen[name] = getattr(frame, name)
        seen["f_back"], seen["frame_obj"] = frame.f_back, frame.frame_obj
        seen["rest"] = cache_entry, frame_state

    def caller():
        return old(1, 2, z=4)

    with hooked(Callback({old: answer})):
        caller()
    assert seen["f_func"] is old
    assert seen["f_globals"] is globals()
    assert seen["f_builtins"]["len"] is len
    assert seen["f_locals"] == {"a": 1, "args": (2,), "k": 3, "kwargs": {"z": 4}, "free": "free"}
    assert seen["f_code"] is old.__code__
    assert (seen["f_lasti"], seen["f_lineno"]) == (-1, old.__code__.co_firstlineno)
    assert seen["closure"] == old.__closure__
    assert seen["f_back"].f_code is caller.__code__
    assert seen["frame_obj"] is None
    assert seen["rest"] == (None, {})


def test_the_callers_can_be_seen():
    old, _ = make()
    chains = []

    def answer(frame, cache_entry, frame_state):
        chains.append(back_chain(frame.f_back))
        views, view = [], frame.previous
        while view:
            assert view.f_code is view.frame_obj.f_code
            assert view.f_func.__code__ is view.f_code
            assert view.f_back is view.frame_obj.f_back
            assert isinstance(view.closure, tuple)
            views.append((view.f_code.co_name, view.f_lineno, view.f_lasti, "chains" in view.f_locals))
            view = view.previous
        chains.append([name for name, *_ in views])
        caller_view = views[0]
        assert caller_view[1] > caller.__code__.co_firstlineno and caller_view[2] > 0

    def caller():
        return old(1)

    def expected():
        return back_chain(sys._getframe().f_back)

    with hooked(Callback({old: answer})):
        caller()
    assert chains[0] == chains[1] == ["caller"] + expected()


def test_a_view_raises_once_its_frame_is_gone():
    old, new = make()
    kept = []

    def answer(frame, cache_entry, frame_state):
        kept.extend([frame, frame.previous, frame.previous.previous])
        return guarded(new)

    with hooked(Callback({old: answer})):
        old(1)
    for view in kept:
        for name in ("f_func", "f_locals", "f_code", "f_lineno", "f_back", "previous", "frame_obj", "closure"):
            with pytest.raises(RuntimeError, match=FRAME_GONE):
                getattr(view, name)


def test_views_entries_and_states_cannot_be_made_by_hand():
    for kind in (_core.InterpreterFrame, _core.CacheEntry, _core.ExtraState):
        with pytest.raises(TypeError):
            kind()


def test_frame_state_belongs_to_the_code():
    old, new = make()
    seen = []

    def answer(frame, cache_entry, frame_state):
        seen.append(dict(frame_state))
        frame_state["count"] = frame_state.get("count", 0) + 1
        return guarded(new, lambda f_locals: False)

    callback = Callback({old: answer})
    for _ in range(3):
        with hooked(callback):
            old(1)
    _core.reset_code(old.__code__)
    with hooked(callback):
        old(1)
    assert seen == [{}, {"count": 1}, {"count": 2}, {}]


# -- guards -----------------------------------------------------------------------------------------------------------


def test_a_guard_gets_the_variables_and_decides():
    free = 1

    def old(a, *args):
        return "old", free

    def new(a, *args):
        return "new", free

    seen = []

    def check_fn(f_locals):
        seen.append(dict(f_locals))
        return f_locals["a"] == 1

    callback = Callback({old: guarded(new, check_fn)})
    with hooked(callback):
        old(1)
        free = 2
        results = [old(1, 5), old(2)]
    assert results == [("new", 2), ("new", 2)]
    assert seen == [{"a": 1, "args": (5,), "free": 2}, {"a": 2, "args": (), "free": 2}]
    assert callback.asked == ["old", "old"]


def test_guards_run_unhooked():
    old, new = make()
    inner, _ = make()
    callback = Callback({inner: guarded(new)})
    callback.add(old, guarded(new, lambda f_locals: inner(1) == ("old", 1, 2)))
    with hooked(callback):
        results = [old(1), old(1)]
    assert results == [("new", 1, 2)] * 2
    assert callback.asked == ["old"]


def test_a_truth_value_is_enough():
    old, new = make()
    with hooked(replacing(old, new, check_fn=lambda f_locals: [1])):
        assert [old(1), old(1)] == [("new", 1, 2)] * 2
    assert len(entries(old)) == 1


def test_a_guard_that_raises_is_reported_and_the_error_comes_out():
    old, new = make()
    calls = []

    def check_fn(f_locals):
        raise LookupError(f_locals["a"])

    callback = Callback({old: guarded(new, check_fn)})
    _core.set_guard_error_hook(lambda *args: calls.append(args))
    try:
        with hooked(callback):
            old(1)
            with pytest.raises(LookupError, match="7"):
                old(7)
    finally:
        _core.set_guard_error_hook(None)
    assert calls == [(check_fn, new.__code__, {"a": 7, "b": 2}, 0, True)]
    with hooked(callback):
        with pytest.raises(LookupError, match="8"):
            old(8)
    assert len(calls) == 1


def test_the_error_hook_is_told_the_place_of_the_guard():
    old, new = make()
    calls = []
    answers = iter([guarded(new, lambda f_locals: 1 / f_locals["a"] < 0) for _ in range(3)])
    callback = Callback({old: lambda *args: next(answers)})
    with hooked(callback):
        for _ in range(3):
            old(1)
    middle = entries(old)[1]
    middle.extra_state.invalidate(entries(old)[0])
    assert entries(old)[0] is middle
    failing = entries(old)[1].check_fn
    _core.set_guard_error_hook(
        lambda check_fn, code, f_locals, index, is_last: calls.append((check_fn, index, is_last))
    )
    try:
        middle.check_fn.__code__ = (lambda f_locals: False).__code__
        with hooked(callback), pytest.raises(ZeroDivisionError):
            old(0)
    finally:
        _core.set_guard_error_hook(None)
    assert calls == [(failing, 1, True)]


def test_an_error_of_the_error_hook_comes_out():
    old, new = make()

    def fails(*args):
        raise KeyError("in the hook")

    _core.set_guard_error_hook(fails)
    try:
        with hooked(replacing(old, new, check_fn=lambda f_locals: 1 / 0)):
            old(1)
            with pytest.raises(KeyError, match="in the hook") as raised:
                old(1)
        assert isinstance(raised.value.__context__, ZeroDivisionError)
    finally:
        _core.set_guard_error_hook(None)


@pytest.mark.parametrize("wrong", [1, "x", False])
def test_an_error_hook_must_be_callable(wrong):
    with pytest.raises(TypeError, match="a callable or None"):
        _core.set_guard_error_hook(wrong)


# -- the cache --------------------------------------------------------------------------------------------------------


def numbered(old):
    """A callback that makes an entry for each value of `a`, named by it."""
    made = []

    def answer(frame, cache_entry, frame_state):
        a = frame.f_locals["a"]
        made.append(cache_entry)
        space = {}
        exec(f"def new(a, b): return {a}", space)
        return guarded(space["new"], lambda f_locals: f_locals["a"] == a, compile_id=a, trace_annotation=f"n{a}")

    return Callback({old: answer}), made


def ids(function):
    return [entry.compile_id for entry in entries(function)]


def test_the_entry_that_hits_moves_to_the_front():
    old, _ = make()
    callback, heads = numbered(old)
    orders = []
    with hooked(callback):
        for a in (1, 2, 3, 1, 1, 2):
            assert old(a) == a
            orders.append(ids(old))
    assert orders == [[1], [2, 1], [3, 2, 1], [1, 3, 2], [1, 3, 2], [2, 1, 3]]
    assert [head and head.compile_id for head in heads] == [None, 1, 2]


def test_entries_say_what_they_are():
    old, new = make()
    with hooked(replacing(old, new, compile_id="0/0", trace_annotation="there")):
        old(1)
    (entry,) = entries(old)
    assert isinstance(entry, _core.CacheEntry)
    assert (entry.code, entry.check_fn, entry.next) == (new.__code__, always, None)
    assert (entry.compile_id, entry.trace_annotation) == ("0/0", "there")
    assert isinstance(entry.extra_state, _core.ExtraState)


def test_entries_lead_to_the_next_one():
    old, _ = make()
    callback, _ = numbered(old)
    with hooked(callback):
        for a in (1, 2, 3):
            old(a)
    first, second, third = entries(old)
    assert first.next is second and second.next is third and third.next is None
    _core.reset_code(old.__code__)
    assert first.next is None and first.extra_state is None


def test_a_check_function_knows_its_entry_while_that_lives():
    old, new = make()

    def check_fn(f_locals):
        return True

    with hooked(replacing(old, new, check_fn=check_fn)):
        old(1)
    (entry,) = entries(old)
    assert check_fn.cache_entry is entry and check_fn.extra_state is entry.extra_state
    _core.reset_code(old.__code__)
    assert check_fn.cache_entry is None and check_fn.extra_state is None


def test_an_invalid_entry_is_never_used_again():
    old, _ = make()
    callback, _ = numbered(old)
    with hooked(callback):
        for a in (1, 2, 3):
            old(a)
    entry = entries(old)[1]
    state = entry.extra_state
    state.invalidate(entry, "gone")
    assert ids(old) == [3, 1]
    assert (entry.check_fn, entry.code, entry.next, entry.extra_state) == ("gone", None, None, None)
    with hooked(callback):
        assert [old(2), old(1), old(3)] == [2, 1, 3]
    assert callback.asked == ["old"] * 4
    with pytest.raises(ValueError, match="not one of this code object"):
        state.invalidate(entry)
    for wrong in [(), (1,), (entry, 1, 2)]:
        with pytest.raises(TypeError, match="expects a _CacheEntry"):
            state.invalidate(*wrong)


def test_a_guard_may_invalidate_its_own_entry():
    old, new = make()

    def check_fn(f_locals):
        check_fn.extra_state.invalidate(check_fn.cache_entry)
        return True

    callback = replacing(old, new, check_fn=check_fn)
    with hooked(callback):
        assert [old(1), old(1), old(1)] == [("new", 1, 2)] * 3
    assert callback.asked == ["old"] * 3
    assert len(entries(old)) == 1


def test_a_guard_may_invalidate_its_own_entry_and_raise():
    old, new = make()
    calls = []

    def check_fn(f_locals):
        check_fn.extra_state.invalidate(check_fn.cache_entry)
        raise LookupError

    _core.set_guard_error_hook(lambda *args: calls.append(args))
    try:
        with hooked(replacing(old, new, check_fn=check_fn)):
            old(1)
            with pytest.raises(LookupError):
                old(1)
    finally:
        _core.set_guard_error_hook(None)
    assert calls == [(check_fn, new.__code__, {"a": 1, "b": 2}, 0, True)]


def test_a_check_function_that_refuses_to_know_its_entry():
    old, new = make()

    class Check:
        def __call__(self, f_locals):
            return True

        def __setattr__(self, name, value):
            raise self.error(name)

    for error in (AttributeError, TypeError):
        Check.error = error
        with hooked(replacing(old, new, check_fn=Check())):
            assert old(1) == ("new", 1, 2)
    assert len(entries(old)) == 2
    _core.reset_code(old.__code__)
    Check.error = LookupError
    with hooked(replacing(old, new, check_fn=Check())):
        with pytest.raises(LookupError, match="cache_entry"):
            old(1)
    assert not entries(old)


def test_a_guard_may_reset_the_code():
    old, new = make()
    actions = []

    def check_fn(f_locals):
        for action in actions:
            action(old.__code__)
        return False

    callback = replacing(old, new, check_fn=check_fn)
    with hooked(callback):
        for _ in range(3):
            old(1)
        assert len(entries(old)) == 3
        actions.append(_core.reset_code)
        old(1)
    assert len(entries(old)) == 1


class Backend:
    """A backend; callbacks around it say so."""

    def __init__(self, name):
        self.name = name

    def callback(self, frame, cache_entry, frame_state):
        return None


def test_entries_belong_to_their_backend():
    old, _ = make()
    asked = []

    def callback_of(backend):
        space = {}
        exec(f"def new(a, b): return {backend.name!r}", space)

        def callback(frame, cache_entry, frame_state):
            if frame.f_code is not old.__code__:
                return None
            asked.append(backend.name)
            return guarded(space["new"])

        callback._magneto_backend = backend
        return callback

    one, two = Backend("one"), Backend("two")
    results = []
    for backend in (one, two, one, two):
        with hooked(callback_of(backend)):
            results.append(old(1))
    assert results == ["one", "two", "one", "two"]
    assert asked == ["one", "two"]
    assert [entry.backend for entry in entries(old)] == [two, one]
    with hooked(False):
        assert old(1) == "two"


def test_a_callback_is_its_own_backend_and_equal_ones_are_the_same():
    old, new = make()

    class Maker:
        asked = 0

        def callback(self, frame, cache_entry, frame_state):
            if frame.f_code is not old.__code__:
                return None
            self.asked += 1
            return guarded(new)

    maker, other = Maker(), Maker()
    for owner in (maker, maker, other, maker):
        with hooked(owner.callback):
            old(1)
    assert (maker.asked, other.asked) == (1, 1)


def test_a_backend_that_leads_in_circles_is_refused():
    def callback(*args):
        return None

    callback._magneto_backend = callback
    with pytest.raises(ValueError, match="in circles"):
        _core.set_eval_frame(callback)


# -- run only, reset, skip --------------------------------------------------------------------------------------------


def test_run_only_uses_the_cache_and_asks_nobody():
    old, new = make()
    other, _ = make()
    with hooked(replacing(old, new, check_fn=lambda f_locals: f_locals["a"] == 1)):
        old(1)
    with hooked(False):
        results = [old(1), old(2), other(1)]
    assert results == [("new", 1, 2), ("old", 2, 2), ("old", 1, 2)]
    assert len(entries(old)) == 1


def test_reset_code_forgets_entries_and_skips():
    old, new = make()
    callback = replacing(old, new)
    for forget in (_core.reset_code, _core.skip_code, _core.reset_code):
        with hooked(callback):
            old(1)
        forget(old.__code__)
        assert not entries(old)
    with hooked(callback):
        assert old(1) == ("new", 1, 2)
    assert callback.asked == ["old"] * 3


def test_skipped_code_runs_as_it_is():
    old, new = make()
    callback = replacing(old, new)
    _core.skip_code(old.__code__)
    with hooked(callback):
        assert old(1) == ("old", 1, 2)
    assert not callback.asked


def test_a_callback_or_a_check_may_skip_the_code():
    old, new = make()

    def skip(answer):
        _core.skip_code(old.__code__)
        return answer

    callback = Callback({old: guarded(new, lambda f_locals: skip(True))})
    with hooked(callback):
        assert [old(1)[0] for _ in range(3)] == ["new", "old", "old"]
    assert callback.asked == ["old"] and not _core.debug_get_cache_entry_list(old.__code__)
    _core.reset_code(old.__code__)
    callback = Callback({old: lambda *_: skip(guarded(new))})
    with hooked(callback):
        assert [old(1)[0] for _ in range(3)] == ["old"] * 3
    assert callback.asked == ["old"] and not _core.debug_get_cache_entry_list(old.__code__)


@pytest.mark.parametrize("forget", ["reset_code", "skip_code", "invalidate"])
def test_code_can_be_forgotten_while_it_runs(forget):
    space = {"_core": _core, "forget": forget}
    exec("def old(n): return ['plain']", space)
    old = space["old"]
    space["old_code"] = old.__code__

    def callback(frame, cache_entry, frame_state):
        if frame.f_code is not old.__code__:
            return None
        text = """
def new(n):
    if n:
        return [n, *old(n - 1)]
    if forget == "invalidate":
        (entry,) = _core.debug_get_cache_entry_list(old_code)
        entry.extra_state.invalidate(entry)
    else:
        getattr(_core, forget)(old_code)
    return ["end"]
"""
        inner = {}
        exec(text, inner)
        return guarded(inner["new"], lambda f_locals: True)

    with hooked(callback):
        assert old(3) == [3, 2, 1, "end"]
    assert not entries(old)


# -- frames of every kind ---------------------------------------------------------------------------------------------


def test_generators_keep_their_code_and_are_never_captured_half_way():
    def old(n):
        for i in range(n):
            yield i

    def new(n):
        got = []
        try:
            for i in range(n):
                got.append((yield i * 10))
        except KeyError as error:
            yield ("caught", error.args[0], got)

    callback = replacing(old, new)
    with hooked(callback):
        started = old(3)
        assert next(started) == 0
        assert started.send("x") == 10
    assert started.throw(KeyError("late")) == ("caught", "late", ["x"])
    with hooked(callback):
        assert list(old(3)) == [0, 10, 20]
    plain = old(3)
    next(plain)
    with hooked(callback):
        assert list(plain) == [1, 2]
        thrown = old(3)
        next(thrown)
        assert thrown.throw(KeyError("now")) == ("caught", "now", [])
        thrown.close()
    assert callback.asked == ["old"]
    assert started.gi_code is new.__code__ and started.__name__ == "old"


def test_an_exception_thrown_into_a_generator_passes_through():
    def generator():
        try:
            yield 1
        finally:
            log.append("finally")

    log = []
    callback = Callback({generator: lambda *args: None})
    with hooked(callback):
        running = generator()
        next(running)
        with pytest.raises(ZeroDivisionError):
            running.throw(ZeroDivisionError())
        fresh = generator()
        with pytest.raises(ZeroDivisionError):
            fresh.throw(ZeroDivisionError())
    assert log == ["finally"]


def test_coroutines_and_async_generators():
    async def old(a):
        return ("old", a)

    async def new(a):
        await asyncio.sleep(0)
        return ("new", a)

    async def old_items(n):
        yield n

    async def new_items(n):
        for i in range(n):
            await asyncio.sleep(0)
            yield i

    async def main():
        return await old(1), [i async for i in old_items(3)]

    callback = Callback({old: guarded(new), old_items: guarded(new_items)})
    with hooked(callback):
        assert asyncio.run(main()) == (("new", 1), [0, 1, 2])


def test_exceptions_of_new_code_have_its_lines_and_the_callers():
    old, _ = make()

    def new(a, b):
        local = a
        return local / 0

    def caller():
        return old(1)

    for _ in range(2):
        with hooked(replacing(old, new)):
            with pytest.raises(ZeroDivisionError) as caught:
                caller()
        frames = traceback.extract_tb(caught.value.__traceback__)
        assert [(frame.name, frame.lineno) for frame in frames[1:]] == [
            ("caller", caller.__code__.co_firstlineno + 1),
            ("new", new.__code__.co_firstlineno + 2),
        ]
        assert caught.value.__traceback__.tb_next.tb_next.tb_frame.f_locals == {"a": 1, "b": 2, "local": 1}


def test_a_frame_with_new_code_can_be_looked_at_while_and_after_it_runs():
    old, _ = make()

    def new(a, b):
        frame = sys._getframe()
        extra = 5
        return frame, back_chain(frame), dict(locals()), extra

    def caller():
        return old(1)

    with hooked(replacing(old, new)):
        frame, chain, local_variables, _ = caller()
    assert frame.f_code is new.__code__
    assert chain[:2] == ["new", "caller"]
    assert {name: local_variables[name] for name in ("a", "b", "extra")} == {"a": 1, "b": 2, "extra": 5}
    assert (frame.f_locals["a"], frame.f_locals["extra"]) == (1, 5)


def test_class_bodies_and_modules_can_have_other_code():
    text = "class C:\n    x = {}\n    def f(self): return self.x, y\n"
    old_module, new_module = (compile(f"y = {n}\n" + text.format(n), "text", "exec") for n in (1, 2))
    (old_class, new_class) = (
        next(c for c in module.co_consts if isinstance(c, types.CodeType)) for module in (old_module, new_module)
    )
    seen = []

    def note(frame, cache_entry, frame_state):
        seen.append((sorted(frame.f_locals), frame.f_code.co_name))
        return guarded({old_module: new_module, old_class: new_class}[frame.f_code])

    space = {"start": 0}
    with hooked(Callback({old_class: note})):
        exec(old_module, space)
    assert space["C"]().f() == (2, 1)
    _core.reset_code(old_module)
    with hooked(Callback({old_module: note})):
        exec(old_module, space)
    assert space["C"]().f() == (2, 2)
    assert seen[0] == ([], "C")
    assert seen[1][1] == "<module>" and {"start", "C", "y"} <= set(seen[1][0])


def test_recursion_keeps_its_limit():
    def old(n):
        return old(n + 1)

    def new(n):
        return 1 + old(n + 1)

    with hooked(replacing(old, new)):
        with pytest.raises(RecursionError):
            old(0)
    assert call_replaced(old, lambda n: n, 5) == [5, 5]


def test_tracing_sees_the_new_code():
    old, new = make()
    names = []

    def tracer(frame, event, arg):
        names.append((frame.f_code.co_name, event))
        return tracer

    with hooked(replacing(old, new)):
        old(1)
        sys.settrace(tracer)
        old(1)
        sys.settrace(None)
    assert ("new", "call") in names and ("new", "return") in names
    assert not any(name == "old" for name, _ in names)


# -- small things -----------------------------------------------------------------------------------------------------


def test_unsupported_gives_back_its_second_argument():
    first, second = object(), object()
    assert _core.unsupported(first, second) is second
    with pytest.raises(TypeError, match="two objects"):
        _core.unsupported(1)


def test_opcode_caches_are_those_of_this_python():
    caches = _core.py_opcode_caches
    assert isinstance(caches, _core.VectorUInt8) and len(caches) == 256
    code = compile("a.b + c\nf(x)\nfor i in y: d.e = i", "text", "exec")
    plain = list(dis.get_instructions(code))
    offsets = [instruction.offset for instruction in plain] + [len(code.co_code)]
    for instruction, end in zip(plain, offsets[1:], strict=False):
        assert instruction.offset + 2 + 2 * caches[instruction.opcode] == end
    assert any(caches)
