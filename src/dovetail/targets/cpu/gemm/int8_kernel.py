"""Matrix multiplication of bytes: VPDPBUSD adds four products at a time to 32-bit accumulators.

A cell is one panel of columns for one block of rows. Rows come as floats that stand for bytes, and are quantised first.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.codegen.llvm.arguments import Words, store_words
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import F32, I64, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, assemble_with, inner_name
from dovetail.codegen.llvm.once import HEAD, once_for
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.gemm.driver import LIVE, words_bytes
from dovetail.targets.cpu.gemm.policy import INT8

_KIND, _BYTES = f"<{INT8.lanes} x i32>", f"<{4 * INT8.lanes} x i8>"
_DOT = "llvm.x86.avx512.vpdpbusd.512"
_TILE = Signature(
    "kernel.tile",
    (
        Parameter("ptr", "a", "noalias readonly"),
        Parameter("ptr", "b", "noalias readonly"),
        Parameter("ptr", "sums", "noalias"),
    ),
)


@dataclass(frozen=True, slots=True)
class Bytes:
    """What the code depends on."""

    deep: int
    columns: int
    operands: tuple[tuple[str, bool], ...]
    """Pointers that the epilogue reads in addition to the sums, and whether they have rows."""
    pointers: tuple[str, ...]

    @property
    def fours(self) -> int:
        """Steps along k, of four bytes each."""
        return -(-self.deep // 4)

    @property
    def panels(self) -> int:
        return -(-self.columns // INT8.nr)

    def layout(self, epilogue: Kernel) -> dict[str, int]:
        """Offsets in the workspace: words of the epilogue, accumulators, sums of rows, rows as bytes, and the end."""
        sizes = {"words": words_bytes(epilogue), "sums": INT8.block * INT8.nr * 4, "rowsums": INT8.block * 4}
        offsets, end = dict[str, int](), HEAD
        for name, size in (*sizes.items(), ("rows", INT8.block * 4 * self.fours)):
            offsets[name], end = end, end + -(-size // 64) * 64
        return {**offsets, "end": end}


def int8_code(shape: Bytes, epilogue: Kernel) -> KernelCode:
    """The kernel with its epilogue."""
    driver = _Driver(shape, epilogue).function(DRIVER, attributes="nounwind")
    return assemble_with("int8", [_register_tile(shape), driver], [epilogue])


def _register_tile(shape: Bytes) -> Function:
    """Rows times one panel, accumulated in registers along k."""
    t = Builder()
    t.use(f"declare {_KIND} @{_DOT}({_KIND}, {_BYTES}, {_BYTES})")
    cells = [(i, j) for i in range(INT8.mr) for j in range(INT8.vectors)]
    rows = [t.ptr_add(Ptr("%a"), i * 4 * shape.fours) for i in range(INT8.mr)]
    t.emit("br label %steps")
    t.label("steps")
    k = t.phi("i64")
    held = {cell: t.phi(_KIND) for cell in cells}
    panel = t.ptr_add(Ptr("%b"), t.mul(I64(k.name), 4 * INT8.nr))
    columns = [t.let(f"load {_BYTES}, ptr {t.ptr_add(panel, 64 * j)}, align 64") for j in range(INT8.vectors)]
    for i, row in enumerate(rows):
        four = t.let(f"load i32, ptr {t.ptr_add(row, t.mul(I64(k.name), 4))}, align 4")
        one = t.let(f"insertelement {_KIND} poison, i32 {four}, i64 0")
        broadcast = t.let(f"shufflevector {_KIND} {one}, {_KIND} poison, {_KIND} zeroinitializer")
        x = t.let(f"bitcast {_KIND} {broadcast} to {_BYTES}")
        for j, column in enumerate(columns):
            phi = held[i, j]
            phi.add("zeroinitializer", "entry")
            phi.add(t.let(f"call {_KIND} @{_DOT}({_KIND} {phi.name}, {_BYTES} {x}, {_BYTES} {column})"), "steps")
    following = I64(t.let(f"add nuw nsw i64 {k.name}, 1"))
    k.add("0", "entry")
    k.add(following, "steps")
    t.emit(f"br i1 {t.icmp('slt', following, shape.fours)}, label %steps, label %done")
    t.label("done")
    for (i, j), phi in held.items():
        there = t.ptr_add(Ptr("%sums"), 4 * (i * INT8.nr + j * INT8.lanes))
        t.emit(f"store {_KIND} {phi.incoming[1][0]}, ptr {there}, align 64")
    return t.function(_TILE, linkage="internal")


class _Driver(Builder):
    """The function that goes through cells."""

    def __init__(self, shape: Bytes, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.given = Words.load(self, WORDS, shape.pointers, ("count",))
        offsets = shape.layout(epilogue)
        self.words = self.ptr_add(SCRATCH, offsets["words"])
        self.sums = self.ptr_add(SCRATCH, offsets["sums"])
        self.rowsums = self.ptr_add(SCRATCH, offsets["rowsums"])
        self.rows = self.ptr_add(SCRATCH, offsets["rows"])
        with self.loop(BEGIN, END) as cell:
            self._cell(cell)

    def _cell(self, cell: I64) -> None:
        shape = self.shape
        panel, block = self.urem(cell, shape.panels), self.udiv(cell, shape.panels)
        first = self.mul(block, INT8.block)
        count = self.smin(INT8.block, self.sub(self.given.sizes["count"], first))
        with self.when(once_for(self, SCRATCH, 0, block)), self.loop(0, count) as row:
            self._row(self.add(first, row), row)
        b = self.ptr_add(self.given.pointers["w"], self.mul(panel, 4 * INT8.nr * shape.fours))
        with self.loop(0, self.udiv(self.add(count, INT8.mr - 1), INT8.mr)) as tile:
            a = self.ptr_add(self.rows, self.mul(tile, INT8.mr * 4 * shape.fours))
            self.call(_TILE, a, b, self.ptr_add(self.sums, self.mul(tile, INT8.mr * INT8.nr * 4)))
        self._epilogue_words(first, self.mul(panel, INT8.nr))
        self.emit(f"call void @{inner_name(self.epilogue)}(ptr {self.words}, i64 0, i64 {count}, ptr null)")

    def _row(self, number: I64, row: I64) -> None:
        """A row of floats as bytes, zeros after it, and the sum of the bytes."""
        deep, wide = self.shape.deep, 4 * self.shape.fours
        source = self.ptr_add(self.given.pointers["a"], self.mul(number, 4 * deep))
        target = self.ptr_add(self.rows, self.mul(row, wide))
        total = self.ptr_add(self.rowsums, self.mul(row, 4))
        scale = self.given.pointers["g"]
        factor, zero = self.load_f32(scale), self.load_f32(self.ptr_add(scale, 4))
        with self.loop(0, deep) as k:
            byte = self._quantised(self.load_f32(self.element(source, "float", k)), factor, zero)
            self.emit(f"store i8 {byte}, ptr {self.element(target, 'i8', k)}, align 1")
        for k in range(deep, wide):
            self.emit(f"store i8 0, ptr {self.ptr_add(target, k)}, align 1")
        self.emit(f"store i32 0, ptr {total}, align 4")
        with self.loop(0, deep) as k:
            byte = self.let(f"load i8, ptr {self.element(target, 'i8', k)}, align 1")
            held = self.let(f"load i32, ptr {total}, align 4")
            more = self.let(f"add i32 {held}, {self.let(f'zext i8 {byte} to i32')}")
            self.emit(f"store i32 {more}, ptr {total}, align 4")

    def _quantised(self, x: F32, factor: F32, zero: F32) -> str:
        """A float as the byte that it stands for, an i8."""
        self.use("declare float @llvm.roundeven.f32(float)")
        rounded = self.let(f"call float @llvm.roundeven.f32(float {self.let(f'fmul float {x}, {factor}')})")
        moved = self._bounded(self.let(f"fadd float {rounded}, {zero}"), "ogt", "0.0")
        integer = self.let(f"fptosi float {self._bounded(moved, 'olt', '255.0')} to i32")
        return self.let(f"trunc i32 {integer} to i8")

    def _bounded(self, x: str, order: str, bound: str) -> str:
        """x on one side of a bound; NaN becomes the bound."""
        return self.let(f"select i1 {self.let(f'fcmp {order} float {x}, {bound}')}, float {x}, float {bound}")

    def _epilogue_words(self, first: I64, column: I64) -> None:
        """The words of the epilogue for this cell."""
        shape, across = self.shape, self.mul(column, 4)
        down = self.mul(first, 4 * shape.columns)
        given: list[Ptr | I64] = [self.sums, self.rowsums, self.ptr_add(self.given.pointers["c"], across)]
        for name, has_rows in (*shape.operands, ("y", True)):
            start = self.given.pointers[name]
            given.append(self.ptr_add(self.ptr_add(start, down) if has_rows else start, across))
        assert self.epilogue.sizes == (LIVE,), "everything else is known"
        given.append(self.smin(INT8.nr, self.sub(shape.columns, column)))
        store_words(self, given, self.words)
