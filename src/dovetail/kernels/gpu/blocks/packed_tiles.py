"""Weights in blocks as tiles of some columns, which bulk copies bring to shared memory: packed at bind time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import u32
from dovetail.ir.literal import Array
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.blocks.packed_blocks import PackedBlocks, pieces
from dovetail.kernels.gpu.blocks.units import TOGETHER
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, remainder
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import Expr, Extent, Load, Name, Set, Tensor, ThreadIndex, add, mul

SHARING = LANES // CHUNK
"""Lanes that share a column."""


@dataclass(frozen=True, slots=True)
class PackedTiles:
    """[tiles, turns, groups of eight columns, warps, vectors, lanes, words of a vector], and then, of each tile, what
    is no whole word, in the same order, and what units share, [eights of units, columns]: a tile is one piece of
    memory, and lanes read it without conflicts of banks."""

    blocks: PackedBlocks
    columns: int
    """Of a tile."""
    warps: int
    count: int
    """Blocks of a column."""

    @property
    def layout(self) -> str:
        return f"{self.blocks.layout} in tiles of {self.columns} for {self.warps} warps"

    @property
    def bytes(self) -> int:
        """Of a tile."""
        return self.blocks.nbytes(self.columns, self.count)

    @property
    def turns(self) -> int:
        """Blocks of a column that a thread has."""
        return self.count // (self.warps * SHARING)

    def __call__(self, *parts: Array) -> Array:
        """From blocks [columns, bytes] of some columns after the other."""
        packed = np.empty((sum([len(part) for part in parts]) // self.columns, self.bytes), np.uint8)
        for first, sources in self._split(parts):
            tiles = packed[first // self.columns :][: len(sources[0]) // self.columns]
            at = 0
            for source in sources:
                size = self.columns * source.shape[1] * source.shape[2] * source.itemsize
                self._moved(source, tiles[:, at : at + size].view(source.dtype))
                at += size
        return packed

    def _split(self, parts: Sequence[Array]) -> Iterator[tuple[int, list[Array]]]:
        """Some tiles at a time, and the number of their first column."""
        if all([len(part) % self.columns == 0 for part in parts]):
            for first, some in pieces(parts, self.columns):
                yield first, self.blocks.split(some)
        else:
            # A tile has columns of several matrices, which may be in several formats.
            every = [self.blocks.split(part) for part in parts]
            yield 0, [np.concatenate(some) for some in zip(*every, strict=True)]

    def _moved(self, source: Array, target: Array) -> None:
        """[columns, blocks, vectors] of a kind to their places."""
        tiles = len(target)
        if source.shape[1] != self.count:
            shared = source[:, :, 0].reshape(tiles, self.columns, -1)
            target.reshape(tiles, -1, self.columns)[...] = shared.transpose(0, 2, 1)
            return
        groups = self.columns // CHUNK
        order = target.reshape(tiles, self.turns, groups, self.warps, -1, SHARING, CHUNK)
        ordered = source.reshape(tiles, groups, CHUNK, self.turns, self.warps, SHARING, -1)
        for tile, own in zip(order, ordered, strict=True):
            tile[...] = own.transpose(2, 0, 3, 5, 4, 1)

    def words(self, used: Iterable[int], start: int, group: Expr, turn: int, prefix: str) -> list[Set]:
        """The words of a lane's block that are used, under names; the last ones are what is no whole word, and what
        units share. The tile starts at a byte of shared memory, and lanes have eight columns of it."""
        sets: list[Set] = []
        for number in sorted(used):
            if number < self.blocks.words:
                value: Expr = self._word(number, start, group, turn)
            elif number == self.blocks.words:
                value = cast_to(self._rest(start, group, turn), u32)
            else:
                value = cast_to(self._shared(start, group, turn), u32)
            sets.append(Set(f"{prefix}{number}", value))
        return sets

    def _word(self, number: int, start: int, group: Expr, turn: int) -> Load:
        pack, item = self.blocks, u32.itemsize
        groups, line = self.columns // CHUNK, pack.vector * item
        # turns, groups, warps, vectors, lanes, words
        by_warp = pack.words * item * LANES
        strides = (groups * self.warps * by_warp, self.warps * by_warp, by_warp, LANES * line, line, item)
        vector, at = divmod(number, pack.vector)
        place = (Extent(turn), group, ThreadIndex("warp"), Extent(vector), LANE, Extent(at))
        return Load(Tensor("weights", u32, strides, start, space="shared"), place)

    def _rest(self, start: int, group: Expr, turn: int) -> Load:
        kind = self.blocks.rest
        assert kind is not None, "it is used"
        threads, size = self.warps * LANES, kind.itemsize
        strides = (self.columns // CHUNK * threads * size, threads * size, size)
        after = start + self.columns * self.count * self.blocks.words * u32.itemsize
        rest = Tensor("weights", kind, strides, after, space="shared")
        return Load(rest, (Extent(turn), group, Name("warp_lane")))

    def _shared(self, start: int, group: Expr, turn: int) -> Load:
        kind, size = self.blocks.shared, 0 if self.blocks.shared is None else self.blocks.shared.itemsize
        assert kind is not None, "it is used"
        after = start + self.columns * self.count * self.blocks.bytes
        # Lanes of two warps have the units of a block, or those of two turns where a block has one warp.
        first = turn * self.warps * SHARING // TOGETHER
        warp = divided(ThreadIndex("warp"), TOGETHER // SHARING)
        eight = Extent(first) if self.warps == 1 else add(Extent(first), warp)
        column = add(mul(group, Extent(CHUNK)), remainder(LANE, CHUNK))
        shared = Tensor("weights", kind, (self.columns * size, size), after, space="shared")
        return Load(shared, (eight, column))


__all__ = ["SHARING", "PackedTiles"]
