"""Batches: a large one as micro-batches of equal size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from dovetail.errors import BindError
from dovetail.ir.literal import Array


def micro_batches(batch: Mapping[str, Array], count: int) -> Iterator[dict[str, Array]]:
    """Yield the batch in equal parts of rows. An array with fewer axes or another number of rows goes whole to each."""
    rows = max((len(a) for a in batch.values() if a.ndim), default=0)
    if rows % count or not rows:
        raise BindError(f"{rows} rows in {count} micro-batches", hint=f"pass batches whose rows {count} divides")
    size = rows // count
    for part in range(count):
        cut = slice(part * size, (part + 1) * size)
        yield {name: a[cut] if a.ndim and len(a) == rows else a for name, a in batch.items()}


__all__ = ["micro_batches"]
