"""Who called whom, for the programs of resumable.py: in a file of its own, because frames of that file are stopped."""

from __future__ import annotations

import sys
from types import FrameType

# Where the chain of callers goes on that a test has cut in two.
continues_at: FrameType | None = None


def here() -> list[tuple[str, int]]:
    """Names and lines from the caller outwards, as far as its file goes."""
    frame = sys._getframe(1)
    return callers(frame, frame.f_code.co_filename) + callers(continues_at, frame.f_code.co_filename)


def callers(frame: FrameType | None, file: str) -> list[tuple[str, int]]:
    found = []
    while frame and frame.f_code.co_filename == file:
        found.append((frame.f_code.co_name, frame.f_lineno))
        frame = frame.f_back
    return found
