"""A frame evaluated with code whose variables are laid out differently: carried over by name, whatever they are."""

import gc
import sys
import types

import _core
import pytest

from core import worlds
from core.frames import Callback, call_replaced, guarded, hooked, replacing

pytestmark = pytest.mark.skipif(bool(_core.why_no_frame_hook()), reason=_core.why_no_frame_hook() or "hooks")

CASES = {}


def case(make):
    """`make` gives (old function, new function, arguments, keywords, the result that is expected)."""
    CASES[make.__name__] = make
    return make


@case
def more_locals():
    def old(a, b):
        return a

    def new(a, b):
        c, d, e = a + 1, b + 1, a + b
        return [c, d, e, a, b]

    return old, new, (1, 2), {}, [2, 3, 3, 1, 2]


@case
def fewer_locals():
    def old(a, b):
        c, d, e = a + 1, b + 1, a + b
        return [c, d, e]

    def new(a):
        return a

    return old, new, (1, 2), {}, 1


@case
def another_order():
    def old(a, b, c):
        pass

    def new(c, a):
        b = "mine"
        return a, b, c

    return old, new, (1, 2, 3), {}, (1, "mine", 3)


@case
def variadic():
    def old(a, *args, k=5, **kwargs):
        pass

    def new(kwargs, k, *args):
        return args, k, kwargs

    return old, new, (1, 2, 3), {"z": 1}, ((2, 3), 5, {"z": 1})


@case
def keyword_only():
    def old(a, *, first=1, second):
        pass

    def new(*, second, a, first):
        return a, first, second

    return old, new, ("a",), {"second": 2}, ("a", 1, 2)


@case
def an_argument_becomes_a_cell():
    def old(a, b):
        return a

    def new(a, b):
        def add():
            nonlocal a
            a += b
            return a

        return add(), add(), a

    return old, new, (1, 10), {}, (11, 21, 21)


@case
def a_cell_becomes_a_plain_argument():
    def old(a, b):
        return lambda: (a, b)

    def new(a, b):
        return a, b

    return old, new, (1, 10), {}, (1, 10)


@case
def a_local_cell_becomes_a_local():
    def old(a):
        x = a
        return lambda: x

    def new(a):
        x = a + 1
        return x

    return old, new, (1,), {}, 2


def closures():
    first, second, third = "first", "second", "third"

    def uses_all(a):
        return a, first, second, third

    def uses_two(a):
        nonlocal third
        third = "changed"
        return a, third, first

    def uses_none(a):
        return (a,)

    def only_third(a):
        return a, third

    return uses_all, uses_two, uses_none, only_third


@case
def the_same_free_variables():
    old = closures()[0]
    return old, closures()[0], (1,), {}, (1, "first", "second", "third")


@case
def fewer_free_variables():
    old, new, *_ = closures()
    return old, new, (1,), {}, (1, "changed", "first")


@case
def no_free_variables():
    old, _, new, _ = closures()
    return old, new, (1,), {}, (1,)


@case
def more_cells_than_free_variables():
    old = closures()[0]

    def new(a):
        def inner():
            return a, mine

        mine = 5
        return inner()

    return old, new, (1,), {}, (1, 5)


@case
def a_free_variable_becomes_an_argument():
    old = closures()[0]

    def new(second, a):
        return second, a

    return old, new, (1,), {}, ("second", 1)


@case
def a_free_variable_becomes_a_cell():
    old = closures()[0]

    def new(a, first):
        return (lambda: (a, first))()

    return old, new, (1,), {}, (1, "first")


@case
def an_argument_becomes_a_free_variable():
    def old(a, b):
        pass

    a = "not this one"

    def new(b):
        return a, b

    return old, new, (1, 2), {}, (1, 2)


@case
def a_cell_becomes_a_free_variable():
    def old(a, b):
        return lambda: (a, b)

    a = b = "not this one"

    def new():
        nonlocal a
        a += 1
        return (lambda: (a, b))()

    return old, new, (1, 2), {}, (2, 2)


@case
def an_unset_local_becomes_a_free_variable():
    def old(a):
        local = a
        return local

    local = "not this one"

    def new(a):
        nonlocal local
        local = a + 1
        return local

    return old, new, (1,), {}, 2


