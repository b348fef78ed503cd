"""Products of one row whose weights bulk copies bring, without tensor cores: these would lower the clock."""

from __future__ import annotations

from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.row_products import RowProducts
from dovetail.kernels.gpu.shared_tiles import LineTile
from dovetail.kernels.gpu.stream import ARRIVED, StreamTile
from dovetail.kernels.gpu.stream_width import RESIDENT
from dovetail.kernels.gpu.tiled import RowScale, Tiled
from dovetail.kernels.loops.ir import ZERO, Alloc, AllocBarriers, AwaitPhase, Barrier, Statement, Tensor


@dataclass(frozen=True, slots=True)
class RowStream(StreamTile):
    """A tile of a stream whose threads multiply."""

    @staticmethod
    def from_tile(tile: StreamTile, device: GpuDevice) -> RowStream | None:
        """The same tile by threads; None where tensor cores lower no clock, or threads cannot share it."""
        if not 0 < device.tensor_hertz < device.hertz or tile.rows != 1 or not tile.bulk or not tile.sums_are_apart:
            return None
        found = RowStream(**{name: getattr(tile, name) for name in tile.__dataclass_fields__})
        there_is_room = found.sums_are_apart and RESIDENT * found.shared_bytes <= device.shared_bytes
        return found if found.by_threads.fits and there_is_room else None

    @property
    def by_threads(self) -> RowProducts:
        gains = None if self.norm is None else self.norm.gains
        return RowProducts(self.dtype, self.depth, self.width, self.warps, gains)

    def tiled(self) -> Tiled:
        found, products, norm = StreamTile.tiled(self), self.by_threads, self.norm
        scale = None
        if norm is not None:
            squares = products.squares(self.planes)
            scale = RowScale(products.squares_stored(self.planes), lambda _: norm.scale(squares))
        # Sums are in the planes.
        return replace(found, elements=(), planes=products.deep, plane=products.plane, scale=scale)

    @property
    def planes(self) -> Tensor:
        """The sums of all parts of k are next to each other: a thread that adds them up loads four at once. A vector of
        padding spreads columns over banks."""
        return Tensor("planes", f32, (f32.itemsize, 0, self._apart * f32.itemsize), space="shared")

    @property
    def planes_bytes(self) -> int:
        """Those of all columns, and of squares, which are a column more."""
        return self._apart * (self.width + 1) * f32.itemsize

    @property
    def _apart(self) -> int:
        """Elements from the sums of one column to those of the next."""
        return self.by_threads.deep + 4

    def allocations(self) -> list[Alloc | AllocBarriers]:
        """Those in shared memory: threads have all else in names."""
        return [a for a in StreamTile.allocations(self) if isinstance(a, AllocBarriers) or a.space == "shared"]

    def body(self) -> list[Statement]:
        assert isinstance(self.weights, LineTile), "bulk copies fill it"
        sums = self.by_threads.statements(self.weights, self.left_rows, self.planes)
        return [*self.left_loaded(), AwaitPhase(ARRIVED, ZERO, ZERO), Barrier(), *sums]


__all__ = ["RowStream"]
