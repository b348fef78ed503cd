"""Tiles of sums by warpgroups, with a warp that copies for them: it runs ahead, also into the tiles that follow.

The producer starts copies of boxes (TMA) into stages of shared memory that are empty; warpgroups multiply stages that
are full. Barriers in shared memory say which is which, so that no thread waits for all others of its block.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, f32
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.conv.pixels import Pixels
from dovetail.kernels.gpu.gemm.block_tile import chunk_of, depth_of
from dovetail.kernels.gpu.gemm.fragments import LANE, Factor, SharedTile, divided, private, remainder, zeroed
from dovetail.kernels.gpu.gemm.scaled_rows import ReadSquares
from dovetail.kernels.gpu.gemm.tensor_core_tile import TensorCoreTile
from dovetail.kernels.gpu.gemm.tile import CHUNK, WARP_ROWS, BlockTile
from dovetail.kernels.gpu.gemm.tiled import Chunk, Element, Overlap, Producer, Tiled
from dovetail.kernels.gpu.pipeline import FULL, PRODUCER, Boxes, BoxPipeline, pipeline
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AwaitProducts,
    CopyBox,
    Expr,
    Extent,
    Load,
    Name,
    Statement,
    Tensor,
    TensorMap,
    ThreadIndex,
    add,
    mul,
)
from dovetail.kernels.matrix_instruction import mma_of

FEW_COLUMNS = 64
"""Columns of a tile that needs no more registers than threads start with: to change them takes a tenth of a
microsecond."""


@dataclass(frozen=True, slots=True)
class PipelinedTile:
    """The sums of a tile by warpgroups that wait for a producer."""

    tile: BlockTile
    dtype: DType
    left: Factor
    rights: Sequence[Factor]
    left_axis: str
    right_axis: str
    depth: int
    parts: int = 1
    """Into how many equal parts k goes; `part` says which one a block has."""
    early: bool = False
    """Whether columns are constants, whose first stages a block copies while kernels before it still run."""
    scale: ReadSquares | None = None
    """The factors of rows; None where there are none."""
    is_at_once: bool = False
    """Whether a block has one tile, and a stage for each of its rounds: none is filled twice."""

    @staticmethod
    def takes(factors: Sequence[Factor]) -> bool:
        """Whether the TMA can copy these factors: matrices whose lines are known to be aligned, or pixels."""
        return all(not factor.lead and (_pitch(factor) > 0 or _pixels(factor) is not None) for factor in factors)

    def at_once(self, rows: Size, columns: Size, device: GpuDevice) -> PipelinedTile:
        """The tile with a stage for each round, where a block has one tile and stages enough; else as it is.

        It keeps stages that it does not fill: with fewer, layers of 128 rows take 2 to 5 % longer (docs/design/0018).
        """
        tile = self.tile
        if not isinstance(rows, int) or not isinstance(columns, int) or tile.cluster > 1 or self.rounds > tile.stages:
            return self
        blocks = self.parts * -(-rows // tile.rows) * -(-columns // (tile.columns // len(self.rights)))
        if blocks > device.multiprocessors:
            return self
        return replace(self, is_at_once=True)

    @property
    def core(self) -> TensorCoreTile:
        return TensorCoreTile(
            self.tile, mma_of(self.dtype), self.left, self.rights, self.left_axis, self.right_axis, self.depth
        )

    @property
    def rounds(self) -> int:
        """Rounds of a block over its part of k."""
        return -(-self.depth // depth_of(self.dtype)) // self.parts

    @property
    def width(self) -> int:
        """Columns of the result in a chunk."""
        return self.tile.width // len(self.rights)

    def tiled(self) -> Tiled:
        tile, core = self.tile, self.core
        warps = tile.threads // LANES
        pitch = (self.width + CHUNK) * f32.itemsize
        rows = WARP_ROWS * pitch
        streams = len(self.rights)
        staged = Tensor("staged", f32, (streams * rows, rows, pitch, f32.itemsize), space="shared")
        allocations = [
            *[one for one in core.allocations() if one.pointer == "tiles"],
            Alloc(self._sums.pointer, f32, self.tile.columns // 2, "private"),
            Alloc("staged", f32, warps * streams * rows // f32.itemsize, "shared"),
        ]
        steps, registers = self._steps, self._registers()
        end = steps.end() if tile.cluster > 1 else ()
        ahead = () if self.scale is None else self.scale.loaded()
        alone = tile.cluster == tile.blocks == self.parts == 1 and not self.is_at_once
        overlap = Overlap(self._sums, tile.columns // 2, self.rounds, self._products) if alone else None
        producer = Producer(
            tile.threads,
            steps.state(),
            steps.fills(),
            self._chunks(),
            staged,
            self.width,
            registers,
            end,
            ahead,
            overlap,
        )
        return Tiled(
            tile.rows,
            tile.columns // streams,
            tile.threads + PRODUCER,
            [*self._products(), *(() if self.scale is None else self.scale.factors())],
            (),
            (*allocations, *steps.allocations),
            is_aligned=True,
            resident=tile.blocks,
            early=steps.early(tile.threads) if self.early else (),
            producer=producer,
            cluster=tile.cluster,
        )

    @property
    def _sums(self) -> Tensor:
        """The sums of a thread: 4 for every 8 columns."""
        return private("sums", f32, self.tile.columns // 8, 4)

    def _registers(self) -> tuple[int, int] | None:
        """Of a thread that multiplies, and of one that copies, which needs few; None where both have enough."""
        if self.is_at_once and self.tile.columns <= FEW_COLUMNS:
            return None
        return self._steps.by.registers(self.tile.blocks)

    @property
    def _steps(self) -> BoxPipeline:
        """The steps of a block over its part of k."""
        tile, sums, group = self.tile, self._sums, divided(ThreadIndex("warp"), 4)

        def product(number: Expr, stage: Expr) -> list[Statement]:
            return [self.core.shared_product(stage, group, sums)]

        def boxes(number: Expr, stage: Expr) -> list[Statement]:
            rows, columns = self._rows(number, stage), self._columns(number, stage)
            return [*columns, *rows] if self.is_at_once else [*rows, *columns]

        end = [AwaitProducts(sums, tile.columns)]
        by = Boxes(tile.threads // LANES, tile.cluster, self.is_at_once, end)
        constants, others = (self._columns, self._rows) if self.early else (None, None)
        return pipeline(tile.stages, self.rounds, boxes, product, by, constants=constants, first=others)

    def _products(self, works: Sequence[Sequence[Statement]] = ()) -> list[Statement]:
        """The sums of a tile, with some work while products of each of the first rounds run."""
        steps = self._steps
        return [zeroed(self._sums, self.tile.columns // 2), *(steps.overlapped(works) if works else steps.rounds())]

    def _number(self, number: Expr) -> Expr:
        """A round of all of k, by its number in this part."""
        return number if self.parts == 1 else add(mul(Name("part"), Extent(self.rounds)), number)

    def _rows(self, number: Expr, stage: Expr) -> list[CopyBox]:
        """The boxes of the left factor in a round."""
        tile, rows = self.core.left_tile, self.tile.rows
        return self._boxes(tile, stage, self.left, self.left_axis, Name("top"), self._number(number), rows, 0, 1)

    def _columns(self, number: Expr, stage: Expr) -> list[CopyBox]:
        """The boxes of the right factors in a round, or the share of them that this block copies for its cluster."""
        tile, each = self.core.right_tile, self.tile.columns // len(self.rights)
        copies: list[CopyBox] = []
        for at, right in enumerate(self.rights):
            place = right, self.right_axis, Name("side"), self._number(number)
            copies += self._boxes(tile, stage, *place, each, at * each, self.tile.cluster)
        return copies

    def _boxes(
        self,
        tile: SharedTile,
        stage: Expr,
        factor: Factor,
        axis: str,
        first: Expr,
        number: Expr,
        rows: int,
        skipped: int,
        blocks: int,
    ) -> list[CopyBox]:
        """Rows of a factor from `first` on, in a round, to the rows of a tile after `skipped` ones.

        Of `blocks` blocks that need them, each copies an equal share of the lines, to all of them.
        """
        of, depth = factor.tensor, depth_of(self.dtype)
        k, item = mul(number, Extent(depth)), self.dtype.itemsize
        lines = (rows if axis == "k" else depth) // blocks
        share = ZERO if blocks == 1 else mul(remainder(ThreadIndex("block"), blocks), Extent(lines))
        if axis == "k":
            target, at = tile.place(stage, add(Extent(skipped), share), ZERO)
            pixels = _pixels(factor)
            if pixels is not None and factor.gather is not None:
                start, taps = pixels.start(factor.gather.place(first), number)
                return [CopyBox(target, at, pixels.source(of, rows), start, FULL, stage, taps)]
            sizes = factor.depth, factor.rows
            matrix = TensorMap(of.pointer, of.offset, sizes, (of.strides[0],), lines, itemsize=item)
            return [CopyBox(target, at, matrix, (k, add(first, share)), FULL, stage, blocks=blocks)]
        sizes = factor.rows, factor.depth
        matrix = TensorMap(of.pointer, of.offset, sizes, (of.strides[1],), lines, itemsize=item)
        copies: list[CopyBox] = []
        for panel in range(0, rows, depth):
            target, at = tile.place(stage, share, Extent((skipped + panel) // chunk_of(self.dtype)))
            start = add(first, Extent(panel)), add(k, share)
            copies.append(CopyBox(target, at, matrix, start, FULL, stage, blocks=blocks))
        return copies

    def _chunks(self) -> list[Chunk]:
        """The sums of a warp, chunk by chunk; those of a stream are side by side."""
        streams = len(self.rights)
        across = self.tile.columns // 8 // streams
        each = self.width // 8
        # Warp w of all has rows 16·w to 16·w + 15 of the tile.
        top = mul(ThreadIndex("warp"), Extent(WARP_ROWS))
        chunks: list[Chunk] = []
        for first in range(0, across, each):
            elements: list[Element] = []
            for half, j, e in product(range(2), range(each), range(2)):
                row = add(divided(LANE, 4), Extent(8 * half))
                column = add(mul(remainder(LANE, 4), Extent(2)), Extent(8 * j + e))
                places = [(Extent(s * across + first + j), Extent(2 * half + e)) for s in range(streams)]
                sums: list[Expr] = [Load(self._sums, at) for at in places]
                if self.scale is not None:
                    sums = [self.scale.scaled(total, half) for total in sums]
                elements.append(Element(row, column, tuple(sums)))
            chunks.append(Chunk(top, 8 * first, elements))
        return chunks


def _pixels(factor: Factor) -> Pixels | None:
    return None if factor.gather is None else factor.gather.pixels


def _pitch(factor: Factor) -> int:
    """Bytes from line to line of a matrix; 0 where they are not known, or where it is gathered."""
    if factor.gather is not None:
        return 0
    item = factor.tensor.dtype.itemsize
    other = [s for s in factor.tensor.strides if s != item]
    return other[0] if len(other) == 1 and isinstance(other[0], int) else 0


__all__ = ["PipelinedTile"]
