"""Every kind of change to what is older than the call."""


class Cache:
    pass


cache = Cache()
cache.old = 1
table = {"n": 1}
log = []
last = None


def f(x):
    global last
    last = x
    log.append(x)
    table["n"] += 1
    cache.new = [x]
    del cache.old
    cache.old = 2


arguments = ("a",)
