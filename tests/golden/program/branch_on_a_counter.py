"""A decision that depends on a counter: the comparison is checked, not the value."""


class State:
    pass


state = State()
state.steps = 1


def f():
    state.steps += 1
    if state.steps % 100 == 0:
        return "report"
    return None
