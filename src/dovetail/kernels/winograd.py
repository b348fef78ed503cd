"""Convolution of 3 by 3 by Winograd's scheme: where it wins, and how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.conv import Choice, Convolution, Expanse, known
from dovetail.kernels.conv_block import HEAD
from dovetail.kernels.conv_field import Blocks, Field
from dovetail.kernels.conv_text import Shape
from dovetail.kernels.job import Cut, Number, Packed
from dovetail.kernels.normal import normal
from dovetail.kernels.vector import Vectors
from dovetail.kernels.winograd_text import OUT, PATCH, SPOTS, transformed_weights, winograd_text

FEWEST_CHANNELS = 32
"""Channels, and filters, below which the transforms cost more than the products save."""
FEWEST_PATCHES = 28
"""Patches below which reading four times as many weights costs more than the products save."""
PATCHES_BYTES = 1024 * 1024
"""What the transformed patches of a block may take: they stay in the second cache while all filters go over them."""
PART_TILES = 8
"""Register tiles of filters in a tile: who takes one from another thread transforms all patches of its block again."""


def winograd(found: Convolution, expanse: Expanse, vectors: Vectors) -> list[Choice]:
    """The kernel of a convolution of 3 by 3, where this scheme may be the faster one."""
    field = expanse.field
    fitting = (field.window, field.strides, field.dilations, expanse.groups) == ((3, 3), (1, 1), (1, 1), 1)
    if (
        not fitting
        or not expanse.is_level
        or found.x.rank != 4
        or min(expanse.filters, expanse.channels) < FEWEST_CHANNELS
    ):
        return []
    shape = Shape.of(vectors, expanse.filters, found.epilogue, True)
    points = found.points(Packed(found.w, f"winograd {shape.rows}", Transforming(shape.rows)), shape.rows)
    return [Choice(points, Winograd(expanse, shape), lambda: winograd_text(shape))]


@dataclass(frozen=True, slots=True)
class Winograd:
    """How the work of `winograd_text` is cut."""

    expanse: Expanse
    shape: Shape

    def __call__(self, number: Number) -> Cut | None:
        return self.cut(self.expanse.known(number))

    def cut(self, of: Expanse) -> Cut | None:
        """The cut, where there are patches enough."""
        shape, lanes = self.shape, self.shape.vectors.lanes
        height, width = known(of.field.out[0]), known(of.field.out[1])
        down, across = -(-height // OUT), -(-width // OUT)
        if down * across < FEWEST_PATCHES:
            return None
        pixels = Field(
            of.field.sizes, of.field.steps, (down, across), (PATCH, PATCH), (OUT, OUT), (1, 1), of.field.before
        )
        blocks = _blocks(down, across, of.channels, lanes)
        count = known(blocks.rows) * known(blocks.columns)
        tiles = -(-of.filters // shape.rows)
        part = min(tiles, PART_TILES)
        parts = -(-tiles // part)
        sizes = (
            *pixels.words(blocks),
            of.channels,
            of.filters,
            *of.steps,
            parts,
            part,
            height,
            width,
            *of.residual[:1],
        )
        row = 4 * (count + 2 * lanes)
        patches = SPOTS * (row * of.channels + 4 * lanes)
        sums = row * (SPOTS * shape.rows + OUT * OUT)
        scratch = HEAD + 8 * SPOTS + 64 + patches + sums + 4 * (pixels.seen(blocks, 1) + lanes)
        work = count * of.channels * SPOTS * shape.rows * part // 32
        return Cut(sizes, scratch, of.images * blocks.down * blocks.across * parts, work + 1)


def _blocks(height: int, width: int, channels: int, lanes: int) -> Blocks:
    """Rows of patches whose transforms fit the second cache; two blocks or more, so that no thread transforms what
    another does, unless that leaves less than two vectors."""
    room = max(lanes, PATCHES_BYTES // (4 * SPOTS * channels))
    columns, across = _cut(width, room)
    fewest = (columns + (3 * lanes // 2 - 1)) // columns
    share = max(fewest, (height + 1) // 2)
    rows, down = _cut(height, max(1, min(room // columns, share)))
    return Blocks(rows, columns, down, across)


def _cut(size: int, most: int) -> tuple[int, int]:
    count = -(-size // most)
    return -(-size // count), count


@dataclass(frozen=True, slots=True)
class Transforming:
    """Weights [m, c, 3, 3] as [register tile][spot][c][filter], transformed; 0 in what is left of the last tile."""

    rows: int

    def __call__(self, w: Array) -> Array:
        tiles = -(-w.shape[0] // self.rows)
        packed = np.zeros((tiles * self.rows, w.shape[1], SPOTS), np.float32)
        packed[: w.shape[0]] = transformed_weights(w)
        split = packed.reshape((tiles, self.rows, w.shape[1], SPOTS))
        return normal(np.ascontiguousarray(split.transpose((0, 3, 2, 1))))
