"""Convolution over few places: where filters go into the lanes of vectors, and how the work is cut."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.direct.variant import Candidate, Convolution, Expanse, known
from dovetail.targets.cpu.conv.few_pixels.kernel import Square, forms_of, least_waste, small_text
from dovetail.targets.cpu.conv.patch import HEAD

MOST_PLACES = 800
"""Places above which vectors along them waste little, and need no turning round."""
MOST_POINTS = 200
"""The same where the window has one tap, and each number is used but once for a filter."""
FEW_POINTS, DEEP = 64, 200
"""Places up to which lanes of places waste too much in any case; with more, fewer channels than `DEEP` make sums too
short to be turned round, where places lie side by side."""
FEWEST_SUMS = 128
"""Products in a sum below which turning results round costs more than full lanes save."""
PIECE = 64
"""Products of a sum that one register tile takes at a time: their weights stay in the first cache."""
PART_PLACES = 112
"""Places of a tile, about."""


def small(found: Convolution, expanse: Expanse, vectors: CpuDevice) -> list[Candidate]:
    """The kernels of a convolution with few places and many filters."""
    # Padding decides whether an image is copied.
    if (
        expanse.sums < FEWEST_SUMS
        or not expanse.is_level
        or any(not isinstance(size, int) for size in found.attrs["padding"])
    ):
        return []
    point = expanse.field.taps == 1
    squares = [Square(vectors, *form, found.epilogue, point) for form in forms_of(vectors)]
    # Lanes without a filter are as bad as those without a place.
    full = [s for s in squares if -(-expanse.filters // s.block) * s.block <= 1.1 * expanse.filters]
    return [_candidate(found, expanse, square) for square in full]


def _candidate(found: Convolution, expanse: Expanse, square: Square) -> Candidate:
    tiler = Small(expanse, square, any(found.attrs["padding"]))
    return Candidate(found.packed(square.block), tiler, lambda: small_text(square), "few_pixels")


@dataclass(frozen=True, slots=True)
class Small:
    """How the work of `conv_small_text` is cut."""

    expanse: Expanse
    square: Square
    padded: bool

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.expanse.known(number))

    def tiling(self, of: Expanse) -> Tiling | None:
        """The cut, where there are few places and no other form wastes less of them."""
        field, square = of.field, self.square
        count = known(field.out[0]) * known(field.out[1])
        if not 0 < count <= (MOST_POINTS if square.point else MOST_PLACES):
            return None
        if field.is_point and count > FEW_POINTS and of.channels < DEEP:
            return None
        if square.places != least_waste(square.vectors, count)[1]:
            return None
        parts = -(-count // PART_PLACES)
        part = -(-count // (parts * square.places)) * square.places
        parts = -(-count // part)
        image, channel = of.steps
        sizes = (
            *field.words(Blocks(1, 1, 1, 1)), of.channels, of.filters, of.groups, image, channel * of.channels, channel,
            count, parts, part, max(1, PIECE // field.taps), int(self.padded), *of.residual[:1],
        )  # fmt: skip
        rows, columns = (
            (known(n) - 1) * s + (w - 1) * d + 1
            for n, s, w, d in zip(field.out, field.strides, field.window, field.dilations, strict=True)
        )
        together = -(-part // square.places) * square.places + 8
        scratch = HEAD + 64 * (field.taps // 8 + together // 8 + 4) + 4 * together * square.block
        scratch += 4 * (rows * columns * of.channels + 2 * square.vectors.lanes) if self.padded else 0
        tiles = of.images * of.groups * -(-of.filters // square.block) * parts
        work = part * square.block * of.sums // (2 * square.vectors.lanes)
        return Tiling(sizes, scratch, tiles, work + 1)
