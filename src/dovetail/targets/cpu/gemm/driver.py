"""Prefetch for the epilogue of a contraction: while one row tile is finished, it prefetches what the next one reads.

The operands of an epilogue have a cache line or two in each row, and rows are too far apart for the hardware to guess.


The driver of products with packed weights: which cells there are, where operands are, what becomes of the sums.

A cell is one panel of columns for one block of MC rows of one matrix of the batch.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.arguments import Words, store_words
from dovetail.codegen.llvm.arguments import words_bytes as bytes_of
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Signature, named
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, KernelCode, inner_name, shared_kernel
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, f32
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.groups import Groups, find_block
from dovetail.targets.cpu.gemm.tile import Tile


def ahead_function(epilogue: Kernel, fetched: Sequence[str], width: int, line: int) -> Function:
    """An epilogue that first prefetches the rows after its own: `width` bytes of each operand in every row."""
    t = Builder()
    given = Words.load(t, WORDS, epilogue.pointers, [str(size) for size in epilogue.sizes])
    after = t.add(END, t.sub(END, BEGIN))
    for operand in fetched:
        step = given.sizes[str(symbol(f"{operand}_row"))]
        with t.loop(END, after) as row:
            prefetch_row(t, given.pointers[operand], t.mul(row, step), width, line)
    t.call(DRIVER.renamed(inner_name(epilogue)), WORDS, BEGIN, END, SCRATCH)
    return t.function(DRIVER, attributes="nounwind")


def prefetch_row(t: Builder, operand: Ptr, offset: Int, width: int, line: int) -> None:
    """Prefetch all cache lines of `width` bytes, which begin anywhere in a line of `line` bytes."""
    row = t.ptr_add(operand, offset)
    for byte in (*range(0, width, line), width - 4):
        t.prefetch(t.ptr_add(row, byte))


LIVE = symbol("live_columns")
"""How many columns of a panel there are, as the epilogue names it."""


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix that the kernel packs into its workspace before it reads it: which pointer, and its dtype."""

    pointer: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Shape:
    """What the code of a contraction depends on. Sizes are arguments, named in `sizes`."""

    tile: Tile
    streams: int
    """Matrices whose columns are side by side in a panel."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads, and those of further results."""
    batch: int
    """Leading axes."""
    pointers: tuple[str, ...]
    sizes: tuple[str, ...]
    fetched: tuple[str, ...]
    """Operands of the epilogue that have rows of their own: they are prefetched, a tile of rows ahead."""
    groups: Groups | None = None
    """Groups of rows, each of which has a matrix of its own; None where all rows have the same."""

    @property
    def width(self) -> int:
        """Bytes of a row of a panel in each stream."""
        return 4 * self.tile.columns // self.streams


def gemm_code(
    stem: str,
    shape: Shape,
    rows: Source | None,
    epilogues: Sequence[Kernel],
    multiply: tuple[SharedFunction, Signature],
) -> KernelCode:
    """The kernel with its epilogues; `rows` is the left operand where its rows have to be packed, `multiply` is called
    for a cell as `block.BLOCK` says."""
    driver = _Driver(shape, rows, epilogues, multiply[1])
    return kernel_code(stem, driver, [multiply], is_final=rows is None)


def kernel_code(
    stem: str, cells: Cells, shared: Sequence[tuple[SharedFunction, Signature]], *, is_final: bool = False
) -> KernelCode:
    """The kernel that goes through cells, with its epilogues and the functions that it shares with others.

    LLVM optimises the epilogues, apart from a driver that `is_final`: one that only computes addresses for what it
    calls takes LLVM twice the time otherwise, and is no faster.
    """
    own = cells.function(DRIVER, attributes="nounwind")
    name, text = named(stem, own.text)
    every = {part.name: (part, called) for part, called in (*shared, *cells.finishers)}
    uses = dict.fromkeys([*own.uses, *(called.declaration for _, called in every.values())])
    return KernelCode(name, text, tuple(uses), tuple([part for part, _ in every.values()]), is_final)


