"""Convolution over few places: where filters go into the lanes of vectors, and how the work is cut."""

from __future__ import annotations

from dovetail.errors import GraphError
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.conv import Convolution, Packing, known
from dovetail.kernels.conv_block import HEAD
from dovetail.kernels.conv_field import Blocks
from dovetail.kernels.conv_small_text import Square, small_text
from dovetail.kernels.job import Job, Packed, Places
from dovetail.kernels.vector import Vectors
from dovetail.plan.plan import Step

MOST_PLACES = 800
"""Places above which vectors along them waste little, and need no turning round."""
MOST_POINTS = 200
"""The same where the window has one tap, and each number is used but once for a filter."""
FEWEST_SUMS = 128
"""Products in a sum below which turning results round costs more than full lanes save."""
PIECE = 64
"""Products of a sum that one register tile takes at a time: their weights stay in the first cache."""
PART_PLACES = 112
"""Places of a tile, about."""


def make_small_conv(step: Step, places: Places, vectors: Vectors) -> Job | None:
    """The job of a convolution with few places and many filters."""
    found = Convolution.of(step.value)
    if found is None or found.x.rank > 4 or any(v.dtype is not f32 for v in step.operands):
        return None
    if not places.is_bound(found.w) or not (found.b is None or places.is_bound(found.b)):
        return None
    spatial = [size for size in found.result.shape[2:] if isinstance(size, int)]
    if len(spatial) != found.x.rank - 2 or any(not isinstance(s, int) for s in found.result.attrs["padding"]):
        return None
    count = spatial[0] if len(spatial) == 1 else spatial[0] * spatial[1]
    point = all(size == 1 for size in found.w.shape[2:])
    # Of strided points most of what is read with them is not used.
    most = MOST_PLACES if not point else MOST_POINTS // max(found.result.attrs["strides"])
    if not 0 < count <= most:
        return None
    square = Square.of(vectors, count, found.act, found.b is not None, point)
    groups: int = found.result.attrs["groups"]
    filters = known(found.w.shape[0]) // groups
    # Lanes without a filter are as bad as those without a place.
    if filters == 0 or -(-filters // square.block) * square.block > 1.1 * filters:
        return None
    try:
        return _job(found, places, square, count)
    except GraphError:
        # Sizes that are too long to be written down.
        return None


def _job(found: Convolution, places: Places, square: Square, count: int) -> Job | None:
    attrs, groups = found.result.attrs, int(found.result.attrs["groups"])
    filters, channels = known(found.w.shape[0]) // groups, known(found.w.shape[1])
    field = found.field(places)
    if channels * field.taps < FEWEST_SUMS:
        return None
    code = small_text(square)
    steps = places(found.x).strides
    parts = -(-count // PART_PLACES)
    part = -(-count // (parts * square.places)) * square.places
    parts = -(-count // part)
    padded = any(attrs["padding"])
    piece = max(1, PIECE // field.taps)
    sizes = (
        *field.words(Blocks(1, 1, 1, 1)), channels, filters, groups, steps[0], steps[1] * channels, steps[1],
        count, parts, part, piece, int(padded),
    )  # fmt: skip
    layout = f"conv {groups} {square.block}"
    points: dict[str, Value | Packed] = {"x": found.x, "w": Packed(found.w, layout, Packing(groups, square.block))}
    if found.b is not None:
        points["b"] = Packed(found.b, layout, Packing(groups, square.block))
    points["y"] = found.result
    rows, columns = (
        (known(n) - 1) * s + (w - 1) * d + 1
        for n, s, w, d in zip(field.out, field.strides, field.window, field.dilations, strict=True)
    )
    together = -(-part // square.places) * square.places + 8
    scratch = HEAD + 64 * (field.taps // 8 + together // 8 + 4) + 4 * together * square.block
    scratch += 4 * (rows * columns * channels + 2 * square.vectors.lanes) if padded else 0
    tiles = found.result.shape[0] * groups * -(-filters // square.block) * parts
    work = part * square.block * channels * field.taps // (2 * square.vectors.lanes)
    return Job(code.template(points, sizes, scratch), points, tiles, work + 1)
