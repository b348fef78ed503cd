"""Sums of products without tensor cores (SIMT, as of SGEMM): each thread keeps a rectangle of sums in registers.

Factors go through shared memory in stages, whose lines are along rows. Copies of the stages to come are in flight while
one is multiplied: 16 bytes at once where neighbours in memory are rows, else element by element. Elements that must be
cast or computed first are loaded into registers meanwhile.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, floordiv
from dovetail.ir.dtype import DType, bool_, f32, f64, i64
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.blocks.packed_blocks import BlockFactor, NamedBlock
from dovetail.kernels.gpu.gemm.fma_tile_choice import (
    GROUP,
    LANES_ACROSS,
    MOST_RESIDENT,
    FmaShape,
    fma_tile_of,
)
from dovetail.kernels.gpu.gemm.fragments import (
    LANE,
    Factor,
    divided,
    is_multiple,
    private,
    remainder,
    shared_by,
    zeroed,
)
from dovetail.kernels.gpu.gemm.stream_k import FIRST_ROUND, ROUNDS, Spans
from dovetail.kernels.gpu.gemm.tiled import Element, Tiled
from dovetail.kernels.gpu.pipeline import CopyGroups, HeldOperands, Pipeline, Stores, pipeline
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Barrier,
    Call,
    CopyAsync,
    Expr,
    Extent,
    Load,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    mul,
)
from dovetail.kernels.request import LAUNCH, Request

PIECE = 16
"""Elements of a block that a thread expands at a time: in all formats, codes with one scale are as many or more."""
COPY_BYTES = 16
COPIED_ITEMS = (4, 8)
"""Bytes of an element that can be copied by itself."""


@dataclass(frozen=True, slots=True)
class _Side:
    """One factor in shared memory: its lines, and which of their elements the lanes have."""

    name: str
    factor: Factor | BlockFactor
    copied: int
    """Elements that are copied at once; 0 where threads load them."""
    first: Expr
    """The first row of the tile."""
    rows: int
    lanes: int
    """Lanes of a warp with different rows."""
    lane: Expr
    """Which of them this lane is."""
    warp: Expr
    """The first row of this warp."""
    each: int
    """Rows of a thread."""

    def place(self, number: int) -> Expr:
        """A row of this thread in the tile: some neighbours, and as many further on."""
        group, within = divmod(number, GROUP)
        return add(add(self.warp, mul(self.lane, Extent(GROUP))), Extent(group * self.lanes * GROUP + within))

    @property
    def line(self) -> int:
        """Elements of a line. Padding spreads what comes along k over banks."""
        return self.rows + GROUP


@dataclass(frozen=True, slots=True)
class FmaTile:
    """A tile of sums without tensor cores."""

    shape: FmaShape
    dtype: DType
    """Of sums, to which elements are cast where they are loaded one by one."""
    left: Factor
    rights: Sequence[Factor | BlockFactor]
    axes: Sequence[str]
    """For each factor the axis along which 16 bytes are neighbours: "k", "row", or "" for neither."""
    depth: Size
    stages: int = 2
    """Of factors that are copied."""
    parts: int = 1
    """Into how many parts k goes; `part` says which one a block has."""
    spans: Spans | None = None
    """How blocks share the rounds of all tiles; None where a block has all of a tile, or of a part of it."""

    @staticmethod
    def chosen(
        left: Factor,
        rights: Sequence[Factor],
        axes: Sequence[str],
        batch: Size,
        dtype: DType,
        device: GpuDevice,
        request: Request = LAUNCH,
    ) -> tuple[Tiled, int]:
        """What a block does with the tile that has the lowest estimate, and the parts of k."""
        tile, cycles = FmaTile.best(left, rights, axes, batch, dtype, device, request)
        return tile.tiled(device, cycles), tile.parts

    @staticmethod
    def best(
        left: Factor,
        rights: Sequence[Factor],
        axes: Sequence[str],
        batch: Size,
        dtype: DType,
        device: GpuDevice,
        request: Request = LAUNCH,
    ) -> tuple[FmaTile, float]:
        """The tile that has the lowest estimate, in cycles; the axes of all factors."""
        streams = len(rights)
        choice = fma_tile_of(batch, left.rows, rights[0].rows, left.depth, streams, dtype, device, request)
        stages = choice.shape.stages(streams, dtype, device)
        tile = FmaTile(choice.shape, dtype, left, rights, axes, left.depth, stages, choice.parts, choice.spans)
        return tile, choice.cycles

    @property
    def sides(self) -> list[_Side]:
        """The left factor and then those of all streams."""
        shape, warp = self.shape, ThreadIndex("warp")
        down = mul(divided(warp, shape.warps_across), Extent(shape.warp_rows))
        across = mul(remainder(warp, shape.warps_across), Extent(shape.warp_columns))
        # Loads of 16 bytes are twice as fast where pairs of lanes have one address: rows differ by bits 1 and 4 of a
        # lane, columns by bits 0, 2 and 3.
        low, high = remainder(LANE, 2), divided(LANE, 16)
        down_lane = add(remainder(divided(LANE, 2), 2), mul(high, Extent(2)))
        across_lane = add(low, mul(remainder(divided(LANE, 4), 4), Extent(2)))
        rows = (shape.rows, shape.lanes_down, down_lane, down, shape.rows_each)
        columns = (shape.columns, LANES_ACROSS, across_lane, across, shape.columns_each)
        left, *rights = [self._copied(*pair) for pair in zip((self.left, *self.rights), self.axes, strict=True)]
        return [
            _Side("a", self.left, left, Name("top"), *rows),
            *[
                _Side(f"b{s}", right, copied, Name("side"), *columns)
                for s, (right, copied) in enumerate(zip(self.rights, rights, strict=True))
            ],
        ]

    def _copied(self, factor: Factor | BlockFactor, axis: str) -> int:
        """Elements of a factor that are copied at once; 0 where they must be loaded, to be cast or computed."""
        item = self.dtype.itemsize
        if isinstance(factor, BlockFactor) or factor.tensor.dtype is not self.dtype or factor.read is not None:
            return 0
        return COPY_BYTES // item if axis == "row" else int(item in COPIED_ITEMS)

    @property
    def _expands(self) -> bool:
        """Whether a factor is in blocks, which threads expand in place."""
        return any([isinstance(right, BlockFactor) for right in self.rights])

    @property
    def _has_copies(self) -> bool:
        return any([side.copied for side in self.sides])

    @property
    def _ring(self) -> int:
        """Stages in shared memory: loads of one need two, so that no thread waits before it stores."""
        return 1 if self._expands else self.stages if self._has_copies else 2

    @property
    def sums(self) -> Tensor:
        return private("sums", self.dtype, len(self.rights), self.shape.rows_each, self.shape.columns_each)

    def _shared(self, side: _Side) -> Tensor:
        """Stages, elements of k, rows."""
        item = self.dtype.itemsize
        pitch = side.line * item
        return Tensor(f"{side.name}_tile", self.dtype, (self.shape.depth * pitch, pitch, item), space="shared")

    def allocations(self) -> list[Alloc]:
        shape, allocations = self.shape, list[Alloc]()
        for side in self.sides:
            allocations.append(Alloc(f"{side.name}_tile", self.dtype, self._ring * shape.depth * side.line, "shared"))
            allocations.append(Alloc(f"{side.name}_line", self.dtype, 2 * side.each, "private"))
            if not side.copied and self._ring > 1:
                count = side.rows * shape.depth // shape.threads
                allocations.append(Alloc(f"{side.name}_next", self.dtype, count, "private"))
        count = len(self.rights) * shape.rows_each * shape.columns_each
        return [*allocations, Alloc("sums", self.dtype, count, "private")]

    def tiled(self, device: GpuDevice, cycles: float = 0.0) -> Tiled:
        """What a block does for a tile."""
        shape, streams = self.shape, len(self.rights)
        return Tiled(
            shape.rows,
            shape.columns,
            shape.threads,
            self.body(),
            self.elements(),
            self.allocations(),
            resident=min(MOST_RESIDENT, shape.resident(streams, self.dtype, device)),
            vector=GROUP,
            cycles=cycles,
            is_spread=True,
            spans=self.spans,
        )

    def body(self) -> list[Statement]:
        rounds = floordiv(self.depth + (self.shape.depth * self.parts - 1), self.shape.depth * self.parts)
        shape = self.shape
        statements: list[Statement] = [zeroed(self.sums, len(self.rights) * shape.rows_each * shape.columns_each)]
        statements += [] if self.parts == 1 else [Set(FIRST_ROUND.name, mul(Name("part"), Extent(rounds)))]
        return [*statements, *self._steps(Extent(rounds) if self.spans is None else ROUNDS).all(), Barrier()]

    def _steps(self, rounds: Expr) -> Pipeline:
        """Copies for the stages to come and loads for the next one are in flight while one is multiplied."""
        if self._expands:
            return pipeline(1, rounds, self._expanded_or_stored, self._products, Stores())
        copied = [side for side in self.sides if side.copied]
        loaded = [side for side in self.sides if not side.copied]

        def copies(number: Expr, stage: Expr) -> list[Statement]:
            return [s for side in copied for s in self._copies(side, number, stage)]

        def loads(number: Expr) -> list[Statement]:
            return [s for side in loaded for s in self._loaded(side, number)]

        def stores(number: Expr, stage: Expr) -> list[Statement]:
            return [s for side in loaded for s in self._kept(side, stage)]

        held = HeldOperands(loads, stores) if loaded else None
        by = CopyGroups(starts_rolled=True) if copied else Stores()
        return pipeline(self._ring, rounds, copies, self._products, by, held=held, is_rolled=True)

    def _k(self, number: Expr) -> Expr:
        """The first element of k in a round of this block."""
        is_whole = self.parts == 1 and self.spans is None
        return mul(number if is_whole else add(FIRST_ROUND, number), Extent(self.shape.depth))

    def _copies(self, side: _Side, number: Expr, stage: Expr) -> list[Statement]:
        """Start the copies of a stage."""
        factor, wide = side.factor, side.copied
        assert isinstance(factor, Factor), "blocks are expanded"

        def one(own: Expr) -> list[Statement]:
            row, k = self._own(side, own)
            source, inside = factor.source(add(side.first, row), add(self._k(number), k), side.rows)
            nbytes = wide * self.dtype.itemsize
            return [CopyAsync(self._shared(side), (stage, k, row), factor.tensor, source, inside, nbytes)]

        return shared_by(self.shape.threads, side.rows * self.shape.depth // wide, one)

    def _own(self, side: _Side, own: Expr) -> tuple[Expr, Expr]:
        """The row and k of what a thread copies or loads: neighbours in memory go to neighbours."""
        depth, wide = self.shape.depth, max(1, side.copied)
        if isinstance(side.factor, Factor) and side.factor.runs_along_k and wide == 1:
            return divided(own, depth), remainder(own, depth)
        return mul(remainder(own, side.rows // wide), Extent(wide)), divided(own, side.rows // wide)

    def _element(self, side: _Side, own: Expr, number: Expr) -> Expr:
        assert isinstance(side.factor, Factor), "blocks are expanded"
        row, k = self._own(side, own)
        return cast_to(side.factor.element(add(side.first, row), add(self._k(number), k)), self.dtype)

    def _shared_by(self, side: _Side, each: Statement) -> list[Statement]:
        return shared_by(self.shape.threads, side.rows * self.shape.depth, lambda _: [each])

    def _loaded(self, side: _Side, number: Expr) -> list[Statement]:
        """Load the elements of a stage into registers."""
        kept = private(f"{side.name}_next", self.dtype, 1)
        return self._shared_by(side, Store(kept, (Name("turn"),), self._element(side, Name("own"), number)))

    def _kept(self, side: _Side, stage: Expr) -> list[Statement]:
        """Store what was loaded as a stage."""
        row, k = self._own(side, Name("own"))
        kept = Load(private(f"{side.name}_next", self.dtype, 1), (Name("turn"),))
        return self._shared_by(side, Store(self._shared(side), (stage, k, row), kept))

    def _expanded_or_stored(self, number: Expr, stage: Expr) -> list[Statement]:
        """All factors of a step."""
        statements: list[Statement] = []
        for side in self.sides:
            if isinstance(side.factor, BlockFactor):
                statements += self._expanded(side, side.factor, number)
                continue
            row, k = self._own(side, Name("own"))
            element = self._element(side, Name("own"), number)
            statements += self._shared_by(side, Store(self._shared(side), (stage, k, row), element))
        return statements

    def _expanded(self, side: _Side, factor: BlockFactor, step: Expr) -> list[Statement]:
        """Columns in blocks as floats: each thread has half of a column's k, with code of its own for each place."""
        threads, columns = self.shape.threads, self.shape.columns
        assert threads == 2 * columns and self.shape.depth == 2 * PIECE, "two threads share a column"
        pieces = factor.pack.format.elements // PIECE
        column, half = remainder(ThreadIndex("thread"), columns), divided(ThreadIndex("thread"), columns)
        at = add(mul(step, Extent(2)), half)
        there = add(Name("side"), column)
        statements: list[Statement] = [Set("piece", remainder(at, pieces)), Set("block", divided(at, pieces))]
        if not is_multiple(factor.columns, columns):
            there = Call("minimum", (there, Extent(factor.columns - 1)), i64)
        for piece in range(pieces):
            read = NamedBlock(factor.pack, "word")
            each = [read.element(piece * PIECE + number) for number in range(PIECE)]
            stores: list[Statement] = [Set("scale", each[0].scale)]
            stores += [] if each[0].low is None else [Set("low", each[0].low)]
            for number, one in enumerate(each):
                line = add(mul(half, Extent(PIECE)), Extent(number))
                stores.append(Store(self._shared(side), (ZERO, line, column), one.scaled("scale", "low")))
            body = (*factor.words(Name("block"), there, read.used, "word"), *stores)
            statements.append(When(Call("equal", (Name("piece"), Extent(piece)), bool_), body))
        return statements

    def _products(self, number: Expr, stage: Expr) -> list[Statement]:
        """All products of a stage. What the next element of k needs is read before the products of one."""
        statements = self._read(stage, 0)
        for k in range(self.shape.depth):
            statements += self._read(stage, k + 1) if k + 1 < self.shape.depth else []
            statements += [s for number in range(len(self.rights)) for s in self._added(number, k)]
        return statements

    def _added(self, stream: int, k: int) -> list[Statement]:
        """The products of an element of k, back and forth along the side with fewer sums of a thread.

        In this order, with sums that no vector binds to neighbouring registers (`TileWriter._apart`), the assembler
        finds registers with few bank conflicts: one product in ten reads two of one bank, row by row one in three.
        """
        a, b = self.sides[0], self.sides[1 + stream]
        outer, inner = (a, b) if b.each < a.each else (b, a)
        statements: list[Statement] = []
        for n in range(outer.each):
            for m in range(inner.each)[:: -1 if n % 2 else 1]:
                row, column = (n, m) if outer is a else (m, n)
                place = Extent(stream), Extent(row), Extent(column)
                product = Call("mul", (self._held(a, row, k), self._held(b, column, k)), self.dtype)
                statements.append(Store(self.sums, place, Call("add", (Load(self.sums, place), product), self.dtype)))
        return statements

    def _read(self, stage: Expr, k: int) -> list[Statement]:
        """Read the rows of a thread at an element of k."""
        statements: list[Statement] = []
        for side in self.sides:
            for number in range(side.each):
                held = self._held(side, number, k)
                value = Load(self._shared(side), (stage, Extent(k), side.place(number)))
                statements.append(Store(held.tensor, held.at, value))
        return statements

    def _held(self, side: _Side, number: int, k: int) -> Load:
        """What a thread has read of a row, in turn in one of two places."""
        return Load(private(f"{side.name}_line", self.dtype, 2, side.each), (Extent(k % 2), Extent(number)))

    def elements(self) -> list[Element]:
        """The row and column of each sum of a thread, and the sums of all streams there."""
        a, b, *_ = self.sides
        elements: list[Element] = []
        for i in range(a.each):
            for j in range(b.each):
                sums = tuple([Load(self.sums, (Extent(s), Extent(i), Extent(j))) for s in range(len(self.rights))])
                elements.append(Element(a.place(i), b.place(j), sums))
        return elements


def dtype_of_sums(dtype: DType) -> DType:
    """What products of a dtype are added up in."""
    return f32 if dtype.is_float and dtype is not f64 else dtype


__all__ = ["FmaTile", "dtype_of_sums"]
