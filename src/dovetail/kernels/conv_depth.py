"""Convolution of each channel by a filter of its own: where the kernel for it serves, and how the work is cut."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.kernels.conv import Choice, Convolution, Expanse, known
from dovetail.kernels.conv_block import HEAD
from dovetail.kernels.conv_depth_text import Depth, depth_text
from dovetail.kernels.conv_field import Field
from dovetail.kernels.job import Cut, Number
from dovetail.kernels.vector import Vectors

MOST_TAPS = 81
"""Taps of a window that may be written out."""
FARTHEST = 4
"""Rows from one place of a window, or from one of its taps, to the next, at most: each has an address of its own."""
MOST_ROWS, FEW_ROWS = 8, 4
"""Rows of a register tile, and where sizes come late and there is a register tile for every number of rows."""
ROOM = 16 * 1024
"""Bytes of what is laid out at a time: they stay in the first cache."""
MOST_ROOM = 256 * 1024
"""Bytes that one row of results may see."""
PART_WORK = 4000
"""Products of vectors that a tile has, about."""


def depth(found: Convolution, expanse: Expanse, vectors: Vectors) -> list[Choice]:
    """The kernel of a convolution whose groups have one channel and one filter each."""
    field = expanse.field
    apart = max(field.strides[0], *field.dilations)
    # Beside the sums and the weights of a column a register is read into.
    most = min(MOST_ROWS if field.is_known else FEW_ROWS, vectors.registers - field.window[0] - 2)
    if (
        (expanse.channels, expanse.filters) != (1, 1)
        or not 1 < field.taps <= MOST_TAPS
        or apart > FARTHEST
        or field.strides[1] > 2
        or field.steps[1] != 4
        or most < 2
        or not expanse.is_level
    ):
        return []
    most = 1 if field.window[0] == 1 else most
    heights = _heights(field, most) if field.is_known else tuple(range(1, most + 1))
    of = Depth(vectors, field.window, field.strides, field.dilations, heights, found.epilogue)
    return [Choice(found.packed(1), DepthCut(expanse, of, most), lambda: depth_text(of))]


def _heights(field: Field, most: int) -> tuple[int, ...]:
    """Rows of the register tiles that share what is in a band."""
    return tuple(range(1, most + 1))
