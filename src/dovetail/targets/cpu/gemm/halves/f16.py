"""Products with f16 weights by f16 arithmetic, for `precision="fast"`: some rows times one panel.

A row is rounded to f16 after a power of two has made its largest number 1 or less, and columns of a panel are scaled by
powers of two, so that nothing overflows: products of a group along k are summed up in f16, groups in f32. What that
rounds is about 1e-3 of a sum. Sums have one order in every tile.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Phi, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.halves.kernel import HEAD, Largest, splat

GROUP = 32
"""Products that are summed up in f16."""
LARGEST = 128.0
"""Below this are the scaled weights: a group of products with numbers up to 1 stays far below what f16 holds."""
COLUMNS, VECTORS, _LANES = 16, 4, 8
"""Of a panel, those of four f32, and numbers of a vector of f16."""
_HALVES, _FLOATS, _FOUR = f"<{_LANES} x half>", "<4 x float>", "<4 x half>"
_WIDE = COLUMNS // _LANES


class _Rows(Builder):
    """The function that multiplies rows with a panel."""

    def __init__(self, rows: int) -> None:
        super().__init__()
        self.rows = rows
        self.x = [self.ptr_add(Ptr("%rows"), self.mul(I64("%pitch"), row)) for row in range(rows)]

    def written(self) -> Function:
        before = self.block
        along, after = self.fresh("along"), self.fresh("done")
        start = self.ptr_add(Ptr("%panel"), HEAD)
        self.emit(f"br label %{along}")
        self.label(along)
        step, panel_at = self.phi("i64"), self.phi("ptr")
        sums = {(row, v): self.phi(_FLOATS) for row in range(self.rows) for v in range(VECTORS)}
        found = self._added(self._group(Ptr(panel_at.name), step), {cell: phi.name for cell, phi in sums.items()})
        following = I64(self.let(f"add nuw nsw i64 {step.name}, {GROUP}"))
        carried: list[tuple[Phi, object, object]] = [
            (step, 0, following),
            (panel_at, start, self.ptr_add(Ptr(panel_at.name), 2 * GROUP * COLUMNS)),
            *[(phi, "zeroinitializer", found[cell]) for cell, phi in sums.items()],
        ]
        self.end_loop(carried, self.icmp("slt", following, I64("%deep")), before=before, along=along, after=after)
        for v in range(VECTORS):
            column = self.let(f"load {_FLOATS}, ptr {self.ptr_add(Ptr('%panel'), 16 * v)}, align 16")
            for row in range(self.rows):
                there = self.ptr_add(self.ptr_add(Ptr("%sums"), self.mul(I64("%stride"), row)), 16 * v)
                y = self.let(f"fmul {_FLOATS} {found[row, v]}, {column}")
                y = self.let(f"fmul {_FLOATS} {y}, {self._scale(self.x[row])}")
                self.emit(f"store {_FLOATS} {y}, ptr {there}, align 4")
        kinds = ("ptr rows", "i64 pitch", "ptr panel", "ptr sums", "i64 stride", "i64 deep")
        given = tuple([Parameter(*each.split()) for each in kinds])
        return self.function(Signature(f"halves.fast.{self.rows}", given))

    def _group(self, panel: Ptr, step: Phi) -> dict[tuple[int, int], str]:
        """Sums of a group's products in f16, for each row and eight columns."""
        at = self.mul(I64(step.name), 2)
        found = dict.fromkeys([(row, v) for row in range(self.rows) for v in range(_WIDE)], "zeroinitializer")
        for part in range(0, GROUP, _LANES):
            places = [self.ptr_add(self.ptr_add(row, HEAD + 2 * part), at) for row in self.x]
            x = [self.let(f"load {_HALVES}, ptr {there}, align 16") for there in places]
            for lane in range(_LANES):
                here = self.ptr_add(panel, 2 * COLUMNS * (part + lane))
                parts = [self.ptr_add(here, 2 * _LANES * v) for v in range(_WIDE)]
                weights = [self.let(f"load {_HALVES}, ptr {there}, align 16") for there in parts]
                for row in range(self.rows):
                    mask = splat(lane, "i32", _LANES)
                    kind = f"<{_LANES} x i32>"
                    factor = self.let(f"shufflevector {_HALVES} {x[row]}, {_HALVES} poison, {kind} {mask}")
                    for v in range(_WIDE):
                        found[row, v] = self._fma(weights[v], factor, found[row, v])
        return found

    def _added(
        self, halves: dict[tuple[int, int], str], held: dict[tuple[int, int], str]
    ) -> dict[tuple[int, int], str]:
        """Sums of the groups before plus those of a group."""
        found: dict[tuple[int, int], str] = {}
        for (row, v), total in halves.items():
            for part in range(2):
                mask = ", ".join([f"i32 {4 * part + lane}" for lane in range(4)])
                four = self.let(f"shufflevector {_HALVES} {total}, {_HALVES} poison, <4 x i32> <{mask}>")
                wide = self.let(f"fpext {_FOUR} {four} to {_FLOATS}")
                cell = row, 2 * v + part
                found[cell] = self.let(f"fadd {_FLOATS} {held[cell]}, {wide}")
        return found

    def _scale(self, pointer: Ptr) -> str:
        number = self.let(f"load float, ptr {pointer}, align 4")
        one = self.let(f"insertelement {_FLOATS} poison, float {number}, i64 0")
        return self.let(f"shufflevector {_FLOATS} {one}, {_FLOATS} poison, <4 x i32> zeroinitializer")

    def _fma(self, x: str, y: str, z: str) -> str:
        name = f"llvm.fma.v{_LANES}f16"
        self.use(f"declare {_HALVES} @{name}({_HALVES}, {_HALVES}, {_HALVES})")
        return self.let(f"call {_HALVES} @{name}({_HALVES} {x}, {_HALVES} {y}, {_HALVES} {z})")


class _Rounded(Largest):
    """The function that writes a row as f16, with what its sums are multiplied with in front."""

    def written(self) -> Function:
        # The largest number is below 2^(exponent - 126): a row of zeros, or nearly, has a power of two that is finite.
        scale, factor = self.powers(least=1, most=253, above=1)
        self.emit(f"store float {scale}, ptr %target, align 4")
        one = self.let(f"insertelement {_FLOATS} poison, float {factor}, i64 0")
        spread = self.let(f"shufflevector {_FLOATS} {one}, {_FLOATS} poison, <4 x i32> zeroinitializer")
        with self.loop(0, I64("%deep"), step=4) as step:
            x = self.let(f"load {_FLOATS}, ptr {self.ptr_add(Ptr('%x'), self.mul(step, 4))}, align 4")
            half = self.let(f"fptrunc {_FLOATS} {self.let(f'fmul {_FLOATS} {x}, {spread}')} to {_FOUR}")
            there = self.ptr_add(self.ptr_add(Ptr("%target"), HEAD), self.mul(step, 2))
            self.emit(f"store {_FOUR} {half}, ptr {there}, align 8")
        given = (Parameter("ptr", "x"), Parameter("ptr", "target"), Parameter("i64", "deep"))
        return self.function(Signature("halves.rounded", given))


@cache
def fast_rows_function(rows: int) -> tuple[SharedFunction, Signature]:
    """Products of rounded rows with a scaled panel: `(rows, pitch, panel, sums, stride, deep)`."""
    return shared_function(_Rows(rows).written())


@cache
def rounded_function() -> tuple[SharedFunction, Signature]:
    """Writes a row as f16: `(x, target, deep)`."""
    return shared_function(_Rounded().written())


__all__ = ["LARGEST"]