def _finisher(epilogue: Kernel, shape: Shape, fetched: Sequence[str]) -> tuple[SharedFunction, Signature]:
    """An epilogue as a function that kernels share; it prefetches rows of some operands after its own."""
    width, line = shape.width, shape.tile.line
    ahead = ahead_function(epilogue, fetched, width, line) if fetched else None
    return shared_kernel("gemm_epilogue", epilogue, ahead)


def words_bytes(kernel: Kernel) -> int:
    """The room at the start of the workspace that the words of an epilogue take."""
    return bytes_of(len(kernel.pointers) + len(kernel.sizes))


class Cells(VectorBuilder):
    """A function that goes through cells.

    Its epilogues have the same words: the first takes panels of any width, a second one takes full panels.
    """

    def __init__(self, shape: Shape, epilogues: Sequence[Kernel]) -> None:
        super().__init__(shape.tile.device)
        self.shape = shape
        self.epilogues = epilogues
        self.finishers = [_finisher(epilogue, shape, fetched=self.fetched) for epilogue in epilogues]
        """The epilogues as functions."""
        self.given = Words.load(self, WORDS, shape.pointers, shape.sizes)

    @property
    def fetched(self) -> Sequence[str]:
        """Operands whose next rows an epilogue prefetches: those of a tile after the one that is finished."""
        return self.shape.fetched

    def size(self, name: str) -> I64:
        return self.given.sizes[name]

    def pointer(self, name: str) -> Ptr:
        return self.given.pointers[name]

    def offsets(self, matrix: I64) -> dict[str, I64]:
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

    def words(
        self, sums: Ptr, first: I64, column: I64, columns: I64, offsets: dict[str, I64], onto: Ptr = SCRATCH
    ) -> None:
        """Write the words of the epilogue for the sums of a panel, whose first row and column are given."""
        given: list[Ptr | I64] = [sums]
        given += [self.corner(name, first, column, offsets) for name in (*self.shape.operands, "c")]
        given += [columns if size == LIVE else self.size(str(size)) for size in self.epilogues[0].sizes]
        store_words(self, given, onto)

    def prefetch_operands(self, first: I64, column: I64, count: I64, offsets: dict[str, I64]) -> None:
        """Prefetch what the epilogue of the first tile reads; the epilogue prefetches the others."""
        for name in self.shape.fetched:
            corner = self.corner(name, first, column, offsets)
            with self.loop(0, self.smin(count, self.shape.tile.rows)) as row:
                step = self.mul(row, self.size(f"{name}_row"))
                prefetch_row(self, corner, step, self.shape.width, self.shape.tile.line)

    def epilogue_of(self, columns: I64) -> Ptr:
        """The function that takes the sums of a panel of some columns."""
        shape = self.shape
        found = [Ptr(f"@{called.name}") for _, called in self.finishers]
        if len(found) == 1:
            return found[0]
        is_full = self.icmp("eq", columns, shape.tile.columns // shape.streams)
        return self.select_ptr(is_full, found[1], found[0])

    def corner(self, name: str, first: I64, column: I64, offsets: dict[str, I64]) -> Ptr:
        """A tensor's element at the first row and column of the cell."""
        row = self.ptr_add(self.ptr_add(self.pointer(name), offsets[name]), self.mul(first, self.size(f"{name}_row")))
        return self.ptr_add(row, self.mul(column, self.size(f"{name}_column")))

    def copy_element(self, dtype: DType, source: Ptr, target: Ptr, index: Int) -> None:
        """One element of any float type as f32."""
        found = self.let(f"load {scalar.stored(dtype)}, ptr {source}, align {dtype.itemsize}")
        there = self.element(target, "float", index)
        self.emit(f"store float {scalar.cast(self, found, dtype, f32)}, ptr {there}, align 4")


class _Driver(Cells):
    """The function that goes through cells of one panel."""

    def __init__(self, shape: Shape, packed: Source | None, epilogues: Sequence[Kernel], multiply: Signature) -> None:
        super().__init__(shape, epilogues)
        self.packed = packed
        self.multiply = multiply
        self.sums = self.ptr_add(SCRATCH, words_bytes(epilogues[0]))
        last = self.alloca("i64")
        self.store_i64(-1, last)
        if shape.groups is None:
            with self.loop(BEGIN, END) as cell:
                self._cell(cell, last)
            return
        at = self.alloca("[4 x i64]")
        self.store_i64(-1, at)
        with self.loop(BEGIN, END) as cell:
            self._cell_of_group(shape.groups, cell, last, at)

    def _cell_of_group(self, groups: Groups, cell: I64, last: Ptr, at: Ptr) -> None:
        """The cell of a block of rows of one group."""
        panel, number = self.urem(cell, self.size("panels")), self.udiv(cell, self.size("panels"))
        found = find_block(self, self.given, groups, number, at)
        offsets = self.offsets(I64("0"))
        # Rows after the last group are summed over nothing.
        deep = self.select_int(found.has_matrix, self.size("deep"), 0)
        with self.when(self.icmp("sgt", found.count, 0)):
            of = self.add(self.mul(found.group, self.size("panels")), panel)
            self._finished(panel, of, number, found.first, found.count, last, offsets, deep)

    def _cell(self, cell: I64, last: Ptr) -> None:
        shape = self.shape
        panel, block = self.urem(cell, self.size("panels")), self.udiv(cell, self.size("panels"))
        number, matrix = block, block
        if shape.batch:
            block, matrix = self.urem(number, self.size("blocks")), self.udiv(number, self.size("blocks"))
        offsets = self.offsets(matrix)
        rows, blocks = self.size("rows"), self.size("blocks")
        height = self.udiv(self.sub(self.add(rows, blocks), 1), blocks)
        first = self.mul(block, height)
        left = self.smin(height, self.sub(rows, first))
        count = self.select_int(self.icmp("sgt", left, 0), left, 0)
        self._finished(panel, panel, number, first, count, last, offsets, self.size("deep"))

    def _finished(
        self,
        panel: I64,
        packed: I64,
        number: I64,
        first: I64,
        count: I64,
        last: Ptr,
        offsets: dict[str, I64],
        deep: I64,
    ) -> None:
        """Multiply a block of rows with a panel, which is the packed one of this number, and run the epilogue."""
        shape, tile = self.shape, self.shape.tile
        width = tile.columns // shape.streams
        column = self.mul(panel, width)
        columns = self.smin(width, self.sub(self.size("columns"), column))
        a, pitch = self._rows(number, first, count, last, offsets)
        b = self._panel(packed, offsets)
        self.words(self.sums, first, column, columns, offsets)
        self.prefetch_operands(first, column, count, offsets)
        self._multiply(a, pitch, b, count, deep, self.corner("c", first, column, offsets), columns)

    def _rows(self, number: I64, first: I64, count: I64, last: Ptr, offsets: dict[str, I64]) -> tuple[Ptr, I64]:
        """The first of the rows and their stride: where they are, or packed in the workspace."""
        stride = self.size("a_row")
        start = self.ptr_add(self.ptr_add(self.pointer("a"), offsets["a"]), self.mul(first, stride))
        source = self.packed
        if source is None:
            return start, stride
        copy, pitch = self.ptr_add(SCRATCH, self.size("a_copy")), self.size("a_pitch")
        with self.when(self.icmp("ne", self.load_i64(last), number)):
            self.store_i64(number, last)
            with self.loop(0, count) as row:
                here, there = self.ptr_add(start, self.mul(row, stride)), self.ptr_add(copy, self.mul(row, pitch))
                with self.loop(0, self.size("deep")) as k:
                    self.copy_element(source.dtype, self.ptr_add(here, self.mul(k, self.size("a_k"))), there, k)
        return copy, pitch

    def _panel(self, panel: I64, offsets: dict[str, I64]) -> Ptr:
        size = self.mul(self.size("deep"), self.shape.tile.row_bytes)
        return self.ptr_add(self.ptr_add(self.pointer("b0"), offsets["b0"]), self.mul(panel, size))

    def _multiply(self, a: Ptr, pitch: I64, b: Ptr, count: I64, deep: I64, c: Ptr, columns: I64) -> None:
        """Multiply the rows of the cell with its panel, and run the epilogue."""
        row, width = self.size("c_row"), self.shape.width
        epilogue = self.epilogue_of(columns)
        self.call(self.multiply, a, pitch, b, count, deep, self.sums, c, row, width, epilogue, SCRATCH)
