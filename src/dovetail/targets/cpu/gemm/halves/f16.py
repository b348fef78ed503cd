"""Products with f16 weights by f16 arithmetic, for `precision="fast"`: some rows times one panel.

A row is rounded to f16 after a power of two has made its largest number 1 or less, and columns of a panel are scaled by
powers of two, so that nothing overflows: products of a group along k are summed up in f16, groups in f32. What that
rounds is about 1e-3 of a sum. Sums have one order in every tile.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Ptr, Vec, VectorType
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.simd import PhiLoop, SimdBuilder, zeros
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.halves.kernel import HEAD, Largest

GROUP = 32
"""Products that are summed up in f16."""
LARGEST = 128.0
"""Below this are the scaled weights: a group of products with numbers up to 1 stays far below what f16 holds."""
COLUMNS, VECTORS, _LANES = 16, 4, 8
"""Of a panel, those of four f32, and numbers of a vector of f16."""
_HALVES, _FLOATS = VectorType(_LANES, "half"), VectorType(4, "float")
_WIDE = COLUMNS // _LANES


@cache
def fast_rows_function(rows: int) -> tuple[SharedFunction, Signature]:
    """Products of rounded rows with a scaled panel: `(rows, pitch, panel, sums, stride, deep)`."""
    return shared_function(_Rows(rows).written())


@cache
def rounded_function() -> tuple[SharedFunction, Signature]:
    """Writes a row as f16, with what its sums are multiplied with in front: `(x, target, deep)`."""
    t = Largest()
    # The largest number is below 2^(exponent - 126): a row of zeros, or nearly, has a power of two that is finite.
    scale, factor = t.powers(least=1, most=253, above=1)
    t.emit(f"store float {scale}, ptr %target, align 4")
    spread = t.spread(factor, _FLOATS)
    with t.loop(0, I64("%deep"), step=4) as step:
        x = t.load_lanes(_FLOATS, t.ptr_add(Ptr("%x"), t.mul(step, 4)))
        half = t.convert("fptrunc", t.fmul(x, spread), "half")
        t.store_lanes(half, t.ptr_add(t.ptr_add(Ptr("%target"), HEAD), t.mul(step, 2)), 8)
    parameters = (Parameter("ptr", "x"), Parameter("ptr", "target"), Parameter("i64", "deep"))
    return shared_function(t.function(Signature("halves.rounded", parameters)))


class _Rows(SimdBuilder):
    """The function that multiplies rows with a panel."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.x = [self.ptr_add(Ptr("%rows"), self.mul(I64("%pitch"), row)) for row in range(rows)]

    def written(self) -> Function:
        start = self.ptr_add(Ptr("%panel"), HEAD)
        along = PhiLoop(self)
        step, panel = along.carry(I64("0")), along.carry(start)
        cells = [(row, v) for row in range(self.rows) for v in range(VECTORS)]
        accumulators = {cell: along.carry(zeros(_FLOATS)) for cell in cells}
        updated = self._added(self._group(panel, step), accumulators)
        following = I64(self.let(f"add nuw nsw i64 {step}, {GROUP}"))
        after = self.ptr_add(panel, 2 * GROUP * COLUMNS)
        again = self.icmp("slt", following, I64("%deep"))
        along.end(
            [(step, following), (panel, after), *[(phi, updated[cell]) for cell, phi in accumulators.items()]], again
        )
        for v in range(VECTORS):
            column = self.load_lanes(_FLOATS, self.ptr_add(Ptr("%panel"), 16 * v), 16)
            for row in range(self.rows):
                there = self.ptr_add(self.ptr_add(Ptr("%sums"), self.mul(I64("%stride"), row)), 16 * v)
                y = self.fmul(updated[row, v], column)
                self.store_lanes(self.fmul(y, self.load_spread(_FLOATS, self.x[row])), there)
        kinds = ("ptr rows", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 deep")
        parameters = tuple([Parameter(*each.split()) for each in kinds])
        return self.function(Signature(f"halves.fast.{self.rows}", parameters))

    def _group(self, panel: Ptr, step: I64) -> dict[tuple[int, int], Vec]:
        """Sums of a group's products in f16, for each row and eight columns."""
        at = self.mul(step, 2)
        products = {(row, v): zeros(_HALVES) for row in range(self.rows) for v in range(_WIDE)}
        for part in range(0, GROUP, _LANES):
            places = [self.ptr_add(self.ptr_add(row, HEAD + 2 * part), at) for row in self.x]
            x = [self.load_lanes(_HALVES, there, 16) for there in places]
            for lane in range(_LANES):
                here = self.ptr_add(panel, 2 * COLUMNS * (part + lane))
                parts = [self.ptr_add(here, 2 * _LANES * v) for v in range(_WIDE)]
                weights = [self.load_lanes(_HALVES, there, 16) for there in parts]
                for row in range(self.rows):
                    factor = self.splat_lane(x[row], lane)
                    for v in range(_WIDE):
                        products[row, v] = self.fma(weights[v], factor, products[row, v])
        return products

    def _added(
        self, halves: dict[tuple[int, int], Vec], held: dict[tuple[int, int], Vec]
    ) -> dict[tuple[int, int], Vec]:
        """Sums of the groups before plus those of a group."""
        accumulators: dict[tuple[int, int], Vec] = {}
        for (row, v), total in halves.items():
            for part in range(2):
                wide = self.convert("fpext", self.some_lanes(total, range(4 * part, 4 * part + 4)), "float")
                cell = row, 2 * v + part
                accumulators[cell] = self.fadd(held[cell], wide)
        return accumulators


__all__ = ["GROUP", "LARGEST", "fast_rows_function", "rounded_function"]
