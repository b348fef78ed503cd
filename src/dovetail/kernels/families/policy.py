"""How kernel families cut their work on any target; what depends on caches is the target's tile policy."""

from __future__ import annotations

from dovetail.dataclass import dataclass


@dataclass(frozen=True, slots=True)
class FamilyPolicy:
    """Sizes of unrolled code and of tiles."""

    loops_rows: int = 8
    """Rows of a tile of a matrix product in loops: their sums stay in L1, and a row of factors serves many."""
    loops_columns: int = 512
    loops_channels: int = 4
    """Channels whose products go into a sum at once, so that it is read and written less often."""
    move_pieces: int = 64
    """Pieces of a copy, at most: each has loops of its own, and all of them are compiled."""
    weave_pieces: int = 16
    """Pieces where views are fused, at most."""
    kept_cost: int = 6
    """From how many steps on a value is kept for a later loop over the row rather than computed again."""
    scatter_lanes: int = 64
    """Adjacent elements of a tile of a scatter, at most, where each is written on its own."""
    scatter_bytes: int = 1 << 22
    """Workspace for wide sums of a scatter, at most."""
    top_k_few: int = 128
    """Elements up to which top_k holds the best in order in one pass; with more it sorts."""
    grid_pixels: int = 128
    """Pixels of a grid whose taps are in scratch memory at once."""
    grid_taps: int = 64
    """Taps of a pixel, at most: each is unrolled."""
    resize_taps: int = 64
    """Elements that a resized one reads, at most: each is unrolled."""
    grid_channels: int = 8
    """Channels that one thread of a GPU samples at a pixel: it finds the taps once for all of them."""


FAMILIES = FamilyPolicy()

__all__ = ["FAMILIES", "FamilyPolicy"]
