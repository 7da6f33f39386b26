"""A loop over an older list, unrolled."""

weights = [1, 2, 3]


def f(x):
    total = 0
    for weight in weights:
        total += weight * x
    return total


arguments = (2,)
