"""The frame hook over time: leaks by count, threads, forks, exits, and objects that die when they should."""

import contextlib
import gc
import os
import random
import threading
import time
import weakref

import _core
import pytest

from core import worlds
from core.frames import Callback, guarded, hooked, replacing, run_alone

pytestmark = pytest.mark.skipif(bool(_core.why_no_frame_hook()), reason=_core.why_no_frame_hook() or "hooks")


def make(name="old"):
    space = {}
    exec(f"def {name}(a, b=2): return ('{name}', a, b)", space)
    return space[name]


# -- leaks ------------------------------------------------------------------------------------------------------------


def test_a_hundred_thousand_cached_calls_leave_nothing():
    old, new = make(), make("new")
    missing = make("missing")
    _core.skip_code(missing.__code__)

    def generator(a):
        yield a

    def cell(a):
        return (lambda: a)()

    def call():
        for i in range(10):
            old([i])
            cell([i])
            list(generator([i]))
            missing([i])

    answers = {old: guarded(new), generator: guarded(lambda a: iter([a])), cell: guarded(lambda a: [a])}
    with hooked(Callback(answers)):
        assert worlds.blocks_after(call, 10_000) < 50


def test_asking_again_and_again_leaves_nothing():
    old, new = make(), make("new")
    kept = []

    def answer(frame, cache_entry, frame_state):
        kept[:] = [frame, frame.previous, frame.f_locals, frame_state]
        frame_state["list"] = [1]
        return guarded(new, lambda f_locals: False)

    def call():
        for _ in range(3):
            old([1])
        _core.reset_code(old.__code__)

    with hooked(Callback({old: answer})):
        assert worlds.blocks_after(call, 3_000) < 100


def test_errors_leave_nothing():
    old, new = make(), make("new")

    def other(z):
        return z

    def call():
        for wrong in (5, guarded(other), guarded(new, lambda f_locals: 1 / 0)):
            with hooked(Callback({old: wrong})):
                for _ in range(2):
                    with contextlib.suppress(TypeError, ValueError, ZeroDivisionError):
                        old([1])
            _core.reset_code(old.__code__)

    assert worlds.blocks_after(call, 1_000) < 300


def test_turning_it_on_and_off_leaves_nothing():
    def call():
        _core.set_eval_frame(lambda *args: None)
        _core.set_eval_frame(False)
        _core.set_eval_frame(None)

    assert worlds.blocks_after(call, 20_000) < 50


def test_threads_leave_nothing():
    def work():
        _core.set_eval_frame(lambda *args: None)

    def call():
        thread = threading.Thread(target=work)
        thread.start()
        thread.join()

    assert worlds.blocks_after(call, 500) < 100


# -- what dies when ---------------------------------------------------------------------------------------------------


class Box:
    pass


def test_arguments_die_with_the_frame():
    def old(box):
        return None

    def new(box):
        more = [box, lambda: box]  # noqa: F841
        return weakref.ref(box)

    def cell(box):
        yield weakref.ref(box)

    for code in (new, cell):
        _core.reset_code(old.__code__)
        with hooked(replacing(old, code)):
            for _ in range(3):
                made = old(Box())
                dies = made if code is new else next(made)
                del made
                assert dies() is None


def test_arguments_of_a_frame_that_is_not_run_die():
    old = make()
    box = Box()
    dies = weakref.ref(box)
    with hooked(Callback({old: 5})):
        with contextlib.suppress(TypeError):
            old(box)
    del box
    assert dies() is None


def test_entries_die_with_their_code():
    def check_fn(f_locals):
        return box is not None

    box = Box()
    old, new = make(), make("new")
    with hooked(replacing(old, new, check_fn=check_fn)):
        old(1)
    (entry,) = _core.debug_get_cache_entry_list(old.__code__)
    state = entry.extra_state
    refs = [weakref.ref(check_fn), weakref.ref(box)]
    del check_fn, old, entry, state, box
    gc.collect()
    assert [ref() for ref in refs] == [None, None]


def test_an_entry_outlives_its_code_in_good_order():
    old, new = make(), make("new")
    with hooked(replacing(old, new)):
        old(1)
    (entry,) = _core.debug_get_cache_entry_list(old.__code__)
    state = entry.extra_state
    del old
    gc.collect()
    assert entry.code is new.__code__
    assert (entry.next, entry.extra_state) == (None, None)
    with pytest.raises(ValueError):
        state.invalidate(entry)


