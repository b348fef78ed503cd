"""Memory that can be given back to the system in parts, and memory that the allocator holds for nobody."""

from __future__ import annotations

import ctypes
import mmap
import sys
from typing import Any, cast

import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.cpu.address import address

_CAN_GIVE_BACK = sys.platform == "linux" and hasattr(mmap, "MADV_DONTNEED")


def reserve(count: int) -> Array:
    """So many bytes, from the start of a page on."""
    if not count or not _CAN_GIVE_BACK:
        return np.empty(count, np.uint8)
    return np.frombuffer(mmap.mmap(-1, count, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS), np.uint8)


def give_back(pages: Array, start: int, end: int) -> None:
    """Nobody reads these bytes of a reserved piece any more: whole pages of them go back to the system."""
    held = _mapped(pages)
    if held is not None:
        _drop(held, start, end)


def unload(array: Array) -> None:
    """Pages of a file that is mapped for reading leave memory; who reads them again gets them from the file."""
    file = _mapped(array)
    if file is not None and memoryview(file).readonly:
        start = address(array) - address(np.frombuffer(file, np.uint8))
        _drop(file, start, start + array.nbytes)


def _mapped(array: Array) -> mmap.mmap | None:
    """What an array is a view of, if that is mapped."""
    held: Any = array
    while isinstance(held, np.ndarray):
        held = cast(Any, held).base
    found = held.obj if isinstance(held, memoryview) else held
    return found if isinstance(found, mmap.mmap) else None


def _drop(held: mmap.mmap, start: int, end: int) -> None:
    first, last = -(-start // mmap.PAGESIZE) * mmap.PAGESIZE, end // mmap.PAGESIZE * mmap.PAGESIZE
    if first < last and _CAN_GIVE_BACK:
        held.madvise(mmap.MADV_DONTNEED, first, last - first)


def trim() -> None:
    """What was freed and is still held by the allocator goes back to the system, where the allocator can do that."""
    if sys.platform == "linux":
        free: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if free is not None:
            free(ctypes.c_size_t(0))


__all__ = ["give_back", "reserve", "trim", "unload"]
