"""Convolution with its bias and activation: which code serves a step, and how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.errors import GraphError
from dovetail.ir.dim import Size, floordiv, largest, product, smallest
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.conv_text import Shape, conv_text
from dovetail.kernels.job import Job, Packed, Places, Template
from dovetail.kernels.vector import Vectors
from dovetail.library.activation import Activation
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.ops.convolution import conv
from dovetail.plan.plan import Step

SEEN_BYTES = 512 * 1024
"""What a block may see of an image: it stays in the second cache while all filters go over it."""
LONGEST_RUN = 512
"""Columns of a block: the results of one register tile for them stay in the first cache."""
PART_WORK = 2_000_000
"""Multiplications of a tile: enough to hide what starting it costs, few enough to share a layer between threads."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution over two spatial axes: operands, and along each axis the window's size, step, spread and start."""

    x: Value
    w: Value
    b: Value | None
    result: Value
    act: Activation
    groups: int
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[Size, Size]

    @staticmethod
    def of(value: Value) -> Convolution | None:
        """The convolution that a value is; one axis is taken for the second of two."""
        if value.op is conv_bias_act:
            call = conv_bias_act.of(value)
            b, act = call.b, call.act
        elif value.op is conv:
            b, act = None, "none"
        else:
            return None
        x, w = value.operands[:2]
        count = x.rank - 2
        if count > 2 or any(v.dtype is not f32 for v in value.operands):
            return None
        attrs = value.attrs
        lead = 2 - count
        return Convolution(
            x, w, b, value, act, attrs["groups"],
            (*(1,) * lead, *attrs["strides"]), (*(1,) * lead, *attrs["dilations"]),
            (*(0,) * lead, *attrs["padding"][:count]),
        )  # fmt: skip

    @property
    def window(self) -> tuple[int, int]:
        sizes: list[int] = [s for s in self.w.shape[2:] if isinstance(s, int)]
        return (sizes[0], sizes[1]) if len(sizes) == 2 else (1, sizes[0])


@dataclass(frozen=True, slots=True)
class Field:
    """The spatial axes as the code goes through them: sizes, steps in bytes, sizes of the result, window and padding."""

    sizes: tuple[Size, Size]
    steps: tuple[Size, Size]
    out: tuple[Size, Size]
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    before: tuple[Size, Size]

    @property
    def is_point(self) -> bool:
        """Whether each result sees one pixel, its own."""
        return self.window == (1, 1) and self.strides == (1, 1) and self.sizes == self.out

    def flat(self) -> Field:
        """Both axes as one, where rows follow each other and a result sees its own pixel only."""
        if not self.is_point or self.steps[0] != self.steps[1] * self.sizes[1]:
            return self
        count = product(self.sizes)
        return Field((1, count), (count * self.steps[1], self.steps[1]), (1, count), (1, 1), (1, 1), (1, 1), (0, 0))


def make_conv(step: Step, places: Places, vectors: Vectors) -> Job | None:
    """The job of a convolution with weights that are known when parameters are bound."""
    found = Convolution.of(step.value)
    if found is None or not places.is_bound(found.w) or not (found.b is None or places.is_bound(found.b)):
        return None
    try:
        return _job(found, places, vectors)
    except GraphError:
        # Sizes that are too long to be written down.
        return None


