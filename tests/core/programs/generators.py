"""Programs about generators and coroutines."""
# ruff: noqa: F841, F821, PLW, SIM, B, RUF, C4, E731, UP, RET

import asyncio
import contextlib
import itertools
import sys

from core.worlds import Registry

program = Registry()


def count(n, log=None):
    try:
        for i in range(n):
            yield i
        return "done"
    finally:
        if log is not None:
            log.append("closed")


def echo():
    got = []
    while True:
        value = yield got
        got.append(value)


def delegate(n, log=None):
    result = yield from count(n, log)
    yield result


@program
def simple_generators():
    return list(count(3)), [*count(2)], sum(count(5)), max(count(4)), dict(enumerate(count(2))), list(delegate(2))


@program
def left_early():
    log = []
    for x in count(10, log):
        if x == 2:
            break
    return x, log


@program
def left_early_while_delegating():
    log = []
    g = delegate(10, log)
    first = next(g), next(g)
    g.close()
    return first, log, list(g)


@program
def sent_values():
    g = echo()
    next(g)
    g.send("a")
    return g.send("b"), next(g)


@program
def dropped_half_way():
    log = []
    g = count(5, log)
    next(g)
    del g
    return log


def catching():
    log = []
    while True:
        try:
            yield log
        except KeyError as error:
            log.append(error.args)
        except GeneratorExit:
            log.append("exit")
            return


@program
def thrown_exceptions():
    g = catching()
    log = next(g)
    g.throw(KeyError("k"))
    try:
        g.throw(ValueError("v"))
    except ValueError as error:
        log.append(str(error))
    return log, next(g, "finished")


@program(eager="stores a WarningMessage" if sys.version_info >= (3, 12) else None)
def thrown_the_old_way():
    g = catching()
    next(g)
    return g.throw(KeyError, "old style"), g.close()


@program
def thrown_and_not_caught():
    g = count(3)
    next(g)
    g.throw(KeyError("inside"))


@program
def thrown_through_a_delegation():
    g = delegate(3)
    next(g)
    try:
        g.throw(KeyError("deep"))
    except KeyError as error:
        return error.args, list(g)


@program
def thrown_before_the_start():
    g = count(3)
    try:
        g.throw(ValueError("early"))
    except ValueError as error:
        return str(error), list(g)


@program
def closed_generators():
    g = catching()
    log = next(g)
    g.close()
    g.close()
    return log, next(g, None)


def stubborn():
    try:
        yield 1
    except GeneratorExit:
        yield 2


@program
def generator_that_ignores_close():
    g = stubborn()
    next(g)
    g.close()


def returning():
    return 5
    yield


@program
def values_of_generators():
    def outer():
        a = yield from returning()
        b = yield from [1, 2]
        c = yield from range(2)
        return a, b, c

    g, found = outer(), []
    while True:
        try:
            found.append(next(g))
        except StopIteration as stop:
            return found, stop.value


@program
def stop_iteration_inside():
    def bad():
        yield next(iter([]))

    return list(bad())


@program
def started_twice():
    def own():
        yield list(g)

    g = own()
    next(g)


@program
def send_before_the_start():
    echo().send(1)


@program
def nested_delegation():
    def level(n):
        if n:
            yield n
            got = yield from level(n - 1)
            return (got or 0) + n

    def drive():
        total = yield from level(4)
        yield total

    return list(drive())


class Delegate:
    def __init__(self):
        self.log = []

    def __iter__(self):
        return self

    def __next__(self):
        self.log.append("next")
        return len(self.log)

    def send(self, value):
        self.log.append(("send", value))
        return value

    def throw(self, *args):
        self.log.append(("throw", args[0].__name__ if isinstance(args[0], type) else type(args[0]).__name__))
        return "thrown"

    def close(self):
        self.log.append("close")


@program
def delegation_to_an_object():
    d = Delegate()

    def g():
        yield from d

    it = g()
    found = [next(it), it.send("x"), it.throw(ValueError("v")), next(it)]
    it.close()
    return found, d.log


@program
def generators_with_handlers():
    def g():
        for i in range(3):
            try:
                yield i
                raise KeyError(i)
            except KeyError as error:
                yield error.args[0] * 10

    try:
        raise ValueError("around")
    except ValueError:
        found = list(g())
    return found


