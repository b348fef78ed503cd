"""How pools are cut."""

from __future__ import annotations

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class PoolPolicy:
    """Tiles of pools."""

    together: int = 4
    """Vectors of a row that go through the rows of a window at once."""
    most_columns: int = 16
    """Columns of a window that may be unrolled."""
    tile: int = 4096
    """Pixels of a tile, about."""


POOL = PoolPolicy()

__all__ = ["POOL", "PoolPolicy"]
