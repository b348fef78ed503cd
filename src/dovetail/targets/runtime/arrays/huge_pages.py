"""Arrays side by side in huge pages: 2 MiB cost one page fault when they are written, and one entry of the TLB when
they are read.

NumPy requests huge pages for arrays of 4 MiB or more, of which only the aligned parts become huge; most matrices of a
model in 4 bits are smaller. The memory of arrays that share a mapping is freed with the last of them: weights of one
program die together.
"""

from __future__ import annotations

import math
import mmap
import threading
import weakref
from typing import Any

import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.runtime.arrays.aligned import ALIGNMENT, aligned

HUGE = 2 << 20
_MAPPING = 128 * HUGE
"""Bytes of a mapping, of which those that no array takes never become memory."""
_LEAST = 1 << 16
"""Bytes of an array that is worth it."""
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


class HugePages:
    """Allocates arrays in shared mappings. A mapping lives as long as an array in it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._mapping: weakref.ref[Array] | None = None
        self._free = self._end = 0

    def array(self, shape: tuple[int, ...], dtype: type[Any]) -> Array:
        """An array that begins with a line of the caches; its contents are not set."""
        size = np.dtype(dtype).itemsize * math.prod(shape)
        part = self._part(size) if size >= _LEAST else None
        return aligned(shape, dtype) if part is None else part.view(dtype).reshape(shape)

    def _part(self, size: int) -> Array | None:
        with self._lock:
            mapping = None if self._mapping is None else self._mapping()
            if mapping is None or self._free + size > self._end:
                mapping = _mapped(max(size, _MAPPING))
                if mapping is None:
                    return None
                self._mapping = weakref.ref(mapping)
                self._free = -mapping.ctypes.data % HUGE
                self._end = mapping.size
            start = self._free
            self._free += -(-size // ALIGNMENT) * ALIGNMENT
            return mapping[start : start + size]


def _mapped(size: int) -> Array | None:
    """A mapping with `size` bytes after the first boundary of a huge page; None where the system refuses it."""
    if _ADVICE is None:
        return None
    try:
        pages = mmap.mmap(-1, size + HUGE, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        pages.madvise(_ADVICE)
    except OSError:
        return None
    return np.frombuffer(pages, np.uint8)


HUGE_PAGES = HugePages()
"""Those of this process."""

__all__ = ["HUGE", "HUGE_PAGES", "HugePages"]
