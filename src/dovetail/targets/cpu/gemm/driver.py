"""The driver of products with packed weights: which cells there are, where operands are, what becomes of the sums.

A cell is one panel of columns for one block of MC rows of one matrix of the batch. While the epilogue finishes a tile
of rows, it prefetches what the next one reads: its operands have a cache line or two in each row, and rows are too far
apart for the hardware to guess.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.arguments import NamedArguments, store_words
from dovetail.codegen.llvm.arguments import words_bytes as bytes_of
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Signature, named
from dovetail.codegen.llvm.handles import I1, I64, Int, Ptr
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
    words = NamedArguments.load(t, WORDS, epilogue.pointers, [str(size) for size in epilogue.sizes])
    after = t.add(END, t.sub(END, BEGIN))
    for operand in fetched:
        step = words.sizes[str(symbol(f"{operand}_row"))]
        with t.loop(END, after) as row:
            prefetch_row(t, words.pointers[operand], t.mul(row, step), width, line)
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
class RowSource:
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
    rows: RowSource | None,
    epilogues: Sequence[Kernel],
    multiply: tuple[SharedFunction, Signature],
    cells: type[Driver] | None = None,
) -> KernelCode:
    """The kernel with its epilogues; `rows` is the left operand where its rows have to be packed, `multiply` is called
    for a cell as `block.BLOCK` says; `cells` goes through them, where panels are not packed."""
    driver = (cells or Driver)(shape, rows, epilogues, multiply[1])
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


@dataclass(frozen=True, slots=True)
class Cell:
    """A panel of columns for a block of rows."""

    packed: I64
    """The number of the packed panel."""
    number: I64
    """Of the block of rows, in all matrices."""
    first: I64
    count: I64
    """Its rows."""
    column: I64
    columns: I64
    """The first column of the result, and how many there are."""
    offsets: dict[str, I64]
    """For each pointer, the bytes before the matrix of the batch."""
    has_matrix: I1 | None = None
    """Of rows in groups, whether they are of one."""


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
        self.arguments = NamedArguments.load(self, WORDS, shape.pointers, shape.sizes)

    @property
    def fetched(self) -> Sequence[str]:
        """Operands whose next rows an epilogue prefetches: those of a tile after the one that is finished."""
        return self.shape.fetched

    def size(self, name: str) -> I64:
        return self.arguments.sizes[name]

    def pointer(self, name: str) -> Ptr:
        return self.arguments.pointers[name]

    def offsets(self, matrix: I64) -> dict[str, I64]:
        """For each pointer, the bytes before a matrix of the batch."""
        offsets = dict.fromkeys(self.shape.pointers, I64("0"))
        for axis in reversed(range(self.shape.batch)):
            index = matrix
            if axis:
                extent = self.size(f"batch{axis}")
                index, matrix = self.urem(matrix, extent), self.udiv(matrix, extent)
            for name in self.shape.pointers:
                offsets[name] = self.add(offsets[name], self.mul(index, self.size(f"{name}_batch{axis}")))
        return offsets

    def go_through(self, block_state: Ptr | None) -> None:
        """Write the loop over cells; where rows are in groups, four words remember the block that was found last."""
        groups = self.shape.groups
        with self.loop(BEGIN, END) as number:
            panel, block = self.urem(number, self.size("panels")), self.udiv(number, self.size("panels"))
            if groups is not None and block_state is not None:
                rows = find_block(self, self.arguments, groups, block, block_state)
                with self.when(self.icmp("sgt", rows.count, 0)):
                    packed = self.add(self.mul(rows.group, self.size("panels")), panel)
                    offsets = self.offsets(I64("0"))
                    self.finish(self._cell(panel, packed, block, rows.first, rows.count, offsets, rows.has_matrix))
                return
            of, matrix = block, block
            if self.shape.batch:
                of, matrix = self.urem(block, self.size("blocks")), self.udiv(block, self.size("blocks"))
            offsets = self.offsets(matrix)
            first, count = self.rows_of(of)
            self.finish(self._cell(panel, panel, block, first, count, offsets, None))

    def _cell(
        self, panel: I64, packed: I64, number: I64, first: I64, count: I64, offsets: dict[str, I64], has: I1 | None
    ) -> Cell:
        width = self.shape.tile.columns // self.shape.streams
        column = self.mul(panel, width)
        columns = self.smin(width, self.sub(self.size("columns"), column))
        return Cell(packed, number, first, count, column, columns, offsets, has)

    @abstractmethod
    def rows_of(self, block: I64) -> tuple[I64, I64]:
        """The first row of a block, and how many it has."""

    @abstractmethod
    def finish(self, cell: Cell) -> None:
        """Multiply a block of rows with a panel, and run the epilogue."""

    def words(self, accumulators: Ptr, cell: Cell, onto: Ptr = SCRATCH) -> None:
        """Write the words of the epilogue for the sums of a panel."""
        words: list[Ptr | I64] = [accumulators]
        words += [self.corner(name, cell) for name in (*self.shape.operands, "c")]
        words += [cell.columns if size == LIVE else self.size(str(size)) for size in self.epilogues[0].sizes]
        store_words(self, words, onto)

    def prefetch_operands(self, cell: Cell) -> None:
        """Prefetch what the epilogue of the first tile reads; the epilogue prefetches the others."""
        for name in self.shape.fetched:
            corner = self.corner(name, cell)
            with self.loop(0, self.smin(cell.count, self.shape.tile.rows)) as row:
                step = self.mul(row, self.size(f"{name}_row"))
                prefetch_row(self, corner, step, self.shape.width, self.shape.tile.line)

    def epilogue_of(self, columns: I64) -> Ptr:
        """The function that takes the sums of a panel of some columns."""
        shape = self.shape
        functions = [Ptr(f"@{called.name}") for _, called in self.finishers]
        if len(functions) == 1:
            return functions[0]
        is_full = self.icmp("eq", columns, shape.tile.columns // shape.streams)
        return self.select_ptr(is_full, functions[1], functions[0])

    def corner(self, name: str, cell: Cell) -> Ptr:
        """A tensor's element at the first row and column of the cell."""
        start = self.ptr_add(self.pointer(name), cell.offsets[name])
        row = self.ptr_add(start, self.mul(cell.first, self.size(f"{name}_row")))
        return self.ptr_add(row, self.mul(cell.column, self.size(f"{name}_column")))

    def copy_element(self, dtype: DType, source: Ptr, target: Ptr, index: Int) -> None:
        """One element of any float type as f32."""
        element = self.let(f"load {scalar.stored(dtype)}, ptr {source}, align {dtype.itemsize}")
        there = self.element(target, "float", index)
        self.emit(f"store float {scalar.cast(self, element, dtype, f32)}, ptr {there}, align 4")


