"""Convolution by a window of one pixel that sees every pixel once: how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass, replace

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.direct.kernel import Shape
from dovetail.targets.cpu.conv.direct.variant import PART_WORK, Candidate, Convolution, Expanse, known
from dovetail.targets.cpu.conv.patch import HEAD
from dovetail.targets.cpu.conv.pointwise.kernel import point_text

DEPTH = 128
"""Channels that go together, at most: what a band of places sees of them stays in the first cache."""
FEWEST_PLACES = 5
"""CpuDevice of places below which the last one, which is not whole, wastes too much."""
FEWEST_CHANNELS, FAR, FEWEST_FAR, FEWEST_BESIDE = 48, 1024, 128, 32
"""Channels below which results are written too fast to be written to so many rows in turn; more of them are needed
where a row has so many places that each lies in a page of its own, unless filters are fewer; and less of them where
sums begin with a residual, which is read from as many rows anyhow."""
TOGETHER, FEWEST_TILES = 8, 16
"""Register tiles of filters that go together even where that is much work, unless it leaves too few tiles to share."""


def point(found: Convolution, expanse: Expanse, vectors: CpuDevice) -> list[Candidate]:
    """The kernel of a convolution whose places lie side by side, and see a pixel each."""
    flat = replace(expanse, field=expanse.field.flat())
    if not flat.field.is_point or flat.field.sizes[0] != 1 or flat.field.steps[1] != 4 or not expanse.is_level:
        return []
    shape = Shape.of(vectors, expanse.filters, found.epilogue, True)
    return [Candidate(found.packed(shape.rows), Point(flat, shape), lambda: point_text(shape), "pointwise")]


@dataclass(frozen=True, slots=True)
class Point:
    """How the work of `conv_point_text` is cut."""

    expanse: Expanse
    shape: Shape

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.expanse.known(number))

    def tiling(self, of: Expanse) -> Tiling | None:
        """The cut, where there are places enough."""
        shape, places, lanes = self.shape, known(of.field.out[1]), self.shape.vectors.lanes
        vectors = -(-places // lanes)
        if vectors < FEWEST_PLACES or of.channels < self._fewest(of, places):
            return None
        bands, tiles = -(-vectors // shape.columns), -(-of.filters // shape.rows)
        work = shape.columns * lanes * of.channels * shape.rows
        # What a band sees is read anew for each part of the filters.
        filter_part = min(tiles, max(1, PART_WORK // work, min(TOGETHER, tiles * bands // FEWEST_TILES)))
        place_part = max(1, min(bands, PART_WORK // (work * filter_part)))
        filter_parts, place_parts = -(-tiles // filter_part), -(-bands // place_part)
        image, channel = of.steps
        depth = -(-of.channels // -(-of.channels // DEPTH))
        sizes = (
            places, of.groups, of.channels, of.filters, image, channel * of.channels, channel,
            place_parts, place_part, filter_parts, filter_part, depth, *of.residual[:1],
        )  # fmt: skip
        wide = 4 * lanes * shape.columns
        scratch = HEAD + wide * (filter_part * shape.rows + of.channels)
        count = of.images * of.groups * place_parts * filter_parts
        return Tiling(sizes, scratch, count, work * filter_part * place_part // (2 * lanes) + 1)

    @staticmethod
    def _fewest(of: Expanse, places: int) -> int:
        """How many channels there must be."""
        if of.residual:
            return FEWEST_BESIDE
        return FEWEST_CHANNELS if places <= FAR or of.filters < of.channels else FEWEST_FAR
