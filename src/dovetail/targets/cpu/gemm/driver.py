"""The driver of matrix multiplication: which cells there are, where their operands are, and what becomes of the sums.

A cell is one panel of columns for one block of MC rows of one matrix of the batch.
"""

from __future__ import annotations

from dataclasses import dataclass

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.arguments import Words, store_words
from dovetail.codegen.llvm.arguments import words_bytes as bytes_of
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.handles import FALSE, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, assemble_with, inner_name
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, f32
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.gemm.ahead import ahead_function, ahead_name, prefetch_row
from dovetail.targets.cpu.gemm.block import block_function
from dovetail.targets.cpu.gemm.micro_kernel import Tile

LIVE = symbol("live_columns")
"""How many columns of a panel there are, as the epilogue names it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix that the kernel packs into its workspace before it reads it: which pointer, and its dtype."""

    pointer: str
    dtype: DType
    dense: bool = False
    """Whether elements are contiguous f32."""


@dataclass(frozen=True, slots=True)
class Shape:
    """What the code of a contraction depends on. Sizes are arguments, named in `sizes`."""

    tile: Tile
    streams: int
    """Matrices whose columns are side by side in a panel."""
    rows: Source | None
    """The left operand, where its rows have to be packed."""
    panels: tuple[Source, ...]
    """The right operands, where panels have to be packed, one for each stream."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads."""
    batch: int
    """Leading axes."""
    pointers: tuple[str, ...]
    sizes: tuple[str, ...]
    fetched: tuple[str, ...] = ()
    """Operands of the epilogue that have rows of their own: they are prefetched, a tile of rows ahead."""

    @property
    def width(self) -> int:
        """Bytes of a row of a panel in each stream."""
        return 4 * self.tile.columns // self.streams


def gemm_code(shape: Shape, epilogue: Kernel, whole: Kernel | None = None) -> KernelCode:
    """The kernel with its epilogue; `whole` is the same for full panels, with the same words."""
    epilogues = [epilogue, *([] if whole is None else [whole])]
    driver = _Driver(shape, epilogue, epilogues[-1])
    part, block = block_function(shape.tile)
    own = [driver.function(DRIVER, attributes="nounwind")]
    if shape.fetched:
        own += [ahead_function(e, shape.fetched, shape.width, shape.tile.line) for e in epilogues]
    code = assemble_with("gemm", own, epilogues)
    return KernelCode(code.name, code.text, (*code.uses, block.declaration), (part,))


def words_bytes(kernel: Kernel) -> int:
    """The room at the start of the workspace that the words of an epilogue take."""
    return bytes_of(len(kernel.pointers) + len(kernel.sizes))


