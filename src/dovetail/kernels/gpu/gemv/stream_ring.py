"""Products with few rows whose weights do not fit shared memory: a ring of stages, each of which bulk copies fill.

Weights are packed in the order in which blocks read them, so that one copy brings a stage of a stream. A stage is
copied again as soon as all warps have read it, and a barrier in shared memory counts its bytes. No thread waits for
copies of others, so that the first ones may start any time before, while other kernels run.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, floordiv
from dovetail.ir.dtype import bool_, i64
from dovetail.ir.literal import Array
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.gemm.fragments import Factor, both, divided, is_multiple, less, remainder
from dovetail.kernels.gpu.gemm.shared_tiles import LineTile
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.gemv.packed_matrix import Transposed
from dovetail.kernels.gpu.gemv.stream import ARRIVED, StreamTile
from dovetail.kernels.gpu.gemv.stream_width import RESIDENT
from dovetail.kernels.loops.ir import (
    ZERO,
    AwaitPhase,
    Barrier,
    Call,
    CopyBulk,
    ExpectBytes,
    Expr,
    Extent,
    Loop,
    Name,
    Set,
    Statement,
    Tensor,
    ThreadIndex,
    When,
    add,
    mul,
)


@dataclass(frozen=True, slots=True)
class Staged:
    """[blocks, stages, columns, k]: what a block reads at a time is one piece of memory."""

    columns: int
    """Of a block."""
    depth: int
    """Elements of k of a stage."""
    padding: int = CHUNK
    """Elements after each column."""

    @property
    def layout(self) -> str:
        return f"{self.columns} columns, {self.depth} of k at a time, {self.padding} between columns"

    @property
    def stage(self) -> int:
        """Elements of a stage."""
        return self.columns * (self.depth + self.padding)

    def __call__(self, w: Array) -> Array:
        by_column = Transposed()(w)
        width, depth = by_column.shape
        found = np.zeros((width // self.columns, depth // self.depth, self.columns, self.depth + self.padding), w.dtype)
        bits = np.dtype(f"u{w.dtype.itemsize}")
        parts = by_column.view(bits).reshape(width // self.columns, self.columns, depth // self.depth, self.depth)
        found.view(bits)[..., : self.depth] = parts.transpose(0, 2, 1, 3)
        return found


@dataclass(frozen=True, slots=True)
class StreamRing(StreamTile):
    """A tile of a stream whose stages are a ring."""

    @staticmethod
    def from_tile(tile: StreamTile, columns: Size, device: GpuDevice) -> StreamRing | None:
        """The same tile as a ring; None where all weights fit, or are not whole stages."""
        if not tile.early or not device.bulk_copies or tile.axis != "k" or tile.is_whole or tile.bulk:
            return None
        if not is_multiple(columns, tile.columns) or tile.depth % tile.stage_depth:
            return None
        values = {name: getattr(tile, name) for name in tile.__dataclass_fields__}
        found = StreamRing(**values)
        return found if found.stages > 1 and RESIDENT * found.shared_bytes <= device.shared_bytes else None

    @property
    def pack(self) -> Staged:
        return Staged(self.columns, self.stage_depth)

    def packed(self, right: Factor, name: str, first: Size) -> Factor:
        """A right factor, from a column on, as it is once packed."""
        item = right.tensor.dtype.itemsize
        stage = self.pack.stage * item
        strides = (self.rounds * stage, stage)
        offset = floordiv(first, self.columns) * strides[0]
        return replace(right, tensor=Tensor(name, right.tensor.dtype, strides, offset))

    @property
    def stages(self) -> int:
        """As many as fit, of those that are filled equally often."""
        one = self.pack.stage * self.streams * self.dtype.itemsize
        return max([n for n in range(1, self.rounds) if self.rounds % n == 0 and n * one <= self.room], default=1)

    @property
    def turns(self) -> int:
        """How often a stage is filled."""
        return self.rounds // self.stages

    @property
    def weights(self) -> LineTile:
        return LineTile("weights", self.dtype, self.width, self.stage_depth, self.stages)

    @property
    def barriers(self) -> int:
        return self.stages

    @property
    def streams_are_apart(self) -> bool:
        return True

    def body(self) -> list[Statement]:
        number, stage, later = Name("round"), Name("stage"), Name("later")
        turn = Call("bit_and", (divided(number, self.stages), Extent(1)), i64)
        # All warps have read the stage before this one.
        freed = both(less(ZERO, number), less(later, Extent(self.rounds)))
        refill = When(freed, tuple(self._stage_copied(later, remainder(later, self.stages))))
        each = (
            Set("stage", remainder(number, self.stages)),
            AwaitPhase(ARRIVED, stage, turn, self.turns),
            Barrier(),
            Set("later", add(number, Extent(self.stages - 1))),
            refill,
            self.products.stage(self.weights, stage, self.left_rows, mul(number, Extent(self.stage_depth))),
        )
        start = [*self.products.zeroed(), *self.left_loaded()]
        loop = Loop("round", Extent(self.rounds), each, rolled=True)
        # The next run of the kernel, or of a pass, fills all stages again; sums may take their place.
        return [*start, loop, Barrier()]

    def _first_copies(self) -> list[Statement]:
        return [s for n in range(self.stages) for s in self._stage_copied(Extent(n), Extent(n))]

    def _stage_copied(self, number: Expr, stage: Expr) -> list[Statement]:
        """One thread copies a stage."""
        nbytes = self.pack.stage * self.dtype.itemsize
        found: list[Statement] = [ExpectBytes(ARRIVED, stage, self.streams * nbytes)]
        for at, right in enumerate(self.rights):
            target, place = self.weights.place(stage, Extent(at * self.columns), ZERO)
            source = (divided(Name("side"), self.columns), number)
            found.append(CopyBulk(target, place, right.tensor, source, nbytes, ARRIVED, stage, self.evict_first))
        return [When(Call("equal", (ThreadIndex("thread"), ZERO), bool_), tuple(found))]


__all__ = ["Staged", "StreamRing"]
