"""How many bytes a run may allocate. What cannot fit is refused in words, before the machine runs out of memory."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from dovetail.errors import BindError

ALWAYS_FITS = 1 << 26
"""Bytes up to which the machine is not asked."""

_MEMORY = Path("/proc/meminfo")
_GROUP = Path("/sys/fs/cgroup")
_OWN = Path("/proc/self/statm")


def check_fits(count: int, what: str | Callable[[], str], limit: int = 0) -> None:
    """Refuse more bytes than the limit, or than the machine has left where there is none; `what` takes them."""
    if not limit and count <= ALWAYS_FITS:
        return
    most = limit or available()
    if count > most:
        taker = what if isinstance(what, str) else what()
        raise BindError(
            f"{taker} takes {count:,} bytes, and {most:,} {'are allowed' if limit else 'are left on this machine'}",
            hint="run it with smaller inputs" + (", or with a larger memory_limit" if limit else ""),
        )


def available() -> int:
    """The bytes that this process can still get."""
    limits = [_physical()]
    with suppress(OSError, ValueError, StopIteration):
        lines = _MEMORY.read_text(encoding="ascii").splitlines()
        limits.append(next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:")))
    with suppress(OSError, ValueError):
        most = int((_GROUP / "memory.max").read_text(encoding="ascii"))
        limits.append(most - int((_GROUP / "memory.current").read_text(encoding="ascii")))
    limits += _limited()
    return max(min(limits), 0)


def _limited() -> list[int]:
    """What the limit of this process's address space leaves, where there is one."""
    try:
        import resource  # not on Windows

        most = resource.getrlimit(resource.RLIMIT_AS)[0]
        used = int(_OWN.read_text(encoding="ascii").split()[0]) * resource.getpagesize()
    except (ImportError, OSError, ValueError):
        return []
    return [] if most == resource.RLIM_INFINITY else [most - used]


def _physical() -> int:
    with suppress(AttributeError, OSError, ValueError):
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return sys.maxsize