@case
def arguments_that_are_not_needed():
    def old(a, b, *args, **kwargs):
        pass

    def new():
        return "nothing"

    return old, new, ([1], [2], [3]), {"z": [4]}, "nothing"


@case
def comprehensions_and_inner_scopes():
    def old(items, scale):
        return items

    def new(items, scale):
        squares = [x * scale for x in items]
        return {y: [x + scale for x in squares] for y in items}, list(items), scale

    return old, new, ([1, 2], 3), {}, ({1: [6, 9], 2: [6, 9]}, [1, 2], 3)


def big(count, kind="return", free=""):
    """A function with this many locals, in code objects that do not fit where a small frame was."""
    lines = [f"  v{i} = a + {i}" for i in range(count)]
    space = {}
    body = "\n".join(lines)
    last = f"v{count - 1}"
    exec(
        f"def outer(free=None):\n def new(a, *args, k=1, **kwargs):\n{body.replace('  v', '   v')}\n"
        f"   {kind} (a, args, k, kwargs, {last}{free})\n return new",
        space,
    )
    return space["outer"]()


def plain(a, *args, k=7, **kwargs):
    return "old"


@case
def far_more_locals():
    return plain, big(5000), (1, 2, 3), {"z": 4}, (1, (2, 3), 7, {"z": 4}, 5000)


@case
def far_more_locals_and_a_free_variable():
    free = "carried"

    def old(a, *args, k=7, **kwargs):
        return free

    return old, big(5000, free=", free"), (1,), {}, (1, (), 7, {}, 5000, "carried")


@case
def far_fewer_locals():
    def new(a):
        return a

    return big(5000), new, (1,), {}, 1


@pytest.mark.parametrize("name", CASES)
def test_variables_are_carried_over(name):
    old, new, args, kwargs, expected = CASES[name]()
    assert call_replaced(old, new, *args, **kwargs) == [expected, expected]
    assert not _core.hook_installed()


@pytest.mark.parametrize("name", CASES)
def test_no_reference_is_left_or_lost(name):
    old, new, args, kwargs, _expected = CASES[name]()
    watched = [old, new, old.__code__, new.__code__, *(old.__closure__ or ()), args, kwargs]
    callback = replacing(old, new)

    def call():
        with hooked(callback):
            old(*args, **kwargs)

    call()
    gc.collect()
    before = [sys.getrefcount(item) for item in watched]
    assert worlds.blocks_after(call, 300) < 100
    assert [sys.getrefcount(item) for item in watched] == before


def test_big_frames_raise_yield_and_recurse():
    new = big(4000, kind="yield")

    def recursive(a, *args, k=7, **kwargs):
        return (a, plain(a - 1)) if a else "end"

    wide = "\n".join(f"  v{i} = {i}" for i in range(3000))
    space = {"plain": plain}
    exec(f"def deep(a):\n{wide}\n  return (a, plain(a - 1)) if a else 1 / 0", space)
    assert [list(made) for made in call_replaced(plain, new, 1)] == [[(1, (), 7, {}, 4000)]] * 2
    _core.reset_code(plain.__code__)
    with hooked(replacing(plain, space["deep"])):
        for _ in range(3):
            with pytest.raises(ZeroDivisionError):
                plain(30)
    _core.reset_code(plain.__code__)
    assert call_replaced(plain, recursive, 2) == [(2, (1, "end"))] * 2


def test_a_big_frame_keeps_its_namespace():
    wide = "\n".join(f"v{i} = {i}" for i in range(10))
    deep = "(" * 80 + "1" + ", 2)" * 80
    old = compile("x = 1", "text", "exec")
    new = compile(f"{wide}\ny = {deep}", "text", "exec").replace(co_stacksize=20000)
    space = {}

    def callback(frame, cache_entry, frame_state):
        return guarded(new) if frame.f_code is old else None

    for _ in range(2):
        space = {}
        with hooked(callback):
            exec(old, space)
        assert space["v9"] == 9 and "x" not in space


