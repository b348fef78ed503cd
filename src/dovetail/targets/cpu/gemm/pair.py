"""The driver of products whose right operands are known at run time only: it packs what the micro-kernel cannot read.

A cell is a block of rows and a span of panels of one matrix of the batch. It goes through k a few blocks of KC at a
time: it packs its rows of A into L2 once, then a group of panels at a time, which it multiplies before it packs the
next group over it. Where there are few rows, columns of B that are contiguous are read where they are. Results without
an epilogue are summed where they belong.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.handles import FALSE, I1, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, KernelCode
from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.gemm.block import kc_of
from dovetail.targets.cpu.gemm.driver import Cells, Shape, kernel_code
from dovetail.targets.cpu.gemm.pair_kernel import rows_function
from dovetail.targets.cpu.gemm.pair_pack import Factor, Panels, pack_function
from dovetail.targets.cpu.gemm.policy import GEMM, PAIR
from dovetail.targets.cpu.gemm.tile import Tile


@dataclass(frozen=True, slots=True)
class PairShape:
    """What the code of a product of two activations depends on."""

    shape: Shape
    left: Factor
    rights: tuple[Factor, ...]
    """The right operands, one for each stream."""
    by_rows: bool
    """Whether rows of A are read where they are, contiguous along k; otherwise the micro-kernel reads [k][MR]."""
    direct: bool
    """Whether the sums are the result as it is stored: no epilogue has work to do."""


def pair_code(shape: PairShape, epilogues: Sequence[Kernel]) -> KernelCode:
    """The kernel with its epilogues."""
    cells = _Pair(shape, epilogues)
    return kernel_code("gemm_pair", cells, cells.shared, is_final=True)


@dataclass(frozen=True, slots=True)
class _Cell:
    """One cell: the first row and how many, panels, and bytes before its matrix by pointer."""

    first: I64
    rows: I64
    panel: I64
    end: I64
    offsets: dict[str, I64]


@dataclass(frozen=True, slots=True)
class _Block:
    """Steps along k that are packed together."""

    start: I64
    steps: I64
    summed: I64
    """Steps that are summed apart."""
    fresh: I1
    final: I1
    alone: I1
    """Whether no other block is summed."""


@dataclass(frozen=True, slots=True)
class _Right:
    """Panels of columns: packed ones and their distance, or the operand and its stride along k."""

    copy: Ptr
    distance: I64
    start: Ptr
    step: I64
    in_place: I64
    """How many panels are read where they are; 0 where the code has no such case."""


class _Pair(Cells):
    """The function that goes through cells of several panels."""

    def __init__(self, pair: PairShape, epilogues: Sequence[Kernel]) -> None:
        super().__init__(pair.shape, epilogues)
        self.pair = pair
        self.width = self.shape.tile.columns // self.shape.streams
        """Columns of a panel in each stream."""
        self.rows_function = rows_function(self.shape.tile, by_rows=pair.by_rows)
        self.shared = [self.rows_function]
        with self.loop(BEGIN, END) as number:
            self._cell(number)

    def _cell(self, number: I64) -> None:
        spans, blocks = self.size("spans"), self.size("blocks")
        span, rest = self.urem(number, spans), self.udiv(number, spans)
        block, matrix = self.urem(rest, blocks), self.udiv(rest, blocks)
        first, rows = self._share(block, self.size("rows"), self.size("height"))
        panel, panels = self._share(span, self.size("panels"), self.size("span"))
        cell = _Cell(first, rows, panel, self.add(panel, panels), self.offsets(matrix))
        tile = self.shape.tile
        deep, most = self.size("deep"), summed_apart(tile)
        sums = self.smax(self.ceil_div(deep, most), 1)
        summed = self.smax(self.round_up(self.ceil_div(deep, sums), GEMM.unroll), GEMM.unroll)
        together = packed_together(tile) // most
        count, each = self.ceil_div(sums, together), self.mul(summed, together)
        with self.loop(0, count) as i:
            start = self.mul(i, each)
            steps = self.smin(each, self.sub(deep, start))
            final, alone = self.icmp("eq", self.add(i, 1), count), self.icmp("eq", count, 1)
            self._block(cell, _Block(start, steps, summed, self.icmp("eq", i, 0), final, alone))

    def _share(self, index: I64, total: I64, each: I64) -> tuple[I64, I64]:
        """The first item of a part of at most `each` items, and how many it has."""
        first = self.mul(index, each)
        return first, self.smax(self.smin(each, self.sub(total, first)), 0)

    def _block(self, cell: _Cell, block: _Block) -> None:
        a, a_step, a_tile = self._left(cell, block)
        group = self.size("group")
        with self.loop(cell.panel, cell.end, step=group) as first:
            end = self.smin(self.add(first, group), cell.end)
            right = self._right(cell, block, first, end)
            self._multiply(cell, block, (a, a_step, a_tile), right, first, end)

    def _multiply(
        self, cell: _Cell, block: _Block, left: tuple[Ptr, I64, I64], right: _Right, first: I64, end: I64
    ) -> None:
        """The rows of a block by panels from the first to before the end."""
        a, a_step, a_tile = left
        with self.loop(first, end) as panel:
            column = self.mul(panel, self.width)
            columns = self.smin(self.width, self.sub(self.size("columns"), column))
            b, b_step = self._panel(right, self.sub(panel, first))
            c, c_step, is_direct = self._target(cell, block, panel, column, columns)
            target = (c, c_step, block.steps, block.fresh)
            self.call(self.rows_function[1], a, a_step, b, b_step, *target, a_tile, cell.rows, block.summed)
            with self.when(self.and_(block.final, self.not_(is_direct))):
                self._finish(cell, c, column, columns)

    def _left(self, cell: _Cell, block: _Block) -> tuple[Ptr, I64, I64]:
        """The rows of a block, their stride (by rows) or that of k, and the stride of tiles."""
        tile, row, k = self.shape.tile, self.size("a_row"), self.size("a_k")
        start = self.ptr_add(self.ptr_add(self.pointer("a"), cell.offsets["a"]), self.mul(cell.first, row))
        start = self.ptr_add(start, self.mul(block.start, k))
        if self.pair.by_rows:
            return start, row, I64("0")
        line = 4 * tile.rows
        to = Panels(self.ptr_add(SCRATCH, self.size("a_copy")), tile.rows, line, self._distance(block, line))
        self._pack(self.pair.left, start, (k, row), to, cell.rows, block.steps)
        return to.target, I64(str(line)), to.distance

    def _distance(self, block: _Block, line: int) -> I64:
        """Bytes from one packed panel to the next: a cache line more, so that panels take different sets of L1."""
        return self.add(self.mul(block.steps, line), self.shape.tile.line)

    def _right(self, cell: _Cell, block: _Block, panel: I64, end: I64) -> _Right:
        """Packed columns, unless they are contiguous and few rows use them: then a partial panel alone is packed."""
        rights, line = self.pair.rights, self.shape.tile.row_bytes
        copy, column = self.ptr_add(SCRATCH, self.size("b_copy")), self.mul(panel, self.width)
        most = self.mul(self.sub(end, panel), self.width)
        count = self.smin(most, self.sub(self.size("columns"), column))
        packed, done = FALSE, I64("0")
        if len(rights) == 1 and rights[0].layout == "across":
            packed = self.icmp("sgt", cell.rows, PAIR.few_tiles * self.shape.tile.rows)
            full = self.sub(count, self.urem(count, self.width))
            done = self.select_int(packed, 0, full)
        distance = self._distance(block, line)
        first = self.ptr_add(copy, self.mul(self.udiv(done, self.width), distance))
        start = copy
        for stream, right in enumerate(rights):
            strides = self.size(f"{right.pointer}_k"), self.size(f"{right.pointer}_column")
            start = self.ptr_add(self.pointer(right.pointer), cell.offsets[right.pointer])
            start = self.ptr_add(start, self.add(self.size(f"stream{stream}"), self.mul(column, strides[1])))
            start = self.ptr_add(start, self.mul(block.start, strides[0]))
            to = Panels(self.ptr_add(first, 4 * stream * self.width), self.width, line, distance)
            source = self.ptr_add(start, self.mul(done, strides[1]))
            self._pack(right, source, strides, to, self.sub(count, done), block.steps)
        step = self.size(f"{rights[0].pointer}_k")
        return _Right(copy, distance, start, step, self.udiv(done, self.width))

    def _pack(self, factor: Factor, source: Ptr, strides: tuple[I64, I64], to: Panels, count: I64, steps: I64) -> None:
        """Pack rows or columns of an operand, with strides along k and across."""
        function = pack_function(self.device, factor.dtype, factor.layout, to.width, to.pitch)
        if function not in self.shared:
            self.shared.append(function)
        self.call(function[1], source, *strides, to.target, to.distance, count, steps)

    def _panel(self, right: _Right, number: I64) -> tuple[Ptr, I64]:
        """A panel of columns by its number in the group, and its stride along k."""
        line = self.shape.tile.row_bytes
        packed = self.ptr_add(right.copy, self.mul(number, right.distance))
        if right.in_place == "0":
            return packed, I64(str(line))
        here = self.icmp("slt", number, right.in_place)
        start = self.ptr_add(right.start, self.mul(number, line))
        return self.select_ptr(here, start, packed), self.select_int(here, right.step, line)

    def _target(self, cell: _Cell, block: _Block, panel: I64, column: I64, columns: I64) -> tuple[Ptr, I64, I1]:
        """Where sums of a panel are kept, the stride of rows, and whether that is the result."""
        line = self.shape.tile.row_bytes
        size = self.mul(self.size("height"), line)
        # Sums of a partial panel, or of one block along k, are finished before the next panel.
        number = self.sub(panel, cell.panel)
        number = I64("0") if self.pair.direct else self.select_int(block.alone, 0, number)
        sums = self.ptr_add(self.ptr_add(SCRATCH, self.size("sums")), self.mul(number, size))
        if not self.pair.direct:
            return sums, I64(str(line)), FALSE
        full = self.icmp("eq", columns, self.width)
        c = self.corner("c", cell.first, column, cell.offsets)
        return self.select_ptr(full, c, sums), self.select_int(full, self.size("c_row"), line), full

    def _finish(self, cell: _Cell, sums: Ptr, column: I64, columns: I64) -> None:
        """Run the epilogue on the sums of a panel; where it prefetches operands, a tile of rows at a time."""
        self.words(sums, cell.first, column, columns, cell.offsets)
        epilogue = self.epilogue_of(columns)
        if not self.shape.fetched:
            self._call(epilogue, 0, cell.rows)
            return
        self.prefetch_operands(cell.first, column, cell.rows, cell.offsets)
        rows = self.shape.tile.rows
        with self.steps(0, cell.rows, rows) as row:
            self._call(epilogue, row, self.smin(self.add(row, rows), cell.rows))

    def _call(self, epilogue: Ptr, first: Int, end: I64) -> None:
        self.emit(f"call void {epilogue}(ptr {SCRATCH}, i64 {first}, i64 {end}, ptr null)")


def summed_apart(tile: Tile) -> int:
    """KC: the same blocks along k as with packed weights."""
    return kc_of(tile) if tile.calls_are_blocks else GEMM.kc_prefetching


def packed_together(tile: Tile) -> int:
    """Steps along k that are packed together, whole blocks of KC: a panel of them leaves L1 room for rows of A."""
    kc, (above, below) = summed_apart(tile), PAIR.panel_share
    room = tile.device.caches.l1 * above // below
    return kc * max(1, min(PAIR.most_blocks, room // (kc * tile.row_bytes)))


__all__ = ["PairShape", "packed_together", "pair_code"]
