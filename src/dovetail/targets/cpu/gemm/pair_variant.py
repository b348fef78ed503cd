"""Products of two activations: which tile, what is read where it is, and how rows and columns are cut into cells."""

from __future__ import annotations

from functools import cached_property
from itertools import product as pairs

from dovetail.ir.dim import Size, product, smallest
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.ir import stretched
from dovetail.kernels.problems.contraction import Contraction
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.plan import Step
from dovetail.targets.cpu.gemm.driver import words_bytes
from dovetail.targets.cpu.gemm.pair import PairShape, packed_together, pair_code
from dovetail.targets.cpu.gemm.pair_pack import Factor, Layout
from dovetail.targets.cpu.gemm.policy import PAIR, tiles_of
from dovetail.targets.cpu.gemm.tile import Tile, tile_of
from dovetail.targets.cpu.gemm.writer import Writer
from dovetail.targets.runtime.arrays.aligned import ALIGNMENT


def pair_job(step: Step, found: Contraction, locations: TensorLocations, device: CpuDevice) -> Job:
    """The job of products whose right operands are not packed before the run."""
    by_rows = _is_read_by_rows(found, device)
    return _Pair(step, found, locations, _tile(device, found, by_rows=by_rows), by_rows).job()


def _is_read_by_rows(found: Contraction, device: CpuDevice) -> bool:
    """Whether rows of A are read where they are: contiguous along k, and few, or better not packed on this device."""
    left, tall = found.left, tiles_of(device).tall
    rows = found.result.shape[-2]
    few = tall is None or (isinstance(rows, int) and rows <= PAIR.few_tiles * tall)
    return few and left.dtype is f32 and found.body.views[left].strides[-1] == f32.itemsize


def _tile(device: CpuDevice, found: Contraction, *, by_rows: bool) -> Tile:
    """The register tile that leaves the fewest lanes empty."""
    if len(found.streams) > 1:
        return tile_of(device, len(found.streams))
    return pair_tile(device, found.result.shape[-1], by_rows=by_rows)


def pair_tile(device: CpuDevice, columns: Size, *, by_rows: bool) -> Tile:
    """The same of a product of one stream with n columns."""
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


def _layout(value: Value, along: Size, across: Size) -> Layout:
    """How an operand with these strides is stored."""
    if value.dtype is not f32:
        return "strided"
    return "along" if along == f32.itemsize else "across" if across == f32.itemsize else "strided"


class _Pair(Writer):
    """The job of products of two activations while it is put together."""

    def __init__(self, step: Step, found: Contraction, locations: TensorLocations, tile: Tile, by_rows: bool) -> None:
        super().__init__(step, found, locations, tile)
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

    def _left(self, along: Size) -> Factor:
        left = self.found.left
        return Factor("a", left.dtype, _layout(left, along, self.sizes["a_row"]))

    def _rights(self) -> tuple[Factor, ...]:
        """The right operands at columns of the result, one for each stream."""
        found, views = self.found, self.body.views
        for i, right in enumerate(found.rights):
            strides = views[right].strides
            self.bindings[f"b{i}"] = found.operand(right)
            self.fronts[f"b{i}"] = (*stretched(strides[:-2], right.shape[:-2], found.result.shape[:-2]), 0)
            self.sizes |= {f"b{i}_k": strides[-2], f"b{i}_column": strides[-1]}
        for stream, (i, first) in enumerate(found.streams):
            self.sizes[f"stream{stream}"] = first * views[found.rights[i]].strides[-1]
        factors = [
            Factor(f"b{i}", right.dtype, _layout(right, *views[right].strides[-2:]))
            for i, right in enumerate(found.rights)
        ]
        return tuple([factors[i] for i, _ in found.streams])

    def _is_direct(self) -> bool:
        """Whether the sums are the only result, as it is stored."""
        result = self.found.result
        plain = (result,) == self.found.products and self.body.results == (result,) and self.found.parts == 1
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

    def _scratch(self, start: int, height: Size, span: Size, group: int, direct: bool, left: Factor) -> Size:
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
