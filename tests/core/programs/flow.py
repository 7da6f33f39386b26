"""Programs about control flow: branches, loops, comparisons, match, with, try."""
# ruff: noqa: F841, F821, PLW, SIM, B, RUF, C4, E731, UP, E711

from core.worlds import Registry

program = Registry()
LOG = []


@program(lambda: (7,))
def branches(n):
    if n < 0:
        a = "negative"
    elif n == 0:
        a = "zero"
    else:
        a = "positive"
    b = "odd" if n % 2 else "even"
    return a, b, n and a, n or b, not n, not not n


@program(lambda: (None, 0, []))
def truth(none, zero, empty):
    return [bool(x) for x in (none, zero, empty, "", "a", [0], {}, {1: 1}, set(), (), 0.0, 1j)], none or zero or empty


@program(lambda: (None, 3))
def none_tests(a, b):
    result = []
    if a is None:
        result.append(1)
    if a is not None:
        result.append(2)
    if b is None:
        result.append(3)
    if b is not None:
        result.append(4)
    while a is None:
        a = b
    while b is not None:
        b = None
    for item in (None, 1, None, 2):
        if item is None:
            continue
        if item is not None and item > 1:
            break
    return result, a, b, item


@program(lambda: (5,))
def loops(n):
    total = 0
    while n > 0:
        n -= 1
        if n == 3:
            continue
        total += n
        if total > 100:
            break
    else:
        total += 1000
    for i in range(10):
        for j in range(i):
            if j == 4:
                break
            total += i * j
        else:
            continue
        break
    while not total % 2 == 0:
        total += 1
    while True:
        total += 1
        if total > 5:
            break
    return total


@program(lambda: (5,))
def comparisons(n):
    return (
        1 < n < 10,
        1 < n > 10,
        5 == n == 5.0,
        n != 5,
        n <= 5 >= n,
        0 < n <= 5 < 6,
        n in (1, 5),
        n not in [5],
        "a" in "abc",
        "z" not in "abc",
        1 in {1: 2},
        1 in {1},
        None is None,
        n is not None,
        (1, 2) < (1, 3),
        [1, [2]] == [1, [2]],
        {1: [2]} != {1: [3]},
    )


@program(lambda: (5,))
def arithmetic(n):
    a = n + 1 - 2 * 3 / 4 // 1 % 5**2
    b = n << 2 >> 1 & 7 | 8 ^ 3
    c = -n, +n, ~n, not n
    n += 1
    n -= 2
    n *= 3
    n /= 4
    n //= 1
    n %= 5
    n **= 2
    m = int(n)
    m <<= 3
    m >>= 1
    m &= 6
    m |= 9
    m ^= 5
    return a, b, c, n, m, divmod(17, 5), 2**0.5, 7 @ Matrix(2), round(2.567, 1)


class Matrix:
    def __init__(self, n):
        self.n = n

    def __rmatmul__(self, other):
        return ("rmatmul", other, self.n)

    def __matmul__(self, other):
        return ("matmul", self.n, other)

    def __imatmul__(self, other):
        return ("imatmul", self.n, other)


@program
def matrix_operators():
    m = Matrix(1)
    a = m @ 2
    m @= 3
    return a, m


@program(lambda: ([1, 2, 3, 4],))
def slices(values):
    copy = values[:]
    copy[1:3] = "ab"
    copy[::2] = [0, 0]
    del copy[-1], copy[0:1]
    return values[1:], values[:-1], values[::-1], values[1:4:2], copy, "hello"[1:3], (1, 2, 3)[-2:]


@program(lambda: ([1, [2, 3]],))
def match_sequences(value):
    match value:
        case []:
            return "empty"
        case [x]:
            return "one", x
        case [1, [a, *rest]]:
            return "nested", a, rest
        case _:
            return "other"


@program(lambda: ({"kind": "circle", "r": 2, "color": "red"},))
def match_mappings(value):
    match value:
        case {"kind": "square", "side": s}:
            return s
        case {"kind": "circle", "r": r, **rest}:
            return r, rest


