"""A convolution of bytes as its kernel sees it: sizes, tiles, the order along k, and the workspace."""

from __future__ import annotations

from collections.abc import Mapping
from math import prod

from dovetail.codegen.llvm.once import HEAD
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.gemm.driver import words_bytes
from dovetail.targets.cpu.gemm.int8.tile import ByteTile
from dovetail.targets.cpu.gemm.policy import INT8

VECTOR = 16
"""Pixels that are interleaved at a time."""


def is_by_channels(channels: int, taps: int) -> bool:
    """Whether four steps along k are four channels of one tap, the last ones padded; else k counts channels, then taps.

    Four channels of a tap are copied at once, which is worth an eighth more products, and not more.
    """
    padded = -(-channels // 4) * 4
    return taps == 1 or 8 * padded <= 9 * channels


def strip_of(tile: ByteTile, pixels: Size, images: Size, filters: int, threads: int) -> int:
    """Pixels of a strip: as long as caches allow, and equally long, so that threads share strips and pack none twice.

    `images` counts groups too. Where sizes are not known, the longest.
    """
    longest = max(1, INT8.strip // tile.nr)
    if not isinstance(pixels, int) or not isinstance(images, int) or 0 in (pixels, images):
        return longest * tile.nr
    panels = -(-pixels // tile.nr)
    least = -(-panels // longest)

    def time(strips: int) -> float:
        """Of one thread, in products of a panel; a strip that threads share is packed by each."""
        length = -(-panels // strips)
        count = -(-panels // length) * images
        packed = count // threads + (1 if count % threads else 0)
        return length * (count * filters / threads + packed * INT8.packing)

    best = min(range(least, min(panels, least + threads - 1) + 1), key=time)
    return -(-panels // best) * tile.nr


@dataclass(frozen=True, slots=True)
class ByteImage:
    """What the code depends on. Sizes are numbers, or arguments of the kernel."""

    tile: ByteTile
    strip: int
    """Pixels of a strip, in whole panels."""
    channels: int
    """Of a group."""
    filters: int
    """Of a group."""
    groups: int
    window: tuple[int, int]
    strides: tuple[int, int]
    dilations: tuple[int, int]
    is_padded: bool
    is_signed: bool
    """Whether pixels are signed bytes."""
    has_offsets: bool
    """Whether filters have offsets, so that sums of pixels are needed."""
    zero: int | None
    """The zero point, where it is a number."""
    zero_bytes: int
    """Bytes of the zero point, where it is a tensor."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads at filters and pixels of the result."""
    pointers: tuple[str, ...]
    sizes: Mapping[str, Size]

    @property
    def taps(self) -> int:
        return self.window[0] * self.window[1]

    @property
    def deep(self) -> int:
        return self.channels * self.taps

    @property
    def by_channels(self) -> bool:
        return is_by_channels(self.channels, self.taps)

    @property
    def steps(self) -> int:
        return self.taps * -(-self.channels // 4) if self.by_channels else self.tile.steps(self.deep)

    @property
    def tiles(self) -> int:
        """Tiles of rows of a group."""
        return -(-self.filters // self.tile.mr)

    @property
    def blocks(self) -> int:
        """Blocks of filters of a group."""
        return -(-self.filters // INT8.filters)

    @property
    def lines(self) -> tuple[int, int] | None:
        """Rows of the image that a strip sees and their width, padded, where both are known and are few bytes.

        Four channels of them are interleaved once for all taps.
        """
        width = self.sizes["out_width"]
        if self.taps == 1 or not self.by_channels or not isinstance(width, int) or width == 0:
            return None
        (down, across), (stride, step) = self.window, self.strides
        most = (self.strip - 2) // width + 2
        rows = (most - 1) * stride + (down - 1) * self.dilations[0] + 1
        columns = (width - 1) * step + (across - 1) * self.dilations[1] + 1
        return (rows, columns) if -(-self.channels // 4) * 4 * rows * columns <= INT8.lines else None

    def layout(self, epilogue: Kernel) -> dict[str, int]:
        """Offsets in the workspace: words of the epilogue, sums, sums of pixels, four rows, panels, lines, the end."""
        pitch, mr = 4 * self.strip, self.tile.mr
        sizes = {
            "words": words_bytes(epilogue),
            "sums": -(-min(self.filters, INT8.filters) // mr) * mr * pitch,
            "pixelsums": pitch if self.has_offsets else 0,
            # A copy may write a vector beyond the last pixel.
            "four": 4 * self.strip + VECTOR,
            "panels": self.strip * 4 * self.steps,
            "lines": 0 if self.lines is None else -(-self.channels // 4) * 4 * prod(self.lines) + 4 * VECTOR,
        }
        offsets, end = dict[str, int](), HEAD
        for name, size in sizes.items():
            offsets[name], end = end, end + -(-size // 64) * 64
        return {**offsets, "end": end}


__all__ = ["VECTOR", "ByteImage", "is_by_channels", "strip_of"]
