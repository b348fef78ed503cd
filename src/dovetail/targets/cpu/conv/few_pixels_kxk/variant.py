"""Convolution over few places by a window: where filters go into the lanes of vectors, and how the work is cut."""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Blocks
from dovetail.kernels.spec import Number, Tiling
from dovetail.targets.cpu.conv.broadcast_tile import square_of
from dovetail.targets.cpu.conv.direct.variant import Candidate, Convolution, Expanse, known
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.few_pixels_kxk.kernel import APART, window_text
from dovetail.targets.cpu.conv.patch import HEAD

MOST_PLACES = 400
"""Places above which laying out what they see costs more than it saves."""
FEWEST_SUMS = 2000
"""Products in a sum below which that is so too."""
MOST_WASTE = 1.1
"""Lanes to filters, at most."""
PIECE = 64
"""Steps that a register tile takes at a time: their weights stay in the first cache."""
PART_PLACES = 112
"""Places of a tile, about."""


def window(found: Convolution, expanse: Expanse, vectors: CpuDevice) -> list[Candidate]:
    """The kernel of a convolution with few places, many filters and a window of several taps."""
    square = square_of(vectors, expanse.filters, found.epilogue, point=True)
    full = -(-expanse.filters // square.block) * square.block <= MOST_WASTE * expanse.filters
    if not full or expanse.sums < FEWEST_SUMS or expanse.field.taps == 1 or not expanse.is_level:
        return []
    tiler = Window(expanse, square)
    return [Candidate(found.packed(square.block), tiler, lambda: window_text(square), "few_pixels_kxk")]


@dataclass(frozen=True, slots=True)
class Window:
    """How the work of `conv_window_text` is cut."""

    expanse: Expanse
    square: Square

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.expanse.known(number))

    def tiling(self, of: Expanse) -> Tiling | None:
        """The cut, where there are few places."""
        field, square = of.field, self.square
        height, width = known(field.out[0]), known(field.out[1])
        count = height * width
        if not 0 < count <= MOST_PLACES:
            return None
        parts = -(-count // PART_PLACES)
        part = -(-count // parts)
        rows = min(height, (part - 2) // width + 2)
        image, channel = of.steps
        sizes = (
            *field.words(Blocks(rows, 1, 1, 1)), of.channels, of.filters, of.groups, image, channel * of.channels,
            channel, count, parts, part, PIECE, *of.residual[:1],
        )  # fmt: skip
        laid = -(-part // square.places) * (-(-of.sums * 4 * square.places // 64) * 64 + APART)
        planes = field.window[1] * field.phases_down * (rows + field.over[0])
        seen = 4 * (planes * width + 4 * square.vectors.lanes)
        scratch = HEAD + 64 * -(-field.taps // 8) + 4 * part * square.block + laid + seen
        tiles = of.images * of.groups * -(-of.filters // square.block) * parts
        work = part * square.block * of.sums // (2 * square.vectors.lanes)
        return Tiling(sizes, scratch, tiles, work + 1)
