"""New containers are built when they are returned."""


class Config:
    name = "small"
    sizes = (1, 2)


config = Config()


def f(x):
    first, second = config.sizes
    result = [first, {"name": config.name, "x": x}]
    result.append((second, config))
    return result


arguments = (7,)
