"""Convolution of 3 by 3 over few places by Winograd's scheme: where it wins, and how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.conv import Choice, Convolution, Expanse, known
from dovetail.kernels.conv_block import HEAD
from dovetail.kernels.conv_field import Blocks, Field
from dovetail.kernels.conv_small_text import Square, forms_of, least_waste
from dovetail.kernels.job import Cut, Number, Packed
from dovetail.kernels.normal import normal
from dovetail.kernels.vector import Vectors
from dovetail.kernels.winograd_small_text import OUT, PATCH, POINTS, SPOTS, winograd_small_text
from dovetail.kernels.winograd_text import transformed_weights

FEWEST_CHANNELS = 64
"""Channels below which the transforms cost more than the products save."""
FEWEST_PATCHES, MOST_PATCHES = 20, 110
"""Patches below which reading nearly twice as many weights costs more than the products save, and above which what
becomes of them does not stay in the second cache."""
PIECE = 64
"""Channels that one register tile takes at a time: their weights stay in the first cache."""


def winograd_small(found: Convolution, expanse: Expanse, vectors: Vectors) -> list[Choice]:
    """The kernels of a convolution of 3 by 3 with few places and many filters."""
    field = expanse.field
    fitting = (field.window, field.strides, field.dilations, expanse.groups) == ((3, 3), (1, 1), (1, 1), 1)
    if not fitting or not expanse.is_level or found.x.rank != 4 or expanse.channels < FEWEST_CHANNELS:
        return []
    squares = [Square(vectors, *form, found.epilogue, True) for form in forms_of(vectors)]
    # Lanes without a filter are as bad as those without a patch.
    full = [s for s in squares if -(-expanse.filters // s.block) * s.block <= 1.1 * expanse.filters]
    return [_choice(found, expanse, square) for square in full]


def _choice(found: Convolution, expanse: Expanse, square: Square) -> Choice:
    w = Packed(found.w, f"winograd small {square.block}", Transforming(square.block))
    return Choice(found.points(w, square.block), WinogradSmall(expanse, square), lambda: winograd_small_text(square))


@dataclass(frozen=True, slots=True)
class WinogradSmall:
    """How the work of `winograd_small_text` is cut."""

    expanse: Expanse
    square: Square

    def __call__(self, number: Number) -> Cut | None:
        return self.cut(self.expanse.known(number))

    def cut(self, of: Expanse) -> Cut | None:
        """The cut, where there are some patches and no other form wastes less of them."""
        square, lanes = self.square, self.square.vectors.lanes
        height, width = known(of.field.out[0]), known(of.field.out[1])
        down, across = -(-height // OUT), -(-width // OUT)
        count = down * across
        if not FEWEST_PATCHES <= count <= MOST_PATCHES or square.places != least_waste(square.vectors, count)[1]:
            return None
        pixels = Field(
            of.field.sizes, of.field.steps, (down, across), (PATCH, PATCH), (OUT, OUT), (1, 1), of.field.before
        )
        blocks = Blocks(down, across, 1, 1)
        image, channel = of.steps
        sizes = (
            *pixels.words(blocks), of.channels, of.filters, image, channel, height, width, PIECE, *of.residual[:1],
        )  # fmt: skip
        together = -(-count // square.places) * square.places
        run = (down - 1) * (across + pixels.over[1]) + across
        patches = SPOTS * (-(-4 * run * of.channels // 64) * 64 + 4 * lanes)
        sums = 4 * square.block * (SPOTS * together + height * width + 1)
        seen = 4 * (known(pixels.seen(blocks, 1)) + 2 * lanes)
        scratch = HEAD + 8 * SPOTS + 64 * -(-together // 8) + patches + sums + seen
        tiles = of.images * -(-of.filters // square.block)
        work = together * square.block * of.channels * SPOTS // (2 * lanes)
        return Cut(sizes, scratch, tiles, work + 1)


@dataclass(frozen=True, slots=True)
class Transforming:
    """Weights [m, c, 3, 3] as [block of filters][spot][c][filter], transformed; 0 in what is left of the last block."""

    block: int

    def __call__(self, w: Array) -> Array:
        blocks = -(-w.shape[0] // self.block)
        packed = np.zeros((blocks * self.block, w.shape[1], SPOTS), np.float32)
        packed[: w.shape[0]] = transformed_weights(w, POINTS)
        split = packed.reshape((blocks, self.block, w.shape[1], SPOTS))
        return normal(np.ascontiguousarray(split.transpose((0, 3, 2, 1))))