def test_a_cycle_through_a_check_function_is_collected_after_a_reset():
    old, new = make(), make("new")

    def check_fn(f_locals):
        return old is not None

    with hooked(replacing(old, new, check_fn=check_fn)):
        old(1)
    dies = weakref.ref(check_fn)
    _core.reset_code(old.__code__)
    del check_fn, old
    gc.collect()
    assert dies() is None


# -- threads ----------------------------------------------------------------------------------------------------------


def in_thread(work):
    results = []
    thread = threading.Thread(target=lambda: results.append(work()))
    thread.start()
    thread.join()
    return results[0]


def test_the_state_is_of_the_thread():
    old, new = make(), make("new")
    callback = replacing(old, new)
    with hooked(callback):
        assert in_thread(lambda: (_core.set_eval_frame(None), old(1))) == (None, ("old", 1, 2))
        assert old(1) == ("new", 1, 2)
    assert not _core.hook_installed()


def test_one_thread_turning_it_off_leaves_it_on_for_another():
    old, new = make(), make("new")
    with hooked(replacing(old, new)):
        in_thread(lambda: (_core.set_eval_frame(False), _core.set_eval_frame(None)))
        assert _core.hook_installed()
        assert old(1) == ("new", 1, 2)


def test_a_thread_that_ends_while_it_is_on_turns_it_off():
    old = make()
    in_thread(lambda: _core.set_eval_frame(Callback({old: 5})))
    assert not _core.hook_installed()
    assert old(1) == ("old", 1, 2)


def stress(seconds):
    olds, news = [make(f"old{i}") for i in range(4)], [make(f"new{i}") for i in range(4)]
    end = time.monotonic() + seconds
    counts = []

    def work(seed):
        chance = random.Random(seed)
        answers = {old: guarded(new, lambda f_locals: f_locals["b"] != 3) for old, new in zip(olds, news, strict=True)}
        callback = Callback(answers)
        count = 0
        while count < 20 or time.monotonic() < end:
            count += 1
            which = chance.randrange(4)
            before = _core.set_eval_frame(chance.choice([None, False, callback, callback]))
            result = olds[which](count, chance.randrange(5))
            assert result[0] in (f"old{which}", f"new{which}") and result[1] == count, result
            for entry in _core.debug_get_cache_entry_list(olds[which].__code__):
                assert entry.code in (news[which].__code__, None)
            if chance.random() < 0.05:
                _core.reset_code(olds[which].__code__)
            if chance.random() < 0.02:
                _core.skip_code(olds[which].__code__)
            if chance.random() < 0.5:
                _core.set_eval_frame(before)
        counts.append(count)

    with worlds.many_switches():
        worlds.in_threads(work, 8)
    assert len(counts) == 8
    assert not _core.hook_installed()


def test_eight_threads_turn_it_on_and_off(request):
    stress(30 if request.config.getoption("--full") else 2)


def test_what_a_finaliser_turns_on_in_a_callback_can_be_turned_off():
    class Late:
        def __call__(self, *_):
            return None

        def __del__(self):
            _core.set_eval_frame(False)

    old = make()
    with hooked(Callback({old: lambda *_: _core.set_eval_frame(Late()) and None})):
        old(1)
    _core.set_eval_frame(None)
    assert not _core.hook_installed()


def test_a_view_that_is_kept_keeps_no_frame():
    class Box:
        pass

    kept = []

    def keep(frame, *_):
        kept.extend([frame, frame.previous, frame.previous.previous])

    old = make()

    def caller():
        box = Box()
        old(1)
        return weakref.ref(box)

    with hooked(Callback({old: keep})):
        box = caller()
    gc.collect()
    assert kept and box() is None


# -- processes --------------------------------------------------------------------------------------------------------


FUNCTIONS = """
class Guarded:
    trace_annotation = "here"
    def __init__(self, new): self.code, self.check_fn = new.__code__, lambda f_locals: True
def old(a): return "old"
def new(a): return "new"
asked = []
def callback(frame, cache_entry, frame_state):
    asked.append(frame.f_code.co_name)
    return Guarded(new) if frame.f_code is old.__code__ else None
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_forked_child_goes_on_and_forgets_the_other_threads():
    out = run_alone(
        FUNCTIONS
        + """