class Driver(Cells):
    """The function that goes through cells of f32."""

    def __init__(
        self, shape: Shape, packed: RowSource | None, epilogues: Sequence[Kernel], multiply: Signature
    ) -> None:
        super().__init__(shape, epilogues)
        self.packed = packed
        self.multiply = multiply
        self.sums = self.ptr_add(SCRATCH, words_bytes(epilogues[0]))
        self.last = self.alloca("i64")
        """The block whose rows were packed last."""
        self.store_i64(-1, self.last)
        block_state = None
        if shape.groups is not None:
            block_state = self.alloca("[4 x i64]")
            self.store_i64(-1, block_state)
        self.go_through(block_state)

    def rows_of(self, block: I64) -> tuple[I64, I64]:
        """Blocks of rows are equally high."""
        rows, blocks = self.size("rows"), self.size("blocks")
        height = self.udiv(self.sub(self.add(rows, blocks), 1), blocks)
        first = self.mul(block, height)
        left = self.smin(height, self.sub(rows, first))
        return first, self.select_int(self.icmp("sgt", left, 0), left, 0)

    def finish(self, cell: Cell) -> None:
        deep = self.size("deep")
        if cell.has_matrix is not None:
            # Rows after the last group are summed over nothing.
            deep = self.select_int(cell.has_matrix, deep, 0)
        a, pitch = self._rows(cell)
        b = self._panel(cell.packed, cell.offsets)
        self.words(self.sums, cell)
        self.prefetch_operands(cell)
        row, width = self.size("c_row"), self.shape.width
        c, epilogue = self.corner("c", cell), self.epilogue_of(cell.columns)
        self.call(self.multiply, a, pitch, b, cell.count, deep, self.sums, c, row, width, epilogue, SCRATCH)

    def _rows(self, cell: Cell) -> tuple[Ptr, I64]:
        """The first of the rows and their stride: where they are, or packed in the workspace."""
        stride = self.size("a_row")
        start = self.ptr_add(self.ptr_add(self.pointer("a"), cell.offsets["a"]), self.mul(cell.first, stride))
        source = self.packed
        if source is None:
            return start, stride
        copy, pitch = self.ptr_add(SCRATCH, self.size("a_copy")), self.size("a_pitch")
        with self.when(self.icmp("ne", self.load_i64(self.last), cell.number)):
            self.store_i64(cell.number, self.last)
            with self.loop(0, cell.count) as row:
                here, there = self.ptr_add(start, self.mul(row, stride)), self.ptr_add(copy, self.mul(row, pitch))
                with self.loop(0, self.size("deep")) as k:
                    self.copy_element(source.dtype, self.ptr_add(here, self.mul(k, self.size("a_k"))), there, k)
        return copy, pitch

    def _panel(self, panel: I64, offsets: dict[str, I64]) -> Ptr:
        size = self.mul(self.size("deep"), self.shape.tile.row_bytes)
        return self.ptr_add(self.ptr_add(self.pointer("b0"), offsets["b0"]), self.mul(panel, size))