class Point:
    __match_args__ = ("x", "y")

    def __init__(self, x, y):
        self.x, self.y = x, y


POINT = Point(1, 2)


@program(lambda: (POINT,))
def match_classes(value):
    match value:
        case int() | str():
            return "atom"
        case Point(0, y):
            return y
        case Point(x, y=2) if x > 5:
            return "far"
        case Point(x=a, y=b):
            return a, b


@program(lambda: ("go",))
def match_constants(word):
    match word:
        case "stop" | "halt":
            return 0
        case "go" as said:
            return 1, said
        case None:
            return 2


class Manager:
    def __init__(self, name, log, swallow=False):
        self.name, self.log, self.swallow = name, log, swallow

    def __enter__(self):
        self.log.append("enter " + self.name)
        return self.name

    def __exit__(self, kind, value, traceback):
        self.log.append(("exit", self.name, kind and kind.__name__, value and value.args, traceback is not None))
        return self.swallow


@program
def nested_with():
    log = []
    with Manager("a", log) as a, Manager("b", log) as b:
        log.append(a + b)
        with Manager("c", log):
            log.append("body")
    return log


@program
def with_swallows():
    log = []
    with Manager("a", log, True):
        with Manager("b", log):
            raise ValueError(1)
    return log


@program
def with_does_not_swallow():
    log = []
    try:
        with Manager("a", log) as a, Manager("b", log):
            raise ValueError(a)
    except ValueError as error:
        return log, error.args


@program
def with_and_return():
    log = []
    for i in range(3):
        with Manager(str(i), log):
            if i == 1:
                return log
            continue


@program
def with_and_break():
    log = []
    for i in range(3):
        with Manager(str(i), log):
            if i == 1:
                break
    return log


class BadExit:
    def __enter__(self):
        return 1

    def __exit__(self, *args):
        raise RuntimeError("in exit")


@program
def exit_raises():
    with BadExit():
        raise ValueError("in body")


class BadEnter:
    def __enter__(self):
        raise RuntimeError("in enter")

    def __exit__(self, *args):
        LOG.append("never")


@program
def enter_raises():
    with BadEnter():
        pass


@program(eager="context manager")
def with_on_something_else():
    with 5:
        pass


class NoExit:
    def __enter__(self):
        return self


@program(eager="context manager")
def with_without_exit():
    with NoExit() as x:
        return x


@program(lambda: (3,))
def try_paths(n):
    log = []
    for i in range(n):
        try:
            log.append("try")
            if i == 1:
                raise KeyError(i)
        except KeyError as error:
            log.append(error.args)
        except (ValueError, TypeError):
            log.append("never")
        else:
            log.append("else")
        finally:
            log.append("finally")
    return log


@program(lambda: (3,))
def finally_with_return(n):
    log = []
    for i in range(n):
        try:
            if i == 1:
                return log
            continue
        finally:
            log.append(i)


@program
def finally_overrides():
    try:
        return 1
    finally:
        return 2


@program
def finally_swallows():
    for i in range(3):
        try:
            raise ValueError(i)
        finally:
            break
    return i


@program
def nested_try():
    log = []
    try:
        try:
            try:
                raise ValueError("a")
            finally:
                log.append(1)
        except KeyError:
            log.append("never")
        finally:
            log.append(2)
    except ValueError as error:
        log.append(error.args)
    return log


@program(lambda: (3,))
def assertions(n):
    assert n == 3, "not three"
    try:
        assert n == 4, f"{n} is not four"
    except AssertionError as error:
        return str(error)


@program(lambda: (3,))
def failing_assertion(n):
    assert n == 4


@program(lambda: (["a", "b"],))
def enumerates_and_zips(names):
    pairs = []
    for i, (name, other) in enumerate(zip(names, reversed(names))):
        pairs.append((i, name, other))
    return pairs, [*range(2)], dict(zip(names, range(5))), list(enumerate("xy", 1))
