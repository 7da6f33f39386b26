"""magneto.is_supported: whether things work here, and why not."""

from dataclasses import dataclass

from magneto import _C

__all__ = ["Support", "is_supported"]


@dataclass(frozen=True)
class Support:
    """Whether something works here; true or false by itself, and the reason when it does not."""

    reason: str

    def __bool__(self) -> bool:
        return not self.reason


def is_supported() -> Support:
    """Whether this Python can capture; when not, ``is_supported().reason`` says why, and everything runs eagerly."""
    return Support(_C.supported())
