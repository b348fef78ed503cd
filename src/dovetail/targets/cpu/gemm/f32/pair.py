"""Products of two activations: the right operands are known at run time only.

A cell is a block of rows and a span of panels of one matrix of the batch. It goes through k a few blocks of KC at a
time: it packs its rows of A into L2 once, then a group of panels at a time, which it multiplies before it packs the
next group over it. Where there are few rows, columns of B that are contiguous are read where they are. Results without
an epilogue are summed where they belong.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from itertools import product as pairs

from dovetail.codegen.llvm.handles import FALSE, I1, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, KernelCode
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product, smallest
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.ir import Kernel, stretched
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.plan import Step
from dovetail.targets.cpu.gemm.driver import Cell, Cells, Shape, kernel_code, words_bytes
from dovetail.targets.cpu.gemm.f32.block import kc_of
from dovetail.targets.cpu.gemm.f32.pair_kernel import rows_function
from dovetail.targets.cpu.gemm.f32.pair_pack import OperandLayout, PairOperand, PanelTarget, pack_function
from dovetail.targets.cpu.gemm.job import GemmJob
from dovetail.targets.cpu.gemm.policy import GEMM, PAIR, tiles_of
from dovetail.targets.cpu.gemm.tile import Tile, tile_of
from dovetail.targets.runtime.arrays.aligned import ALIGNMENT


@dataclass(frozen=True, slots=True)
class PairShape:
    """What the code of a product of two activations depends on."""

    shape: Shape
    left: PairOperand
    rights: tuple[PairOperand, ...]
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
class _Span:
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
            self._span(number)

    def _span(self, number: I64) -> None:
        spans, blocks = self.size("spans"), self.size("blocks")
        span, rest = self.urem(number, spans), self.udiv(number, spans)
        block, matrix = self.urem(rest, blocks), self.udiv(rest, blocks)
        first, rows = self._share(block, self.size("rows"), self.size("height"))
        panel, panels = self._share(span, self.size("panels"), self.size("span"))
        cell = _Span(first, rows, panel, self.add(panel, panels), self.offsets(matrix))
        tile = self.shape.tile
        deep, most = self.size("deep"), summed_apart(tile)
        kc_blocks = self.smax(self.ceil_div(deep, most), 1)
        summed = self.smax(self.round_up(self.ceil_div(deep, kc_blocks), GEMM.unroll), GEMM.unroll)
        together = packed_together(tile) // most
        count, each = self.ceil_div(kc_blocks, together), self.mul(summed, together)
        with self.loop(0, count) as i:
            start = self.mul(i, each)
            steps = self.smin(each, self.sub(deep, start))
            final, alone = self.icmp("eq", self.add(i, 1), count), self.icmp("eq", count, 1)
            self._block(cell, _Block(start, steps, summed, self.icmp("eq", i, 0), final, alone))

    def _share(self, index: I64, total: I64, each: I64) -> tuple[I64, I64]:
        """The first item of a part of at most `each` items, and how many it has."""
        first = self.mul(index, each)
        return first, self.smax(self.smin(each, self.sub(total, first)), 0)

    def _block(self, cell: _Span, block: _Block) -> None:
        a, a_step, a_tile = self._left(cell, block)
        group = self.size("group")
        with self.loop(cell.panel, cell.end, step=group) as first:
            end = self.smin(self.add(first, group), cell.end)
            right = self._right(cell, block, first, end)
            self._multiply(cell, block, (a, a_step, a_tile), right, first, end)

    def _multiply(
        self, cell: _Span, block: _Block, left: tuple[Ptr, I64, I64], right: _Right, first: I64, end: I64
    ) -> None:
        """The rows of a block by panels from the first to before the end."""
        a, a_step, a_tile = left
        with self.loop(first, end) as panel:
            column = self.mul(panel, self.width)
            columns = self.smin(self.width, self.sub(self.size("columns"), column))
            b, b_step = self._panel(right, self.sub(panel, first))
            here = Cell(panel, panel, cell.first, cell.rows, column, columns, cell.offsets)
            c, c_step, is_direct = self._target(cell, block, panel, here)
            target = (c, c_step, block.steps, block.fresh)
            self.call(self.rows_function[1], a, a_step, b, b_step, *target, a_tile, cell.rows, block.summed)
            with self.when(self.and_(block.final, self.not_(is_direct))):
                self._finish(here, c)

    def _left(self, cell: _Span, block: _Block) -> tuple[Ptr, I64, I64]:
        """The rows of a block, their stride (by rows) or that of k, and the stride of tiles."""
        tile, row, k = self.shape.tile, self.size("a_row"), self.size("a_k")
        start = self.ptr_add(self.ptr_add(self.pointer("a"), cell.offsets["a"]), self.mul(cell.first, row))
        start = self.ptr_add(start, self.mul(block.start, k))
        if self.pair.by_rows:
            return start, row, I64("0")
        line = 4 * tile.rows
        to = PanelTarget(self.ptr_add(SCRATCH, self.size("a_copy")), tile.rows, line, self._distance(block, line))
        self._pack(self.pair.left, start, (k, row), to, cell.rows, block.steps)
        return to.target, I64(str(line)), to.distance

    def _distance(self, block: _Block, line: int) -> I64:
        """Bytes from one packed panel to the next: a cache line more, so that panels take different sets of L1."""
        return self.add(self.mul(block.steps, line), self.shape.tile.line)

    def _right(self, cell: _Span, block: _Block, panel: I64, end: I64) -> _Right:
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
            to = PanelTarget(self.ptr_add(first, 4 * stream * self.width), self.width, line, distance)
            source = self.ptr_add(start, self.mul(done, strides[1]))
            self._pack(right, source, strides, to, self.sub(count, done), block.steps)
        step = self.size(f"{rights[0].pointer}_k")
        return _Right(copy, distance, start, step, self.udiv(done, self.width))

    def _pack(
        self, factor: PairOperand, source: Ptr, strides: tuple[I64, I64], to: PanelTarget, count: I64, steps: I64
    ) -> None:
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

    def _target(self, cell: _Span, block: _Block, panel: I64, here: Cell) -> tuple[Ptr, I64, I1]:
        """Where sums of a panel are kept, the stride of rows, and whether that is the result."""
        line = self.shape.tile.row_bytes
        size = self.mul(self.size("height"), line)
        # Sums of a partial panel, or of one block along k, are finished before the next panel.
        number = self.sub(panel, cell.panel)
        number = I64("0") if self.pair.direct else self.select_int(block.alone, 0, number)
        accumulators = self.ptr_add(self.ptr_add(SCRATCH, self.size("sums")), self.mul(number, size))
        if not self.pair.direct:
            return accumulators, I64(str(line)), FALSE
        full = self.icmp("eq", here.columns, self.width)
        c = self.corner("c", here)
        return self.select_ptr(full, c, accumulators), self.select_int(full, self.size("c_row"), line), full

    def _finish(self, cell: Cell, accumulators: Ptr) -> None:
        """Run the epilogue on the sums of a panel; where it prefetches operands, a tile of rows at a time."""
        self.words(accumulators, cell)
        epilogue = self.epilogue_of(cell.columns)
        if not self.shape.fetched:
            self._call(epilogue, 0, cell.count)
            return
        self.prefetch_operands(cell)
        rows = self.shape.tile.rows
        with self.steps(0, cell.count, rows) as row:
            self._call(epilogue, row, self.smin(self.add(row, rows), cell.count))

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


def pair_job(step: Step, contraction: Contraction, locations: TensorLocations, device: CpuDevice) -> Job:
    """The job of products whose right operands are not packed before the run."""
    by_rows = _is_read_by_rows(contraction, device)
    return _PairJob(step, contraction, locations, _tile(device, contraction, by_rows=by_rows), by_rows).job()


def _is_read_by_rows(contraction: Contraction, device: CpuDevice) -> bool:
    """Whether rows of A are read where they are: contiguous along k, and few, or better not packed on this device."""
    left, tall = contraction.left, tiles_of(device).tall
    rows = contraction.result.shape[-2]
    few = tall is None or (isinstance(rows, int) and rows <= PAIR.few_tiles * tall)
    return few and left.dtype is f32 and contraction.body.views[left].strides[-1] == f32.itemsize


def _tile(device: CpuDevice, contraction: Contraction, *, by_rows: bool) -> Tile:
    """The register tile that leaves the fewest lanes empty."""
    if len(contraction.streams) > 1:
        return tile_of(device, len(contraction.streams))
    return pair_tile(device, contraction.result.shape[-1], by_rows=by_rows)


def pair_tile(device: CpuDevice, columns: Size, *, by_rows: bool) -> Tile:
    """Return the tile of a GEMM of one stream with n columns."""
    tile, row = tile_of(device), tiles_of(device)
    if not by_rows and row.tall is not None:
        tile = Tile(device, row.tall, tile.vectors)
    if row.narrow is None or not isinstance(columns, int):
        return tile
    narrow = Tile(device, *row.narrow)
    return narrow if _filled(columns, narrow) * PAIR.narrow_cost < _filled(columns, tile) else tile


def _filled(columns: int, tile: Tile) -> int:
    """The columns of all panels."""
    return -(-columns // tile.columns) * tile.columns


def _layout(value: Value, along: Size, across: Size) -> OperandLayout:
    """How an operand with these strides is stored."""
    if value.dtype is not f32:
        return "strided"
    return "along" if along == f32.itemsize else "across" if across == f32.itemsize else "strided"


class _PairJob(GemmJob):
    """The job of products of two activations while it is put together."""

    def __init__(
        self, step: Step, contraction: Contraction, locations: TensorLocations, tile: Tile, by_rows: bool
    ) -> None:
        super().__init__(step, contraction, locations, tile)
        self.by_rows = by_rows

    def job(self) -> Job:
        along = self.point_left()
        self.sizes["a_k"] = along
        rights = self._rights()
        operands = self.operands()
        self.point_results()
        count, batch = self.fold()
        self.sizes["rows"] = count
        left = self._left(along)
        direct = self._is_direct()
        height, span = self._cut(count, batch, direct)
        group = self._group(span)
        blocks, spans = (count + (height - 1)) // height, (self.panels + (span - 1)) // span
        self.sizes |= {"height": height, "span": span, "blocks": blocks, "spans": spans, "group": group}
        epilogues = self.epilogues()
        scratch = self._scratch(
            words_bytes(epilogues[0]), smallest(count, height), smallest(self.panels, span), group, direct, left
        )
        shape = PairShape(self.shape(operands, batch), left, rights, self.by_rows, direct)
        template = pair_code(shape, epilogues).template(self.bindings, tuple(self.sizes.values()), scratch)
        work = smallest(count, height) * smallest(self.panels, span) * self.deep * self.tile.columns
        return Job(template, self.bindings, Tiles(product(batch) * blocks * spans, work))

    def _left(self, along: Size) -> PairOperand:
        left = self.contraction.left
        return PairOperand("a", left.dtype, _layout(left, along, self.sizes["a_row"]))

    def _rights(self) -> tuple[PairOperand, ...]:
        """The right operands at columns of the result, one for each stream."""
        contraction, views = self.contraction, self.body.views
        for i, right in enumerate(contraction.rights):
            strides = views[right].strides
            self.bindings[f"b{i}"] = contraction.operand(right)
            self.fronts[f"b{i}"] = (*stretched(strides[:-2], right.shape[:-2], contraction.result.shape[:-2]), 0)
            self.sizes |= {f"b{i}_k": strides[-2], f"b{i}_column": strides[-1]}
        for stream, (i, first) in enumerate(contraction.streams):
            self.sizes[f"stream{stream}"] = first * views[contraction.rights[i]].strides[-1]
        factors = [
            PairOperand(f"b{i}", right.dtype, _layout(right, *views[right].strides[-2:]))
            for i, right in enumerate(contraction.rights)
        ]
        return tuple([factors[i] for i, _ in contraction.streams])

    def _is_direct(self) -> bool:
        """Whether the sums are the only result, as it is stored."""
        result = self.contraction.result
        plain = (
            (result,) == self.contraction.products and self.body.results == (result,) and self.contraction.parts == 1
        )
        return plain and result.dtype is f32 and self.sizes["c_column"] == f32.itemsize

    def _cut(self, rows: Size, batch: tuple[Size, ...], direct: bool) -> tuple[int, int]:
        """Rows and panels of a cell: few elements are packed for each product, and all threads have work."""
        mr = self.tile.rows
        if not isinstance(rows, int) or not isinstance(self.panels, int):
            return -(-PAIR.unknown // mr) * mr, max(1, PAIR.unknown // self.width)
        matrices = product(batch)
        heights = {_equal(-(-rows // mr), max(1, side // mr)) * mr for side in PAIR.sides}
        spans = {_equal(self.panels, max(1, side // self.width)) for side in PAIR.sides}
        return min(pairs(heights, spans), key=lambda cut: self._cost(rows, matrices, direct, *cut))

    def _cost(self, rows: int, matrices: Size, direct: bool, height: int, span: int) -> tuple[bool, float]:
        """What is packed for each product and what waits; cells that do not fit L2 are worse than all others."""
        device, panels = self.tile.device, self.panels
        assert isinstance(panels, int)
        wide, packed = span * self.tile.columns, self._group(span) * self.tile.columns
        above, below = PAIR.l2_share
        # Sums of several blocks along k wait for the next one, unless they are stored as the result.
        waiting = 0 if direct else self.tile.columns if self._is_one_block else wide
        held = height * (self._kc + waiting) + self._kc * packed
        fits = f32.itemsize * held <= device.caches.l2_room * above // below
        cells, threads = -(-rows // height) * -(-panels // span), device.threads
        cells *= matrices if isinstance(matrices, int) else PAIR.cells * threads
        missing = max(0.0, 1 - cells / (PAIR.cells * threads))
        idle = -(-cells // threads) * threads / max(1, cells) if missing else 1.0
        cost = (PAIR.read_cost if self.by_rows else PAIR.pack_cost) / wide + PAIR.pack_cost / height
        return not fits, (1 + cost * device.lanes) * idle * (1 + PAIR.few_cells * missing)

    def _group(self, span: int) -> int:
        """Panels that are packed together: a part of L2, which the next ones are packed over."""
        above, below = PAIR.group_share
        room = self.tile.device.caches.l2_room * above // below
        return _equal(span, max(1, room // (self._kc * self.tile.row_bytes)))

    @cached_property
    def _kc(self) -> int:
        """Steps along k that are packed together."""
        kc = packed_together(self.tile)
        return min(kc, self.deep) if isinstance(self.deep, int) else kc

    @cached_property
    def _is_one_block(self) -> bool:
        return isinstance(self.deep, int) and self.deep <= packed_together(self.tile)

    def _scratch(self, start: int, height: Size, span: Size, group: int, direct: bool, left: PairOperand) -> Size:
        """Words of the epilogue, sums, and copies; how many bytes they take."""
        deep = self._kc
        panels = 1 if direct or self._is_one_block else span
        self.sizes["sums"] = begin = _aligned(start)
        self.sizes["b_copy"] = begin = _aligned(begin + self.sizes["height"] * panels * self.tile.row_bytes)
        begin = begin + group * (_aligned(deep * self.tile.row_bytes) + self.tile.line)
        if self.by_rows:
            return begin
        self.sizes["a_copy"] = begin
        tiles = (height + (self.tile.rows - 1)) // self.tile.rows
        return begin + tiles * (_aligned(deep * self.tile.rows * f32.itemsize) + self.tile.line)


def _equal(count: int, most: int) -> int:
    """The size of equal parts of at most `most`."""
    parts = max(1, -(-count // most))
    return max(1, -(-count // parts))


def _aligned(size: Size) -> Size:
    return (size + (ALIGNMENT - 1)) // ALIGNMENT * ALIGNMENT
