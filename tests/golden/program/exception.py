"""An exception that is raised and handled inside the call."""

table = {"a": 1}


def look(name):
    try:
        return table[name]
    except KeyError as error:
        return f"no {error.args[0]}"


def f():
    return look("a"), look("b")
