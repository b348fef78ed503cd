"""How products with weights in blocks are cut whose codes become floats."""

from __future__ import annotations

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FloatsPolicy:
    """How products with weights in blocks are cut whose codes become floats."""

    vectors: int = 4
    """Vectors of a panel's columns: one row has a sum for each, and they do not wait for each other."""
    many_registers: int = 32
    """Registers from which on several rows multiply all vectors at once; otherwise half of them."""
    tiles: tuple[int, ...] = (6, 4, 2, 1)
    """Rows of register tiles, most first."""
    steps: int = 8
    """Steps along k in an iteration, which divide every group."""
    rows: int = 128
    """Rows of a block, at most."""
    share: tuple[int, int] = (1, 2)
    """The part of L2 that rows of a block may take."""
    l1_share: tuple[int, int] = (1, 2)
    """The part of L1 that KC steps of a spelled panel take."""


FLOATS = FloatsPolicy()

__all__ = ["FLOATS", "FloatsPolicy"]
