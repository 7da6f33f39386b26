"""Counts and times of the lazy device."""

from __future__ import annotations

from magneto import _C

__all__ = ["counter_names", "counter_value", "duration", "metrics_report", "reset_metrics"]

PERCENTILES = (1, 5, 10, 20, 50, 80, 90, 95, 99)


def counter_names() -> list[str]:
    """Beside what the device counts of itself: each operator that was run one at a time, by its name."""
    return sorted(_C.lazy_counters())


def counter_value(name: str) -> int | None:
    """None if nothing was counted under this name."""
    return _C.lazy_counters().get(name)


def reset_metrics() -> None:
    _C.lazy_clear_metrics()


def metrics_report() -> str:
    """All counters, and for each timer its count, its total and percentiles of its last thousand times."""
    lines = []
    for name, (count, total, last) in sorted(_C.lazy_timers().items()):
        ordered = sorted(last)
        shares = (f"{p}%={duration(ordered[min(len(ordered) - 1, len(ordered) * p // 100)])}" for p in PERCENTILES)
        lines += [f"Metric: {name}", f"  TotalSamples: {count}", f"  Accumulator: {duration(total)}"]
        lines += [f"  Percentiles: {'; '.join(shares)}"]
    for name, value in sorted(_C.lazy_counters().items()):
        lines += [f"Counter: {name}", f"  Value: {value}"]
    return "\n".join(lines) + "\n" if lines else ""


def duration(us: float) -> str:
    """Microseconds as text, in the unit that suits them."""
    return f"{us:.1f}us" if us < 1000 else f"{us / 1000:.2f}ms" if us < 1e6 else f"{us / 1e6:.3f}s"
