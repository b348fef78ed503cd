"""Convolution of each channel by a filter of its own: where the kernel for it serves, and how the work is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Field
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.depthwise.kernel import Depth, depth_text
from dovetail.targets.cpu.conv.direct.variant import Candidate, Convolution, Expanse, known
from dovetail.targets.cpu.conv.patch import HEAD

MOST_TAPS = 81
"""Taps of a window that may be written out."""
FARTHEST = 4
"""Rows from one place of a window, or from one of its taps, to the next, at most: each has an address of its own."""
MOST_ROWS, FEW_ROWS = 8, 4
"""Rows of a register tile, and where sizes come late and there is a register tile for every number of rows."""
ROOM = 16 * 1024
"""Bytes of what is laid out at a time: they stay in the first cache."""
FEWEST_ROWS = 8
"""Rows of a band at least, even if they do not: each band lays out again what the one before it saw last."""
MOST_ROOM = 256 * 1024
"""Bytes that a band may see."""
MOST_POINTS = 256
"""Places of a channel that is multiplied by one number: more are not worth laying out."""
PART_WORK = 4000
"""Products of vectors that a tile has, about."""


def depth(found: Convolution, expanse: Expanse, vectors: CpuDevice) -> list[Candidate]:
    """The kernel of a convolution whose groups have one channel and one filter each."""
    is_level = expanse.is_level
    # A channel times one number is one long row.
    expanse = replace(expanse, field=expanse.field.flat()) if is_level else expanse
    field = expanse.field
    apart = max(field.strides[0], *field.dilations)
    most = min(MOST_ROWS if field.is_known else FEW_ROWS, rows_of(vectors, field.window[0], field.strides[0]))
    if (
        (expanse.channels, expanse.filters) != (1, 1)
        or field.taps > MOST_TAPS
        or apart > FARTHEST
        or field.strides[1] > 2
        or field.steps[1] != 4
        or most < 2
        or not is_level
    ):
        return []
    most = 1 if field.window[0] == 1 else most
    heights = _heights(Bands.of(field, vectors), most) if field.is_known else tuple(range(1, most + 1))
    of = Depth(vectors, field.window, field.strides, field.dilations, heights, found.epilogue)
    return [Candidate(found.packed(1), DepthTiler(expanse, of), lambda: depth_text(of), "depthwise")]


def rows_of(vectors: CpuDevice, window: int, stride: int) -> int:
    """Rows that a register tile may have: beside their sums there are the weights of a column, and what is read, which
    comes from as many columns at once as there are phases."""
    return min(MOST_ROWS, vectors.registers - window * stride - 3)


@dataclass(frozen=True, slots=True)
class Bands:
    """Bands of rows of a channel: how many, rows of a band and of the last; vectors of a laid out row, bytes of it."""

    count: int
    rows: int
    last: int
    vectors: int
    pitch: int

    @staticmethod
    def of(field: Field, vectors: CpuDevice) -> Bands:
        """Bands that fit the first cache if they have enough rows then, as equal as they can be."""
        height, width = known(field.out[0]), known(field.out[1])
        across = -(-(width + field.over[1]) // vectors.lanes)
        pitch = 4 * vectors.lanes * across * field.strides[1]
        most = max(FEWEST_ROWS, (ROOM // max(1, pitch) - field.reach[0] - 1) // field.strides[0] + 1)
        rows = -(-height // max(1, -(-height // most)))
        count = -(-height // max(1, rows))
        return Bands(count, rows, height - rows * (count - 1), across, pitch)


def _heights(bands: Bands, most: int) -> tuple[int, ...]:
    """Rows of the register tiles that share what is in a band."""
    found: set[int] = set()
    for rows in (bands.rows, bands.last):
        count = max(1, -(-rows // most))
        found |= {max(1, rows // count), max(1, -(-rows // count))}
    return tuple(sorted(found))


@dataclass(frozen=True, slots=True)
class DepthTiler:
    """How the work of `conv_depth_text` is cut."""

    expanse: Expanse
    depth: Depth

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.expanse.known(number))

    def tiling(self, of: Expanse) -> Tiling | None:
        """The cut, where there are results and rows are not too long."""
        field, vectors = of.field, self.depth.vectors
        if 0 in (*field.out, *field.sizes):
            return None
        if field.taps == 1 and (field.out[0] != 1 or known(field.out[1]) > MOST_POINTS):
            return None
        bands = Bands.of(field, vectors)
        plane = bands.pitch * ((bands.rows - 1) * field.strides[0] + field.reach[0] + 1)
        if plane > MOST_ROOM:
            return None
        # Laying out a vector and storing one takes as long as a few products.
        work = bands.rows * -(-known(field.out[1]) // vectors.lanes) * (field.taps + 4 * field.strides[0])
        parts = -(-of.groups // max(1, min(of.groups, PART_WORK // work)))
        part = -(-of.groups // parts)
        parts = -(-of.groups // part)
        together = max(1, min(part, ROOM // plane))
        sizes = (
            *field.sizes, field.steps[0], *field.out, *field.before, of.groups, *of.steps, parts, part,
            bands.count, bands.rows, together, bands.vectors, *of.residual[:1],
        )  # fmt: skip
        # What is read behind the last row is not used.
        scratch = HEAD + together * plane + 4 * vectors.lanes * 8 + 4 * field.over[1]
        return Tiling(sizes, scratch, of.images * parts * bands.count, work * part // 2 + 1)
