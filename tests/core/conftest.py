"""Every test of the core compiles functions without tensors, and leaves the settings as they were."""

from collections.abc import Iterator

import _core
import pytest

from core import worlds


def pytest_configure(config: pytest.Config) -> None:
    """Nobody captures the thread in which pytest-xdist listens: that would last until the next message comes."""
    if hasattr(config, "workerinput"):
        from execnet.gateway_base import Message

        Message.from_io = staticmethod(_core.ScopedFunction(Message.from_io, "eager"))


@pytest.fixture(autouse=True)
def without_tensors() -> Iterator[None]:
    with worlds.settings(without_tensors=True, capture_attempts=3, recapture_limit=1000):
        yield