@program
def exception_state_belongs_to_the_generator():
    def g():
        try:
            raise KeyError("in")
        except KeyError:
            yield 1
            raise

    it = g()
    try:
        raise ValueError("out")
    except ValueError:
        next(it)
        try:
            next(it)
        except KeyError as error:
            return error.args, error.__context__.args


@program
def comprehensions():
    return (
        [x * y for x in range(3) for y in range(3) if x != y],
        {x: x * x for x in range(4) if x % 2},
        {x % 3 for x in range(10)},
        list(x + 1 for x in range(3)),
        [[y for y in range(x)] for x in range(3)],
        {k: {v} for k, v in {"a": 1}.items()},
        [(lambda: x)() for x in range(2)],
    )


@program
def comprehension_that_raises():
    return [1 // x for x in (1, 0)]


@program
def comprehensions_keep_the_variables_around_them():
    x = "outer"
    found = [x for x in range(3)]
    try:
        [1 // (2 - x) for x in range(5)]
    except ZeroDivisionError:
        found.append(x)
    return found, x, [x + y for y in "ab" for x in "cd"], x


@program
def a_comprehension_binds_nothing():
    found = [y for y in range(3)]
    if not found:
        y = 1
    return found, y


@program
def comprehensions_with_cells():
    i = 7
    functions = [lambda: i for i in range(3)]
    return [f() for f in functions], (lambda: i)(), {k: (lambda: k)() for k in "ab"}


@program
def generator_raises_stop_iteration():
    def ends():
        yield 1
        raise StopIteration("by hand")

    return list(ends())


@program
def generator_lets_stop_iteration_through():
    def ends():
        yield 1
        next(iter([]))

    try:
        return list(ends())
    except RuntimeError as error:
        return str(error), error.__cause__ is error.__context__, type(error.__cause__).__name__


@program
def infinite_generators():
    def naturals():
        n = 0
        while True:
            yield n
            n += 1

    def primes():
        found = []
        for n in naturals():
            if n > 1 and all(n % p for p in found):
                found.append(n)
                yield n

    return list(itertools.islice(primes(), 8)), list(zip(naturals(), "abc"))


@contextlib.contextmanager
def managed(log):
    log.append("enter")
    try:
        yield "value"
    except KeyError:
        log.append("swallowed")
    finally:
        log.append("exit")


@program
def generators_as_context_managers():
    log = []
    with managed(log) as value:
        log.append(value)
    with managed(log):
        raise KeyError
    return log


@program
def context_manager_lets_through():
    with managed([]):
        raise ValueError("through")


@program(lambda: (count(3),), eager="generator")
def older_generator(g):
    return list(g)


@program
def returns_a_generator_function():
    return [f.__name__ for f in (count, echo)]


@program
def returns_a_generator():
    return count(3)


@program(eager="")
def coroutines():
    async def add(a, b):
        return a + b

    async def main():
        return await add(1, 2) + await add(3, 4)

    try:
        main().send(None)
    except StopIteration as stop:
        return stop.value


class Awaitable:
    def __await__(self):
        got = yield "paused"
        return got


class Steps:
    def __aiter__(self):
        self.n = 0
        return self

    async def __anext__(self):
        self.n += 1
        if self.n > 3:
            raise StopAsyncIteration
        return self.n

    async def __aenter__(self):
        return "entered"

    async def __aexit__(self, *args):
        return True


@program(eager="")
def asynchronous_loops_and_managers():
    async def numbers():
        yield 1
        yield 2

    async def main():
        found = []
        async with Steps() as entered:
            found.append(entered)
            async for n in Steps():
                found.append(n)
            found += [n async for n in numbers()]
            raise ValueError
        found.append(await Awaitable())
        return found

    c = main()
    assert c.send(None) == "paused"
    try:
        c.send("resumed")
    except StopIteration as stop:
        return stop.value


@program(eager="")
def event_loop():
    async def work(n):
        await asyncio.sleep(0)
        return n * 2

    async def main():
        return await asyncio.gather(*(work(i) for i in range(3)))

    return asyncio.run(main())


@program(eager="")
def coroutine_never_awaited():
    async def f(): ...

    c = f()
    c.close()
    return 1


@program(eager="")
def awaiting_a_number():
    async def f():
        await 5

    try:
        f().send(None)
    except TypeError as error:
        return str(error)
