"""The launch table: one row for each step of a section, which an executor runs in order."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

import numpy as np

from dovetail.ir.literal import Array

STEP = np.dtype([(name, np.int64) for name in ("function", "arguments", "tiles", "chunk", "kind", "status")])
"""A row: the address of the kernel or 0, the address of its launch arguments or of its control record, its tiles, the
tiles of a chunk, its kind, and the address of the error flag that it may set, or 0."""
OFFSETS: Mapping[str, int] = MappingProxyType({name: int(field[1]) for name, field in (STEP.fields or {}).items()})
"""The byte offset of each field of a row."""

KIND_COMPILED, KIND_HOST, KIND_LOOP, KIND_BRANCH = 0, 1, 2, 3


def empty_table(count: int) -> Array:
    """A table of `count` rows, all zero."""
    return np.zeros(count, STEP)


__all__ = ["KIND_BRANCH", "KIND_COMPILED", "KIND_HOST", "KIND_LOOP", "OFFSETS", "STEP", "empty_table"]
