"""Convolution with its bias and activation: which code serves a step, and how its work is cut."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from dovetail.errors import GraphError
from dovetail.ir.dim import Size
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.conv_block import HEAD
from dovetail.kernels.conv_field import Field
from dovetail.kernels.conv_text import Shape, conv_text
from dovetail.kernels.job import Job, Packed, Places
from dovetail.kernels.normal import as_before, normal
from dovetail.kernels.vector import Vectors
from dovetail.library.activation import Activation
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.ops.convolution import conv
from dovetail.plan.plan import Step

PART_WORK = 500_000
"""Multiplications of a tile: enough to hide what starting it costs, few enough to share a layer between threads."""


@dataclass(frozen=True, slots=True)
class Convolution:
    """A convolution, its bias and its activation."""

    result: Value
    x: Value
    w: Value
    b: Value | None
    act: Activation

    @staticmethod
    def of(value: Value) -> Convolution | None:
        """The convolution that a value is."""
        if value.op is conv_bias_act:
            call = conv_bias_act.of(value)
            return Convolution(value, call.x, call.w, call.b, call.act)
        x, w = value.operands[:2] if value.op is conv else (None, None)
        return None if x is None or w is None else Convolution(value, x, w, None, "none")

    def field(self, places: Places) -> Field:
        """The spatial axes, as they lie."""
        attrs = self.result.attrs
        return Field.of(
            self.x.shape[2:], places(self.x).strides[2:], self.result.shape[2:], [known(s) for s in self.w.shape[2:]],
            attrs["strides"], attrs["dilations"], attrs["padding"],
        )  # fmt: skip


def make_conv(step: Step, places: Places, vectors: Vectors) -> Job | None:
    """The job of a convolution with weights that are known when parameters are bound."""
    found = Convolution.of(step.value)
    if found is None or found.x.rank > 4 or any(v.dtype is not f32 for v in step.operands):
        return None
    if 0 in found.w.shape or not places.is_bound(found.w) or not (found.b is None or places.is_bound(found.b)):
        return None
    groups: int = found.result.attrs["groups"]
    filters, channels = known(found.w.shape[0]) // groups, known(found.w.shape[1])
    field = found.field(places).flat()
    shape = Shape.of(vectors, filters, found.act, found.b is not None, field.taps == 1)
    packing = Packing(groups, shape.rows)
    points: dict[str, Value | Packed] = {"x": found.x, "w": Packed(found.w, f"conv {groups} {shape.rows}", packing)}
    if found.b is not None:
        points["b"] = Packed(found.b, f"conv {groups} {shape.rows}", packing)
    try:
        return conv_job({**points, "y": found.result}, places, field, shape, groups, filters, channels)
    except GraphError:
        # Sizes that are too long to be written down.
        return None


def conv_job(
    points: Mapping[str, Value | Packed],
    places: Places,
    field: Field,
    shape: Shape,
    groups: int,
    filters: int,
    channels: int,
    spread: tuple[int, ...] = (),
) -> Job:
    """The job of a convolution of x to y, with so many filters and channels in each group."""
    x, y = points["x"], points["y"]
    assert isinstance(x, Value), "what is convolved is read where it lies"
    assert isinstance(y, Value), "results are values"
    lanes = shape.vectors.lanes
    blocks = field.blocks(channels, lanes, shape.columns)
    work = blocks.rows * blocks.columns * channels * field.taps * shape.rows
    register_tiles = -(-filters // shape.rows)
    part = max(1, min(register_tiles, PART_WORK // max(1, work))) if isinstance(work, int) else 1
    parts = -(-register_tiles // part)
    image, channel = places(x).strides[:2]
    sizes = (*field.words(blocks), groups, channels, filters, image, channel * channels, channel, parts, part, *spread)
    tiles = y.shape[0] * groups * blocks.down * blocks.across * parts
    # Offsets of taps, results of a register tile, and what a block sees: as the text lays them out.
    scratch = (
        HEAD
        + -(-field.taps // 8) * 64
        + 4 * (shape.rows * (field.run(blocks) + lanes) + field.seen(blocks, channels) + 2 * lanes)
    )
    # Multiplications are done a vector at a time, and two at once.
    return Job(conv_text(shape).template(points, sizes, scratch), points, tiles, work * part // (2 * lanes) + 1)


def known(size: Size) -> int:
    """A size of what is bound."""
    assert isinstance(size, int), "what is bound has sizes that are known"
    return size


@dataclass(frozen=True, slots=True)
class Packing:
    """Weights [m, c, *window] as [group][register tile][c][tap][filter], a bias without c and taps; 0 in what is left
    of the last register tile of a group."""

    groups: int
    rows: int

    def __call__(self, of: Array) -> Array:
        filters = of.shape[0] // self.groups
        tiles = -(-filters // self.rows)
        packed = np.zeros((self.groups, tiles * self.rows, of[:1].size), np.float32)
        packed[:, :filters] = of.reshape((self.groups, filters, packed.shape[2]))
        split = packed.reshape((self.groups, tiles, self.rows, packed.shape[2]))
        return normal(np.ascontiguousarray(split.swapaxes(2, 3)))

    def holds(self, shapes: Sequence[tuple[int, ...]]) -> bool:
        """Whether every element of weights of these shapes is laid out: always."""
        return len(shapes) == 1

    def unpack(self, packed: Array, shapes: Sequence[tuple[int, ...]]) -> tuple[Array, ...]:
        """The weights that were packed."""
        count, taps = shapes[0][0] // self.groups, math.prod(shapes[0][1:])
        tiles = -(-count // self.rows)
        split = as_before(packed, (self.groups, tiles, taps, self.rows))
        filters = split.swapaxes(2, 3).reshape((self.groups, tiles * self.rows, taps))
        return (filters[:, :count].reshape(shapes[0]),)
