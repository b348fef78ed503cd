"""Strings of a GGUF file: where each of thousands starts is found at once, and they are decoded when they are read.

A string is its length in eight bytes, and its bytes. The next one starts where it ends, so that a loop over all of a
vocabulary took longer than anything else in the head of a file. Lengths below 256 are seven zero bytes in a row, which
texts do not have: all of them in a part of the file are found together, and taken as far as each follows the last.
"""

from __future__ import annotations

import struct
from itertools import pairwise

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError
from dovetail.ir.literal import Array

LONGEST_STRING = 1 << 20
DAMAGED = "the file is damaged or cut off; fetch it again"
_LENGTH = struct.Struct("<Q")
_PART = 1 << 16
"""Bytes that are searched for lengths at a time."""
_FEW = 64
"""Strings of a part below which the search was not worth it: as many as `_ALONE` that follow are found one by one."""
_ALONE = 1024


@dataclass(frozen=True, slots=True, eq=False)
class Strings:
    """Strings one after the other; bytes that are not UTF-8 are kept as surrogates."""

    raw: memoryview
    starts: Array
    """Of each string, and the end of the last."""

    @property
    def end(self) -> int:
        return int(self.starts[-1])

    def decoded(self) -> list[str]:
        raw, starts = self.raw, self.starts.tolist()
        return [str(raw[start + _LENGTH.size : end], "utf-8", "surrogateescape") for start, end in pairwise(starts)]


def find_strings(raw: memoryview, at: int, count: int) -> Strings:
    """As many strings from there on, each of which ends within the bytes."""
    starts = np.empty(count + 1, np.int64)
    done, alone = 0, 0
    while done < count:
        some = _short(raw, at)[: count - done] if count - done >= _FEW and not alone else np.empty(0, np.int64)
        if len(some):
            starts[done : done + len(some)] = some
            done += len(some)
            at = _end(raw, int(some[-1]))
            alone = _ALONE if len(some) < _FEW else 0
        else:
            starts[done] = at
            done += 1
            at = _end(raw, at)
            alone = max(0, alone - 1)
    starts[count] = at
    return Strings(raw, starts)


def _end(raw: memoryview, at: int) -> int:
    """The end of the string there."""
    left = len(raw) - at - _LENGTH.size
    if left < 0:
        raise LoadError(f"a string at {at:,}, after the end", hint=DAMAGED)
    size: int = _LENGTH.unpack_from(raw, at)[0]
    if size > min(LONGEST_STRING, left):
        what = f"of {size:,} bytes" if size < 10**18 else "of far more bytes"
        raise LoadError(f"a string {what} at {at:,}", hint=DAMAGED)
    return at + _LENGTH.size + size


def _short(raw: memoryview, at: int) -> Array:
    """The starts of strings of less than 256 bytes that follow one another from there, as far as a part goes."""
    part = raw[at : at + _PART]
    count = len(part) - _LENGTH.size + 1
    lengths = np.ndarray((max(0, count),), "<u8", part, 0, (1,))
    starts = np.flatnonzero(lengths < 256)
    if not len(starts) or starts[0] != 0:
        return np.empty(0, np.int64)
    ends = starts + _LENGTH.size + lengths[starts].astype(np.int64)
    broken = np.flatnonzero(ends[:-1] != starts[1:])
    return at + starts[: int(broken[0]) + 1 if len(broken) else len(starts)]


__all__ = ["DAMAGED", "LONGEST_STRING", "Strings", "find_strings"]
