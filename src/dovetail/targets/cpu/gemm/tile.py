"""The register tile of matrix multiplication, by what a device has."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.device import CpuDevice
from dovetail.targets.cpu.gemm.policy import is_by_lane, tiles_of


@dataclass(frozen=True, slots=True)
class Tile:
    """The register tile: MR rows by NR columns, which are whole vectors."""

    device: CpuDevice
    rows: int
    """MR."""
    vectors: int
    """Vectors of a row; NR is their columns."""

    @property
    def lanes(self) -> int:
        return self.device.lanes

    @property
    def line(self) -> int:
        """Bytes of a cache line."""
        return self.device.caches.line

    @property
    def columns(self) -> int:
        """NR."""
        return self.vectors * self.lanes

    @property
    def by_lane(self) -> bool:
        """Whether a vector of each row is held for several steps along k, and multiplied lane by lane."""
        return is_by_lane(self.device)

    @property
    def unrolled(self) -> bool:
        """Whether the loop along k is unrolled: vectors below 512 bits leave too little work in a step."""
        return self.device.vector_bits < 512

    @property
    def prefetching(self) -> range:
        """Row counts with a prefetching variant, for panels that are in L2."""
        return range(0) if self.unrolled else range(self.rows - 1, self.rows + 1)

    @property
    def calls_are_blocks(self) -> bool:
        """Whether each call is a block that is summed apart: only where KC does not depend on the row count."""
        return not self.prefetching

    @property
    def many_rows(self) -> int:
        """The row count from which an even cut gives tiles that all have a prefetching variant."""
        return (self.rows - 3) * self.rows + 2

    @property
    def row_bytes(self) -> int:
        return 4 * self.columns

    @property
    def name(self) -> str:
        return f"gemm_{self.rows}x{self.vectors}x{self.lanes}"


def tile_of(device: CpuDevice, streams: int = 1) -> Tile:
    """The register tile of a device; each stream of columns has whole vectors of it."""
    row = tiles_of(device)
    mr, vectors = row.even if row.even is not None and streams % 2 == 0 else (row.mr, row.vectors)
    return Tile(device, mr, vectors)
