"""Every test of the core compiles functions without tensors, and leaves the settings as they were."""

from collections.abc import Iterator

import pytest

from core import worlds


@pytest.fixture(autouse=True)
def without_tensors() -> Iterator[None]:
    with worlds.settings(without_tensors=True, capture_attempts=3, recapture_limit=1000):
        yield
