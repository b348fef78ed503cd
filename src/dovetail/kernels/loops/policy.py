"""What a target says about the loops it compiles: which scalar primitives it has, and how large its tiles are."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType


@dataclass(frozen=True, slots=True)
class ScalarSupport:
    """The primitives that compiled code has for scalars of each dtype; a dtype that is missing is not computed with."""

    primitives: Mapping[DType, frozenset[str]]

    def has_dtype(self, dtype: DType) -> bool:
        """Whether elements of a dtype can be loaded, computed with and stored."""
        return dtype in self.primitives

    def has(self, op: str, dtype: DType) -> bool:
        """Whether compiled code has a primitive for operands of a dtype."""
        return op in self.primitives.get(dtype, ())


@dataclass(frozen=True, slots=True)
class TilePolicy:
    """How much one tile takes in. On a CPU the numbers follow L1; on a GPU a tile is the work of one block or warp."""

    map_elements: int
    """Elements of a tile of elementwise work."""
    tile_bytes: int
    """Bytes that a tile of copied elements writes."""
    square: int
    """Rows and columns of a tile that is transposed."""
    bundle: int
    """Rows of a tile whose neighbours in memory belong to different rows."""
    block: int
    """Elements that are summed up in their own dtype before the sum goes to a wider one."""
    bundled_block: int
    """That number where each row of a bundle has a sum of its own."""
    widest_bundle: int = 0
    """Rows of a bundle of a tensor that is read from memory, at most; 0 where it is not wider."""
    cached_bytes: int = 0
    """Bytes of a tensor from which on it is read from memory."""
    threads: int = 0
    """Threads that share a tile; 0 where one thread runs all of it. A shared tile has one loop for all of its axes."""
    vector_bytes: int = 0
    """Bytes that one thread loads or stores at once."""
    woven_elements: int = 0
    """Elements from which on a thread takes neighbours of what is woven: fewer are spread over more threads."""
    kept_elements: int | None = None
    """Elements of a row that may stay in scratch between its loops; None where there is no limit."""

    @property
    def is_shared(self) -> bool:
        """Whether the threads of a block share each tile."""
        return self.threads > 0


@dataclass(frozen=True, slots=True)
class LoopTarget:
    """What a target hands to the kernel families."""

    scalars: ScalarSupport
    tiles: TilePolicy


__all__ = ["LoopTarget", "ScalarSupport", "TilePolicy"]