def test_generators_for_functions_and_the_other_way_round():
    def old(a, b):
        return [a, b]

    def new(a, b):
        yield from (a, b, (lambda: a)())

    made = call_replaced(old, new, 1, 2)
    assert [type(item) for item in made] == [types.GeneratorType] * 2
    assert [list(item) for item in made] == [[1, 2, 1]] * 2
    assert made[0].gi_code is new.__code__ and made[0].__qualname__ == old.__qualname__
    assert call_replaced(new, old, 1, 2) == [[1, 2], [1, 2]]


def test_the_cells_of_the_closure_itself_are_carried_over():
    def make():
        count = 0

        def old():
            return count

        def bump():
            nonlocal count
            count += 1
            return count

        return old, bump

    old, bump = make()
    assert call_replaced(old, bump) == [1, 2]
    assert old() == 2


def test_an_argument_that_the_original_lacks_is_refused():
    def old(a):
        local = 1
        return local

    def new(a, local):
        return a

    with hooked(replacing(old, new)):
        with pytest.raises(ValueError, match="expects an argument 'local', which the original code does not have"):
            old(1)
    assert not _core.debug_get_cache_entry_list(old.__code__)


def test_a_free_variable_that_the_original_lacks_is_refused():
    unknown = 1

    def old(a):
        return a

    def new(a):
        return unknown

    with hooked(replacing(old, new)):
        with pytest.raises(ValueError, match="expects a free variable 'unknown'"):
            old([1])


def test_an_empty_cell_that_becomes_an_argument_is_an_error():
    def make():
        def old(a):
            return later

        def new(a, later):
            return later

        if make is None:
            later = 1
        return old, new

    old, new = make()
    with hooked(replacing(old, new)):
        for _ in range(2):
            with pytest.raises(NameError, match="'later'"):
                old([1])


def test_an_empty_cell_stays_empty():
    def make():
        def old():
            return later, "old"

        def new():
            return later

        if make is None:
            later = 1
        return old, new

    old, new = make()
    with hooked(replacing(old, new)):
        for _ in range(2):
            with pytest.raises(NameError, match="later"):
                old()


def body_of(function, name):
    return next(c for c in function.__code__.co_consts if getattr(c, "co_name", None) == name)


def test_a_class_body_with_a_cell_and_a_free_variable_of_one_name():
    space = {}
    exec(
        "class A:\n  def method(self):\n    class B:\n      x = __class__\n      def g(self): return __class__\n    return B",
        space,
    )
    body = body_of(space["A"].method, "B")
    with hooked(Callback({body: guarded(body.replace())})):
        for _ in range(2):
            made = space["A"]().method()
            assert made.x is space["A"] and made().g() is made


@pytest.mark.parametrize("free", ["", "v"])
def test_a_class_body_whose_metaclass_makes_its_namespace(free):
    class Namespace:
        def __init__(self):
            self.items = {}

        def __getitem__(self, key):
            return self.items[key]

        def __setitem__(self, key, value):
            self.items[key] = value

    class Meta(type):
        @classmethod
        def __prepare__(cls, name, bases):
            return Namespace()

        def __new__(cls, name, bases, namespace):
            return type.__new__(cls, name, bases, dict(namespace.items))

    space = {"Meta": Meta}
    exec(f"def f(v):\n  class X(metaclass=Meta): y = {free or 3}\n  return X.y", space)
    body = body_of(space["f"], "X")
    seen = []

    def check(f_locals):
        seen.append(f_locals)
        return True

    with hooked(Callback({body: guarded(body.replace(), check)})):
        assert [space["f"](3) for _ in range(3)] == [3] * 3
    assert {type(each) for each in seen} == {Namespace}
    _core.reset_code(body)
    root = _core.RootGuardManager()
    root.local_manager("x").add_absent_guard()
    callback = Callback({body: guarded(body.replace(), root)})
    with hooked(callback):
        assert [space["f"](3) for _ in range(3)] == [3] * 3
    assert len(callback.asked) == 3  # nobody but the namespace knows what is in it


def test_new_code_that_needs_a_namespace_is_refused():
    space = {}
    exec("def old(): return 1", space)
    module = compile("x = 1", "m", "exec")
    with hooked(Callback({space["old"]: guarded(module)})), pytest.raises(ValueError, match="needs a namespace"):
        space["old"]()
