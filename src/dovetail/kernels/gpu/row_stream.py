"""Products of one row whose weights bulk copies bring, without tensor cores: these would lower the clock."""

from __future__ import annotations

from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.row_products import RowProducts
from dovetail.kernels.gpu.shared_tiles import LineTile
from dovetail.kernels.gpu.stream import ARRIVED, StreamTile
from dovetail.kernels.gpu.tiled import RowScale, Tiled
from dovetail.kernels.loops.ir import ZERO, Alloc, AllocBarriers, AwaitPhase, Barrier, Statement


@dataclass(frozen=True, slots=True)
class RowStream(StreamTile):
    """A tile of a stream whose threads multiply."""

    @staticmethod
    def from_tile(tile: StreamTile, device: GpuDevice) -> RowStream | None:
        """The same tile by threads; None where tensor cores lower no clock, or threads cannot share it."""
        if not 0 < device.tensor_hertz < device.hertz or tile.rows != 1 or not tile.bulk or not tile.sums_are_apart:
            return None
        found = RowStream(**{name: getattr(tile, name) for name in tile.__dataclass_fields__})
        return found if found.by_threads.fits else None

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

    def allocations(self) -> list[Alloc | AllocBarriers]:
        """Those in shared memory: threads have all else in names."""
        return [a for a in StreamTile.allocations(self) if isinstance(a, AllocBarriers) or a.space == "shared"]

    def body(self) -> list[Statement]:
        assert isinstance(self.weights, LineTile), "bulk copies fill it"
        sums = self.by_threads.statements(self.weights, self.left_rows, self.planes)
        return [*self.left_loaded(), AwaitPhase(ARRIVED, ZERO, ZERO), Barrier(), *sums]


__all__ = ["RowStream"]
