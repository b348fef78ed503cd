"""Python's cycle collector, paused while graphs are built, in processes that are dovetail's own.

Values hold no cycles: reference counts free them. The collector walks all of them again and again all the same, which
took a quarter of the time of compiling 10,000 nodes (1.91 s with it, 1.45 s without).
"""

from __future__ import annotations

import gc
import threading
from collections.abc import Generator
from contextlib import contextmanager

from dovetail.process import is_own

_lock = threading.Lock()
_pauses = 0
_was_on = False


@contextmanager
def collector_paused() -> Generator[None]:
    """Pause the collector; it is on again after the last of several pauses, if it was on before the first."""
    global _pauses, _was_on
    if not is_own():
        yield
        return
    with _lock:
        if _pauses == 0:
            _was_on = gc.isenabled()
            gc.disable()
        _pauses += 1
    try:
        yield
    finally:
        with _lock:
            _pauses -= 1
            if _pauses == 0 and _was_on:
                gc.enable()
