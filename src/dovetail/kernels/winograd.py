"""Convolution of 3 by 3 by Winograd's scheme: where it wins, and how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.errors import GraphError
from dovetail.ir.dim import Size, floordiv, largest, smallest
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.conv import Convolution, Packing, known
from dovetail.kernels.conv_block import HEAD
from dovetail.kernels.conv_field import Blocks, Field
from dovetail.kernels.conv_text import Shape
from dovetail.kernels.job import Job, Packed, Places
from dovetail.kernels.normal import normal
from dovetail.kernels.vector import Vectors
from dovetail.kernels.winograd_text import OUT, PATCH, SPOTS, transformed_weights, winograd_text
from dovetail.plan.plan import Step

FEWEST_CHANNELS = 32
"""Channels, and filters, below which the transforms cost more than the products save."""
FEWEST_PATCHES = 28
"""Patches below which reading four times as many weights costs more than the products save."""
MOST_WEIGHTS = 64 * 64
"""Channels times filters up to which an area that is not known is taken to be large."""
PATCHES_BYTES = 640 * 1024
"""What the transformed patches of a block may take: they stay in the second cache while all filters go over them."""
PART_TILES = 8
"""Register tiles of filters in a tile: who takes one from another thread transforms all patches of its block again."""


def make_winograd(step: Step, places: Places, vectors: Vectors) -> Job | None:
    """The job of a convolution that this scheme computes faster; its sums are in another order, so not where that
    matters."""
    found = Convolution.of(step.value)
    if found is None or places.strict or not _wins(found) or any(v.dtype is not f32 for v in step.operands):
        return None
    if not places.is_bound(found.w) or not (found.b is None or places.is_bound(found.b)):
        return None
    try:
        return _job(found, places, vectors)
    except GraphError:
        # Sizes that are too long to be written down.
        return None


def _wins(found: Convolution) -> bool:
    attrs, w = found.result.attrs, found.w
    if w.shape[2:] != (3, 3) or attrs["groups"] != 1 or (attrs["strides"], attrs["dilations"]) != ((1, 1), (1, 1)):
        return False
    if any(not isinstance(size, int) or size < FEWEST_CHANNELS for size in w.shape[:2]):
        return False
    patches = 1
    for size in found.result.shape[2:]:
        if not isinstance(size, int):
            # Where the area is not known, few channels tell that it is large.
            return known(w.shape[0]) * known(w.shape[1]) <= MOST_WEIGHTS
        patches *= -(-size // OUT)
    return patches >= FEWEST_PATCHES


def _job(found: Convolution, places: Places, vectors: Vectors) -> Job:
    filters, channels, lanes = known(found.w.shape[0]), known(found.w.shape[1]), vectors.lanes
    shape = Shape.of(vectors, filters, found.act, found.b is not None, True)
    code = winograd_text(shape)
    steps = places(found.x).strides
    height, width = found.result.shape[2:]
    pixels = Field.of(
        found.x.shape[2:], steps[2:], [floordiv(s + (OUT - 1), OUT) for s in (height, width)],
        (PATCH, PATCH), (OUT, OUT), (1, 1), found.result.attrs["padding"],
    )  # fmt: skip
    blocks = _blocks(pixels, channels, lanes)
    count = blocks.rows * blocks.columns
    work = count * channels * SPOTS * shape.rows
    tiles = -(-filters // shape.rows)
    part = min(tiles, PART_TILES)
    parts = -(-tiles // part)
    sizes = (*pixels.words(blocks), channels, filters, *steps[:2], parts, part, height, width)
    points: dict[str, Value | Packed] = {
        "x": found.x,
        "w": Packed(found.w, f"winograd {shape.rows}", Transforming(shape.rows)),
    }
    if found.b is not None:
        points["b"] = Packed(found.b, f"conv 1 {shape.rows}", Packing(1, shape.rows))
    points["y"] = found.result
    row = 4 * (count + 2 * lanes)
    patches = SPOTS * (row * channels + 4 * lanes)
    sums = row * (SPOTS * shape.rows + OUT * OUT)
    scratch = HEAD + 8 * SPOTS + 64 + patches + sums + 4 * (pixels.seen(blocks, 1) + lanes)
    template = code.template(points, sizes, scratch)
    return Job(template, points, found.result.shape[0] * blocks.down * blocks.across * parts, work * part // 32 + 1)


def _blocks(pixels: Field, channels: int, lanes: int) -> Blocks:
    """Rows of patches whose transforms fit the second cache; two blocks or more, so that no thread transforms what
    another does, unless that leaves less than two vectors."""
    room = max(lanes, PATCHES_BYTES // (4 * SPOTS * channels))
    height, width = pixels.out
    columns, across = _cut(width, room)
    fewest = floordiv(columns + (3 * lanes // 2 - 1), columns)
    share = largest(fewest, floordiv(height + 1, 2))
    rows, down = _cut(height, largest(1, smallest(floordiv(room, columns), share)))
    return Blocks(rows, columns, down, across)


def _cut(size: Size, most: Size) -> tuple[Size, Size]:
    if isinstance(size, int) and isinstance(most, int):
        count = max(1, -(-size // most))
        return max(1, -(-size // count)), count if size else 0
    piece = largest(1, smallest(size, most))
    return piece, floordiv(size + piece - 1, piece)


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
