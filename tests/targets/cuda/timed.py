"""Devices with other timings than those of their files."""

from __future__ import annotations

from dataclasses import replace

import pytest

from dovetail.kernels.device import GpuDevice
from dovetail.kernels.timings.record import GpuTimings


def with_timings(device: GpuDevice, table: str, **figures: float) -> GpuDevice:
    """A device with these figures in a table of its timings."""
    whole = device.timings
    return replace(device, measured=replace(whole, **{table: replace(getattr(whole, table), **figures)}))


def set_timings(monkeypatch: pytest.MonkeyPatch, table: str, **figures: float) -> None:
    """Let every device have these figures in a table of its timings."""
    timings = GpuDevice.timings.fget
    assert timings is not None

    def changed(device: GpuDevice) -> GpuTimings:
        whole = timings(device)
        return replace(whole, **{table: replace(getattr(whole, table), **figures)})

    monkeypatch.setattr(GpuDevice, "timings", property(changed))


__all__ = ["set_timings", "with_timings"]
