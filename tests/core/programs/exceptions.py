"""Programs about exceptions: where they are raised, chained, caught and left."""
# ruff: noqa: F841, F821, PLW, SIM, B, RUF, C4, E731, UP, E722, TRY

from core.worlds import Registry

program = Registry()


class Problem(Exception):
    def __init__(self, code, text="problem"):
        super().__init__(code, text)
        self.code = code


def fails(n=1):
    if n:
        return fails(n - 1)
    raise Problem(7)


@program
def raised_in_a_callee():
    x = 1
    fails(3)


@program
def raised_and_caught():
    try:
        fails(2)
    except Problem as error:
        return error.code, error.args, error.__context__, error.__cause__


@program
def raised_as_a_class():
    try:
        raise KeyError
    except LookupError as error:
        return type(error).__name__, error.args


@program
def raise_from():
    try:
        try:
            fails(0)
        except Problem as error:
            raise ValueError("outer") from error
    except ValueError as error:
        assert isinstance(error.__cause__, Problem) and error.__suppress_context__
        raise


@program
def raise_from_none():
    try:
        fails(0)
    except Problem:
        raise ValueError("outer") from None


@program
def raise_from_a_class():
    raise ValueError("outer") from KeyError


@program
def raise_while_handling():
    try:
        1 / 0
    except ZeroDivisionError:
        [][0]


@program
def bare_raise():
    try:
        fails(1)
    except Problem:
        raise


@program
def bare_raise_after_a_nested_handler():
    try:
        fails(1)
    except Problem:
        try:
            {}["x"]
        except KeyError:
            pass
        raise


@program
def bare_raise_in_a_callee():
    def again():
        raise

    try:
        fails(0)
    except Problem:
        again()


@program
def bare_raise_without_an_exception():
    raise


@program(lambda: (5,))
def raise_of_a_number(n):
    raise n


@program(lambda: (5,))
def raise_from_a_number(n):
    raise ValueError from n


class Odd(Exception):
    def __new__(cls):
        return 5


@program
def raise_of_a_class_that_makes_numbers():
    raise Odd


class Refuses(Exception):
    def __init__(self):
        raise RuntimeError("no instance")


@program
def raise_of_a_class_that_refuses():
    raise Refuses


class Fickle(Exception):
    def __init__(self):
        Fickle.attempts = 1
        raise RuntimeError("no instance, and another class")


@program(eager="sets the attribute 'attempts' of a type")
def raise_of_a_class_that_changes_and_refuses():
    raise Fickle


@program
def the_name_is_gone_after_the_handler():
    error = 1
    try:
        raise ValueError
    except ValueError as error:
        pass
    return error


@program
def exceptions_leave_no_trace():
    for i in range(3):
        try:
            raise Problem(i)
        except Problem as problem:
            kept = problem
    try:
        raise ValueError
    except ValueError as error:
        return error.__context__, kept.code


@program(lambda: ([1, "a", None, {}],))
def dispatch_on_exceptions(values):
    found = []
    for value in values:
        try:
            found.append(value + 1)
        except TypeError as error:
            found.append(str(error))
    return found


@program(eager="exception class")
def except_with_something_else():
    try:
        fails(0)
    except 5:
        return 1


@program(eager="exception class")
def except_with_something_else_in_a_tuple():
    try:
        fails(0)
    except (KeyError, (ValueError, 5)):
        return 1


@program(lambda: ((KeyError, (IndexError, Problem)),))
def except_with_nested_tuples(kinds):
    try:
        fails(0)
    except kinds[:1] + kinds[1]:
        return "caught"


