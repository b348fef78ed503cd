"""A transposed convolution as one convolution, whose filters make all phases of the stride, and a pixel shuffle."""

from __future__ import annotations

from math import gcd, prod

import numpy as np

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import i64
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.passes.claims import Claims


@dataclass(frozen=True, slots=True)
class Phases:
    """One axis. Phase r computes the results r, r + stride, …; each phase reads some of the taps, at unit stride."""

    taps: tuple[tuple[int, ...], ...]
    """For each phase and each place of the window, the tap of the original window; its size where there is none."""
    dilation: int
    before: int
    after: int
    extra: int
    """Results of a phase, less the pixels of the input."""

    @property
    def window(self) -> int:
        return len(self.taps[0])


def phases(window: int, stride: int, dilation: int, before: int, after: int, output_padding: int) -> Phases | None:
    """The phases of one axis; None where they would read less than the input."""
    extent = (window - 1) * dilation + 1 + output_padding - before - after
    if extent < 1:
        return None
    # Result s * q + r gets pixel i by tap t where i * s + t * d = s * q + r + before: i is q plus a constant.
    reads = [
        {(r + before - t * dilation) // stride: t for t in range(window) if (r + before - t * dilation) % stride == 0}
        for r in range(stride)
    ]
    offsets = sorted({at for phase in reads for at in phase})
    low, high = offsets[0], offsets[-1]
    step = gcd(*(at - low for at in offsets)) or 1
    extra = -(-extent // stride) - 1
    taps = tuple(tuple(phase.get(at, window) for at in range(low, high + 1, step)) for phase in reads)
    around = (-low, extra + high)
    return Phases(taps, step, *around, extra) if min(around) >= 0 else None


def phases_of(value: Value) -> list[Phases] | None:
    """The phases of every axis; None where a transposed convolution stays as it is."""
    window, attrs = value.operands[1].shape[2:], value.attrs
    padding: tuple[Size, ...] = attrs["padding"]
    if not value.dtype.is_float or not _are_known(window) or not _are_known(padding) or 0 in value.operands[1].shape:
        return None
    count = len(window)
    numbers = (attrs["strides"], attrs["dilations"], padding[:count], padding[count:], attrs["output_padding"])
    found: list[Phases] = []
    for axis in zip(window, *numbers, strict=True):
        one = phases(*axis)
        if one is None:
            return None
        found.append(one)
    return found


def _are_known(sizes: tuple[Size, ...]) -> bool:
    return all(isinstance(size, int) for size in sizes)


def is_a_convolution(value: Value) -> bool:
    """Whether `lower_conv_transpose` takes it."""
    return phases_of(value) is not None


def lower_conv_transpose(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """One convolution that makes every phase as channels of its own; then the phases are interleaved.

    No zeros are stuffed between pixels. Phases with fewer taps than others have zeros among their weights.
    """
    along = phases_of(value)
    if along is None:
        return None
    x, w = operands
    groups: int = value.attrs["groups"]
    filters = w.shape[1] * groups
    strides: tuple[int, ...] = value.attrs["strides"]
    padding = (*(p.before for p in along), *(p.after for p in along))
    dilations = tuple(p.dilation for p in along)
    made = ops.conv(x, _filters(w, groups, along), padding=padding, dilations=dilations, groups=groups)
    if prod(strides) > 1:
        made = _interleaved(made, filters, strides)
    for axis, size in enumerate(value.shape[2:], 2):
        if made.shape[axis] != size:
            made = build.slice_axis(made, axis=axis, start=0, stop=size)
    return made


def _filters(w: Value, groups: int, along: list[Phases]) -> Value:
    """Weights [c, m / groups, *window] as [m · phases, c / groups, *new window]."""
    rank = w.rank
    channels, per_group = w.shape[0], w.shape[1]
    for axis, one in enumerate(along, 2):
        absent = any(tap == w.shape[axis] for phase in one.taps for tap in phase)
        if absent:
            w = ops.pad(w, leaf.scalar(0, w.dtype), axis=axis - rank, after=1)
        index = np.array(one.taps, np.int64).reshape(-1)
        w = ops.gather(w, leaf.constant(index, i64), axis=axis - rank)
    split: list[Size] = [groups, channels // groups, per_group]
    for one in along:
        split += [len(one.taps), one.window]
    every = [3 + 2 * a for a in range(len(along))]
    w = build.transpose(ops.reshape(w, split), [0, 2, *every, 1, *(a + 1 for a in every)])
    phases_in_all = prod(len(one.taps) for one in along)
    shape = (per_group * groups * phases_in_all, channels // groups, *(one.window for one in along))
    return ops.reshape(w, shape)


def _interleaved(made: Value, filters: Size, strides: tuple[int, ...]) -> Value:
    """[n, m · phases, *q] as [n, m, *(q · stride)]."""
    count = len(strides)
    batch, spatial = made.shape[0], made.shape[2:]
    split = ops.reshape(made, (batch, filters, *strides, *spatial))
    order = [0, 1]
    for axis in range(count):
        order += [2 + count + axis, 2 + axis]
    woven = build.transpose(split, order)
    return ops.reshape(woven, (batch, filters, *(q * s for q, s in zip(spatial, strides, strict=True))))
