"""What calls take from torch's CPU allocator, from its own profiler."""

from collections.abc import Callable
from typing import Any

import torch


def peak_kib(function: Callable[[], Any]) -> float:
    """The most that the CPU allocator gave out at a time during a call."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as profile:
        function()
    held = peak = 0
    for event in profile.profiler.kineto_results.events():
        if event.name() == "[memory]":
            held += event.nbytes()
            peak = max(peak, held)
    return peak / 1024
