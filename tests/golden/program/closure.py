"""A variable of a closure that is only carried along."""


def make():
    count = 0

    def step(by=1):
        nonlocal count
        count += by
        return count

    return step


step = make()


def f():
    def twice():
        return step() + step(2)

    return twice()