def _job(found: Convolution, places: Places, vectors: Vectors) -> Job:
    filters, channels = _known(found.w.shape[0]) // found.groups, _known(found.w.shape[1])
    field = _field(found, places)
    shape = Shape.of(vectors, filters, found.act, found.b is not None)
    name, text, uses = conv_text(shape)
    blocks = _blocks(field, channels, vectors.lanes, shape.columns)
    steps = places(found.x).strides
    taps = product(field.window)
    work = blocks.rows * blocks.columns * channels * taps * shape.rows
    register_tiles = -(-filters // shape.rows)
    part = max(1, min(register_tiles, PART_WORK // work)) if isinstance(work, int) and work else 1
    parts = -(-register_tiles // part)
    sizes = (
        found.groups, channels, *field.sizes,
        steps[0], steps[1] * channels, steps[1], *field.steps,
        filters, *field.out,
        *field.window, *field.strides, *field.dilations,
        *field.before,
        blocks.rows, blocks.columns, blocks.down, blocks.across, parts, part,
    )  # fmt: skip
    layout = f"conv {found.groups} {shape.rows}"
    points: dict[str, Value | Packed] = {
        "x": found.x,
        "w": Packed(found.w, layout, lambda w: pack_weights(w, found.groups, shape.rows)),
    }
    if found.b is not None:
        points["b"] = Packed(found.b, layout, lambda b: pack_bias(b, found.groups, shape.rows))
    points["y"] = found.result
    tiles = found.result.shape[0] * found.groups * blocks.down * blocks.across * parts
    # Multiplications are done a vector at a time, and two at once.
    template = Template(name, text, uses, tuple(points), sizes, _scratch(field, blocks, channels, shape))
    return Job(template, points, tiles, work * part // (2 * vectors.lanes) + 1)


def _known(size: Size) -> int:
    assert isinstance(size, int), "weights that are bound have sizes that are known"
    return size


def _field(found: Convolution, places: Places) -> Field:
    sizes, steps, out = found.x.shape[2:], places(found.x).strides[2:], found.result.shape[2:]
    lead = 2 - len(sizes)
    if lead:
        sizes, steps, out = (1, *sizes), (0, *steps), (1, *out)
    return Field(
        (sizes[0], sizes[1]), (steps[0], steps[1]), (out[0], out[1]),
        found.window, found.strides, found.dilations, found.before,
    ).flat()  # fmt: skip


@dataclass(frozen=True, slots=True)
class Blocks:
    """How the places of the window are cut: rows and columns of a block, and how many blocks there are."""

    rows: Size
    columns: Size
    down: Size
    across: Size


def _blocks(field: Field, channels: int, lanes: int, wide: int) -> Blocks:
    """Blocks that fit the caches, as equal as they can be where sizes are known."""
    height, width = field.out
    reach = [(n - 1) * d for n, d in zip(field.window, field.dilations, strict=True)]
    phases = [min(s, r + 1) for s, r in zip(field.strides, reach, strict=True)]
    over = [r // s for r, s in zip(reach, field.strides, strict=True)]
    room = max(lanes, SEEN_BYTES // (4 * channels * phases[0] * phases[1]))
    widest = max(wide * lanes, min(LONGEST_RUN, room // (over[0] + 1) - over[1]) // (wide * lanes) * wide * lanes)
    columns, across = _cut(width, widest, lanes)
    pitch = columns + over[1]
    most = largest(1, smallest(floordiv(LONGEST_RUN, pitch), floordiv(room, pitch) - over[0]))
    if isinstance(most, int):
        rows, down = _cut(height, most, 1)
    else:
        rows = most
        down = floordiv(height + rows - 1, rows)
    return Blocks(rows, columns, down, across)


def _cut(size: Size, most: int, unit: int) -> tuple[Size, Size]:
    """The length of a piece and how many there are: multiples of a unit that differ little, or the whole."""
    if not isinstance(size, int):
        return smallest(size, most), floordiv(size + (most - 1), most)
    if size <= most:
        return max(1, size), min(1, size)
    count = -(-size // most)
    piece = -(-size // (count * unit)) * unit
    return piece, -(-size // piece)


def _scratch(field: Field, blocks: Blocks, channels: int, shape: Shape) -> Size:
    """Offsets of taps, results of a register tile, and what a block sees; see the text."""
    reach = [(n - 1) * d for n, d in zip(field.window, field.dilations, strict=True)]
    phases = [min(s, r + 1) for s, r in zip(field.strides, reach, strict=True)]
    rows = blocks.rows + reach[0] // field.strides[0]
    pitch = blocks.columns + reach[1] // field.strides[1]
    lanes = shape.vectors.lanes
    run = blocks.rows * pitch + lanes
    offsets = -(-field.window[0] * field.window[1] // 8) * 64
    return offsets + shape.rows * run * 4 + channels * phases[0] * phases[1] * rows * pitch * 4 + 8 * lanes


def pack_weights(w: Array, groups: int, rows: int) -> Array:
    """[m, c, *window] as [group][register tile][c][tap][filter]; what is missing in the last tile is 0."""
    filters = w.shape[0] // groups
    tiles = -(-filters // rows)
    packed = np.zeros((groups, tiles * rows, w.shape[1] * int(np.prod(w.shape[2:]))), np.float32)
    packed[:, :filters] = w.reshape((groups, filters, packed.shape[2]))
    return np.ascontiguousarray(packed.reshape((groups, tiles, rows, packed.shape[2])).swapaxes(2, 3))


def pack_bias(b: Array, groups: int, rows: int) -> Array:
    """[m, 1, 1] as [group][register tile][filter]."""
    filters = b.size // groups
    packed = np.zeros((groups, -(-filters // rows) * rows), np.float32)
    packed[:, :filters] = b.reshape((groups, filters))
    return packed
