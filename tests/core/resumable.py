"""Functions that are stopped at each of their instructions and resumed there: one for each thing a frame can be doing."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

from core.callers import here

PROGRAMS: dict[str, tuple[Callable[..., Any], tuple[Any, ...]]] = {}


def program(*args: Any) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    def add(function: Callable[..., Any]) -> Callable[..., Any]:
        PROGRAMS[function.__name__] = function, args
        return function

    return add


class Context:
    def __init__(self, log: list[Any], suppress: bool = False):
        self.log, self.suppress = log, suppress

    def __enter__(self) -> Context:
        self.log.append(("enter", here()))
        return self

    def __exit__(self, kind: Any, error: Any, traceback: Any) -> bool:
        self.log.append(("exit", kind and kind.__name__, str(error), traceback and traceback.tb_lineno))
        return self.suppress


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x: int, y: int = 5):
        self.x = x
        self.y = y

    def __add__(self, other: Point) -> Point:
        total = Point(self.x + other.x, self.y + other.y)
        return total

    def __getitem__(self, key: int) -> int:
        if key > 1:
            raise IndexError(key)
        return (self.x, self.y)[key]

    def __repr__(self) -> str:
        return f"Point({self.x}, {self.y})"

    def __bool__(self) -> bool:
        return self.x > 0

    @property
    def length(self) -> float:
        squared = self.x**2 + self.y**2
        return squared**0.5

    def moved(self, dx: int, *, dy: int = 0) -> Point:
        return Point(self.x + dx, self.y + dy)


class Slow:
    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, (value, len(here())))

    def __getattr__(self, name: str) -> str:
        if name.startswith("_"):
            raise AttributeError(name)
        return name + "?"

    def __setitem__(self, key: Any, value: Any) -> None:
        object.__setattr__(self, str(key), value)

    def __delitem__(self, key: Any) -> None:
        object.__delattr__(self, str(key))

    def __contains__(self, key: Any) -> bool:
        return key == 3

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return args, sorted(kwargs.items()), len(here())


@program(3, 4)
def arithmetic(a, b):
    c = a * b + (a - b) // 2
    c += a
    c <<= 1
    return -c, ~a, not b, a**b, a @ Matrix() if False else a % b


@program(7)
def for_loop(n):
    total = 0
    for i in range(n):
        if i % 3 == 0:
            continue
        if i > 5:
            break
        total += i * 2
    else:
        total = -1
    return total


@program(9)
def while_loop(n):
    steps = []
    while n != 1:
        n = n // 2 if n % 2 == 0 else 3 * n + 1
        steps.append(n)
        if len(steps) > 6:
            break
    else:
        steps.append("end")
    return steps


@program([3, 1, 2])
def nested_loops(items):
    pairs = []
    for a in items:
        for b in items:
            if a < b:
                pairs.append((a, b))
    return pairs, a, b


@program(1)
def try_except(zero_at):
    log = []
    for i in range(3):
        try:
            log.append(10 // (i - zero_at))
        except ZeroDivisionError as error:
            log.append((str(error), error.__traceback__.tb_lineno))
        except (KeyError, ValueError):
            raise
        else:
            log.append("fine")
        finally:
            log.append(i)
    return log


@program()
def exception_that_leaves():
    values = [1, 2]
    total = values[0]
    total += values[5]
    return total


@program()
def raise_from():
    try:
        try:
            raise KeyError("one")
        except KeyError as error:
            raise ValueError("two") from error
        finally:
            marker = sys.exc_info()[0]
    except ValueError as error:
        return repr(error.__cause__), marker, repr(sys.exc_info()[1]), sys.exc_info()[1] is error


@program()
def raise_in_handler_leaves():
    try:
        {}["missing"]
    except KeyError:
        sum(x for x in [1, 2])
        raise TypeError("while handling")


@program()
def handlers_in_handlers():
    seen = []
    try:
        1 / 0
    except ZeroDivisionError:
        seen.append(type(sys.exc_info()[1]).__name__)
        try:
            [].pop()
        except IndexError as error:
            seen.append((type(sys.exc_info()[1]).__name__, type(error.__context__).__name__))
            try:
                int("x")
            except ValueError:
                seen.append(type(sys.exc_info()[1]).__name__)
            seen.append(type(sys.exc_info()[1]).__name__)
        seen.append(type(sys.exc_info()[1]).__name__)
    seen.append(sys.exc_info()[1])
    return seen


def current_error() -> Any:
    error = sys.exc_info()[1]
    return type(error).__name__, len(here())


def handle_own_error(n: int) -> Any:
    try:
        raise OSError(n)
    except OSError:
        return current_error()


@program()
def calls_in_handlers():
    try:
        raise LookupError("outer")
    except LookupError:
        first = current_error()
        second = handle_own_error(1)
        third = current_error()
    return first, second, third, current_error()


@program()
def reraise_bare():
    log = []
    try:
        try:
            int("nope")
        except ValueError:
            log.append("first")
            raise
    except ValueError as error:
        log.append([line.tb_lineno for line in traceback_of(error)])
    return log


def traceback_of(error: BaseException) -> list[Any]:
    found, traceback = [], error.__traceback__
    while traceback:
        found.append(traceback)
        traceback = traceback.tb_next
    return found


@program(2)
def finally_with_return(n):
    for i in range(3):
        try:
            if i == n:
                return i, "returned"
            if i == 1:
                continue
        finally:
            n -= 0
    return None


@program()
def finally_while_unwinding():
    log = []
    try:
        try:
            log.append(1)
            raise RuntimeError("x")
        finally:
            log.append(type(sys.exc_info()[1]).__name__)
    except RuntimeError:
        log.append("caught")
    return log


@program()
def exception_group():
    log = []
    try:
        raise ExceptionGroup("many", [ValueError(1), TypeError(2), ValueError(3)])
    except* ValueError as group:
        log.append(len(group.exceptions))
    except* TypeError as group:
        log.append(repr(group.exceptions))
    return log


@program(True)
def with_suppressing(suppress):
    log = []
    with Context(log, suppress) as outer, Context(log):
        log.append(outer.suppress)
        log[10]
        log.append("never")
    return log


@program()
def with_that_raises():
    log = []
    try:
        with Context(log):
            with Context(log):
                log.append("inside")
                raise ValueError(len(log))
    except ValueError as error:
        log.append((str(error), [line.tb_lineno for line in traceback_of(error)]))
    return log


@program()
def with_and_return():
    log = []

    def inner():
        for i in range(3):
            with Context(log):
                if i:
                    return i
        return None

    return inner(), log


@program(4)
def closures(n):
    log = []
    k = n

    def inner(z, *, y=3):
        nonlocal k
        k += z
        return lambda q: (q, k, y, n)

    for i in range(3):
        log.append(inner(i)(i))
    return log, k


@program(3)
def cells_of_arguments(count):
    def more():
        nonlocal count
        count += 1
        return count

    def deleted():
        return count

    more()
    value = more()
    del count
    try:
        deleted()
    except NameError as error:
        return value, str(error)


@program(1, 2, 3, 4)
def star_arguments(a, b=2, *rest, key=4, **others):
    def target(*args, **kwargs):
        return args, sorted(kwargs.items()), here()

    return target(*rest, a, **others, q=key), target(a, b, x=1, y=rest), target(*[1], *(2, 3)), target(**{"z": 1})


@program(3)
def keyword_calls(x):
    def target(a, b=1, *, c, d=4):
        return a, b, c, d

    return target(x, c=x + 1), target(b=2, a=1, c=here()), Point(1).moved(2, dy=3), dict(a=1, b=target(1, c=2))


@program(3)
def comprehensions(n):
    lists = [(i, j) for i in range(n) for j in range(2) if i != j]
    sets = sorted({i % 2 for i in range(n)})
    dicts = {i: [j for j in range(i)] for i in range(n)}
    captured = [f() for f in [lambda: i for i in range(n)]]
    return lists, sets, dicts, captured, sum(i for i in range(n))


@program(2)
def comprehension_that_raises(n):
    x = "kept"
    try:
        [10 // (n - x) for x in range(4)]
    except ZeroDivisionError:
        return x


@program({"kind": "a", "rest": 1})
def match_mapping(value):
    match value:
        case {"kind": "b"}:
            return "b"
        case {"kind": k, **rest} if k == "a":
            return k, rest
        case _:
            return None


@program([1, (2, 3, 4)])
def match_sequence(value):
    match value:
        case [x]:
            return x
        case [a, (b, *others)]:
            return a, b, others


@program(Point(3, 0))
def match_class(value):
    match value:
        case Point(x=0):
            return "origin"
        case Point(a, 0 as b):
            return a, b
        case str() | int():
            return "plain"


@program(5)
def match_literal(value):
    match value:
        case 1 | 2:
            return "small"
        case int() as n if n > 4:
            return n
        case None:
            return None


def count_up(n: int) -> Any:
    for i in range(n):
        received = yield i * 10
        if received:
            yield ("got", received)
    return "done"


@program(3)
def generator_in_loop(n):
    log = []
    for value in count_up(n):
        log.append(value)
        if value > 10:
            log.append(here())
    return log


@program()
def generator_with_send():
    generator = count_up(3)
    log = [next(generator), generator.send("x"), next(generator)]
    log.extend(generator)
    return log


def guarded(log: list[Any]) -> Any:
    try:
        yield 1
        yield 2
    except ValueError as error:
        log.append((str(error), type(sys.exc_info()[1]).__name__))
        yield "handled"
        log.append(type(sys.exc_info()[1]).__name__)
    finally:
        log.append("closed")


@program()
def generator_with_throw():
    log = []
    generator = guarded(log)
    log.append(next(generator))
    log.append(generator.throw(ValueError("thrown")))
    log.append(list(generator))
    other = guarded(log)
    for value in other:
        log.append(value)
        break
    other.close()
    return log


def delegating(n: int, log: list[Any]) -> Any:
    try:
        result = yield from count_up(n)
        yield result
    finally:
        log.append(here())


@program(2)
def yield_from(n):
    log = []
    for value in delegating(n, log):
        log.append(value)
    return log


@program(3)
def generator_that_raises(n):
    def items():
        yield 1
        yield 10 // (n - 3)

    try:
        return [item for item in items()]
    except ZeroDivisionError as error:
        return [line.tb_lineno for line in traceback_of(error)], here()


@program()
def generator_that_stops_wrongly():
    def items():
        yield 1
        raise StopIteration("early")

    log = []
    try:
        for item in items():
            log.append(item)
    except RuntimeError as error:
        log.append((str(error), type(error.__cause__).__name__))
    return log


async def awaited(x: int) -> Any:
    return x + 1, len(here())


async def outer_coroutine(x: int) -> Any:
    log = []
    async with AsyncContext(log) as context:
        log.append(await awaited(x))
        async for i in AsyncRange(2):
            log.append(i)
        log.append(context is not None)
    return log, [j async for j in AsyncRange(2)]


class AsyncContext:
    def __init__(self, log: list[Any]):
        self.log = log

    async def __aenter__(self) -> AsyncContext:
        self.log.append("enter")
        return self

    async def __aexit__(self, *error: Any) -> None:
        self.log.append("exit")


class AsyncRange:
    def __init__(self, n: int):
        self.n, self.i = n, 0

    def __aiter__(self) -> AsyncRange:
        return self

    async def __anext__(self) -> int:
        if self.i == self.n:
            raise StopAsyncIteration
        self.i += 1
        return self.i


@program(4)
def coroutines(x):
    coroutine = outer_coroutine(x)
    try:
        coroutine.send(None)
    except StopIteration as stop:
        return stop.value


@program(1, 5, 3)
def chained_comparisons(a, b, c):
    return a < b > c, a < c < b <= 5, a == b == c, a < b < c, c in [b, c] is not None, a is not b


@program("text", 3.14159)
def format_strings(name, number):
    width = 10
    return f"{name!r:>{width}}|{number:.2f}|{name}{number!s}|{{}}|{here()!r:.5}", f"{name}plain"


@program(4)
def recursion(n):
    if n <= 1:
        return 1, here()
    value, chain = recursion(n - 1)
    return n * value, chain


@program(5)
def mutual_recursion(n):
    def even(k):
        return True if k == 0 else odd(k - 1)

    def odd(k):
        return False if k == 0 else even(k - 1)

    return even(n), odd(n)


@program(3)
def recursion_that_raises(n):
    if n == 0:
        raise ValueError("bottom")
    return recursion_that_raises(n - 1) + 1


@program(3)
def raises_through_handlers(n):
    try:
        if n == 0:
            raise KeyError("bottom")
        return raises_through_handlers(n - 1)
    except KeyError as error:
        error.args += (n, error.__traceback__.tb_lineno)
        raise


@program(2)
def class_bodies(n):
    class Base:
        doubled = n * 2
        values = [k * n for k in range(doubled)]

        def __init_subclass__(cls, **kwargs):
            cls.extra = sorted(kwargs)

        def name(self):
            return "base"

    class Derived(Base, flag=True):
        if n > 1:
            big = True
        for i in range(2):
            pass

        def name(self):
            return super().name() + __class__.__name__

    return Derived().name(), Derived.doubled, Derived.values, Derived.big, Derived.i, Derived.extra


@program()
def objects_and_operators():
    a, b = Point(1, 2), Point(3)
    c = a + b
    c.x += 4
    c.y = c[0] - b[1]
    return repr(c), c.length, a.moved(1).length, "yes" if c else "no", c.moved(dx=1, dy=2)[1]


@program()
def operators_of_slow_objects():
    slow = Slow()
    slow.name = 1
    slow["key"] = 2
    slow[3] = 4
    del slow["key"]
    return slow.name, slow.other, 3 in slow, 4 in slow, slow(1, *[2], k=3), slow.key


@program()
def property_that_raises():
    class Holder:
        @property
        def broken(self):
            return {}["inside"]

    try:
        return Holder().broken
    except KeyError as error:
        return [line.tb_lineno for line in traceback_of(error)]


@program([5, 2, 9])
def called_back_from_c(items):
    def key(x):
        y = -x
        return y

    return sorted(items, key=key), list(map(lambda x: (x, len(here())), items)), max(items, key=lambda x: x % 5)


@program(1)
def unpacking(x):
    a, (b, *c), d = x, [2, 3, 4], {**{"k": 1}, "j": [*range(2), x]}
    (e := a + b)
    c[0:1] = [7, 8]
    del c[-1]
    first, *_ = c
    return a, b, c, d, e, first, {*c, 1}, c[::-1], d["j"][1:]


@program(3)
def assertions_and_deletes(n):
    values = {"a": 1, "b": 2}
    assert n, "never"
    del values["a"]
    x = n
    del x
    try:
        assert x
    except UnboundLocalError as error:
        first = type(error).__name__
    try:
        assert not n, f"n is {n}"
    except AssertionError as error:
        return first, str(error), values


@program()
def imports_and_globals():
    global COUNTER
    import math
    import os.path as path
    from math import floor as down

    COUNTER = 5
    COUNTER += 1
    return math.pi, path is not None, down(2.7), COUNTER, __name__ is not None


@program(0, 1, None)
def conditions(a, b, c):
    log = [a or b, a and b, c if a else b, a is None, c is None]
    if (a and b) or (not c and b):
        log.append("yes")
    elif c is not None:
        log.append("no")
    while c is None:
        c = a or 1
    return log, c, a if not b else (b if c else a)


@program()
def own_frame():
    x = 1
    line = sys._getframe().f_lineno
    names = sorted(sys._getframe().f_locals)
    return line, names, x, sys._getframe().f_code.co_name, here()


@program()
def frame_that_is_kept():
    def inner(y):
        z = y + 1
        return sys._getframe(), z

    frame, z = inner(1)
    kept = dict(frame.f_locals)
    return kept, z, frame.f_lineno, frame.f_back is not None, frame.f_code.co_name


def long_function() -> Callable[..., Any]:
    """So long that jumps, names and constants need EXTENDED_ARG."""
    body = "".join(f"    v{i} = x + {i}.5\n" for i in range(0, 300, 1))
    text = f"def with_extended_arguments(x, call):\n    while x:\n{body.replace('    v', '        v')}        x -= 1\n"
    text += "    return call(v299, name=v298, other=v1), v280\n"
    space: dict[str, Any] = {}
    exec(compile(text, __file__, "exec"), space)
    return space["with_extended_arguments"]


def keywords(*args: Any, **kwargs: Any) -> Any:
    return args, sorted(kwargs.items())


PROGRAMS["with_extended_arguments"] = long_function(), (1, keywords)
