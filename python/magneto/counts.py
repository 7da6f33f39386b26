"""magneto.counters: what happened so far, as read-only groups of counts over the native counters."""

from collections.abc import Iterator, Mapping

from magneto import _C
from magneto.registry import eager_everywhere

__all__ = ["CounterGroup", "Counters", "counters"]


class CounterGroup(Mapping[str, int]):
    """The counts of one group, as they are now; a name that was never counted is 0."""

    def __init__(self, group: str) -> None:
        self._group = group

    def _now(self) -> dict[str, int]:
        return _all_counts().get(self._group, {})

    def __getitem__(self, name: str) -> int:
        return self._now().get(name, 0)

    def __contains__(self, name: object) -> bool:
        return name in self._now()

    def __iter__(self) -> Iterator[str]:
        return iter(self._now())

    def __len__(self) -> int:
        return len(self._now())

    def __repr__(self) -> str:
        return repr(self._now())


class Counters(Mapping[str, CounterGroup]):
    """Groups of counts since the start or the last ``magneto.reset()``.

    ``counters["stats"]`` has captures, graphs, calls and hits, ``counters["eager"]`` counts each reason for which a
    capture was given up, ``counters["recompile"]`` each reason for which a function was captured again, and
    ``counters["graph_break"]`` each call of something unknown that cuts a program into parts, by place,
    and ``counters["unknown_call"]`` by name. ``counters["backend_skipped"]`` counts graphs that stay with the native
    tier, ``counters["backend_error"]`` errors that what backends made has raised.
    ``counters["compiled_autograd"]`` has captures, hits, fallbacks and declined of ``magneto.compiled_autograd``, with
    reasons in ``counters["compiled_autograd_declined"]``, and ``counters["compiled_autograd_opaque"]`` the nodes that
    are called as they are.
    ``counters["cuda_graphs"]`` and ``counters["cuda_graphs_refused"]`` tell the same of CUDA graphs.
    A group or name that was never counted is empty or 0.
    """

    def __getitem__(self, group: str) -> CounterGroup:
        return CounterGroup(group)

    def __contains__(self, group: object) -> bool:
        return group in _all_counts()

    def __iter__(self) -> Iterator[str]:
        return iter(_all_counts())

    def __len__(self) -> int:
        return len(_all_counts())

    def __repr__(self) -> str:
        return repr(_all_counts())


def _all_counts() -> dict[str, dict[str, int]]:
    counts = _C.counters()
    reason, functions = eager_everywhere()
    if reason and functions:
        # Where nothing can be captured no capture fails, so the native side has nothing to count.
        counts.setdefault("eager", {}).setdefault(reason, functions)
    return counts


counters = Counters()
