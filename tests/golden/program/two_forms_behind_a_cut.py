"""What an unknown function returns decides: one form for each outcome."""

import itertools

numbers = itertools.cycle([1, 20])
draw = numbers.__next__


def f():
    if draw() < 10:
        return "low"
    return "high"


calls = 4
