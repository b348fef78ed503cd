"""Matrix multiplication of bytes: rows are packed as they come, panels of weights were packed before the run.

A cell is one panel of columns for one block of rows.
"""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.codegen.llvm.arguments import Words, store_words
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, assemble_with, inner_name
from dovetail.codegen.llvm.once import HEAD, once_for
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Dim, Size
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.gemm.byte_tile import ByteTile, byte_tile_function
from dovetail.targets.cpu.gemm.driver import LIVE, words_bytes
from dovetail.targets.cpu.gemm.policy import INT8


@dataclass(frozen=True, slots=True)
class Bytes:
    """What the code depends on."""

    tile: ByteTile
    deep: int
    columns: int
    is_signed: bool
    """Whether rows are signed bytes."""
    has_offsets: bool
    """Whether columns have offsets, so that sums of rows are needed."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads at rows and columns of the result."""
    pointers: tuple[str, ...]
    sizes: Mapping[str, Size]

    @property
    def steps(self) -> int:
        return self.tile.steps(self.deep)

    @property
    def panels(self) -> int:
        return -(-self.columns // self.tile.nr)

    def layout(self, epilogue: Kernel) -> dict[str, int]:
        """Offsets in the workspace: words of the epilogue, sums, sums of rows, packed rows, and the end."""
        room = INT8.block * self.tile.nr * 4
        sizes = {"words": words_bytes(epilogue), "sums": room, "rowsums": room if self.has_offsets else 0}
        offsets, end = dict[str, int](), HEAD
        for name, size in (*sizes.items(), ("rows", INT8.block * 4 * self.steps)):
            offsets[name], end = end, end + -(-size // 64) * 64
        return {**offsets, "end": end}


def words_of(sizes: Mapping[str, Size]) -> dict[str, Dim]:
    """The sizes that are arguments; the others are numbers in the code."""
    return {name: size for name, size in sizes.items() if not isinstance(size, int)}


def int8_code(shape: Bytes, epilogue: Kernel) -> KernelCode:
    """The kernel with its epilogue."""
    driver = _Driver(shape, epilogue)
    code = assemble_with("int8", [driver.function(DRIVER, attributes="nounwind")], [epilogue])
    parts = [byte_tile_function(shape.tile, rows) for rows in (shape.tile.mr, 1)]
    uses = (*code.uses, *(signature.declaration for _, signature in parts))
    return KernelCode(code.name, code.text, uses, tuple(part for part, _ in parts))


class _Driver(Builder):
    """The function that goes through cells."""

    def __init__(self, shape: Bytes, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.given = Words.load(self, WORDS, shape.pointers, tuple(words_of(shape.sizes)))
        offsets = shape.layout(epilogue)
        self.words = self.ptr_add(SCRATCH, offsets["words"])
        self.sums = self.ptr_add(SCRATCH, offsets["sums"])
        self.rowsums = self.ptr_add(SCRATCH, offsets["rowsums"])
        self.rows = self.ptr_add(SCRATCH, offsets["rows"])
        with self.loop(BEGIN, END) as cell:
            self._cell(cell)

    def size(self, name: str) -> Int:
        known = self.shape.sizes[name]
        return known if isinstance(known, int) else self.given.sizes[name]

    def _cell(self, cell: I64) -> None:
        shape = self.shape
        panel, block = self.urem(cell, shape.panels), self.udiv(cell, shape.panels)
        first = self.mul(block, INT8.block)
        count = self.smin(INT8.block, self.sub(self.size("count"), first))
        with self.when(once_for(self, SCRATCH, 0, block)):
            self._pack_rows(first, count)
            if shape.has_offsets:
                self._multiply(self._panel(shape.panels), count, self.rowsums)
        self._multiply(self._panel(panel), count, self.sums)
        self._epilogue_words(first, self.mul(panel, shape.tile.nr))
        self.emit(f"call void @{inner_name(self.epilogue)}(ptr {self.words}, i64 0, i64 {count}, ptr null)")

    def _panel(self, number: Int) -> Ptr:
        return self.ptr_add(self.given.pointers["w"], self.mul(number, self.shape.tile.step_bytes * self.shape.steps))

    def _multiply(self, b: Ptr, count: I64, sums: Ptr) -> None:
        """All rows of the block times one panel: one row alone, others by tiles."""
        shape, tile = self.shape, self.shape.tile
        pitch = 4 * tile.nr
        alone = self.icmp("eq", count, 1)
        _, single = byte_tile_function(tile, 1)
        with self.when(alone):
            self.call(single, self.rows, b, sums, shape.steps, pitch)
        _, full = byte_tile_function(tile, tile.mr)
        with self.unless(alone), self.loop(0, self.udiv(self.add(count, tile.mr - 1), tile.mr)) as at:
            a = self.ptr_add(self.rows, self.mul(at, tile.row_bytes * shape.steps))
            self.call(full, a, b, self.ptr_add(sums, self.mul(at, tile.mr * pitch)), shape.steps, pitch)

    def _pack_rows(self, first: I64, count: I64) -> None:
        """The rows of a block as the tile reads them, zeros after k; bytes of the other sign are moved by 128."""
        shape, tile = self.shape, self.shape.tile
        dense, whole = shape.sizes["a_k"] == 1, shape.deep // 4
        with self.loop(0, count) as row:
            source = self.ptr_add(self.given.pointers["a"], self.mul(self.add(first, row), self.size("a_row")))
            start = self.mul(self.udiv(row, tile.mr), tile.row_bytes * shape.steps)
            target = self.ptr_add(self.rows, self.add(start, self.mul(self.urem(row, tile.mr), 4)))
            if dense:
                with self.loop(0, whole) as k:
                    four = self.let(f"load i32, ptr {self.ptr_add(source, self.mul(k, 4))}, align 1")
                    there = self.ptr_add(target, self.mul(k, tile.row_bytes))
                    self.emit(f"store i32 {self._moved(four, 'i32', -0x7F7F7F80)}, ptr {there}, align 4")
            else:
                with self.loop(0, whole) as k:
                    there = self.ptr_add(target, self.mul(k, tile.row_bytes))
                    for i in range(4):
                        self._copy_byte(source, self.add(self.mul(k, 4), i), self.ptr_add(there, i))
            if shape.deep % 4:
                last = self.ptr_add(target, whole * tile.row_bytes)
                self.emit(f"store i32 0, ptr {last}, align 4")
                for i in range(shape.deep % 4):
                    self._copy_byte(source, I64(str(4 * whole + i)), self.ptr_add(last, i))

    def _copy_byte(self, source: Ptr, k: I64, target: Ptr) -> None:
        byte = self.let(f"load i8, ptr {self.ptr_add(source, self.mul(k, self.size('a_k')))}, align 1")
        self.emit(f"store i8 {self._moved(byte, 'i8', -0x80)}, ptr {target}, align 1")

    def _moved(self, x: str, kind: str, by: int) -> str:
        """Bytes in the sign that the tile multiplies."""
        return x if self.shape.is_signed == self.shape.tile.shape.signed else self.let(f"xor {kind} {x}, {by}")

    def _epilogue_words(self, first: I64, column: I64) -> None:
        """The words of the epilogue for this cell."""
        shape = self.shape
        given: list[Ptr | I64] = [self.sums, self.rowsums, self.ptr_add(self.given.pointers["c"], self.mul(column, 4))]
        if "z" in shape.pointers:
            given.append(self.given.pointers["z"])
        for name in (*shape.operands, "y"):
            row = self.ptr_add(self.given.pointers[name], self.mul(first, self.size(f"{name}_row")))
            given.append(self.ptr_add(row, self.mul(column, self.size(f"{name}_column"))))
        live = self.smin(shape.tile.nr, self.sub(shape.columns, column))
        given += [live if size == LIVE else self.given.sizes[str(size)] for size in self.epilogue.sizes]
        store_words(self, given, self.words)
