"""Products whose left rows take another form, once for each block of rows, before packed panels multiply them.

A cell is one panel of columns for one block of rows. The forms: limbs and f32 of weights in blocks, f32 or f16 of
weights of two bytes, bf16. Of the first three, blocks of many rows may be on tiles of AMX instead.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from math import lcm
from typing import Protocol

from dovetail.codegen.llvm.amx import ROW_BYTES, ROWS, STEPS, TILE_BYTES
from dovetail.codegen.llvm.function import Signature
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH, KernelCode
from dovetail.codegen.llvm.once import HEAD, once_for
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bf16, f32
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel, stretched
from dovetail.kernels.spec import Job, Packed, SharedFunction, Tiles
from dovetail.targets.cpu.gemm.amx.tiles import (
    TileProduct,
    part_on_tiles,
    product_function,
    row_function,
    rows_on_tiles,
    takes_tiles,
    whole_steps,
)
from dovetail.targets.cpu.gemm.driver import Cell, Cells, RowSource, Shape, words_bytes
from dovetail.targets.cpu.gemm.job import GemmJob
from dovetail.targets.cpu.gemm.policy import AMX, BF16, BLOCKS

BOTH_TO_BF16 = "both factors to bf16"


class OperandPack(Protocol):
    """Packs the matrices of all right operands."""

    @property
    def layout(self) -> str: ...
    def __call__(self, *weights: Array) -> Array: ...


@dataclass(frozen=True, slots=True)
class Block:
    """What the code of a product depends on, besides its kernel."""

    shape: Shape
    deep: int
    rows: int
    """Of a block, at most."""
    pitch: int
    """Bytes from one prepared row to the next."""
    source: RowSource | None
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


class RowPanelJob(GemmJob):
    """The job of one product while it is put together."""

    def rounding(self, *, rounds: bool, on_tiles: bool) -> str:
        """What reports say of numbers that the kernel rounds before it multiplies."""
        return BOTH_TO_BF16 if rounds else f"from {AMX.least} rows on {BOTH_TO_BF16}" if on_tiles else ""

    def finished(
        self,
        pitch: int,
        matrices: Sequence[Sequence[Value]],
        pack: Callable[[tuple[tuple[int, int], ...], int, tuple[int, ...]], OperandPack],
        code: Callable[[Block], tuple[KernelCode, int]],
        speed: int,
        most: int = BLOCKS.rows,
        share: tuple[int, int] = BLOCKS.share,
        *,
        may_round: bool = False,
        rounds: bool = False,
    ) -> Job:
        """Return the job; `pack` takes streams, columns and matrices of each operand, `code` the workspace.

        A block has `most` rows, at most, or an equal part of them that takes no more than this share of L2. With
        `may_round`, many rows are rounded to bf16 where tiles multiply them; with `rounds`, all rows are.
        """
        stride = self.point_left()
        streams = tuple([(i, _known(first)) for i, first in self.contraction.streams])
        packed = pack(streams, _known(self.sizes["columns"]), tuple(map(len, matrices)))
        first, *others = [matrix for right in matrices for matrix in right]
        binding = Packed(first, packed.layout, packed, tuple(others))
        self.point_weights(binding, (*stretched((), (), self.contraction.result.shape[:-2]), 0))
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
        left, deep = self.contraction.left, _known(self.deep)
        source = None if left.dtype is f32 and stride == f32.itemsize else RowSource("a", left.dtype)
        self.sizes |= {"rows": count, "blocks": blocks, "a_k": stride}
        kernel, scratch = code(Block(self.shape(operands, batch), deep, rows, pitch, source, epilogues, on_tiles))
        template = kernel.template(self.bindings, tuple(self.sizes.values()), scratch)
        template = replace(template, rounding=self.rounding(rounds=rounds, on_tiles=on_tiles))
        tiles = product(batch) * blocks * self.panels
        return Job(template, self.bindings, Tiles(tiles, self.block_rows(count) * deep * self.tile.columns // speed))


def equal_rows(most: int, fitting: int) -> int:
    """Rows of blocks that are cut from `most` and fit: none of them is much smaller than the others."""
    return -(-most // -(-most // fitting))


class Workspace:
    """Offsets in the workspace: words of the epilogue, sums, rows in their form, a row in f32, what the form keeps."""

    def __init__(self, of: Block, own: int = 0) -> None:
        self.words = HEAD
        self.sums = _whole_lines(self.words + words_bytes(of.epilogues[0]))
        self.rows = _whole_lines(self.sums + of.rows * of.shape.tile.row_bytes)
        self.row = _whole_lines(self.rows + of.rows_bytes)
        self.own = self.row + (_whole_lines(4 * of.deep) if own or of.source is not None else 0)
        self.end = self.own + own


@dataclass(frozen=True, slots=True)
class Expansion:
    """How a packed panel becomes tiles."""

    function: Callable[..., tuple[SharedFunction, Signature]]
    """`(panel, target, count, pitch)` of `count` pieces; takes whether tiles are emulated."""
    steps: int
    """Steps along k of a piece."""
    bytes: int
    """Of a piece of a packed panel."""
    columns: int
    """Columns of a panel that are expanded at once."""
    apart: int = 0
    """Bytes from a column of a piece to the next, where these are not all columns."""


class RowPanels(Cells):
    """The function that goes through cells: rows of a block are written in another form once, and panels multiply them.

    A form says how a row is written (`prepare`) and how rows are multiplied with a panel (`multiply`). With an
    expansion, blocks of many rows are on tiles of AMX: rows are rounded to bf16, and a part of a panel is expanded to
    bf16 once for all rows of a cell.
    """

    def __init__(self, problem: Block, at: Workspace, panel_bytes: int, expansion: Expansion | None = None) -> None:
        super().__init__(problem.shape, problem.epilogues)
        self.problem, self.at, self.panel_bytes = problem, at, panel_bytes
        self.corners: dict[str, Ptr] = {}
        """The cell's first row and column of its result, and of operands of the epilogue that are prefetched."""
        self.room = at.end
        """Bytes of the workspace."""
        self.on_tiles = None if expansion is None or not problem.on_tiles else _OnTiles.of(problem, at, expansion)
        self.tile_functions = [] if self.on_tiles is None else self.on_tiles.functions
        if self.on_tiles is not None:
            self.room = self.on_tiles.end

    @property
    def fetched(self) -> Sequence[str]:
        """None: an epilogue takes all rows of a block at once."""
        return ()

    @abstractmethod
    def prepare(self, x: Ptr, target: Ptr) -> None:
        """Write a row in its other form."""

    @abstractmethod
    def multiply(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """Multiply the rows of a cell with its panel."""

    def write(self) -> None:
        """All cells."""
        self.go_through(None if self.shape.groups is None else self.ptr_add(SCRATCH, 8))

    def rows_of(self, block: I64) -> tuple[I64, I64]:
        first = self.mul(block, self.problem.rows)
        return first, self.smin(self.problem.rows, self.sub(self.size("rows"), first))

    def finish(self, cell: Cell) -> None:
        tile = self.shape.tile
        with self.when(once_for(self, SCRATCH, 0, cell.number)):
            start = self.ptr_add(self.pointer("a"), cell.offsets["a"])
            self.prepare_rows(self.ptr_add(start, self.mul(cell.first, self.size("a_row"))), cell.count)
        b = self.ptr_add(self.pointer("b0"), self.mul(cell.packed, self.panel_bytes))
        accumulators, rows = (self.ptr_add(SCRATCH, at) for at in (self.at.sums, self.at.rows))
        self.prefetch_operands(cell)
        self.corners = {name: self.corner(name, cell) for name in ("c", *self.shape.fetched)}
        if cell.has_matrix is None:
            self.products(rows, b, accumulators, cell.count)
        else:
            with self.when(cell.has_matrix):
                self.products(rows, b, accumulators, cell.count)
            with self.unless(cell.has_matrix), self.loop(0, self.mul(cell.count, tile.columns)) as i:
                self.emit(f"store float 0.0, ptr {self.element(accumulators, 'float', i)}, align 4")
        words = self.ptr_add(SCRATCH, self.at.words)
        self.words(accumulators, cell, words)
        self.emit(f"call void {self.epilogue_of(cell.columns)}(ptr {words}, i64 0, i64 {cell.count}, ptr null)")

    def prepare_rows(self, start: Ptr, count: I64) -> None:
        """Write all rows of a block in the form that is multiplied."""

        def write(x: Ptr, row: I64) -> None:
            self.prepare(x, self.ptr_add(SCRATCH, self.add(self.mul(row, self.problem.pitch), self.at.rows)))

        if self.on_tiles is None:
            self.each_row(start, count, write)
            return
        rounded = self.on_tiles.rounded
        many = self.icmp("sge", count, AMX.least)
        with self.when(many):
            self.each_row(start, count, lambda x, row: self.round_row(rounded, x, row))
        with self.unless(many):
            self.each_row(start, count, write)

    def products(self, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """Multiply the rows of a cell with its panel, in the form that they were prepared in."""
        if self.on_tiles is None:
            self.multiply(rows, b, accumulators, count)
            return
        many = self.icmp("sge", count, AMX.least)
        with self.when(many):
            self._multiply_on_tiles(self.on_tiles, rows, b, accumulators, count)
        with self.unless(many):
            self.multiply(rows, b, accumulators, count)

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

    def in_tiles(self, tiles: Iterable[int], count: I64) -> Iterator[tuple[int, I64]]:
        """All rows, those of the largest register tile first: its rows, and the first of them."""
        done: Int = 0
        for rows in tiles:
            end = self.add(done, self.mul(self.udiv(self.sub(count, done), rows), rows))
            with self.loop(done, end, step=rows) as row:
                yield rows, row
            done = end

    def prefetch_rows(self, row: I64, count: int) -> None:
        """Prefetch what the epilogue reads and writes of some rows; they are too many for L1, and conflict there."""
        for name, corner in self.corners.items():
            for i in range(count):
                there = self.ptr_add(corner, self.mul(self.add(row, i), self.size(f"{name}_row")))
                self.prefetch(there, for_write=name == "c", level=2)

    # Rows in bf16, as tiles [row / 16][k / 32][16][32].

    @property
    def strip(self) -> int:
        """Bytes of 16 rows."""
        return whole_steps(self.problem.deep) // STEPS * TILE_BYTES

    def tile_row(self, row: Int) -> I64:
        """Bytes before a row."""
        return self.add(self.mul(self.udiv(row, ROWS), self.strip), self.mul(self.urem(row, ROWS), ROW_BYTES))

    def round_row(self, rounded: Signature, x: Ptr, row: I64) -> None:
        """Write a row of tiles."""
        target = self.ptr_add(SCRATCH, self.add(self.tile_row(row), self.at.rows))
        self.call(rounded, x, target, self.problem.deep // STEPS)

    def _multiply_on_tiles(self, on: _OnTiles, rows: Ptr, b: Ptr, accumulators: Ptr, count: I64) -> None:
        """All rows with the panel, KC steps along k at a time."""
        deep, expansion, weights = self.problem.deep, on.expansion, self.ptr_add(SCRATCH, on.expanded_at)
        tiles, columns = self.udiv(self.add(count, ROWS - 1), ROWS), self.shape.tile.columns
        with self.loop(0, deep, step=on.kc) as first:
            some = self.smin(on.kc, self.sub(deep, first))
            steps, piece = self.udiv(some, STEPS), self.udiv(first, expansion.steps)
            here = self.ptr_add(b, self.mul(piece, expansion.bytes))
            pieces = self.udiv(some, expansion.steps)
            x = self.ptr_add(rows, self.mul(self.udiv(first, STEPS), TILE_BYTES))
            ahead = self.ptr_add(here, self.mul(pieces, expansion.bytes))
            fresh, stride = self.icmp("eq", first, 0), self.shape.tile.row_bytes
            share = self.mul(self.mul(self.udiv(tiles, 2), steps), ROW_BYTES * on.lines)
            for number, column in enumerate(range(0, columns, expansion.columns)):
                packed = self.ptr_add(here, expansion.apart * column)
                self.call(on.expand, packed, weights, pieces, self.mul(steps, TILE_BYTES))
                y, soon = self.ptr_add(accumulators, 4 * column), self.ptr_add(ahead, self.mul(share, number))
                self.call(on.multiply, x, self.strip, weights, y, stride, tiles, steps, fresh, soon)


@dataclass(frozen=True, slots=True)
class _OnTiles:
    """How blocks of many rows are multiplied on tiles."""

    expansion: Expansion
    kc: int
    lines: int
    """Cache lines of packed weights that are prefetched for each step along k."""
    expanded_at: int
    """Offset of the expanded part of a panel."""
    functions: list[tuple[SharedFunction, Signature]]

    @staticmethod
    def of(problem: Block, at: Workspace, expansion: Expansion) -> _OnTiles:
        device, columns = problem.shape.tile.device, problem.shape.tile.columns
        emulated = not device.emits("amx_bf16")
        # What a pass of all rows reads ahead is about the part that follows.
        passes = AMX.rows // (2 * ROWS) * -(-columns // 32)
        lines = max(1, round(STEPS * expansion.bytes / expansion.steps / ROW_BYTES / passes))
        kc = part_on_tiles(device, problem.deep, expansion.columns, lcm(STEPS, expansion.steps))
        product = TileProduct(expansion.columns, lines, AMX.x_ahead, emulated=emulated)
        functions = [expansion.function(emulated=emulated), row_function(emulated=emulated), product_function(product)]
        return _OnTiles(expansion, kc, lines, _whole_lines(at.end), functions)

    @property
    def expand(self) -> Signature:
        return self.functions[0][1]

    @property
    def rounded(self) -> Signature:
        return self.functions[1][1]

    @property
    def multiply(self) -> Signature:
        return self.functions[2][1]

    @property
    def end(self) -> int:
        """Bytes of the workspace."""
        return self.expanded_at + bf16.itemsize * self.kc * self.expansion.columns


def _whole_lines(size: int) -> int:
    return -(-size // 64) * 64


def _known(size: Size) -> int:
    assert isinstance(size, int), "what is known before a run has known sizes"
    return size


__all__ = ["BOTH_TO_BF16", "Block", "Expansion", "RowPanelJob", "RowPanels", "Workspace", "equal_rows"]
