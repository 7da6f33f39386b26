"""A counter that is only carried along: no guard pins its value."""


class State:
    steps = 0


state = State()
state.steps = 0


def f():
    state.steps += 1
    return state.steps
