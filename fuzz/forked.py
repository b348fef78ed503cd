"""Work in a child process that may crash, hang or be killed."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable

PATIENCE = 60.0
"""Seconds after which a child hangs."""


def forked(work: Callable[[], None], kill_after: float | None = None) -> int | None:
    """The exit status of a child that does some work; None for one that is killed, or hangs and is killed."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            work()
            status = 0
        finally:
            os._exit(status)
    end = time.monotonic() + (PATIENCE if kill_after is None else kill_after)
    while time.monotonic() < end:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.002)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return None
