"""What a block of threads computes for one tile of a product, whichever engine multiplies."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail.dataclass import dataclass
from dovetail.kernels.gpu.gemm.stream_k import Spans
from dovetail.kernels.loops.ir import ZERO, Alloc, AllocBarriers, Expr, Statement, Tensor


@dataclass(frozen=True, slots=True)
class Element:
    """A sum of this thread: its row and column in the tile, and its place in the private tensor."""

    row: Expr
    column: Expr
    sums: tuple[Expr, ...]
    """One for each stream."""
    inside: Expr | None = None
    """Whether this thread has it; None where all threads do."""


@dataclass(frozen=True, slots=True)
class RowScale:
    """A factor of all sums of a row, which is known once the sums of all planes are."""

    stored: Statement
    """What a thread stores of it where it stores its sums."""
    of: Callable[[Expr], Expr]
    """The factor of a row."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """What a block does for one tile, and the sums that each thread then has."""

    rows: int
    columns: int
    threads: int
    body: Sequence[Statement]
    elements: Sequence[Element]
    allocations: Sequence[Alloc | AllocBarriers]
    is_aligned: bool = False
    """Whether tiles start at multiples of 1,024 bytes, as dynamic shared memory does."""
    resident: int = 1
    staged: Tensor | None = None
    """Shared memory that has room for all sums, plane by plane; None where there is not enough."""
    planes: int = 1
    """How many threads have a part of each sum."""
    plane: Expr = ZERO
    """Which part this thread has."""
    early: Sequence[Statement] = ()
    """Copies of constant factors, which a block may start while kernels before it still run."""
    producer: Producer | None = None
    """The warp that copies for the others, tile after tile; None where all threads copy."""
    cycles: float = 0.0
    """An estimate of all tiles together, without the start of the kernel; 0 where there is none."""
    scale: RowScale | None = None
    """What multiplies sums of several planes; None where nothing does."""
    cluster: int = 1
    """Blocks of a cluster, which have the same columns and copy them for each other."""
    vector: int = 1
    """Elements that follow each other and are neighbours of one row: all of them are inside where the columns of the
    result are a multiple of as many and one of them is."""
    is_spread: bool = False
    """Whether multiprocessors have equal shares of the blocks: those of one share its lanes."""
    spans: Spans | None = None
    """How blocks share the rounds of all tiles; None where a block has all of a tile, or of a part of it."""


@dataclass(frozen=True, slots=True)
class Chunk:
    """Sums of a warp that go through shared memory together: where they are in the tile, and those of a thread."""

    row: Expr
    column: int
    elements: Sequence[Element]
    """Their rows and columns are those of the chunk."""


@dataclass(frozen=True, slots=True)
class Overlap:
    """Products of a tile whose first rounds leave time for something else."""

    sums: Tensor
    """Those of a thread."""
    count: int
    rounds: int
    products: Callable[[Sequence[Sequence[Statement]]], list[Statement]]
    """The products of a tile, with work that is done while those of each of the first rounds run."""


@dataclass(frozen=True, slots=True)
class Producer:
    """A thread of a warpgroup beyond those that multiply, which copies to shared memory."""

    first: int
    """Its first thread, which copies; those before it multiply."""
    start: Sequence[Statement]
    """What either role does before its first tile."""
    body: Sequence[Statement]
    """What it does for a tile."""
    chunks: Sequence[Chunk]
    """The sums of a warp."""
    staged: Tensor
    """Shared memory for a chunk of each warp: warp, stream, row, column."""
    width: int
    """Columns of a chunk."""
    registers: tuple[int, int] | None
    """Registers of a thread that multiplies, and of one that copies; None where all have as many."""
    end: Sequence[Statement] = ()
    """What it does after its last tile."""
    ahead: Sequence[Statement] = ()
    """What consumer warps load for a tile before its main loop."""
    overlap: Overlap | None = None
    """How others do something else while they multiply; None where they cannot."""


__all__ = ["Chunk", "Element", "Overlap", "Producer", "RowScale", "Tiled"]
