"""A generator that runs to its end."""

items = [3, 4]


def squares(limit):
    for item in items:
        if item < limit:
            yield item * item


def f():
    return [*squares(4)]
