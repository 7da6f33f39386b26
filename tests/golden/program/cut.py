"""A call of something unknown inside a function that is called."""

import queue

box = queue.SimpleQueue()


def send(message):
    box.put(message)
    return box.qsize()


def f(x):
    prefix = [x]
    size = send("hello")
    prefix.append(size)
    return prefix


arguments = (1,)
