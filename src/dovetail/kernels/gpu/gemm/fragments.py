"""Matrices on their way from memory to tiles of shared memory, and from there to the registers of warps.

A tile has lines of 16-byte chunks. Eight lines of one column of chunks are in different banks: the chunks of a line are
swizzled, that is permuted by the number of the line, or lines are padded.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Sequence
from dataclasses import replace
from math import prod

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, i32, i64, u32
from dovetail.kernels.gpu.conv.pixels import Pixels
from dovetail.kernels.gpu.gemm.block_tile import CHUNK_BYTES, chunk_of
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    CopyAsync,
    Expr,
    Extent,
    Load,
    LoadMatrices,
    Loop,
    MultiplyMatrices,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    indices,
    mul,
)
from dovetail.kernels.matrix_instruction import LINE_BYTES, LinearLayout, MatrixInstruction, mma_of

LINES = 8
"""Of a matrix that lanes load together."""
GATHERED = 8
"""Elements that a thread gathers before it waits for the first; all of a stage take more registers than there are."""
COPIES_AT_ONCE = 4
"""Copies that a thread starts before it computes further addresses."""
LANE = ThreadIndex("lane")
THREAD = ThreadIndex("thread")


def divided(x: Expr, by: int) -> Expr:
    if isinstance(x, Extent) and isinstance(x.size, int):
        return Extent(x.size // by)
    return x if by == 1 else Call("div", (x, Extent(by)), i64)


def remainder(x: Expr, by: int) -> Expr:
    if isinstance(x, Extent) and isinstance(x.size, int):
        return Extent(x.size % by)
    return ZERO if by == 1 else Call("rem", (x, Extent(by)), i64)


def less(x: Expr, y: Expr) -> Expr:
    return Call("less", (x, y), bool_)


def both(*conditions: Expr) -> Expr:
    every = conditions[0]
    for condition in conditions[1:]:
        every = Call("bit_and", (every, condition), bool_)
    return every


@dataclass(frozen=True, slots=True)
class SharedTile:
    """A tile of elements in shared memory: lines of chunks of 16 bytes, in panels, once for each stage."""

    name: str
    dtype: DType
    lines: int
    chunks: int
    stages: int
    offset: int = 0
    """Bytes from the start of the allocation."""

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return chunk_of(self.dtype)

    @property
    def count(self) -> int:
        """Elements of all stages."""
        return self.stages * self.lines * self.chunks * self.chunk

    @property
    def width(self) -> int:
        """Chunks of a line: a power of two. Further chunks are in panels of their own, each with all lines."""
        return min(LINE_BYTES // CHUNK_BYTES, self.chunks & -self.chunks)

    @property
    def panel_bytes(self) -> int:
        return self.lines * self.width * CHUNK_BYTES

    def place(self, stage: Expr, line: Expr, chunk: Expr, element: Expr = ZERO) -> tuple[Tensor, tuple[Expr, ...]]:
        """Where an element is."""
        item = self.dtype.itemsize
        panels = self.chunks // self.width
        line_bytes = self.width * CHUNK_BYTES
        strides = (panels * self.panel_bytes, self.panel_bytes, line_bytes, CHUNK_BYTES, item)
        panel, within = (ZERO, chunk) if panels == 1 else (divided(chunk, self.width), remainder(chunk, self.width))
        turned = Call("bit_xor", (within, remainder(line, self.width)), i64)
        tensor = Tensor(self.name, self.dtype, strides, self.offset, space="shared")
        return tensor, (stage, panel, line, turned, element)


@dataclass(frozen=True, slots=True)
class LineTile:
    """A tile of elements in shared memory whose lines are neighbouring bytes, so that one copy fills each.

    A chunk of padding after each line spreads the chunks of neighbouring lines over all banks.
    """

    name: str
    dtype: DType
    lines: int
    length: int
    """Elements of a line."""
    stages: int = 1
    """Times that there is room for all lines."""

    @property
    def chunk(self) -> int:
        """Elements of a chunk."""
        return chunk_of(self.dtype)

    @property
    def pitch(self) -> int:
        """Elements from one line to the next."""
        return self.length + self.chunk

    @property
    def count(self) -> int:
        return self.stages * self.lines * self.pitch

    def place(self, stage: Expr, line: Expr, chunk: Expr) -> tuple[Tensor, tuple[Expr, ...]]:
        """Where a chunk is."""
        item = self.dtype.itemsize
        strides = (self.lines * self.pitch * item, self.pitch * item, CHUNK_BYTES, item)
        return Tensor(self.name, self.dtype, strides, space="shared"), (stage, line, chunk, ZERO)


@dataclass(frozen=True, slots=True)
class Coordinate:
    """An index along an axis of a tensor that may be outside of it."""

    index: Expr
    size: Size | None = None
    """Of the axis; None where the index is always on it."""
    holds: Expr | None = None
    """What else must hold for an element to be there; None where nothing must."""

    @property
    def conditions(self) -> list[Expr]:
        conditions = [] if self.size is None else [less(Extent(-1), self.index), less(self.index, Extent(self.size))]
        return conditions if self.holds is None else [*conditions, self.holds]

    @property
    def clamped(self) -> Expr:
        """An index that is on the axis."""
        if self.size is None:
            return self.index
        return Call("maximum", (ZERO, clamped(self.index, self.size)), i64)


@dataclass(frozen=True, slots=True)
class Gather:
    """A factor whose elements are found by an index expression: its rows and its k are numbers of several axes."""

    row_axes: tuple[Size, ...]
    k_axes: tuple[Size, ...]
    see: Callable[[tuple[Expr, ...], tuple[Expr, ...]], tuple[Coordinate, ...]]
    """From an index along row axes and one along k axes to one of the tensor, after its leading axes."""
    is_dense: bool = False
    """Whether 8 elements of k from a multiple of 8 on are 16 aligned bytes, there or not there together."""
    pixels: Pixels | None = None
    """What it gathers, where the TMA can copy it."""

    def place(self, row: Expr) -> tuple[Expr, ...]:
        """The index of a row along row axes."""
        return _divided(self.row_axes, row)


L2_LINE = 128
"""Bytes."""


@dataclass(frozen=True, slots=True)
class Factor:
    """One side of a product in memory of the device: rows (of the left, columns of the right) along k."""

    tensor: Tensor
    """Strides of leading axes, of rows and of k; those that a gather gives indices for, where there is one."""
    lead: tuple[Expr, ...]
    rows: Size
    depth: Size
    read: Callable[[tuple[Expr, ...]], Expr] | None = None
    """An element where it is computed from the tensor; None where it is loaded."""
    gather: Gather | None = None
    """How elements are found; None where rows and k have strides."""
    ahead: bool = False
    """Whether a tile may begin after the last row: the tile after the last one is copied too, and is empty."""

    @property
    def row_stride(self) -> Size:
        return self.tensor.strides[-2]

    @property
    def k_stride(self) -> Size:
        return self.tensor.strides[-1]

    def dense_axis(self, alignment: int, dtypes: Container[DType] = (f16, bf16)) -> str:
        """The axis along which 16 bytes can be copied at once: "k", "row", or "" where there is none."""
        item = self.tensor.dtype.itemsize
        if self.read is not None or self.tensor.dtype not in dtypes or alignment % 16:
            return ""
        if self.gather is not None:
            return "k" if self.gather.is_dense else ""
        others = (self.tensor.offset, *self.tensor.strides[:-2])
        for axis, dense, along, size in (
            ("k", self.k_stride, self.row_stride, self.depth),
            ("row", self.row_stride, self.k_stride, self.rows),
        ):
            aligned = is_multiple(size, 16 // item) and all(is_multiple(s, 16) for s in (along, *others))
            if dense == item and aligned:
                return axis
        return ""

    @property
    def runs_along_k(self) -> bool:
        """Whether neighbours along k are neighbours in memory."""
        return self.k_stride == self.tensor.dtype.itemsize if self.gather is None else self.gather.is_dense

    @property
    def straddles(self) -> bool:
        """Whether lines begin in the middle of a line of L2."""
        item = self.tensor.dtype.itemsize
        return any([isinstance(s, int) and s > item and s % L2_LINE != 0 for s in self.tensor.strides[-2:]])

    def _coordinates(self, row: Expr, k: Expr) -> tuple[Coordinate, ...]:
        if self.gather is None:
            return Coordinate(row), Coordinate(k)
        return self.gather.see(self.gather.place(row), _divided(self.gather.k_axes, k))

    def source(self, row: Expr, k: Expr, rows: int) -> tuple[tuple[Expr, ...], Expr]:
        """The index of an element and whether it is there; tiles of `rows` rows may fit so that every row is there."""
        coordinates = self._coordinates(row, k)
        inside = [] if is_multiple(self.rows, rows) and not self.ahead else [less(row, Extent(self.rows))]
        inside += [less(k, Extent(self.depth)), *(c for one in coordinates for c in one.conditions)]
        return (*self.lead, *(one.index for one in coordinates)), both(*inside)

    def element(self, row: Expr, k: Expr) -> Expr:
        """An element, and 0 outside; nothing is read there."""
        inside = both(less(row, Extent(self.rows)), less(k, Extent(self.depth)))
        if self.gather is not None:
            return self._gathered(row, k, inside)
        at = (*self.lead, clamped(row, self.rows), clamped(k, self.depth))
        dtype = self.tensor.dtype
        element = Load(self.tensor, at) if self.read is None else self.read(at)
        return Call("where", (inside, element, Number(0, element.dtype)), element.dtype if self.read else dtype)

    def _gathered(self, row: Expr, k: Expr, inside: Expr) -> Expr:
        """An element that is found by an index expression; the first of the tensor is read where there is none."""
        seen = self._coordinates(row, k)
        inside = both(inside, *(c for one in seen for c in one.conditions))
        count = len(self.lead)
        bytes_to = ZERO
        for stride, one in zip(self.tensor.strides[count:], seen, strict=True):
            bytes_to = add(bytes_to, mul(one.index, Extent(stride)))
        there = Call("where", (inside, bytes_to, ZERO), i64)
        flat = replace(self.tensor, strides=(*self.tensor.strides[:count], 1))
        return Call("where", (inside, Load(flat, (*self.lead, there)), Number(0, flat.dtype)), flat.dtype)


def _divided(shape: tuple[Size, ...], flat: Expr) -> tuple[Expr, ...]:
    """The index along each axis of the element with a number; by 32-bit divisions where sizes are known and fit."""
    known = [size for size in shape if isinstance(size, int)]
    if len(known) < len(shape) or prod(known) >= 1 << 31:
        return indices(shape, flat)
    index: list[Expr] = []
    left: Expr = Call("cast", (flat,), u32)
    for size in reversed(known[1:]):
        index.append(ZERO if size == 1 else Call("cast", (Call("rem", (left, Number(size, u32)), u32),), i64))
        left = left if size == 1 else Call("div", (left, Number(size, u32)), u32)
    return (*([Call("cast", (left,), i64)] if shape else []), *reversed(index))


def is_multiple(size: Size, of: int) -> bool:
    """Whether a size is known to be a multiple of a number."""
    return isinstance(size, int) and size % of == 0


def clamped(index: Expr, size: Size) -> Expr:
    """An index that is not beyond an axis."""
    return Call("minimum", (index, Extent(size - 1)), i64)


def shared_by(
    threads: int,
    count: int,
    body: Callable[[Expr], Sequence[Statement]],
    most: int | None = None,
    index: Expr = THREAD,
) -> list[Statement]:
    """Iterations that the threads of a block share, unrolled: all of a thread's, or `most` of them at a time."""
    turns = -(-count // threads)
    at_once = turns if most is None or turns % most else most
    turn: Expr = Name("turn") if at_once == turns else add(mul(Name("turns"), Extent(at_once)), Name("turn"))
    own = add(mul(turn, Extent(threads)), index)
    inner = tuple(body(Name("own")))
    guarded = inner if count % threads == 0 else (When(less(Name("own"), Extent(count)), inner),)
    loop = Loop("turn", Extent(at_once), (Set("own", own), *guarded), kind="unrolled")
    return [loop] if at_once == turns else [Loop("turns", Extent(turns // at_once), (loop,), rolled=True)]


def copied(
    tile: SharedTile,
    factor: Factor,
    axis: str,
    first: Expr,
    k: Expr,
    stage: Expr,
    threads: int,
    at: int,
    of: int,
    index: Expr = THREAD,
    *,
    in_columns: bool = False,
    there: Expr | None = None,
) -> list[Statement]:
    """Start the copies of a stage: rows from `first` on, elements of k from `k` on.

    A tile may hold several factors in turn, eight rows of each: this is number `at` of `of`. With `in_columns` lines
    of a thread are a constant apart where that is possible, so that one address and constants give all of them;
    `there`, an i32, is then the number of lines that are there, and all of each.
    """

    def line_and_chunk(own: Expr, chunks: int) -> tuple[Expr, Expr]:
        if not in_columns or threads % chunks or tile.lines // of * chunks % threads:
            return divided(own, chunks), remainder(own, chunks)
        apart = mul(Name("turn"), Extent(threads // chunks))
        return add(apart, divided(index, chunks)), remainder(index, chunks)

    def is_there(inside: Expr, chunks: int) -> Expr:
        if there is None or threads % chunks or tile.lines // of * chunks % threads:
            return inside
        # Constants are compared with one number.
        left = Call("sub", (there, Call("cast", (divided(index, chunks),), i32)), i32)
        return less(Call("cast", (mul(Name("turn"), Extent(threads // chunks)),), i32), left)

    def by_k(own: Expr) -> list[Statement]:
        row, chunk = line_and_chunk(own, tile.chunks)
        column = add(k, mul(chunk, Extent(tile.chunk)))
        source, inside = factor.source(add(first, row), column, tile.lines // of)
        target, place = tile.place(stage, spread(row, at, of), chunk)
        return [CopyAsync(target, place, factor.tensor, source, is_there(inside, tile.chunks))]

    def by_row(own: Expr) -> list[Statement]:
        per = tile.chunks // of
        line, chunk = line_and_chunk(own, per)
        source, inside = factor.source(add(first, mul(chunk, Extent(tile.chunk))), add(k, line), per * tile.chunk)
        target, place = tile.place(stage, line, add(mul(chunk, Extent(of)), Extent(at)))
        return [CopyAsync(target, place, factor.tensor, source, is_there(inside, per))]

    if axis == "k":
        return shared_by(threads, tile.lines // of * tile.chunks, by_k, index=index)
    return shared_by(threads, tile.lines * (tile.chunks // of), by_row, index=index)


def rolled(copies: Statement, at_once: int = COPIES_AT_ONCE) -> Statement:
    """Copies that a thread starts, some at a time where they are many: addresses of all of them take its registers."""
    if not isinstance(copies, Loop) or not isinstance(copies.extent, Extent) or not isinstance(copies.extent.size, int):
        return copies
    turns = copies.extent.size
    if turns <= 2 * at_once or turns % at_once:
        return copies
    turn = Set(copies.variable, add(mul(Name("turns"), Extent(at_once)), Name("at_once")))
    some = unrolled("at_once", at_once, turn, *copies.body)
    return Loop("turns", Extent(turns // at_once), (some,), rolled=True)


def stored(tile: SharedTile, factor: Factor, first: Expr, k: Expr, threads: int, at: int, of: int) -> list[Statement]:
    """Load a stage element by element, whatever the strides are, and store it with lines along k."""

    def one(own: Expr) -> list[Statement]:
        depth = tile.chunks * tile.chunk
        by_row = factor.runs_along_k
        rows = tile.lines // of
        row, place = (
            (divided(own, depth), remainder(own, depth)) if by_row else (remainder(own, rows), divided(own, rows))
        )
        value = factor.element(add(first, row), add(k, place))
        cast = value if value.dtype is tile.dtype else Call("cast", (value,), tile.dtype)
        target, there = tile.place(ZERO, spread(row, at, of), divided(place, tile.chunk), remainder(place, tile.chunk))
        return [Store(target, there, cast)]

    most = None if factor.gather is None else GATHERED
    return shared_by(threads, tile.lines // of * tile.chunks * tile.chunk, one, most)


def spread(row: Expr, at: int, of: int) -> Expr:
    """The line of a row where several factors take turns, eight rows each."""
    if of == 1:
        return row
    block = add(mul(divided(row, CHUNK), Extent(CHUNK * of)), Extent(at * CHUNK))
    return add(block, remainder(row, CHUNK))


def private(name: str, dtype: DType, *counts: int) -> Tensor:
    """A private tensor, dense."""
    strides: list[Size] = []
    step = dtype.itemsize
    for count in reversed(counts):
        strides.append(step)
        step *= count
    return Tensor(name, dtype, tuple(reversed(strides)), space="private")


def load_left(
    target: Tensor, at: tuple[Expr, ...], tile: SharedTile | LineTile, axis: str, stage: Expr, row: Expr, k: Expr
) -> LoadMatrices:
    """A fragment of the left factor, 16 rows of 32 bytes; `row` and `k` are multiples of as many."""
    down, along = add(remainder(LANE, LINES), mul(remainder(divided(LANE, 8), 2), Extent(8))), divided(LANE, 16)
    if axis == "row":
        line = add(add(k, remainder(LANE, LINES)), mul(divided(LANE, 16), Extent(8)))
        source, place = tile.place(stage, line, add(divided(row, tile.chunk), remainder(divided(LANE, 8), 2)))
        return LoadMatrices(target, at, source, place, transposed=True)
    source, place = tile.place(stage, add(row, down), add(divided(k, tile.chunk), along))
    return LoadMatrices(target, at, source, place)


def load_right(
    target: Tensor, at: tuple[Expr, ...], tile: SharedTile | LineTile, axis: str, stage: Expr, column: Expr, k: Expr
) -> LoadMatrices:
    """Two fragments of the right factor, of 8 columns and 32 bytes each, side by side; `column` is a multiple of 16.

    Where the tile has columns for one of them alone, the other repeats its last ones.
    """
    half, side = remainder(divided(LANE, 8), 2), divided(LANE, 16)
    if axis == "row":
        line = add(add(k, remainder(LANE, LINES)), mul(half, Extent(8)))
        source, place = tile.place(stage, line, add(divided(column, tile.chunk), side))
        return LoadMatrices(target, at, source, place, transposed=True)
    line = add(add(column, remainder(LANE, LINES)), mul(side, Extent(8)))
    line = line if is_multiple(tile.lines, 16) else clamped(line, tile.lines)
    source, place = tile.place(stage, line, add(divided(k, tile.chunk), half))
    return LoadMatrices(target, at, source, place)


def multiplied(
    sums: Tensor,
    sums_at: tuple[Expr, ...],
    left: Tensor,
    left_at: tuple[Expr, ...],
    right: Tensor,
    right_at: Expr,
    by: MatrixInstruction | None = None,
) -> MultiplyMatrices:
    """One product, by mma.sync where nothing else is said; the right fragments are numbered."""
    by = by or mma_of(left.dtype)
    assert by.right is not None, "it multiplies what is in registers"
    return MultiplyMatrices(sums, sums_at, left, left_at, right, (mul(right_at, Extent(by.right.count)),), by)


def along(layout: LinearLayout, axis: int, lane: Expr = LANE) -> Expr:
    """How far a lane's elements are along an axis of a matrix, beyond what its registers add."""
    distance: Expr = ZERO
    for first, count, by in layout.runs(axis):
        bits = divided(lane, 1 << first)
        is_last = first + count == len(layout.lanes)
        distance = add(distance, mul(bits if is_last else remainder(bits, 1 << count), Extent(by)))
    return distance


def load_elements(
    target: Tensor,
    at: tuple[Expr, ...],
    tile: SharedTile,
    axis: str,
    stage: Expr,
    layout: LinearLayout,
    first: tuple[Expr, Expr],
    *,
    k_axis: int,
) -> list[Statement]:
    """A fragment of a factor element by element, as a layout says; neighbours are loaded together.

    `first` is where the matrix begins, along both of its axes; `k_axis` says which of them is k.
    """
    statements: list[Statement] = []
    own = [add(first[a], along(layout, a)) for a in (0, 1)]
    for e in range(layout.count):
        moved = layout.place(0, e)
        k, row = (add(own[a], Extent(moved[a])) for a in (k_axis, 1 - k_axis))
        line, place = (k, row) if axis == "row" else (row, k)
        source, there = tile.place(stage, line, divided(place, tile.chunk), remainder(place, tile.chunk))
        statements.append(Store(target, (*at, Extent(e)), Load(source, there)))
    return statements


def plus(x: Expr, y: Expr) -> Expr:
    return Call("add", (x, y), f32)


def in_pairs(every: Sequence[Expr]) -> Expr:
    """The sum of many, in as few steps after each other as there can be."""
    while len(every) > 1:
        pairs = zip(every[::2], every[1::2], strict=False)
        every = [*[plus(x, y) for x, y in pairs], *every[len(every) & ~1 :]]
    return every[0]


def unrolled(variable: str, count: int, *body: Statement) -> Loop:
    return Loop(variable, Extent(count), body, kind="unrolled")


def zeroed(sums: Tensor, count: int) -> Loop:
    flat = Tensor(sums.pointer, sums.dtype, (sums.dtype.itemsize,), space="private")
    return unrolled("z", count, Store(flat, (Name("z"),), Number(0, sums.dtype)))


__all__ = [
    "LANE", "LINES", "THREAD", "Coordinate", "Factor", "Gather", "LineTile", "SharedTile", "along", "both", "copied",
    "divided", "in_pairs", "is_multiple", "less", "load_elements", "load_left", "load_right", "multiplied", "plus",
    "private", "remainder", "rolled", "shared_by", "spread", "stored", "unrolled", "zeroed",
]  # fmt: skip