class Noisy:
    def __getattr__(self, name):
        raise Problem(name)

    def __getitem__(self, key):
        raise Problem(key)

    def __setitem__(self, key, value):
        raise Problem(key)

    def __delitem__(self, key):
        raise Problem(key)

    def __setattr__(self, name, value):
        raise Problem(name)

    def __delattr__(self, name):
        raise Problem(name)

    def __call__(self, *args):
        raise Problem("call")

    def __add__(self, other):
        raise Problem("add")

    def __radd__(self, other):
        raise Problem("radd")

    def __iadd__(self, other):
        raise Problem("iadd")

    def __neg__(self):
        raise Problem("neg")

    def __bool__(self):
        raise Problem("bool")

    def __eq__(self, other):
        raise Problem("eq")

    def __lt__(self, other):
        raise Problem("lt")

    def __hash__(self):
        raise Problem("hash")

    def __contains__(self, item):
        raise Problem("contains")

    def __iter__(self):
        raise Problem("iter")

    def __len__(self):
        raise Problem("len")

    def __str__(self):
        raise Problem("str")

    def __repr__(self):
        raise Problem("repr")

    def __format__(self, spec):
        raise Problem("format")

    def __index__(self):
        raise Problem("index")

    def __enter__(self):
        raise Problem("enter")

    def __exit__(self, *args):
        raise Problem("exit")


class BadNext:
    def __iter__(self):
        return self

    def __next__(self):
        raise Problem("next")


def setting(noisy):
    noisy.x = 1


def deleting(noisy):
    del noisy.x


def storing(noisy):
    noisy[1] = 1


def removing(noisy):
    del noisy[1]


def adding_in_place(noisy):
    noisy += 1


def branching(noisy):
    if noisy:
        pass


def branching_back(noisy):
    while not noisy:
        pass


def short_cut(noisy):
    return noisy and 1


def in_a_set(noisy):
    return {1, noisy}


def in_a_dict(noisy):
    return {noisy: 1}


def in_a_comprehension(noisy):
    return {x: x for x in [noisy]}


def in_a_set_comprehension(noisy):
    return {x for x in [noisy]}


def unpacked(noisy):
    a, b = noisy


def starred(noisy):
    return [*noisy]


def starred_into_a_set(noisy):
    return {*noisy}


def starred_call(noisy):
    return print(*noisy)


def iterated(noisy):
    for x in noisy:
        pass


def formatted(noisy):
    return f"{noisy}"


def shown(noisy):
    return f"{noisy!r}"


def as_text(noisy):
    return f"{noisy!s:>5}"


def entered(noisy):
    with noisy:
        pass


def chained(noisy):
    return 1 < 2 < noisy


def sliced(noisy):
    return [1, 2][noisy:]


def yielded_from(noisy):
    def inner():
        yield from noisy

    return list(inner())


def next_of(noisy):
    for x in BadNext():
        pass


PLACES = [
    lambda x: x.attribute,
    setting,
    deleting,
    lambda x: x[1],
    storing,
    removing,
    lambda x: x(),
    lambda x: x + 1,
    lambda x: 1 + x,
    adding_in_place,
    lambda x: -x,
    branching,
    branching_back,
    lambda x: not x,
    short_cut,
    lambda x: x == 1,
    lambda x: x < 1,
    chained,
    lambda x: 1 in x,
    in_a_set,
    in_a_dict,
    in_a_comprehension,
    in_a_set_comprehension,
    unpacked,
    starred,
    starred_into_a_set,
    starred_call,
    iterated,
    lambda x: len(x),
    formatted,
    shown,
    as_text,
    lambda x: hash(x),
    lambda x: [1][x],
    sliced,
    entered,
    yielded_from,
    next_of,
    lambda x: x.method(1),
    lambda x: sorted([x, x]),
    lambda x: [i for i in map(int, [x])],
    lambda x: x if x else 0,
]


def place(index):
    def check():
        found = []
        for each in (PLACES[index], PLACES[index]):
            try:
                each(Noisy())
            except Problem as error:
                found.append((error.code, error.__traceback__ is not None))
        PLACES[index](Noisy())
        return found

    check.__name__ = f"raised_in_place_{index}"
    return check


for index in range(len(PLACES)):
    program()(place(index))


class Suppress:
    def __init__(self, *kinds):
        self.kinds = kinds

    def __enter__(self):
        return self

    def __exit__(self, kind, value, traceback):
        return kind is not None and issubclass(kind, self.kinds)


