"""What the tests of the frame hook share: guarded code, callbacks that replace code, programs of their own."""

from __future__ import annotations

import contextlib
import os
import subprocess
import sys
import textwrap
from types import CodeType, FrameType, SimpleNamespace

import _core


def always(f_locals):
    return True


def guarded(new, check_fn=always, **more):
    code = new if isinstance(new, CodeType) else new.__code__
    return SimpleNamespace(code=code, check_fn=check_fn, **more)


@contextlib.contextmanager
def hooked(callback):
    before = _core.set_eval_frame(callback)
    try:
        yield
    finally:
        _core.set_eval_frame(before)


class Callback:
    """Answers for given code objects, lets all others run, and notes what it was asked about."""

    def __init__(self, answers):
        self.answers = {}  # id of the code object -> (code object, answer): equal code objects are not the same
        self.asked = []
        # Cache entries hold their backend: the callback itself, which holds code objects, would never be freed.
        self._magneto_backend = object()
        for key, answer in answers.items():
            self.add(key, answer)

    def add(self, key, answer):
        code = getattr(key, "__code__", key)
        self.answers[id(code)] = (code, answer)

    def __call__(self, frame, cache_entry, frame_state):
        if id(frame.f_code) not in self.answers:
            return None
        code, answer = self.answers[id(frame.f_code)]
        self.asked.append(code.co_name)
        return answer(frame, cache_entry, frame_state) if callable(answer) else answer


def replacing(old, new, **more):
    return Callback({old: guarded(new, **more)})


def call_replaced(old, new, *args, **kwargs):
    """The results of two calls of `old` with the code of `new`: right after the callback, and from the cache."""
    _core.reset_code(old.__code__)
    callback = replacing(old, new)
    results = []
    for _ in range(2):
        with hooked(callback):
            results.append(old(*args, **kwargs))
    assert callback.asked == [old.__name__]
    return results


def back_chain(frame: FrameType | None) -> list[str]:
    names = []
    while frame:
        names.append(frame.f_code.co_name)
        frame = frame.f_back
    return names


def run_alone(source: str, status: int = 0) -> str:
    """A program of its own, which may crash."""
    lines = ["import sys", f"sys.path.insert(0, {os.path.dirname(_core.__file__)!r})", "import _core"]
    program = "\n".join(lines) + "\n" + textwrap.dedent(source)
    result = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=120)
    assert result.returncode == status, result.stderr[-2000:]
    assert not result.stderr or status, result.stderr[-2000:]
    return result.stdout.strip()
