"""What a block of threads computes for one tile of a product, whichever engine multiplies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.kernels.loops.ir import ZERO, Alloc, Expr, Statement, Tensor


@dataclass(frozen=True, slots=True)
class Element:
    """A sum of this thread: its row and column in the tile, and its place in the private tensor."""

    row: Expr
    column: Expr
    sums: tuple[Expr, ...]
    """One for each stream."""


@dataclass(frozen=True, slots=True)
class Tiled:
    """What a block does for one tile, and the sums that each thread then has."""

    rows: int
    columns: int
    threads: int
    body: Sequence[Statement]
    elements: Sequence[Element]
    allocations: Sequence[Alloc]
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


__all__ = ["Element", "Tiled"]
