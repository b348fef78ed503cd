"""Streams of the device, and events: points of a stream."""

from __future__ import annotations

import ctypes
import threading
from ctypes import c_float, c_void_p

from dovetail.targets.cuda.driver.driver import DEFAULT_STREAM, Driver
from dovetail.targets.runtime.arrays.device_array import IN_ORDER, ExportError

NON_BLOCKING = 1
"""A stream that the default stream of the process does not wait for, whichever thread uses that."""
_EXTERNAL = 1
"""An event that a captured stream records whenever the graph runs."""
_UNTIMED = 2
"""An event that has no time, and is recorded sooner."""
_UNORDERED = -1
"""The number of a library that orders its work by itself."""
CAPTURES = threading.Lock()
"""Held while a stream is captured: until then no thread may wait for the device."""
MOST_RETURNED = 16
"""Buffers that streams of other libraries may still read: with more the device is waited for. A pool holds up to 32."""


class Event:
    """A point of a stream, for times and for what waits for it."""

    def __init__(self, driver: Driver, *, is_timed: bool = True) -> None:
        self.driver = driver
        self.handle = 0
        handle = c_void_p()
        driver.call("cuEventCreate", ctypes.byref(handle), 0 if is_timed else _UNTIMED)
        self.handle = handle.value or 0

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
        milliseconds = c_float()
        self.driver.call("cuEventElapsedTime", ctypes.byref(milliseconds), start.handle, self.handle)
        return milliseconds.value / 1e3

    def __del__(self) -> None:
        if self.handle:
            self.driver.quietly("cuEventDestroy_v2", self.handle)


class OwnStream:
    """A stream that waits for no other, for runs that share no memory with others."""

    def __init__(self, driver: Driver) -> None:
        self.driver = driver
        self.handle = 0
        handle = c_void_p()
        driver.call("cuStreamCreate", ctypes.byref(handle), NON_BLOCKING)
        self.handle = handle.value or 0

    def __del__(self) -> None:
        if self.handle:
            self.driver.quietly("cuStreamDestroy_v2", self.handle)


def order(driver: Driver, first: int, then: int) -> None:
    """Let a stream wait for all that is enqueued on another one; the host waits for neither."""
    event = Event(driver, is_timed=False)
    event.record(first)
    driver.call("cuStreamWaitEvent", then, event.handle, 0)


class Lending:
    """Lends memory of a pool to other libraries, whose streams may read it after the host has dropped it.

    A library gives memory back as soon as it has enqueued its last reader. Work on the default stream may overwrite it
    at once, if that reader is ordered before. Else it is kept until the device was waited for: by then the library may
    have destroyed its stream, so that no event can be recorded there.
    """

    def __init__(self, driver: Driver) -> None:
        self._driver = driver
        self._returned: list[object] = []

    def __call__(self, owner: object, stream: int | None) -> object:
        """What a library holds that reads on a stream, by its number in DLPack; the stream waits for our work."""
        if stream is None or stream in IN_ORDER:
            return owner
        if stream == 0:
            raise ExportError(
                "DLPack's stream 0 stands for several default streams",
                hint="pass stream=1 for the legacy one, or stream=2 for that of the thread",
            )
        if stream != _UNORDERED:
            order(self._driver, DEFAULT_STREAM, stream)
        return Lent(owner, self._returned)

    def settle(self, most: int = 0) -> None:
        """Free memory that libraries have returned, where it is more than `most` buffers."""
        if len(self._returned) > most and CAPTURES.acquire(blocking=not most):
            try:
                count = len(self._returned)  # what comes meanwhile may still be read
                self._driver.synchronize()
                del self._returned[:count]
            finally:
                CAPTURES.release()


class Lent:
    """An owner of memory in the hands of another library; it outlives this."""

    __slots__ = ("_owner", "_returned")

    def __init__(self, owner: object, returned: list[object]) -> None:
        self._owner, self._returned = owner, returned

    def __del__(self) -> None:
        # Libraries drop it from any thread, and in the middle of captures: nothing is asked of the driver.
        self._returned.append(self._owner)


__all__ = ["CAPTURES", "MOST_RETURNED", "NON_BLOCKING", "Event", "Lending", "OwnStream", "order"]
