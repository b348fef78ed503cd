"""A kernel that computes tiles of sums and writes results: blocks, shared memory between sums and stores, bounds."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import replace

from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import DType, bool_, f32
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.gemm.block_tile import CHUNK_BYTES, dynamic_bytes, spread_bytes
from dovetail.kernels.gpu.gemm.fragments import Factor, both, divided, in_pairs, is_multiple, less, remainder, spread
from dovetail.kernels.gpu.gemm.head_rows import STATUS, HeadResults, Heads
from dovetail.kernels.gpu.gemm.narrow_results import LateResults, NarrowResults
from dovetail.kernels.gpu.gemm.scaled_rows import ROWS, SQUARES, WrittenSquares
from dovetail.kernels.gpu.gemm.stream_k import PARTIAL, Spans
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.gemm.tiled import Element, Producer, Tiled
from dovetail.kernels.gpu.gemm.warp_results import WarpResults
from dovetail.kernels.gpu.hoisted import Hoisted
from dovetail.kernels.gpu.order.passes import in_passes
from dovetail.kernels.gpu.widened import widened
from dovetail.kernels.loops.analysis import maps_in, pointers_in, shared_bytes
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllocBarriers,
    Barrier,
    Call,
    ClusterBarrier,
    Expr,
    Extent,
    Kernel,
    KernelKind,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Roles,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    indices,
    mul,
    sizes_in,
)
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.spec import ALIGNMENT, Binding, Job, TensorLocations, Tiles
from dovetail.plan.alias import dense_strides
from dovetail.plan.plan import Step

FOLDED = "partial1"
"""The pointer to a workspace with an image that another kernel folds. Sums of parts of k are in `PARTIAL`."""
SUMMED, THREADS = 4, 128
"""Neighbours that a thread sums up over all parts, and threads of a block that does."""
_SUFFIXES = {
    KernelKind.GEMM: "",
    KernelKind.SPLIT_K: "_parts",
    KernelKind.STREAM_K: "_spans",
    KernelKind.SUM_OF_PARTS: "_sum",
}
"""What follows the name of a writer in that of each of its kernels."""
FEW = 16
"""Sums of a thread up to which it writes its results where they are."""


class TileWriter(ABC):
    """The job of a step that is a product of matrices, while it is put together."""

    name: str
    """Of the kernel."""
    is_gemm: bool = False
    """Whether its kernels are those of a product that a library may compute in their place."""
    step: Step
    device: GpuDevice
    request: Request = LAUNCH
    bindings: dict[str, Binding]
    locations: TensorLocations
    rows: Size
    columns: Size
    batch: tuple[Size, ...]
    lead: tuple[Name, ...]
    """The index along each axis of the batch."""
    streams: int
    sums: DType = f32
    """What products are added up in."""
    _partial: Tensor | None = None
    """Where sums go, if not to results."""
    squares: WrittenSquares | None = None
    """Squares for the norm after this product; None where there is none."""
    heads: Sequence[Heads] = ()
    """What heads of the product become, in place of its results."""

    def alignment(self, factor: Factor) -> int:
        """The bytes that the start of a factor's operand is a multiple of."""
        bound = self.bindings.get(factor.tensor.pointer)
        return self.locations.alignment({"": bound})[""] if isinstance(bound, Value) else ALIGNMENT

    def early(self, left: Factor, rights: Sequence[Factor]) -> tuple[str, ...]:
        """The sides, "left" and "right", that a block may copy while kernels before it still run."""
        if not self.request.starts_early:
            return ()
        sides = (("left", [left]), ("right", rights))
        return tuple([side for side, factors in sides if all(map(self.is_constant, factors))])

    def is_constant(self, factor: Factor) -> bool:
        """Whether the operand of a factor does not change from run to run."""
        bound = self.bindings.get(factor.tensor.pointer)
        return bound is not None and self.locations.is_constant(bound)

    @abstractmethod
    def stores(self, element: Element, at: tuple[Expr, ...]) -> Iterator[Store]:
        """The results at an index, which has the axes of the batch, a row and a column."""

    def finished(self, tiled: Tiled, parts: int = 1) -> Job:
        """Return the job; with split-K a kernel stores the sums of each part in the workspace, and one adds them."""
        if tiled.spans is not None:
            return self._in_spans(tiled, tiled.spans)
        kernel = self._tiles(tiled, parts)
        tiles = self._launched(kernel).grid
        if parts == 1:
            return Job(kernel, self.bindings, Tiles(tiles, tiled.rows * tiled.columns))
        summed = self._summed(parts)
        nbytes = parts * product(self.batch) * self.rows * self.columns * self.sums.itemsize
        every = ((kernel, tiles), (summed, self._launched(summed).grid))
        return in_passes(every, self.bindings, {PARTIAL: nbytes})

    def _tiles(self, tiled: Tiled, parts: int) -> Kernel:
        """The kernel with a tile for each block."""
        batch, lead = (self.batch, self.lead) if parts == 1 else ((parts, *self.batch), (Name("part"), *self.lead))
        self._partial = None if parts == 1 else self._parts()
        place, tiles = self._placed_tiles(tiled, batch, lead)

        def each_tile(*body: Statement) -> Loop:
            return Loop("tile", Extent(tiles), (*place, *body), kind="block")

        # Blocks copy to others of their cluster once these have barriers.
        waits = (ClusterBarrier(ordered=False),) if tiled.cluster > 1 else ()
        statements: tuple[Statement, ...]
        producer, grid = tiled.producer, tiles
        if producer is None:
            ahead, written = self._by_threads(tiled) or ([], self._epilogue(tiled))
            statements = (*tiled.allocations, each_tile(*ahead, *tiled.body, *written))
        else:
            # Blocks stay and go on to further tiles, whose copies start while results are written.
            at_once = self.device.multiprocessors * tiled.resident // tiled.cluster * tiled.cluster
            grid = min(tiles, at_once) if isinstance(tiles, int) else tiles
            late = self._late(tiled, producer) if grid != tiles and parts == 1 else None
            if late is None:
                ahead, written = self._by_warps(tiled, producer)
                consume = (*producer.start, each_tile(*ahead, *producer.ahead, *tiled.body, *written))
            else:
                tiled = replace(tiled, allocations=(*tiled.allocations, late.allocation))
                consume = (*producer.start, *late.start, each_tile(*late.tile()), *late.end)
            one = less(ThreadIndex("thread"), Extent(producer.first + 1))
            produce = (*producer.start, When(one, (each_tile(*producer.body), *producer.end)))
            roles = Roles(producer.first // LANES, consume, produce, producer.registers)
            statements = (*tiled.allocations, *(() if tiled.early else waits), roles)
        # Barriers that copies before the wait need are made then.
        kept = [a for a in tiled.allocations if not isinstance(a, Alloc) or a.space == "shared"]
        new = [replace(a, is_new=True) if isinstance(a, AllocBarriers) else a for a in kept]
        early = (*new, *waits, Set("tile", ThreadIndex("block")), *place, *tiled.early) if tiled.early else ()
        room = self._room(tiled, grid)
        launch = Launch(grid, tiled.threads, room, tiled.resident, cluster=tiled.cluster, cycles=tiled.cycles)
        written = self._results() if parts == 1 else (PARTIAL,)
        return self._kernel(KernelKind.GEMM if parts == 1 else KernelKind.SPLIT_K, statements, launch, written, early)

    def _placed_tiles(
        self, tiled: Tiled, batch: tuple[Size, ...], lead: Sequence[Name]
    ) -> tuple[tuple[Statement, ...], Size]:
        """Where a tile is by its number, with axes before its rows, and how many there are."""
        down = floordiv(self.rows + (tiled.rows - 1), tiled.rows)
        across = floordiv(self.columns + (tiled.columns - 1), tiled.columns)
        *front, block, strip = indices((*batch, across, down), Name("tile"))
        place = (
            *(Set(name.name, index) for name, index in zip(lead, front, strict=True)),
            Set("side", mul(block, Extent(tiled.columns))),
            Set("top", mul(strip, Extent(tiled.rows))),
        )
        return place, product(batch) * down * across

    def _in_spans(self, tiled: Tiled, spans: Spans) -> Job:
        """The job where blocks share the rounds of all tiles, and a second kernel finishes the tiles that several of
        them have."""
        place, _ = self._placed_tiles(tiled, self.batch, self.lead)
        sums = [load for element in tiled.elements for load in element.sums if isinstance(load, Load)]
        results = self._epilogue(tiled)
        shared = (*tiled.allocations, spans.shared(sums, tiled.threads, (*place, *tiled.body), results))
        of_sums = [a for a in tiled.allocations if isinstance(a, Alloc) and a.pointer == sums[0].tensor.pointer]
        added = (*of_sums, spans.added(sums, tiled.threads, place, results))
        room = self._room(tiled, spans.blocks)
        first = Launch(spans.blocks, tiled.threads, room, tiled.resident, cycles=tiled.cycles)
        second = Launch(spans.boundaries, tiled.threads)
        kernels = (
            (self._kernel(KernelKind.STREAM_K, shared, first, (PARTIAL, *self._results())), spans.blocks),
            (self._kernel(KernelKind.SUM_OF_PARTS, added, second, self._results()), spans.boundaries),
        )
        return in_passes(kernels, self.bindings, {PARTIAL: spans.nbytes(len(sums), tiled.threads, self.sums)})

    def _room(self, tiled: Tiled, grid: Size) -> int:
        """Dynamic shared memory of a block."""
        nbytes = shared_bytes(tiled.allocations)
        if tiled.is_spread:
            return spread_bytes(nbytes, grid, self.device, self.request)
        return nbytes if tiled.is_aligned else dynamic_bytes(nbytes)

    def _results(self) -> tuple[str, ...]:
        if self.heads:
            status = [STATUS.pointer] if any(part.appended for part in self.heads) else []
            return (*(part.target.pointer for part in self.heads), *status)
        left = () if self.squares is None else (ROWS, SQUARES)
        return (*(f"y{i}" for i in range(len(self.step.results))), *left)

    def _kernel(
        self,
        kind: KernelKind,
        body: tuple[Statement, ...],
        launch: Launch,
        written: tuple[str, ...],
        early: tuple[Statement, ...] = (),
    ) -> Kernel:
        used = pointers_in((*early, *body))
        pointers = [n for n in (PARTIAL, FOLDED, ROWS, SQUARES, *self.bindings) if n in used and n not in written]
        sizes = sizes_in((*early, *body))
        every, maps = (*pointers, *written), maps_in((*early, *body))
        name, kind = f"{self.name}{_SUFFIXES[kind]}", kind if self.is_gemm else KernelKind.OTHER
        kernel = Kernel(name, every, written, "tile", body, sizes=sizes, launch=launch, early=early, maps=maps)
        return replace(kernel, kind=kind)

    @staticmethod
    def _launched(kernel: Kernel) -> Launch:
        assert kernel.launch is not None, "a tile writer launches its kernels"
        return kernel.launch

    def _parts(self) -> Tensor:
        """Sums of all parts in the workspace: parts, batch, rows, columns."""
        shape = (1, *self.batch, self.rows, self.columns)
        return Tensor(PARTIAL, self.sums, dense_strides(TensorType(self.sums, shape)))

    def _summed(self, parts: int) -> Kernel:
        """The kernel that adds up the parts in one order and writes results, a few neighbours for each thread."""
        width = SUMMED if is_multiple(self.columns, SUMMED) else 1
        groups = product(self.batch) * self.rows * floordiv(self.columns, width)
        tiles = floordiv(groups + (THREADS - 1), THREADS)
        *front, group = indices((*self.batch, self.rows, floordiv(self.columns, width)), Name("own"))
        column, at = Name("column"), (*self.lead, Name("row"), Name("column"))
        partial = self._parts()
        total: Expr = Load(partial, (ZERO, *at))
        for part in range(1, parts):
            total = Call("add", (total, Load(partial, (Extent(part), *at))), self.sums)
        each = Set(column.name, add(mul(group, Extent(width)), Name("e")))
        body = Loop("e", Extent(width), (each, *self._rounded_once(Element(ZERO, ZERO, (total,)), at)), kind="unrolled")
        names = (*self.lead, Name("row"))
        statements = (*(Set(n.name, index) for n, index in zip(names, front, strict=True)), body)
        own = Set("own", add(mul(Name("tile"), Extent(THREADS)), ThreadIndex("thread")))
        loop = Loop("tile", Extent(tiles), (own, When(less(Name("own"), Extent(groups)), statements)), kind="block")
        return self._kernel(KernelKind.SUM_OF_PARTS, (loop,), Launch(tiles, THREADS), self._results())

    def _written(self, element: Element, at: tuple[Expr, ...]) -> list[Store]:
        """What becomes of a sum: results, or a sum of this part."""
        if self._partial is None:
            return self._rounded_once(element, at)
        return [Store(self._partial, (Name("part"), *at), element.sums[0])]

    def _rounded_once(self, element: Element, at: tuple[Expr, ...]) -> list[Store]:
        """The results, which round no value on the way to them unless every step must."""
        stores = list(self.stores(element, at))
        return stores if self.locations.strict else [widened(store) for store in stores]

    def _epilogue(self, tiled: Tiled) -> list[Statement]:
        """The results: element by element where a thread has few, else through shared memory, in vectors."""
        if tiled.staged is None or (len(tiled.elements) <= FEW and tiled.planes == 1):
            vector = tiled.vector if is_multiple(self.columns, tiled.vector) else 1
            vectors = [tiled.elements[i : i + vector] for i in range(0, len(tiled.elements), vector)]
            return self._apart(tiled, vectors) or [s for each in vectors for s in self._placed(tiled, *each)]
        row, own = divided(Name("own"), tiled.columns // CHUNK), remainder(Name("own"), tiled.columns // CHUNK)
        groups = [self._group(tiled, Name("row"), own, row)]
        if not is_multiple(self.columns, CHUNK):
            each = tuple(self._placed(tiled, self._staged(tiled, row, own, Name("e"))))
            groups = [[Loop("e", Extent(CHUNK), each, kind="unrolled")]]
        count = tiled.rows * tiled.columns // CHUNK
        return [
            *self._to_shared(tiled),
            Barrier(),
            Loop("own", Extent(count), tuple(groups[0]), kind="thread", rolled=True),
            Barrier(),
        ]

    def _apart(self, tiled: Tiled, vectors: Sequence[Sequence[Element]]) -> list[Statement]:
        """Sums that are results as they are, one of each vector after the other; nothing where something is done with
        them first. LLVM would store four as a vector, and registers of sums would be neighbours for that alone."""
        at = (*self.lead, Name("row"), Name("column"))
        if len(vectors[0]) == 1 or not all(isinstance(s.value, Load) for s in self._written(vectors[0][0], at)):
            return []
        first, *others = [[s for x in each for s in self._placed(tiled, x)] for each in zip(*vectors, strict=True)]
        return [*first, *(s for each in others for s in (WarpBarrier(), *each))]

    def _by_threads(self, tiled: Tiled) -> tuple[list[Statement], list[Statement]] | None:
        """The results of few rows, whose sums several planes share: an element for each thread, with loads that come
        before sums. None where there are more elements."""
        count = self.rows * tiled.columns if isinstance(self.rows, int) and self.rows <= tiled.rows else None
        if tiled.staged is None or tiled.planes == 1 or count is None or count > tiled.threads:
            return None
        own = ThreadIndex("thread")
        row, column = divided(own, tiled.columns), remainder(own, tiled.columns)
        element = self._staged(tiled, row, divided(column, CHUNK), remainder(column, CHUNK))
        place = [Set("row", add(Name("top"), row)), Set("column", add(Name("side"), column))]
        hoisted = Hoisted("given")
        stores = [hoisted.store(s) for s in self._written(element, (*self.lead, Name("row"), Name("column")))]
        inside = both(less(own, Extent(count)), self._inside(Name("row"), Name("column"), tiled))
        ahead: list[Statement] = [*place]
        if hoisted.sets:
            ahead.append(When(inside, tuple(hoisted.sets)))
        return ahead, [*self._to_shared(tiled), Barrier(), When(inside, tuple(stores)), Barrier()]

    def _narrow(self, tiled: Tiled, producer: Producer) -> NarrowResults:
        return NarrowResults(
            producer,
            tiled.columns,
            lambda element, row, column: self._written(element, (*self.lead, row, column)),
            lambda row, column: self._inside(row, column, tiled),
            is_multiple(self.columns, CHUNK),
        )

    def _late(self, tiled: Tiled, producer: Producer) -> LateResults | None:
        """Results that are computed during the products of the next tile; None where that cannot be."""
        narrow = self._narrow(tiled, producer)
        others = self.heads or self.squares is not None or producer.ahead
        can = narrow.fits and not others and not self.lead and self.request.is_launch
        return LateResults.of(narrow) if can else None

    def _by_warps(self, tiled: Tiled, producer: Producer) -> tuple[list[Statement], list[Statement]]:
        """The results of each warp, in vectors; with loads that come before sums."""
        if self.heads:
            assert isinstance(self.rows, int), "it was checked"
            return HeadResults(producer, tiled.columns, self.rows, self.heads).statements()
        narrow, each = self._narrow(tiled, producer), CHUNK if is_multiple(self.columns, CHUNK) else 1
        if narrow.fits and self.squares is None:
            return narrow.statements()
        return WarpResults(producer, self.streams, narrow.written, narrow.inside, each, self.squares).statements()

    def _to_shared(self, tiled: Tiled) -> list[Statement]:
        """All sums of the block in shared memory, which the factors need no more."""
        assert tiled.staged is not None, "there is room for them"
        statements: list[Statement] = []
        for element in tiled.elements:
            stores: list[Statement] = []
            for s, value in enumerate(element.sums):
                at = (tiled.plane, element.row, spread(element.column, s, self.streams))
                stores.append(Store(tiled.staged, at, value))
            statements += stores if element.inside is None else [When(element.inside, tuple(stores))]
        return statements if tiled.scale is None else [*statements, tiled.scale.stored]

    def _staged(self, tiled: Tiled, row: Expr, group: Expr, e: Expr) -> Element:
        """A sum in shared memory, by its row and its place in a group of eight columns."""
        assert tiled.staged is not None, "there is room for them"
        sums: list[Expr] = []
        scale = None if tiled.scale is None else tiled.scale.of(row)
        for s in range(self.streams):
            block = add(mul(group, Extent(self.streams)), Extent(s))
            at = (row, add(mul(block, Extent(CHUNK)), e))
            total = in_pairs([Load(tiled.staged, (Extent(plane), *at)) for plane in range(tiled.planes)])
            sums.append(total if scale is None else Call("mul", (total, scale), f32))
        return Element(row, add(mul(group, Extent(CHUNK)), e), tuple(sums))

    def _inside(self, row: Expr, column: Expr, tiled: Tiled) -> Expr:
        """Whether an element of a tile is one of the result; tiles may fit so that all are."""
        conditions = [] if is_multiple(self.rows, tiled.rows) else [less(row, Extent(self.rows))]
        conditions += [] if is_multiple(self.columns, tiled.columns) else [less(column, Extent(self.columns))]
        return both(*conditions) if conditions else Number(True, bool_)

    def _group(self, tiled: Tiled, at_row: Name, group: Expr, row: Expr) -> list[Statement]:
        """Eight columns, which are all inside or all outside."""
        column = add(Name("side"), mul(group, Extent(CHUNK)))
        inside = self._inside(at_row, Name("first"), tiled)
        each = self._written(self._staged(tiled, row, group, Name("e")), (*self.lead, at_row, Name("column")))
        body = Loop("e", Extent(CHUNK), (Set("column", add(Name("first"), Name("e"))), *each), kind="unrolled")
        return [Set(at_row.name, add(Name("top"), row)), Set("first", column), When(inside, (body,))]

    def _placed(self, tiled: Tiled, *elements: Element) -> Iterator[Statement]:
        """The results of elements of one row, if these are inside, which all of them are or none."""
        row, columns = Name("row"), [Name("column"), *(Name(f"column{e}") for e in range(1, len(elements)))]
        yield Set("row", add(Name("top"), elements[0].row))
        for column, element in zip(columns, elements, strict=True):
            yield Set(column.name, add(Name("side"), element.column))
        pairs = zip(elements, columns, strict=True)
        written = [s for element, column in pairs for s in self._written(element, (*self.lead, row, column))]
        yield When(self._inside(row, columns[0], tiled), tuple(written))


assert ALIGNMENT == CHUNK_BYTES, "one copy is one vector"

__all__ = ["FOLDED", "PARTIAL", "TileWriter"]
