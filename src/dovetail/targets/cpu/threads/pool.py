"""Worker threads that sit in compiled code: Python threads that enter it once and come back when the process ends."""

from __future__ import annotations

import atexit
import ctypes
import os
import sys
import threading
import weakref
from contextlib import suppress
from typing import Any

import numpy as np

from dovetail.errors import OptionError
from dovetail.targets.cpu.cores import available_threads
from dovetail.targets.cpu.isa import host
from dovetail.targets.cpu.jit import Compiled, compile_text
from dovetail.targets.cpu.threads.pool_text import STOP, block_bytes, crew_text
from dovetail.targets.runtime.store import Store

SPINS = 20_000
"""How often a worker looks before it sleeps: about the time between two runs of a busy program."""
PARTING = 5.0
"""Seconds that the end of the process waits for a run that is under way."""

_codes: list[Compiled] = []
"""The code of crews, once it is there."""


def _code(store: Store | None) -> Compiled:
    if not _codes:
        text = crew_text(arm=host().is_arm, linux=sys.platform == "linux", spins=SPINS)
        _codes.append(compile_text(text, vectorize=False, store=store))
    return _codes[0]


_alive: weakref.WeakSet[Crew] = weakref.WeakSet()


class Crew:
    """So many workers beside the thread that leads. One run at a time has them; another that comes runs alone."""

    def __init__(self, workers: int, store: Store | None = None) -> None:
        self.workers = workers
        self._memory = np.zeros(block_bytes(workers) + 64, np.uint8)
        self._block = (self._memory.ctypes.data + 63) // 64 * 64
        self._renew()
        code = _code(store)
        words = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            *[ctypes.c_int64] * 2,
            ctypes.c_void_p,
            *[ctypes.c_int64] * 2,
            ctypes.c_void_p,
        ]
        self._run: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *words)(code.address("run"))
        self._work: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address("worker"))
        _alive.add(self)

    def _renew(self) -> None:
        """A closed gate and no threads: how a crew begins, also in a child, where threads do not follow."""
        self._memory[:] = 0
        ctypes.c_int32.from_address(self._block).value = 1
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    def run(self, table: int, first: int, count: int, scratch: int, stride: int, marks: int = 0) -> int:
        """Run steps of a table; gives the number of the step where the host has to go on, or `count`.

        `marks` is where the times of steps and threads are wanted, or 0.
        """
        if self.workers and self._lock.acquire(blocking=False):
            try:
                self._start()
                return self._run(self._block, table, first, count, scratch, stride, self.workers, marks)
            finally:
                self._lock.release()
        return self._run(self._block, table, first, count, scratch, stride, 0, marks)

    def _start(self) -> None:
        if self._threads:
            return
        for number in range(1, self.workers + 1):
            thread = threading.Thread(
                target=self._work, args=(self._block, number), name=f"dovetail-{number}", daemon=True
            )
            thread.start()
            self._threads.append(thread)
        atexit.register(self._end)

    def _end(self) -> None:
        """The process ends: the workers go home, and runs of threads that are still there go alone."""
        if self._lock.acquire(timeout=PARTING):
            self._lock.release()
            self.workers = 0
            self.stop()
        else:
            # Somebody is still inside, who keeps on reading this memory.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))

    def stop(self) -> None:
        """Send the workers home."""
        with self._lock:
            ctypes.c_int32.from_address(self._block + STOP).value = 1
            for thread in self._threads:
                while thread.is_alive():
                    self._rouse()
                    thread.join(timeout=0.01)
            self._threads = []
            ctypes.c_int32.from_address(self._block + STOP).value = 0

    def _rouse(self) -> None:
        """Move the gate by two, so that who sleeps on its number wakes."""
        gate = ctypes.c_int32.from_address(self._block)
        gate.value = gate.value + 2
        if sys.platform == "linux":
            number = 98 if host().is_arm else 202
            ctypes.CDLL(None).syscall(number, ctypes.c_void_p(self._block), 129, 2**31 - 1, None, None, 0)


_crews: dict[int, Crew] = {}
_crews_lock = threading.Lock()


def crew(threads: int | None = None, store: Store | None = None) -> Crew:
    """The crew of this process for so many threads, the leader included; as many as the machine lends if None."""
    count = available_threads() if threads is None else threads
    if not 1 <= count <= 1024:
        raise OptionError(f"{count} threads", hint="use 1 to 1024")
    with _crews_lock:
        if count not in _crews:
            _crews[count] = Crew(count - 1, store)
        return _crews[count]


def _begin_again() -> None:
    """In a child: what others held or ran when it was forked is not there."""
    global _crews_lock
    _crews_lock = threading.Lock()
    for one in list(_alive):
        one._renew()  # pyright: ignore[reportPrivateUsage]


def call_up(threads: int | None = None, store: Store | None = None) -> None:
    """Have the code of crews compiled while others go on; who asks for a crew waits for it."""
    if not _codes:
        threading.Thread(target=_call_up, args=(threads, store)).start()


def _call_up(threads: int | None, store: Store | None) -> None:
    with suppress(Exception):  # whoever asks for the crew is told
        crew(threads, store)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_begin_again)
