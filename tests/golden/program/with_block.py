"""A block whose manager changes itself on the way in and out."""


class Scope:
    def __init__(self):
        self.open = False

    def __enter__(self):
        self.open = True
        return self

    def __exit__(self, *error):
        self.open = False


scope = Scope()


def f():
    with scope as inside:
        seen = inside.open
    return seen
