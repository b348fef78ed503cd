"""The thread pool: Python threads that enter compiled code once and return when the process ends."""

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

from dovetail.errors import OptionError, UnsupportedError
from dovetail.targets.cpu.cores import available_threads, is_arm
from dovetail.targets.cpu.isa import Host
from dovetail.targets.cpu.threads.futex import FUTEX_WAKE_PRIVATE, WAKE_ALL, futex_number
from dovetail.targets.cpu.threads.pool_text import EPOCH, STOP, block_bytes, pool_text
from dovetail.targets.runtime.building.compiler import LoadedCode
from dovetail.targets.runtime.building.store import CodeStore

SPINS = 20_000
"""Spins of a worker before it sleeps: about the time between two runs of a busy program."""
EXIT_SECONDS = 5.0
"""Seconds that the end of the process waits for a run that is under way."""

_codes: list[LoadedCode] = []
"""The code of thread pools, once it is compiled."""


def check_system() -> None:
    """Refuse Windows: threads call functions of POSIX, and a symbol that is missing would end the process."""
    if sys.platform == "win32":
        raise UnsupportedError(
            "target cpu does not run on Windows yet: its threads call functions of POSIX",
            hint='use target="reference", or WSL; reports (dovetail.explain, dovetail explain) work on Windows',
        )


def _code(store: CodeStore | None) -> LoadedCode:
    check_system()
    if not _codes:
        from dovetail.targets.cpu.jit import load  # LLVM, which saved programs go without

        _codes.append(load([pool_object(store)]))
    return _codes[0]


def pool_object(store: CodeStore | None = None, here: Host | None = None) -> bytes:
    """The object file of the code of thread pools; `here` may be another machine."""
    from dovetail.targets.cpu.jit import machine_code  # LLVM, which saved programs go without

    arm = is_arm() if here is None else here.is_arm
    text = pool_text(arm=arm, linux=sys.platform == "linux", spins=SPINS)
    # The text is SSA without redundancy: the optimiser would take 50 ms of a first call and gain nothing.
    return machine_code(text, vectorize=False, optimize=False, store=store, here=here)


_alive: weakref.WeakSet[ThreadPool] = weakref.WeakSet()


class ThreadPool:
    """Workers in addition to the leading thread. One run at a time uses them; a concurrent run has the leader only."""

    def __init__(self, workers: int, store: CodeStore | None = None, code: LoadedCode | None = None) -> None:
        self.workers = workers
        self._memory = np.zeros(block_bytes(workers) + 64, np.uint8)
        self._block = (self._memory.ctypes.data + 63) // 64 * 64
        self._reset()
        if code is not None and not _codes:
            _codes.append(code)
        code = _code(store)
        parameters = [
            ctypes.c_void_p,
            ctypes.c_void_p,
            *[ctypes.c_int64] * 2,
            ctypes.c_void_p,
            *[ctypes.c_int64] * 2,
            ctypes.c_void_p,
        ]
        self._run: Any = ctypes.CFUNCTYPE(ctypes.c_int64, *parameters)(code.address("run"))
        self._work: Any = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int64)(code.address("worker"))
        _alive.add(self)

    def _reset(self) -> None:
        """A closed epoch and no threads: how a pool begins, also in a forked child, which has no workers."""
        self._memory[:] = 0
        ctypes.c_int32.from_address(self._block + EPOCH).value = 1
        self._lock = threading.Lock()
        self._threads: list[threading.Thread] = []

    @property
    def threads(self) -> int:
        """Threads of a run, the leader included."""
        return self.workers + 1

    def run(self, table: int, first: int, count: int, scratch: int, stride: int, trace: int = 0) -> int:
        """Run steps of a launch table; gives the index of the step that the host must run, or `count`.

        `trace` is the address of a trace buffer, or 0.
        """
        if self.workers and self._lock.acquire(blocking=False):
            try:
                self._start()
                return self._run(self._block, table, first, count, scratch, stride, self.workers, trace)
            finally:
                self._lock.release()
        return self._run(self._block, table, first, count, scratch, stride, 0, trace)

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
        """The process ends: stop the workers; later runs of other threads have the leader only."""
        if self._lock.acquire(timeout=EXIT_SECONDS):
            self._lock.release()
            self.workers = 0
            self.stop()
        else:
            # A run is still under way, and reads this memory.
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(self._memory))

    def stop(self) -> None:
        """Stop the workers and wait for them."""
        with self._lock:
            ctypes.c_int32.from_address(self._block + STOP).value = 1
            for thread in self._threads:
                while thread.is_alive():
                    self._wake()
                    thread.join(timeout=0.01)
            self._threads = []
            ctypes.c_int32.from_address(self._block + STOP).value = 0

    def _wake(self) -> None:
        """Advance the epoch by two, so that workers that sleep on its value wake."""
        epoch = ctypes.c_int32.from_address(self._block + EPOCH)
        epoch.value = epoch.value + 2
        if sys.platform == "linux":
            at = ctypes.c_void_p(self._block + EPOCH)
            number = futex_number(arm=is_arm())
            ctypes.CDLL(None).syscall(number, at, FUTEX_WAKE_PRIVATE, WAKE_ALL, None, None, 0)


_pools: dict[int, ThreadPool] = {}
_pools_lock = threading.Lock()


def thread_pool(
    threads: int | None = None, store: CodeStore | None = None, code: LoadedCode | None = None
) -> ThreadPool:
    """The pool of this process with `threads` threads, the leader included; None is as many as are available.

    `code` is used where none was compiled yet.
    """
    count = available_threads() if threads is None else threads
    if not 1 <= count <= 1024:
        raise OptionError(f"{count} threads", hint="use 1 to 1024")
    with _pools_lock:
        if count not in _pools:
            _pools[count] = ThreadPool(count - 1, store, code)
        return _pools[count]


def _after_fork() -> None:
    """In a forked child: locks are free and there are no workers."""
    global _pools_lock
    _pools_lock = threading.Lock()
    for pool in list(_alive):
        pool._reset()  # pyright: ignore[reportPrivateUsage]


def warm_up(threads: int | None = None, store: CodeStore | None = None) -> None:
    """Compile the code of thread pools in the background; `thread_pool` waits for it."""
    if not _codes:
        threading.Thread(target=_warm_up, args=(threads, store)).start()


def _warm_up(threads: int | None, store: CodeStore | None) -> None:
    with suppress(Exception):  # `thread_pool` raises the error
        thread_pool(threads, store)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
