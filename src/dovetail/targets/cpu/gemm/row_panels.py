"""Products whose left rows take another form, once for each block of rows, before packed panels multiply them.

A cell is one panel of columns for one block of rows.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Protocol

from dovetail.codegen.llvm.handles import I1, I64, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, KernelCode
from dovetail.codegen.llvm.once import once_for
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bf16, f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel, stretched
from dovetail.kernels.spec import Job, Packed, Tiles
from dovetail.targets.cpu.gemm.amx.tiles import rows_on_tiles, takes_tiles, whole_steps
from dovetail.targets.cpu.gemm.driver import Cells, Shape, Source
from dovetail.targets.cpu.gemm.groups import Groups, find_block
from dovetail.targets.cpu.gemm.job import Writer
from dovetail.targets.cpu.gemm.policy import AMX, BF16, BLOCKS

BOTH_TO_BF16 = "both factors to bf16"


class Workspace(Protocol):
    """Offsets in the workspace."""

    words: int
    """Words of the epilogue."""
    sums: int
    rows: int
    """Rows in their other form."""
    row: int
    """A row in f32, where the operand is not."""
    end: int


class Pack(Protocol):
    """Packs the matrices of all right operands."""

    @property
    def layout(self) -> str: ...
    def __call__(self, *given: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class Block:
    """What the code of a product depends on, besides its kernel."""

    shape: Shape
    deep: int
    rows: int
    """Of a block, at most."""
    pitch: int
    """Bytes from one prepared row to the next."""
    source: Source | None
    """Where rows must be copied to f32 first; None where they are."""
    epilogues: Sequence[Kernel]
    on_tiles: bool = False
    """Whether blocks of many rows, or all, are rounded to bf16, as tiles of AMX."""

    @property
    def rows_bytes(self) -> int:
        """Of the prepared rows of a block."""
        if not self.on_tiles:
            return self.rows * self.pitch
        return max((AMX.least - 1) * self.pitch, self.rows * bf16.itemsize * whole_steps(self.deep))


class PreparedRows(Writer):
    """The job of one product while it is put together."""

    def rounding(self, *, rounds: bool, on_tiles: bool) -> str:
        """What reports tell of numbers that the kernel rounds before it multiplies."""
        return BOTH_TO_BF16 if rounds else f"from {AMX.least} rows on {BOTH_TO_BF16}" if on_tiles else ""

    def finished(
        self,
        pitch: int,
        matrices: Sequence[Sequence[Value]],
        pack: Callable[[tuple[tuple[int, int], ...], int, tuple[int, ...]], Pack],
        code: Callable[[Block], tuple[KernelCode, int]],
        speed: int,
        most: int = BLOCKS.rows,
        share: tuple[int, int] = BLOCKS.share,
        *,
        may_round: bool = False,
        rounds: bool = False,
    ) -> Job:
        """The job; `pack` is told streams, columns and matrices of each operand, `code` also tells the workspace.

        A block has `most` rows, at most, or an equal part of them that takes no more than this share of L2. With
        `may_round`, many rows are rounded to bf16 where tiles multiply them; with `rounds`, all rows are.
        """
        stride = self.point_left()
        streams = tuple([(i, _known(first)) for i, first in self.found.streams])
        packed = pack(streams, _known(self.sizes["columns"]), tuple(map(len, matrices)))
        first, *others = [matrix for right in matrices for matrix in right]
        binding = Packed(first, packed.layout, packed, tuple(others))
        self.point_weights(binding, (*stretched((), (), self.found.result.shape[:-2]), 0))
        operands = self.operands()
        self.point_results()
        count, batch = self.fold()
        fitting = max(1, self.tile.device.caches.l2_room * share[0] // share[1] // pitch)
        rows = equal_rows(most, fitting)
        rows = max(1, min(rows, count)) if isinstance(count, int) else rows
        on_tiles = rounds or (may_round and takes_tiles(self.tile.device, _known(self.deep), count))
        if on_tiles:
            at_most = BF16.block if rounds else AMX.rows
            rows = rows_on_tiles(self.tile.device, _known(self.deep), _known(self.panels), count, at_most)
            speed = AMX.speed if self.tile.device.has("amx_bf16") else speed
        self.rows = rows
        blocks = self.blocks(count)
        epilogues = self.epilogues()
        left, deep = self.found.left, _known(self.deep)
        source = None if left.dtype is f32 and stride == f32.itemsize else Source("a", left.dtype)
        self.sizes |= {"rows": count, "blocks": blocks, "a_k": stride}
        made, scratch = code(Block(self.shape(operands, batch), deep, rows, pitch, source, epilogues, on_tiles))
        template = made.template(self.bindings, tuple(self.sizes.values()), scratch)
        template = replace(template, rounding=self.rounding(rounds=rounds, on_tiles=on_tiles))
        tiles = product(batch) * blocks * self.panels
        return Job(template, self.bindings, Tiles(tiles, self.block_rows(count) * deep * self.tile.columns // speed))


def equal_rows(most: int, fitting: int) -> int:
    """Rows of blocks that are cut from `most` and fit: none of them is much smaller than the others."""
    return -(-most // -(-most // fitting))


class PreparedCells(Cells):
    """The function that goes through cells."""

    def __init__(self, problem: Block, at: Workspace, panel_bytes: int) -> None:
        super().__init__(problem.shape, problem.epilogues)
        self.problem, self.at, self.panel_bytes = problem, at, panel_bytes
        self.corners: dict[str, Ptr] = {}
        """The cell's first row and column of its result, and of operands of the epilogue that are prefetched."""

    @property
    def fetched(self) -> Sequence[str]:
        """None: an epilogue takes all rows of a block at once."""
        return ()

    def prefetch_rows(self, row: I64, count: int) -> None:
        """Prefetch what the epilogue reads and writes of some rows; they are too many for L1, and conflict there."""
        for name, corner in self.corners.items():
            for i in range(count):
                there = self.ptr_add(corner, self.mul(self.add(row, i), self.size(f"{name}_row")))
                self.prefetch(there, for_write=name == "c", level=2)

    def write(self) -> None:
        """All cells."""
        groups = self.shape.groups
        with self.loop(BEGIN, END) as cell:
            if groups is None:
                self._cell(cell)
            else:
                self._cell_of_group(groups, cell)

    def products(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        """Multiply the rows of a cell with its panel, in the form that they were prepared in."""
        self.multiply(rows, b, sums, count)

    def prepare_rows(self, start: Ptr, count: I64) -> None:
        """Write all rows of a block in the form that is multiplied."""

        def write(x: Ptr, row: I64) -> None:
            self.prepare(x, self.ptr_add(SCRATCH, self.add(self.mul(row, self.problem.pitch), self.at.rows)))

        self.each_row(start, count, write)

    @abstractmethod
    def multiply(self, rows: Ptr, b: Ptr, sums: Ptr, count: I64) -> None:
        """Multiply the rows of a cell with its panel."""

    @abstractmethod
    def prepare(self, x: Ptr, target: Ptr) -> None:
        """Write a row in its other form."""

    def _cell_of_group(self, groups: Groups, cell: I64) -> None:
        """The cell of a block of rows of one group."""
        panel, number = self.urem(cell, self.size("panels")), self.udiv(cell, self.size("panels"))
        found = find_block(self, self.given, groups, number, self.ptr_add(SCRATCH, 8))
        with self.when(self.icmp("sgt", found.count, 0)):
            of = self.add(self.mul(found.group, self.size("panels")), panel)
            self._finished(panel, of, number, found.first, found.count, self.offsets(I64("0")), found.has_matrix)

    def _cell(self, cell: I64) -> None:
        shape = self.shape
        panel, number = self.urem(cell, self.size("panels")), self.udiv(cell, self.size("panels"))
        block, matrix = number, number
        if shape.batch:
            block, matrix = self.urem(number, self.size("blocks")), self.udiv(number, self.size("blocks"))
        offsets = self.offsets(matrix)
        first = self.mul(block, self.problem.rows)
        count = self.smin(self.problem.rows, self.sub(self.size("rows"), first))
        self._finished(panel, panel, number, first, count, offsets)

    def _finished(
        self, panel: I64, packed: I64, number: I64, first: I64, count: I64, offsets: dict[str, I64],
        has_matrix: I1 | None = None,
    ) -> None:  # fmt: skip
        """Multiply a block of rows with a panel, which is the packed one of this number, and run the epilogue."""
        shape, tile = self.shape, self.shape.tile
        width = tile.columns // shape.streams
        column = self.mul(panel, width)
        columns = self.smin(width, self.sub(self.size("columns"), column))
        with self.when(once_for(self, SCRATCH, 0, number)):
            self._rows(first, count, offsets)
        b = self.ptr_add(self.pointer("b0"), self.mul(packed, self.panel_bytes))
        sums, rows = (self.ptr_add(SCRATCH, at) for at in (self.at.sums, self.at.rows))
        self.prefetch_operands(first, column, count, offsets)
        names = ("c", *self.shape.fetched)
        self.corners = {name: self.corner(name, first, column, offsets) for name in names}
        if has_matrix is None:
            self.products(rows, b, sums, count)
        else:
            with self.when(has_matrix):
                self.products(rows, b, sums, count)
            with self.unless(has_matrix), self.loop(0, self.mul(count, tile.columns)) as i:
                self.emit(f"store float 0.0, ptr {self.element(sums, 'float', i)}, align 4")
        words = self.ptr_add(SCRATCH, self.at.words)
        self.words(sums, first, column, columns, offsets, words)
        self.emit(f"call void {self.epilogue_of(columns)}(ptr {words}, i64 0, i64 {count}, ptr null)")

    def _rows(self, first: I64, count: I64, offsets: dict[str, I64]) -> None:
        """The rows of a block in their other form."""
        start = self.ptr_add(self.pointer("a"), offsets["a"])
        self.prepare_rows(self.ptr_add(start, self.mul(first, self.size("a_row"))), count)

    def each_row(self, start: Ptr, count: I64, write: Callable[[Ptr, I64], None]) -> None:
        """Have each row written; it is copied to f32 first where it is not."""
        stride, source = self.size("a_row"), self.problem.source
        with self.loop(0, count) as row:
            x = self.ptr_add(start, self.mul(row, stride))
            if source is not None:
                copy = self.ptr_add(SCRATCH, self.at.row)
                with self.loop(0, self.problem.deep) as k:
                    self.copy_element(source.dtype, self.ptr_add(x, self.mul(k, self.size("a_k"))), copy, k)
                x = copy
            write(x, row)


def _known(size: Size) -> int:
    assert isinstance(size, int), "what is known before a run has known sizes"
    return size


__all__ = ["Block", "PreparedCells", "PreparedRows", "equal_rows"]
