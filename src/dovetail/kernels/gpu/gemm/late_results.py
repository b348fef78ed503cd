"""The epilogue of a tile, overlapped with the main loop of the next one: tensor cores do not wait for results.

Warpgroups of a block have the same tile, so that all of them write results at the same time, and tensor cores have no
work meanwhile: with GELU that took a quarter of a product. A thread keeps the sums of a tile in further registers and
computes a piece of their results in each of the first rounds of the tile after it.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.gpu.gemm.fragments import less, unrolled
from dovetail.kernels.gpu.gemm.narrow_results import NarrowResults
from dovetail.kernels.gpu.gemm.tiled import Chunk, Overlap
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Alloc,
    Call,
    Expr,
    Load,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    When,
)

LATE_SUMS = 64
"""Sums of a thread from which on it is done: with fewer, the assembler reads sums late and serialises products."""
OTHERS = 48
"""Registers of a thread beyond its sums and those that it keeps."""
KEPT, _TOP, _SIDE, _ARE_KEPT = "kept", "kept_top", "kept_side", "are_kept"


@dataclass(frozen=True, slots=True)
class LateResults:
    """The results of all tiles of a block, each during the products of the next one."""

    narrow: NarrowResults
    """Of the sums that are kept."""
    overlap: Overlap

    @staticmethod
    def of(narrow: NarrowResults) -> LateResults | None:
        """None where registers do not hold two tiles, or a tile has too few rounds."""
        overlap, registers = narrow.producer.overlap, narrow.producer.registers
        if overlap is None or overlap.count < LATE_SUMS or registers is None:
            return None
        if 2 * overlap.count + OTHERS > registers[0]:
            return None
        chunks = [_kept(chunk, overlap.sums) for chunk in narrow.producer.chunks]
        producer = replace(narrow.producer, chunks=chunks)
        found = LateResults(replace(narrow, producer=producer, top=Name(_TOP), side=Name(_SIDE)), overlap)
        return found if len(found.narrow.pieces()[1]) <= overlap.rounds else None

    @property
    def allocation(self) -> Alloc:
        """Registers for the sums of the tile before."""
        return Alloc(KEPT, f32, self.overlap.count, "private")

    @property
    def start(self) -> list[Statement]:
        return [Set(_ARE_KEPT, ZERO), Set(_TOP, ZERO), Set(_SIDE, ZERO)]

    def tile(self) -> list[Statement]:
        """The products of a tile, with results of the one before."""
        ahead, pieces = self.narrow.pieces()
        e, count = Name("e"), self.overlap.count
        kept, sums = (Tensor(name, f32, (4,), space="private") for name in (KEPT, self.overlap.sums.pointer))
        move = unrolled("e", count, Store(kept, (e,), Call("held", (Load(sums, (e,)),), f32)))
        products = self.overlap.products([[_when_kept(piece)] for piece in pieces])
        after = [Set(_ARE_KEPT, ONE), Set(_TOP, Name("top")), Set(_SIDE, Name("side"))]
        return [_when_kept(ahead), *products, move, *after]

    @property
    def end(self) -> list[Statement]:
        """The results of the last tile."""
        ahead, pieces = self.narrow.pieces()
        return [_when_kept([*ahead, *(s for piece in pieces for s in piece)])]


def _when_kept(work: list[Statement]) -> Statement:
    return When(less(ZERO, Name(_ARE_KEPT)), tuple(work))


def _kept(chunk: Chunk, sums: Tensor) -> Chunk:
    """A chunk of the sums that are kept."""

    def of(expr: Expr) -> Expr:
        assert isinstance(expr, Load) and expr.tensor == sums, "it is a sum"
        return replace(expr, tensor=replace(sums, pointer=KEPT))

    elements = [replace(element, sums=tuple(map(of, element.sums))) for element in chunk.elements]
    return replace(chunk, elements=elements)


__all__ = ["KEPT", "LateResults"]
