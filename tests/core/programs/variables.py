"""Programs about variables: locals, cells, globals, unpacking, deletion, annotations."""
# ruff: noqa: F841, F821, PLW, SIM, B, RUF, C4, E731, UP

from core.worlds import Registry

program = Registry()
LIMIT = 10
SCRATCH = 1
COUNT = 1
NAMES = ["a", "b", "c"]


@program(lambda: (3, 4))
def local_variables(a, b):
    c = a + b
    a, b = b, a
    d = e = c * 2
    return a, b, c, d, e


@program(lambda: (3,))
def deleted_local(a):
    b = a
    del b
    b = a + 1
    del a
    return b


@program(lambda: (3,))
def unbound_local(a):
    if a > 5:
        b = 1
    return b


@program(lambda: (3,))
def deletion_of_an_unbound_local(a):
    b = 1
    del b
    try:
        del b
    except UnboundLocalError as error:
        return str(error), a


@program
def undefined_global():
    try:
        return missing_name
    except NameError as error:
        return error.name


@program(lambda: (2,))
def closures(a):
    def add(b):
        return a + b

    def twice(f):
        return lambda x: f(f(x))

    return twice(add)(1), twice(twice(add))(0)


@program(lambda: (2,))
def nonlocal_variables(a):
    total = 0

    def add(b):
        nonlocal total
        total += a * b
        return total

    return [add(i) for i in range(4)], total


@program(lambda: (5,))
def cell_argument_is_rebound(a):
    def read():
        return a

    first = read()
    a = a * 2
    return first, read()


@program(lambda: (5,))
def deleted_cell(a):
    def read():
        return a

    first = read()
    del a
    try:
        return first, read()
    except NameError as error:
        return first, type(error).__name__, str(error)


@program(lambda: (1,))
def deleted_cell_twice(a):
    def read():
        return a

    del a
    try:
        del a
    except NameError as error:
        return str(error), read.__name__


@program
def globals_and_builtins():
    return LIMIT, len(NAMES), max(NAMES), abs(-LIMIT)


@program
def stores_the_global_that_is_there():
    global LIMIT
    LIMIT = 10
    return LIMIT


@program
def stores_another_global():
    global COUNT
    COUNT += 1
    return COUNT


@program
def deletes_a_global():
    global SCRATCH
    del SCRATCH
    try:
        del SCRATCH
    except NameError as error:
        return str(error)
    finally:
        SCRATCH = 1


@program(lambda: ((1, (2, 3), [4, 5, 6]),))
def unpacking(value):
    a, (b, c), [d, *e] = value
    [f, g], h = (e, d)
    return a, b, c, d, e, f, g, h


@program(lambda: ([1, 2, 3, 4, 5],))
def unpacking_with_a_star(values):
    first, *middle, last = values
    *start, end = values
    head, *tail = tuple(values)
    a, b, *nothing = values[:2]
    middle.append(0)
    return first, middle, last, start, end, head, tail, nothing


@program(lambda: ("xyz",))
def unpacking_strings_sets_dicts_and_iterators(text):
    a, b, c = text
    d, e = {"k": 1, "l": 2}
    f, g = (i * i for i in range(2))
    ((h, i),) = {"m": 3}.items()
    (j,) = {7}
    k, l, m = map(ord, text)
    return a, b, c, d, e, f, g, h, i, j, k, l, m


@program(lambda: ("xyz",))
def unpacking_iterators_with_a_star(text):
    a, *b = text
    *c, d = (i for i in range(4))
    e, *f, g = {"p": 1, "q": 2, "r": 3}.items()
    return a, b, c, d, e, f, g


@program(lambda: ([1, 2, 3],))
def too_many_values(values):
    a, b = values


@program(lambda: ((1,),))
def too_few_values(values):
    a, b = values


@program(lambda: ([1],))
def too_few_values_for_a_star(values):
    a, b, *c = values


@program(lambda: ([1],))
def too_few_values_after_a_star(values):
    a, *b, c, d = iter(values)


@program(lambda: (5,))
def unpacking_a_number(value):
    a, b = value


@program(lambda: (5,))
def unpacking_a_number_with_a_star(value):
    a, *b = value


@program(lambda: ((i for i in "abc"),), eager="generator")
def unpacking_an_older_generator(values):
    a, b, c = values
    return a, b, c


@program(lambda: ([3, 1, 2],))
def walrus(values):
    if (n := len(values)) > 2 and (last := values[-1]):
        return n, last, [y for x in values if (y := x * 2) > 2], y


@program(lambda: (4,))
def annotations(a: int) -> int:
    b: int = a + 1
    c: "unknown"
    return b


@program(lambda: (5,))
def swaps(a):
    b, c, d = a, a + 1, a + 2
    b, c, d = d, b, c
    c, b = b, c
    return b, c, d


@program(lambda: ({"a": 1},))
def walks_a_dict(table):
    return [(key, value) for key, value in table.items()], list(table), [*table.values()]


@program
def many_variables():
    a0 = a1 = a2 = a3 = a4 = a5 = a6 = a7 = a8 = a9 = 1
    b0 = b1 = b2 = b3 = b4 = b5 = b6 = b7 = b8 = b9 = a0 + a9
    return [a0, a1, a2, a3, a4, a5, a6, a7, a8, a9, b0, b1, b2, b3, b4, b5, b6, b7, b8, b9]


exec(
    "def extended_arguments(x):\n"
    + "".join(f"    v{i} = x + {i}.5\n" for i in range(300))
    + "    for i in range(2):\n"
    + "".join(f"        v{i} = v{i} + v{i + 1}\n" for i in range(299))
    + "    if x > 100:\n"
    + "".join(f"        v{i} = -v{i}\n" for i in range(150))
    + "    return v0, v299, sum(["
    + ", ".join(f"v{i}" for i in range(300))
    + "])\n"
)
program(lambda: (1,))(extended_arguments)
