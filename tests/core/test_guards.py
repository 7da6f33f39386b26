"""After any change to what a compiled call has read, the answer is plain Python's; other changes cost nothing."""

import pytest

from core import worlds
from core.changes import CHANGES

pytestmark = worlds.needs_capture


def both(source: str) -> tuple[worlds.World, worlds.World]:
    return worlds.World(source, compiled=False), worlds.World(source, compiled=True)


def play(case, compiled):
    """The answers before the change, after it, and after undoing it: two calls each."""
    world = worlds.World(case.source, compiled)
    answers = [(world.call(case.args), world.call(case.args))]
    if compiled:
        check_compiled(world.compiled, case)
    for step in (case.change, case.undo):
        world.run(step)
        answers.append((world.call(case.args), world.call(case.args)))
    return answers


@pytest.mark.parametrize("name", CHANGES)
def test_the_answer_follows_the_change(name):
    case = CHANGES[name]
    # One world after the other: some of them share what belongs to the process.
    expected, actual = play(case, compiled=False), play(case, compiled=True)
    assert expected[0] != expected[1], "the change does not matter: this proves nothing"
    assert expected[0] == expected[2]
    for when, was, should_be in zip(("before", "after the change", "after undoing it"), actual, expected, strict=True):
        assert was == should_be, when


def check_compiled(compiled, case):
    if case.eager is None:
        return
    if case.eager:
        assert not worlds.is_whole(compiled)
        return
    assert len(compiled.variants()) == 1, compiled.failures()
    assert compiled.variants()[0]["hits"] == 1
    assert not compiled.failures()


@pytest.mark.parametrize("name", [name for name, case in CHANGES.items() if case.eager is False])
def test_an_unrelated_change_does_not_capture_again(name):
    case = CHANGES[name]
    ours = worlds.World(case.source, compiled=True)
    first = ours.call(case.args)
    ours.run(case.unrelated)
    assert ours.call(case.args) == first
    assert ours.compiled.misses() == {}
    assert [variant["hits"] for variant in ours.compiled.variants()] == [1]


def test_guards_are_described_for_people():
    _, ours = both("G = [1]\nclass C: x = 1\no = C()\ndef f(a, b): return o.x + G[0] + a + b[0]")
    ours.call("1, [2]")
    guards = ours.compiled.variants()[0]["guards"]
    assert any("args[0] == 1" in line for line in guards)
    assert any("args[1]" in line for line in guards)
    assert any("lists" in line for line in guards)


def test_a_miss_says_what_was_changed():
    _, ours = both("G = 1\ndef f(): return 'x' * G")
    ours.call()
    ours.run("G = 2")
    ours.call()
    assert ours.compiled.misses() == {"`G` is 2, was 1": 1}


def test_what_is_only_carried_along_is_not_guarded():
    _, ours = both("G = 1\ndef f(): return G + 1")
    for value in (1, 5, 2.5, 7, "text"):
        ours.run(f"G = {value!r}")
        expected = "raised" if isinstance(value, str) else "returned"
        assert ours.call()[0] == expected
    assert ours.compiled.misses() == {"a value that the call computes with or asks from a tensor is another one": 2}


def test_the_variant_that_fits_is_found_again():
    _, ours = both("def f(x): return x * 2")
    for value in ("a", "b", "c", "a", "b", "c"):
        assert ours.call(repr(value)) == ("returned", ("str", repr(value * 2)))
    assert len(ours.compiled.variants()) == 3
    assert all(variant["hits"] == 1 for variant in ours.compiled.variants())


def test_the_least_recently_used_variant_is_dropped():
    with worlds.settings(cache_limit=2):
        _, ours = both("def f(x): return x * 2")
        for value in ("a", "b", "a", "c"):
            ours.call(repr(value))
        assert len(ours.compiled.variants()) == 2
        ours.call("'a'")
        assert sum(variant["hits"] for variant in ours.compiled.variants()) == 2
        ours.call("'b'")
        assert sum(variant["hits"] for variant in ours.compiled.variants()) <= 2


def test_a_number_that_changes_is_open_from_the_second_capture_on():
    plain, ours = both("def f(x, k=2): return [x * k, *(x, 1)], x > 3, -x")
    for value in (1, 2, 9, -4, 10**30, 5, 2.5, 0.5, 7.25, True, 3):
        assert ours.call(repr(value)) == plain.call(repr(value))
    assert len(ours.compiled.variants()) == 5  # for 1, for integers, for 2.5, for floats, for True


def test_too_many_captures_end_in_eager_calls():
    with worlds.settings(recapture_limit=5, cache_limit=2):
        plain, ours = both("def f(x): return x * 2")
        for value in range(20):
            assert ours.call(str(value)) == plain.call(str(value))
        assert ours.compiled.failures() == {}


def test_reset_forgets_everything():
    _, ours = both("G = 1\ndef f(): return G")
    ours.call()
    ours.run("G = 2")
    ours.call()
    ours.compiled.reset()
    assert (ours.compiled.variants(), ours.compiled.misses(), ours.compiled.state()) == ([], {}, "new")
    assert ours.call() == ("returned", ("int", "2"))


def test_guard_time_is_asked_for_what_fits_only():
    _, ours = both("def f(x): return x * 2")
    ours.call("1")
    assert ours.compiled.guard_ns(10, 1) > 0
    with pytest.raises(ValueError, match="no compiled variant fits"):
        ours.compiled.guard_ns(10, 2)


def test_a_change_made_by_the_call_itself_is_no_reason_not_to_compile():
    plain, ours = both("G = [1]\ndef g(): G.append(1)\ndef f():\n  n = len(G)\n  g()\n  return n")
    for _ in range(4):
        assert ours.call() == plain.call()
    assert len(ours.compiled.variants()) == 4
    for world in (plain, ours):
        world.run("del G[1:]")
    for _ in range(4):
        assert ours.call() == plain.call()
    assert [variant["hits"] for variant in ours.compiled.variants()] == [1] * 4


@pytest.mark.parametrize("wrap", ["(t,)", "functools.partial(len, t)", "(t, [])"])
def test_values_nested_without_end_do_not_overflow_the_stack(wrap):
    _, ours = both(
        f"import functools\nt = ()\nfor _ in range(100_000): t = {wrap}\ndef f(): return t is None",
    )
    for _ in range(3):
        assert ours.call() == ("returned", ("bool", "False"))


def test_attributes_are_guarded_where_the_dict_of_an_object_takes_the_place_of_one_that_the_call_has_dropped():
    source = (
        "class C: pass\no = C()\no.n = 1\ndef h(x): return x\ndef g(**k): return h(**k)\ndef f(): return g(x=3), o.n"
    )
    plain, ours = both(source)
    for edit in ("pass", "o.n = 2.5", "o.n = 4"):
        for world in (plain, ours):
            world.run(edit)
        assert ours.call() == plain.call()