@program
def handlers_around_handlers():
    log = []
    with Suppress(KeyError):
        try:
            with Suppress(ValueError):
                raise KeyError("a")
        finally:
            log.append("finally")
        log.append("never")
    try:
        try:
            raise ValueError("b")
        except ValueError:
            raise TypeError("c")
    except TypeError as error:
        log.append((error.__context__.args, error.__cause__))
    return log


@program
def notes_and_attributes():
    try:
        fails(0)
    except Problem as error:
        error.add_note("a note")
        error.extra = 5
        raise


@program
def stop_iteration_in_a_function():
    raise StopIteration(5)


@program
def lookup_errors():
    found = []
    for attempt in (
        lambda: {}["k"],
        lambda: [][3],
        lambda: (1).nothing,
        lambda: "a" + 1,
        lambda: int("x"),
        lambda: 1 / 0,
        lambda: None.x,
        lambda: [].append(),
        lambda: {}[[]],
        lambda: -"a",
        lambda: len(5),
        lambda: iter(5),
        lambda: 1 < "a",
        lambda: 1 in 5,
        lambda: fails(n=0, m=1),
    ):
        try:
            attempt()
        except Exception as error:
            found.append((type(error).__name__, str(error)))
    return found


@program(lambda: (5,), eager="not understood")
def call_of_a_number(n):
    try:
        n()
    except TypeError as error:
        return str(error)


@program
def warns_inside():
    try:
        raise UserWarning("w")
    except Warning as error:
        return str(error)


@program(eager="raised")
def exits():
    raise SystemExit(3)


@program
def exception_groups():
    try:
        raise ExceptionGroup("many", [ValueError(1), KeyError(2)])
    except* ValueError as group:
        found = [type(e).__name__ for e in group.exceptions]
    except* KeyError:
        found.append("key")
    return found


@program
def exception_groups_left_over():
    try:
        raise ExceptionGroup("many", [ValueError(1), KeyError(2)])
    except* ValueError:
        raise TypeError("again")


class Batch(ExceptionGroup):
    def derive(self, found):
        return Batch(self.message + "'", found)


@program
def groups_inside_groups():
    found = []
    try:
        raise ExceptionGroup("a", [ValueError(1), ExceptionGroup("b", [KeyError(2), TypeError(3), OSError(4)])])
    except* (KeyError, TypeError) as group:
        found.append((group.message, [type(e).__name__ for e in group.exceptions[0].exceptions]))
    except* ValueError as group:
        found.append((group.message, group.exceptions[0].args))
    except* OSError:
        found.append("os")
    return found


@program
def groups_that_are_not_taken():
    try:
        raise ExceptionGroup("a", [ValueError(1), KeyError(2)])
    except* TypeError:
        x = "never"
    except* KeyError:
        x = 1


@program
def a_plain_exception_becomes_a_group():
    try:
        fails(1)
    except* Problem as group:
        found = group.message, group.exceptions[0].code
    return found


@program
def a_plain_exception_passes_by():
    try:
        fails(1)
    except* (KeyError, ValueError):
        x = "never"


@program
def groups_of_a_class_of_their_own():
    try:
        raise Batch("b", [ValueError(1), KeyError(2), ValueError(3)])
    except* ValueError as group:
        found = type(group).__name__, group.message, len(group.exceptions)
    except* KeyError:
        pass
    return found


@program
def groups_raised_again():
    try:
        try:
            raise ExceptionGroup("a", [ValueError(1), KeyError(2), TypeError(3)])
        except* ValueError:
            raise
        except* KeyError as group:
            raise OSError("new") from group
    except ExceptionGroup as group:
        return [type(e).__name__ for e in group.exceptions], group.__context__


@program
def groups_with_finally():
    log = []
    for n in range(3):
        try:
            if n:
                raise ExceptionGroup("a", [ValueError(n)])
        except* ValueError as group:
            log.append(group.exceptions[0].args)
            if n == 2:
                log.append("last")
        else:
            log.append("none")
        finally:
            log.append("finally")
    return log


@program
def a_group_cannot_be_caught_with_a_star():
    try:
        raise ValueError(1)
    except* ExceptionGroup:
        x = 1


@program(eager="exception class")
def a_star_with_something_that_is_no_class():
    try:
        raise ValueError(1)
    except* 5:
        x = 1
