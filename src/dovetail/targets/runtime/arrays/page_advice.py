"""Pages of host memory: return them to the system (madvise), and trim the allocator's free lists."""

from __future__ import annotations

import ctypes
import mmap
import re
import sys
from pathlib import Path
from typing import Any, cast

import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.address import address

_CAN_GIVE_BACK = sys.platform == "linux" and hasattr(mmap, "MADV_DONTNEED")
_COMPILER = "libllvmlite"
_MAPPING = re.compile(
    r"^([0-9a-f]+)-([0-9a-f]+) (\S{4}) \S+ \S+ \d+ +(/[^\n]*)\n((?:[A-Z]\w+:[^\n]*\n)*)", re.MULTILINE
)
_NO_COPIES = re.compile(r"^Anonymous: +0 kB$", re.MULTILINE)
"""Of a mapping no page of which was written to."""


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
    """Return freed memory that malloc still holds to the system, where malloc can do that."""
    if sys.platform == "linux":
        free: Any = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if free is not None:
            free(ctypes.c_size_t(0))


def unload_compiler() -> None:
    """Drop the resident pages of LLVM's code and tables, which a later compilation faults in again.

    They are tens of megabytes that runs do not read. Pages that differ from the file stay.
    """
    if _CAN_GIVE_BACK:
        advise: Any = ctypes.CDLL(None).madvise
        for start, count in clean_ranges(_COMPILER):
            advise(ctypes.c_void_p(start), ctypes.c_size_t(count), mmap.MADV_DONTNEED)


def clean_ranges(file: str) -> list[tuple[int, int]]:
    """Address and bytes of each mapping of a file that cannot be written to and that equals the file."""
    try:
        text = Path("/proc/self/smaps").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return []
    ranges: list[tuple[int, int]] = []
    for start, end, access, path, counts in _MAPPING.findall(text):
        if Path(path).name.startswith(file) and "w" not in access and _NO_COPIES.search(counts):
            ranges.append((int(start, 16), int(end, 16) - int(start, 16)))
    return ranges


__all__ = ["clean_ranges", "give_back", "reserve", "trim", "unload", "unload_compiler"]