class _Driver(Builder):
    """The function that goes through cells."""

    def __init__(self, shape: Shape, epilogue: Kernel, whole: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue, self.whole = epilogue, whole
        self.given = Words.load(self, WORDS, shape.pointers, shape.sizes)
        self.sums = self.ptr_add(SCRATCH, words_bytes(epilogue))
        packed = self.alloca("i64")
        self.store_i64(-1, packed)
        with self.loop(BEGIN, END) as cell:
            self._cell(cell, packed)

    def size(self, name: str) -> I64:
        return self.given.sizes[name]

    def pointer(self, name: str) -> Ptr:
        return self.given.pointers[name]

    def _cell(self, cell: I64, packed: Ptr) -> None:
        shape, tile = self.shape, self.shape.tile
        panel, block = self.urem(cell, self.size("panels")), self.udiv(cell, self.size("panels"))
        number, matrix = block, block
        if shape.batch:
            block, matrix = self.urem(number, self.size("blocks")), self.udiv(number, self.size("blocks"))
        offsets = self._offsets(matrix)
        rows, blocks = self.size("rows"), self.size("blocks")
        height = self.udiv(self.sub(self.add(rows, blocks), 1), blocks)
        first = self.mul(block, height)
        left = self.smin(height, self.sub(rows, first))
        count = self.select_int(self.icmp("sgt", left, 0), left, 0)
        width = tile.columns // shape.streams
        column = self.mul(panel, width)
        columns = self.smin(width, self.sub(self.size("columns"), column))
        a, pitch = self._rows(number, first, count, packed, offsets)
        b = self._panel(panel, column, columns, offsets)
        self._epilogue_words(first, column, columns, offsets)
        for name in shape.fetched:
            self._prefetch(name, self._corner(name, first, column, offsets), count)
        self._multiply(a, pitch, b, count, self._corner("c", first, column, offsets), columns)

    def _offsets(self, matrix: I64) -> dict[str, I64]:
        """For each pointer, the bytes before a matrix of the batch."""
        found = dict.fromkeys(self.shape.pointers, I64("0"))
        for axis in reversed(range(self.shape.batch)):
            index = matrix
            if axis:
                extent = self.size(f"batch{axis}")
                index, matrix = self.urem(matrix, extent), self.udiv(matrix, extent)
            for name in self.shape.pointers:
                found[name] = self.add(found[name], self.mul(index, self.size(f"{name}_batch{axis}")))
        return found

    def _rows(self, number: I64, first: I64, count: I64, packed: Ptr, offsets: dict[str, I64]) -> tuple[Ptr, I64]:
        """The first of the rows and their stride: where they are, or packed in the workspace."""
        stride = self.size("a_row")
        start = self.ptr_add(self.ptr_add(self.pointer("a"), offsets["a"]), self.mul(first, stride))
        source = self.shape.rows
        if source is None:
            return start, stride
        copy, pitch = self.ptr_add(SCRATCH, self.size("a_copy")), self.size("a_pitch")
        with self.when(self.icmp("ne", self.load_i64(packed), number)):
            self.store_i64(number, packed)
            with self.loop(0, count) as row:
                here, there = self.ptr_add(start, self.mul(row, stride)), self.ptr_add(copy, self.mul(row, pitch))
                with self.loop(0, self.size("deep")) as k:
                    self._copy(source.dtype, self.ptr_add(here, self.mul(k, self.size("a_k"))), there, k)
        return copy, pitch

    def _panel(self, panel: I64, column: I64, columns: I64, offsets: dict[str, I64]) -> Ptr:
        """A panel of columns; packed in the workspace where it was not packed before the run."""
        tile = self.shape.tile
        if not self.shape.panels:
            size = self.mul(self.size("deep"), tile.row_bytes)
            return self.ptr_add(self.ptr_add(self.pointer("b0"), offsets["b0"]), self.mul(panel, size))
        copy = self.ptr_add(SCRATCH, self.size("b_copy"))
        for stream, source in enumerate(self.shape.panels):
            name = source.pointer
            start = self.ptr_add(self.ptr_add(self.pointer(name), offsets[name]), self.size(f"stream{stream}"))
            start = self.ptr_add(start, self.mul(column, self.size(f"{name}_column")))
            width = tile.columns // self.shape.streams
            self._pack_stream(source, start, self.ptr_add(copy, 4 * stream * width), columns)
        return copy

    def _pack_stream(self, source: Source, start: Ptr, target: Ptr, columns: I64) -> None:
        """Pack the columns of one right operand; zeros in the columns that there are not."""
        tile, deep, step = self.shape.tile, self.size("deep"), self.size(f"{source.pointer}_k")
        width = tile.columns // self.shape.streams
        whole = FALSE
        if source.dense and width % tile.lanes == 0:
            whole = self.icmp("eq", columns, width)
            with self.when(whole), self.loop(0, deep) as k:
                here = self.ptr_add(start, self.mul(k, step))
                self._copy_row(here, self.ptr_add(target, self.mul(k, tile.row_bytes)), width)
        with self.unless(whole), self.loop(0, deep) as k:
            here = self.ptr_add(start, self.mul(k, step))
            there = self.ptr_add(target, self.mul(k, tile.row_bytes))
            with self.loop(0, columns) as i:
                element = self.ptr_add(here, self.mul(i, self.size(f"{source.pointer}_column")))
                self._copy(source.dtype, element, there, i)
            with self.loop(columns, width) as i:
                self.emit(f"store float 0.0, ptr {self.element(there, 'float', i)}, align 4")

    def _copy_row(self, source: Ptr, target: Ptr, width: int) -> None:
        """Copy contiguous elements, vector by vector."""
        kind = f"<{self.shape.tile.lanes} x float>"
        for first in range(0, width, self.shape.tile.lanes):
            found = self.let(f"load {kind}, ptr {self.ptr_add(source, 4 * first)}, align 4")
            self.emit(f"store {kind} {found}, ptr {self.ptr_add(target, 4 * first)}, align 4")

    def _copy(self, dtype: DType, source: Ptr, target: Ptr, index: Int) -> None:
        found = self.let(f"load {scalar.stored(dtype)}, ptr {source}, align {dtype.itemsize}")
        there = self.element(target, "float", index)
        self.emit(f"store float {scalar.cast(self, found, dtype, f32)}, ptr {there}, align 4")

    def _epilogue_words(self, first: I64, column: I64, columns: I64, offsets: dict[str, I64]) -> None:
        """The words of the epilogue for this cell."""
        given: list[Ptr | I64] = [self.sums]
        given += [self._corner(name, first, column, offsets) for name in (*self.shape.operands, "c")]
        given += [columns if size == LIVE else self.size(str(size)) for size in self.epilogue.sizes]
        store_words(self, given, SCRATCH)

    def _multiply(self, a: Ptr, pitch: I64, b: Ptr, count: I64, c: Ptr, columns: I64) -> None:
        """Multiply the rows of the cell with its panel, and run the epilogue."""
        shape = self.shape
        any_width, whole = (
            Ptr(f"@{ahead_name(e) if shape.fetched else inner_name(e)}") for e in (self.epilogue, self.whole)
        )
        is_whole = self.icmp("eq", columns, shape.tile.columns // shape.streams)
        epilogue = any_width if whole == any_width else self.select_ptr(is_whole, whole, any_width)
        _, block = block_function(shape.tile)
        self.call(
            block,
            a,
            pitch,
            b,
            count,
            self.size("deep"),
            self.sums,
            c,
            self.size("c_row"),
            shape.width,
            epilogue,
            SCRATCH,
        )

    def _prefetch(self, name: str, corner: Ptr, count: I64) -> None:
        """Prefetch what the epilogue of the first tile reads; the epilogue prefetches the others."""
        with self.loop(0, self.smin(count, self.shape.tile.rows)) as row:
            prefetch_row(self, corner, self.mul(row, self.size(f"{name}_row")), self.shape.width, self.shape.tile.line)

    def _corner(self, name: str, first: I64, column: I64, offsets: dict[str, I64]) -> Ptr:
        """A tensor's element at the first row and column of the cell."""
        row = self.ptr_add(self.ptr_add(self.pointer(name), offsets[name]), self.mul(first, self.size(f"{name}_row")))
        return self.ptr_add(row, self.mul(column, self.size(f"{name}_column")))
