"""Convolution of few channels by a large window, as networks for images begin: where rows of places go together, and
how the work is cut."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.broadcast_tile import square_of
from dovetail.targets.cpu.conv.direct.variant import Candidate, Convolution, Expanse, known
from dovetail.targets.cpu.conv.few_channels.kernel import row_text
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.patch import HEAD

FEWEST_SUMS, MOST_SUMS = 100, 256
"""Products of a result below which turning it round costs more than full lanes save, and above which the weights of a
block of filters do not stay in the first cache."""
FEWEST_PLACES = 800
"""Places below which other kernels are better."""
MOST_WASTE = 1.1
"""Lanes, and places of register tiles, to those that are wanted, at most."""
PART_PLACES = 450
"""Places of a tile, about."""


def row(found: Convolution, expanse: Expanse, vectors: CpuDevice) -> list[Candidate]:
    """The kernel of a convolution with few channels, a large window and many places."""
    square = square_of(vectors, expanse.filters, found.epilogue, point=False)
    full = -(-expanse.filters // square.block) * square.block <= MOST_WASTE * expanse.filters
    fitting = FEWEST_SUMS <= expanse.sums <= MOST_SUMS and expanse.groups == 1 and expanse.field.taps > 1
    if not full or not fitting or not expanse.is_level:
        return []
    return [Candidate(found.packed(square.block), Row(expanse, square), lambda: row_text(square), "few_channels")]


@dataclass(frozen=True, slots=True)
class Row:
    """How the work of `conv_row_text` is cut."""

    expanse: Expanse
    square: Square

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.expanse.known(number))

    def tiling(self, of: Expanse) -> Tiling | None:
        """The cut, where there are many places, and rows are long."""
        field, square = of.field, self.square
        height, width = known(field.out[0]), known(field.out[1])
        if height * width < FEWEST_PLACES or width < square.places:
            return None
        count = -(-height // max(1, PART_PLACES // width))
        rows = -(-height // count)
        blocks = Blocks(rows, width, -(-height // rows), 1)
        sizes = (*field.words(blocks), of.channels, of.filters, *of.steps, *of.residual[:1])
        listed = 64 * (-(-field.taps // 8) + -(-of.sums // 8))
        seen = 4 * (known(field.seen(blocks, of.channels)) + 2 * square.vectors.lanes)
        work = rows * width * square.block * of.sums // (2 * square.vectors.lanes)
        tiles = of.images * blocks.down * -(-of.filters // square.block)
        return Tiling(sizes, HEAD + listed + 4 * width * square.block + seen, tiles, work + 1)
