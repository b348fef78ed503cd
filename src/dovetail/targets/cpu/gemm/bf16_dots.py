"""Products of rows in bf16 by pairs (VDPBF16PS): few rows on machines with tiles, all rows on those without.

Rows are tiles [row / 16][k / 32][16][32], and weights are packed as [k / 32][column / 16][16][16][2].
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.amx import COLUMNS, ROW_BYTES, STEPS, TILE_BYTES, TileBuilder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.policy import BF16

_FLOATS, _WORDS = f"<{COLUMNS} x float>", f"<{COLUMNS} x i32>"
_PAIRS = STEPS // 2
"""Of a tile."""


class _Dots(TileBuilder):
    """The function that multiplies some rows with a part of a panel."""

    def __init__(self, rows: int, vectors: int, *, emulated: bool) -> None:
        super().__init__(emulated=emulated)
        self.rows, self.vectors = rows, vectors
        self.cells = [(row, v) for row in range(rows) for v in range(vectors)]

    def written(self) -> Function:
        there = {(row, v): self._place(row, v) for row, v in self.cells}
        start = {cell: self._sums_before(place) for cell, place in there.items()}
        before = self.block
        along, after = self.fresh("along"), self.fresh("done")
        self.emit(f"br label %{along}")
        self.label(along)
        pair = self.phi("i64")
        sums = {cell: self.phi(_FLOATS) for cell in self.cells}
        found = self._products(I64(pair.name), {cell: phi.name for cell, phi in sums.items()})
        following = I64(self.let(f"add nuw nsw i64 {pair.name}, {BF16.pairs}"))
        for phi, first, later in [(pair, "0", str(following)), *[(sums[c], start[c], found[c]) for c in self.cells]]:
            phi.add(first, before)
            phi.add(later, self.block)
        end = self.mul(I64("%steps"), _PAIRS)
        self.emit(f"br i1 {self.icmp('slt', following, end)}, label %{along}, label %{after}")
        self.label(after)
        for cell, place in there.items():
            self.emit(f"store {_FLOATS} {found[cell]}, ptr {place}, align 4")
        kinds = ("ptr x", "ptr weights", "ptr sums", "i64 stride", "i64 steps", "i1 fresh")
        given = tuple([Parameter(*each.split()) for each in kinds])
        return self.function(Signature(f"bf16.dots.{self.rows}.{self.vectors}", given))

    def _products(self, pair: I64, found: dict[tuple[int, int], str]) -> dict[tuple[int, int], str]:
        """Some pairs of steps along k of one tile."""
        tile, within = self.udiv(pair, _PAIRS), self.urem(pair, _PAIRS)
        x = self.ptr_add(Ptr("%x"), self.add(self.mul(tile, TILE_BYTES), self.mul(within, 4)))
        at = self.add(self.mul(tile, self.vectors * TILE_BYTES), self.mul(within, ROW_BYTES))
        panel = self.ptr_add(Ptr("%weights"), at)
        for i in range(BF16.pairs):
            lines = [self.ptr_add(panel, TILE_BYTES * v + ROW_BYTES * i) for v in range(self.vectors)]
            for line in lines:
                self.prefetch(self.ptr_add(line, BF16.prefetch_tiles * self.vectors * TILE_BYTES))
            weights = [self.let(f"load {_WORDS}, ptr {line}, align 64") for line in lines]
            for row in range(self.rows):
                two = self.pair_in_all_lanes(self.ptr_add(x, ROW_BYTES * row + 4 * i))
                for v in range(self.vectors):
                    found[row, v] = self.dot(found[row, v], two, weights[v])
        return found

    def _place(self, row: int, v: int) -> Ptr:
        return self.ptr_add(self.ptr_add(Ptr("%sums"), self.mul(I64("%stride"), row)), 4 * COLUMNS * v)

    def _sums_before(self, there: Ptr) -> str:
        """The sums of the steps before."""
        kept = self.let(f"load {_FLOATS}, ptr {there}, align 4")
        return self.let(f"select i1 %fresh, {_FLOATS} zeroinitializer, {_FLOATS} {kept}")


@cache
def dots_function(rows: int, vectors: int, *, emulated: bool) -> tuple[SharedFunction, Signature]:
    """Adds products of rows, which are in one tile, to sums, unless they are fresh.

    `(x, weights, sums, stride, steps, fresh)`, along `steps` of 32.
    """
    return shared_function(_Dots(rows, vectors, emulated=emulated).written())


__all__ = ["dots_function"]
