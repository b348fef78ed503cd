"""Pages of host memory: return them to the system (madvise), and trim the allocator's free lists."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any, cast

import numpy as np

from dovetail.ir.literal import Array
from dovetail.process import is_own
from dovetail.targets.runtime.arrays.address import address

_CAN_GIVE_BACK = sys.platform == "linux" and hasattr(mmap, "MADV_DONTNEED")


def reserve(count: int) -> Array:
    """`count` bytes that start at a page boundary."""
    if not count or not _CAN_GIVE_BACK:
        return np.empty(count, np.uint8)
    return np.frombuffer(mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)


def give_back(pages: Array, start: int, end: int) -> None:
    """Return the whole pages in this byte range of a reserved array to the system; their content is lost."""
    held = _mapped(pages)
    if held is not None:
        _drop(held, start, end)


def unload(array: Array) -> None:
    """Drop the resident pages of an array in a read-only file mapping; a later read faults them in again."""
    file = _mapped(array)
    if file is not None and memoryview(file).readonly:
        start = address(array) - address(np.frombuffer(file, np.uint8))
        _drop(file, start, start + array.nbytes)


def _mapped(array: Array) -> mmap.mmap | None:
    """The mapping that an array is a view of, if any."""
    held: Any = array
    while isinstance(held, np.ndarray):
        held = cast(Any, held).base
    owner = held.obj if isinstance(held, memoryview) else held
    return owner if isinstance(owner, mmap.mmap) else None


def _drop(held: mmap.mmap, start: int, end: int) -> None:
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and _CAN_GIVE_BACK:
        held.madvise(mmap.MADV_DONTNEED, first, last - first)


def trim() -> None:
    """Return freed memory that malloc still holds to the system, in a process of our own where malloc can do that."""
    if sys.platform == "linux" and is_own():
        free: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if free is not None:
            free(ctypes.c_size_t(0))


__all__ = ["give_back", "reserve", "trim", "unload"]
