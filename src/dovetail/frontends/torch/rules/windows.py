"""Windows that slide over images: numbers for each axis, and images without a batch."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.ir.value import Value
from dovetail.ops import build


def each(numbers: int | Sequence[int], count: int) -> tuple[int, ...]:
    """One number for each axis: one is repeated."""
    listed = (numbers,) if isinstance(numbers, int) else tuple(numbers)
    return listed * count if len(listed) == 1 else listed


def batched(x: Value, count: int) -> tuple[Value, bool]:
    """Images with a batch, and whether the only one came without."""
    return (build.expand_dims(x, 0), True) if x.rank == count + 1 else (x, False)


__all__ = ["batched", "each"]
