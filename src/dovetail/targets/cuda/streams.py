"""Streams of the device, and events: points of a stream."""

from __future__ import annotations

import ctypes
from ctypes import c_float, c_void_p

from dovetail.targets.cuda.driver import DEFAULT_STREAM, Driver

NON_BLOCKING = 1
"""A stream that the default stream of the process does not wait for, whichever thread uses that."""
_EXTERNAL = 1
"""An event that a captured stream records whenever the graph runs."""


class Event:
    """A point of a stream, for times."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = 0
        found = c_void_p()
        driver.call("cuEventCreate", ctypes.byref(found), 0)
        self.handle = found.value or 0

    def record(self, stream: int = DEFAULT_STREAM, *, captured: bool = False) -> None:
        """Record it; where the stream is captured, each run of the graph does."""
        if captured:
            self.driver.call("cuEventRecordWithFlags", self.handle, stream, _EXTERNAL)
        else:
            self.driver.call("cuEventRecord", self.handle, stream)

    def synchronize(self) -> None:
        """Wait until the device has passed it; one that was never recorded is passed."""
        self.driver.call("cuEventSynchronize", self.handle)

    def seconds_since(self, start: Event) -> float:
        """The time between two events; waits for this one."""
        self.synchronize()
        found = c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(found), start.handle, self.handle)
        return found.value / 1e3

    def __del__(self) -> None:
        if self.handle:
            self.driver.quietly("cuEventDestroy_v2", self.handle)


class OwnStream:
    """A stream that waits for no other, for runs that share no memory with others."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = 0
        found = c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(found), NON_BLOCKING)
        self.handle = found.value or 0

    def __del__(self) -> None:
        if self.handle:
            self.driver.quietly("cuStreamDestroy_v2", self.handle)


__all__ = ["NON_BLOCKING", "Event", "OwnStream"]
