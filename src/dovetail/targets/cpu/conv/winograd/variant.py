"""Convolution of 3 by 3 by Winograd's scheme: where it wins, and how its work is cut."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from dovetail.ir.literal import Array
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.geometry import Blocks, Field
from dovetail.kernels.spec import Number, Packed, Tiling
from dovetail.targets.cpu.conv.broadcast_tile import square_of
from dovetail.targets.cpu.conv.direct.variant import Candidate, Convolution, Expanse, known
from dovetail.targets.cpu.conv.few_pixels.kernel import Square
from dovetail.targets.cpu.conv.patch import HEAD
from dovetail.targets.cpu.conv.winograd.kernel import winograd_text
from dovetail.targets.cpu.conv.winograd.scheme import FOUR, TWO, Scheme
from dovetail.targets.cpu.denormals import normal
from dovetail.targets.runtime.aligned import aligned

FEWEST = {FOUR: (32, 32), TWO: (64, 48)}
"""Channels, and filters, below which the transforms cost more than the products save."""
PATCHES = {FOUR: range(28, 1 << 62), TWO: range(20, 111)}
"""Patches below which reading more weights costs more than the products save; with many the wider scheme is better."""
PATCHES_BYTES = 850 * 1024
"""What the transformed patches of a tile may take: they stay in the second cache while all filters go over them."""
PIECE = 64
"""Channels that one register tile takes at a time: their weights stay in the first cache."""


def winograd(found: Convolution, expanse: Expanse, vectors: CpuDevice) -> list[Candidate]:
    """The kernels of a convolution of 3 by 3, where these schemes may be faster."""
    field = expanse.field
    fitting = (field.window, field.strides, field.dilations, expanse.groups) == ((3, 3), (1, 1), (1, 1), 1)
    if not fitting or not expanse.is_level or found.x.rank != 4:
        return []
    square = square_of(vectors, expanse.filters, found.epilogue, point=True)
    return [
        _candidate(found, expanse, scheme, square)
        for scheme, (channels, filters) in FEWEST.items()
        if expanse.channels >= channels and expanse.filters >= filters
    ]


def _candidate(found: Convolution, expanse: Expanse, scheme: Scheme, square: Square) -> Candidate:
    w = Packed(found.w, f"winograd {scheme.out} {square.block}", Transforming(scheme, square.block))
    tiler, name = Winograd(expanse, scheme, square), f"winograd {scheme.out}×{scheme.out}"
    return Candidate(found.bindings(w, square.block), tiler, lambda: winograd_text(scheme, square), name)


@dataclass(frozen=True, slots=True)
class Winograd:
    """How the work of `winograd_text` is cut."""

    expanse: Expanse
    scheme: Scheme
    square: Square

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.expanse.known(number))

    def tiling(self, of: Expanse) -> Tiling | None:
        """The cut, where the number of patches suits the scheme."""
        scheme, square, lanes = self.scheme, self.square, self.square.vectors.lanes
        height, width = known(of.field.out[0]), known(of.field.out[1])
        down, across = -(-height // scheme.out), -(-width // scheme.out)
        if down * across not in PATCHES[scheme]:
            return None
        window, apart = (scheme.patch, scheme.patch), (scheme.out, scheme.out)
        pixels = Field(of.field.sizes, of.field.steps, (down, across), window, apart, (1, 1), of.field.before)
        patches = _patches(down, across, max(lanes, PATCHES_BYTES // (4 * scheme.spots * of.channels)))
        blocks = patches.blocks
        most = known(blocks.rows) * known(blocks.columns)
        sizes = (
            *pixels.words(blocks), of.channels, of.filters, *of.steps, height, width, patches.rows, patches.parts,
            patches.part, PIECE, *of.residual[:1],
        )  # fmt: skip
        entered = -(-4 * most * of.channels // 64) * 64 + 4 * lanes
        sums = 4 * (patches.part * square.block + lanes)
        results = 4 * square.block * scheme.out**2 * most
        seen = 4 * (known(pixels.seen(blocks, 1)) + 2 * lanes)
        scratch = HEAD + 8 * (scheme.spots + 8) + scheme.spots * (entered + sums) + results + seen
        tiles = of.images * blocks.down * blocks.across * patches.parts * -(-of.filters // square.block)
        work = patches.part * of.channels * scheme.spots * square.filters // 2
        return Tiling(sizes, scratch, tiles, work + 1)


@dataclass(frozen=True, slots=True)
class Patches:
    """How patches are cut: blocks with the rows of one part, rows of a block, its parts and their patches."""

    blocks: Blocks
    rows: int
    parts: int
    part: int


def _patches(height: int, width: int, room: int) -> Patches:
    """Blocks that fit, or parts of one block where a row of patches is short: an even number, so that threads share."""
    count = height * width
    if count <= room:
        return Patches(Blocks(height, width, 1, 1), height, 1, count)
    parts = -(-count // (2 * room)) * 2
    part = -(-count // parts)
    if part >= 3 * width:
        return Patches(Blocks(min(height, (part - 2) // width + 2), width, 1, 1), height, parts, part)
    columns, across = _cut(width, room)
    rows, down = _cut(height, max(1, room // columns))
    return Patches(Blocks(rows, columns, down, across), rows, 1, rows * columns)


def _cut(size: int, most: int) -> tuple[int, int]:
    count = -(-size // most)
    return -(-size // count), count


@dataclass(frozen=True, slots=True)
class Transforming:
    """Weights [m, c, 3, 3] as [block of filters][spot][c][filter], transformed; 0 in what is left of the last block."""

    scheme: Scheme
    block: int

    def __call__(self, w: Array) -> Array:
        blocks, spots = -(-w.shape[0] // self.block), self.scheme.spots
        packed = np.zeros((blocks * self.block, w.shape[1], spots), np.float32)
        packed[: w.shape[0]] = self.scheme.weights(w)
        split = packed.reshape((blocks, self.block, w.shape[1], spots))
        found = aligned((blocks, spots, w.shape[1], self.block))
        found[...] = split.transpose((0, 3, 2, 1))
        return normal(found)