import os, threading, warnings
warnings.simplefilter("ignore")
on, go = threading.Event(), threading.Event()
def other():
    _core.set_eval_frame(callback)
    on.set()
    go.wait()
thread = threading.Thread(target=other)
thread.start()
on.wait()
child = os.fork()
if not child:
    # The other thread's hook went with it.
    good = not _core.hook_installed()
    _core.set_eval_frame(callback)
    good = good and old(1) == "new" and _core.hook_installed()
    _core.set_eval_frame(None)
    os._exit(0 if good and not _core.hook_installed() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
go.set()
thread.join()
_core.set_eval_frame(callback)
child = os.fork()
if not child:
    good = _core.hook_installed() and old(1) == "new" and _core.set_eval_frame(None) is callback
    os._exit(0 if good and not _core.hook_installed() else 1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
assert old(1) == "new"
_core.set_eval_frame(None)
print("ok")
"""
    )
    assert out == "ok"


@pytest.mark.skipif(not hasattr(os, "fork"), reason="there is no fork")
def test_a_fork_while_another_thread_is_in_its_callback():
    out = run_alone(
        FUNCTIONS
        + """
import os, threading, warnings
warnings.simplefilter("ignore")
inside, go = threading.Event(), threading.Event()
def wait(frame, cache_entry, frame_state):
    if frame.f_code is old.__code__:
        inside.set()
        go.wait()
thread = threading.Thread(target=lambda: (_core.set_eval_frame(wait), old(1)))
thread.start()
inside.wait()
child = os.fork()
if not child:
    was = _core.hook_installed()
    _core.set_eval_frame(False)
    _core.set_eval_frame(None)
    os._exit(was or _core.hook_installed())
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
go.set()
thread.join()
print("ok")
"""
    )
    assert out == "ok"


@pytest.mark.parametrize("mode", ["callback", "False"])
def test_the_interpreter_exits_cleanly_with_the_hook_on(mode):
    out = run_alone(
        FUNCTIONS
        + f"""
class Late:
    def __del__(self): helper()
def helper(): pass
late, kept = Late(), []
kept.append(kept)
def keep(frame, cache_entry, frame_state):
    kept.append((frame, cache_entry, frame_state))
    return callback(frame, cache_entry, frame_state)
_core.set_eval_frame(keep)
_core.set_eval_frame({mode} if {mode!r} == "False" else keep)
print(old(1), flush=True)
"""
    )
    assert out == ("new" if mode == "callback" else "old")


def test_the_interpreter_exits_cleanly_while_threads_are_hooked():
    out = run_alone(
        FUNCTIONS
        + """
import threading, time
def spin():
    _core.set_eval_frame(callback)
    while True:
        old(1)
for _ in range(3):
    threading.Thread(target=spin, daemon=True).start()
time.sleep(0.3)
print("ok", flush=True)
"""
    )
    assert out == "ok"


def test_deep_recursion_under_the_hook():
    out = run_alone(
        FUNCTIONS
        + """
def down(n): return n and 1 + down(n - 1)
def faster(n): return n and 1 + down(n - 1)
def replace(frame, cache_entry, frame_state):
    return Guarded(faster) if frame.f_code is down.__code__ else None
_core.set_eval_frame(replace)
print(down(600))
_core.set_eval_frame(None)
"""
    )
    assert out == "600"  # 3.12 allows 750 evaluators on the C stack


@pytest.mark.parametrize("where", ["here", "in a thread"])
def test_recursion_that_takes_all_of_the_c_stack_is_an_error_that_can_be_handled(where):
    out = run_alone(
        FUNCTIONS
        + f"""
import threading
sys.setrecursionlimit(1_000_000)
def down(n): return n and 1 + down(n - 1)
def story():
    _core.set_eval_frame(callback)
    for n in (100, 100_000, 100_000, 100):
        try: print(down(n))
        except RecursionError: print("too deep")
    _core.set_eval_frame(None)
if {where == "here"}: story()
else:
    thread = threading.Thread(target=story)
    thread.start()
    thread.join()
"""
    )
    assert out.split("\n") == ["100", "too deep", "too deep", "100"]
