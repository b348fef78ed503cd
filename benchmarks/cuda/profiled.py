"""Kernels of a step on an NVIDIA GPU, by torch's profiler."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


def device_events(torch: Any, step: Callable[[], object], runs: int) -> list[Any]:
    """What the device did in many runs of a step, after a few runs that are not looked at."""
    for _ in range(3):
        step()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as found:
        for _ in range(runs):
            step()
        torch.cuda.synchronize()
    return [e for e in found.events() if e.device_type.name == "CUDA"]
