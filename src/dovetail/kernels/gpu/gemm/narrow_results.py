"""Results of 16 bits that a warp computes where its sums are, and then puts through shared memory.

Half as many bytes go through shared memory as for sums, without bank conflicts: a line of 64 results and a chunk of
padding starts four banks after the one before, so that eight rows of pairs, and eight chunks of a row, are in different
banks; with lines of 32, eight rows of pairs are. What an epilogue loads must then be the same for all rows, such as a
bias: a thread has pairs of columns, which are no whole sectors of memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from itertools import zip_longest

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f16, f32
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.gemm.fragments import LANE, divided, less, remainder, unrolled
from dovetail.kernels.gpu.gemm.tile import CHUNK, NARROW_SUMS, WARP_ROWS
from dovetail.kernels.gpu.gemm.tiled import Chunk, Element, Overlap, Producer
from dovetail.kernels.gpu.hoisted import Hoisted
from dovetail.kernels.loops.analysis import loads_in
from dovetail.kernels.loops.ir import (
    ONE,
    ZERO,
    Alloc,
    Call,
    Expr,
    Extent,
    Load,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    WarpBarrier,
    When,
    add,
    mul,
)

WIDTHS = (64, 32)
"""Results of a line in shared memory: as many as divide the columns of a tile."""
LATE_SUMS = 64
"""Sums of a thread from which on it is done: with fewer, the assembler reads sums late and serialises products."""
OTHERS = 48
"""Registers of a thread beyond its sums and those that it keeps."""
KEPT, _TOP, _SIDE, _ARE_KEPT = "kept", "kept_top", "kept_side", "are_kept"


@dataclass(frozen=True, slots=True)
class _Part:
    """Results of a thread in one chunk."""

    loads: Sequence[Statement]
    stores: Sequence[Statement]
    """To shared memory."""


@dataclass(frozen=True, slots=True)
class _Line:
    """Chunks that go through shared memory side by side."""

    parts: Sequence[_Part]
    written: Sequence[Statement]
    """From there to the results."""


@dataclass(frozen=True, slots=True)
class NarrowResults:
    """The results of the warps of a block, chunk by chunk."""

    producer: Producer
    columns: int
    """Of a tile."""
    written: Callable[[Element, Expr, Expr], list[Store]]
    """The stores of an element at a row and a column of the result."""
    inside: Callable[[Expr, Expr], Expr]
    """Whether a row and a column are those of the result."""
    is_aligned: bool = True
    """Whether lines of the result are multiples of 16 bytes."""
    top: Name = Name("top")
    side: Name = Name("side")
    """The first row and column of the tile."""

    @property
    def width(self) -> int:
        """Results of a line; 0 where lines would end in the middle."""
        return next((width for width in WIDTHS if self.columns % width == 0 and width % self.producer.width == 0), 0)

    @property
    def fits(self) -> bool:
        """Whether there is one result, of 16 bits in aligned lines, whose operands are the same for all rows."""
        sums = sum([len(element.sums) for chunk in self.producer.chunks for element in chunk.elements])
        if not self.is_aligned or not self.width or sums > NARROW_SUMS:
            return False  # with more sums it is slower: 4096×768→3072 took 36 µs by 128×256 tiles, not 32
        row, column = Name("row"), Name("column")
        stores = self.written(self.producer.chunks[0].elements[0], row, column)
        if len(stores) != 1 or stores[0].tensor.dtype.itemsize != f16.itemsize:
            return False
        return all([_is_of_column(load, row, column) for load in loads_in(stores[0].value)])

    def statements(self) -> tuple[list[Statement], list[Statement]]:
        """What comes before the sums, and what comes after them. Operands are loaded a chunk ahead."""
        first, *others = self._lines
        statements: list[Statement] = []
        for line, after in zip_longest((first, *others), others):
            statements += [s for part in line.parts for s in part.stores]
            statements += [s for part in (after.parts if after else ()) for s in part.loads]
            statements += line.written
        return [s for part in first.parts for s in part.loads], statements

    def pieces(self) -> tuple[list[Statement], list[list[Statement]]]:
        """The same in equal pieces of work, each of which loads the operands of the next one."""
        parts = [part for line in self._lines for part in line.parts]
        pieces = [[*part.stores, *(after.loads if after else ())] for part, after in zip_longest(parts, parts[1:])]
        each = len(self._lines[0].parts)
        for number, line in enumerate(self._lines):
            pieces[(number + 1) * each - 1] += line.written
        return list(parts[0].loads), pieces

    @property
    def _lines(self) -> list[_Line]:
        every, together = self.producer.chunks, self.width // self.producer.width
        chunks = [every[at : at + together] for at in range(0, len(every), together)]
        return [
            _Line(
                [self._computed(number, place, chunk) for place, chunk in enumerate(some)],
                [WarpBarrier(), *self._stored(some[0]), WarpBarrier()],
            )
            for number, some in enumerate(chunks)
        ]

    def _computed(self, number: int, place: int, chunk: Chunk) -> _Part:
        """The loads of operands, and the results of this thread in shared memory."""
        loads: list[Statement] = []
        stores: list[Statement] = []
        first = add(self.side, Extent(chunk.column))
        for pair, elements in enumerate(_pairs(chunk.elements)):
            hoisted, own = Hoisted(f"given{number % 2}_{place}_{pair}_"), list[Statement]()
            for element in elements:
                (store,) = self.written(element, self.top, add(first, element.column))
                staged = self._staged(store.tensor, place * self.producer.width)
                at = (ThreadIndex("warp"), element.row, element.column)
                own.append(Store(staged, at, hoisted.store(store).value))
            if hoisted.sets:
                # Columns are multiples of eight: both of a pair are inside, or none is.
                inside = self.inside(self.top, add(first, elements[0].column))
                loads.append(When(inside, tuple(hoisted.sets)))
                own = [When(inside, tuple(own))]
            stores += own
        return _Part(loads, stores)

    def _stored(self, chunk: Chunk) -> Iterator[Statement]:
        """The results of a warp from shared memory, 16 bytes for each thread."""
        groups = self.width // CHUNK
        column = mul(remainder(LANE, groups), Extent(CHUNK))
        first = add(add(self.side, Extent(chunk.column)), column)
        for turn in range(WARP_ROWS * groups // LANES):
            line = divided(add(LANE, Extent(turn * LANES)), groups)
            row = add(add(self.top, chunk.row), line)
            stores: list[Store] = []
            for e in range(CHUNK):
                (store,) = self.written(chunk.elements[0], row, add(first, Extent(e)))
                at = (ThreadIndex("warp"), line, add(column, Extent(e)))
                stores.append(replace(store, value=Load(self._staged(store.tensor, 0), at)))
            yield When(self.inside(row, first), tuple(stores))

    def _staged(self, of: Tensor, first: int) -> Tensor:
        """The room of each warp for a chunk, from a column on: warp, row, column."""
        item = of.dtype.itemsize
        strides = (self.producer.staged.strides[0], (self.width + CHUNK) * item, item)
        return Tensor(self.producer.staged.pointer, of.dtype, strides, first * item, space="shared")


def _pairs(elements: Sequence[Element]) -> list[tuple[Element, Element]]:
    """Neighbours in a row, both of which a thread has."""
    return list(zip(elements[::2], elements[1::2], strict=True))


def _is_of_column(load: Load, row: Expr, column: Expr) -> bool:
    if load.tensor.space != "global":
        return True
    return load.at[-2:] == (row, column) and load.tensor.strides[-2] == 0


@dataclass(frozen=True, slots=True)
class LateResults:
    """The epilogue of a tile, overlapped with the main loop of the next one: tensor cores do not wait for results.

    Warpgroups of a block have the same tile, so that all of them write results at the same time, and tensor cores have
    no work meanwhile: with GELU that took a quarter of a product. A thread keeps the sums of a tile in further
    registers and computes a piece of their results in each of the first rounds of the tile after it.
    """

    narrow: NarrowResults
    """Of the sums that are kept."""
    overlap: Overlap

    @staticmethod
    def of(narrow: NarrowResults) -> LateResults | None:
        """None where registers do not hold two tiles, or a tile has too few rounds."""
        overlap, registers = narrow.producer.overlap, narrow.producer.registers
        if overlap is None or overlap.count < LATE_SUMS or registers is None:
            return None
        if 2 * overlap.count + OTHERS > registers[0]:
            return None
        chunks = [_kept(chunk, overlap.sums) for chunk in narrow.producer.chunks]
        producer = replace(narrow.producer, chunks=chunks)
        late = LateResults(replace(narrow, producer=producer, top=Name(_TOP), side=Name(_SIDE)), overlap)
        return late if len(late.narrow.pieces()[1]) <= overlap.rounds else None

    @property
    def allocation(self) -> Alloc:
        """Registers for the sums of the tile before."""
        return Alloc(KEPT, f32, self.overlap.count, "private")

    @property
    def start(self) -> list[Statement]:
        return [Set(_ARE_KEPT, ZERO), Set(_TOP, ZERO), Set(_SIDE, ZERO)]

    def tile(self) -> list[Statement]:
        """The products of a tile, with results of the one before."""
        ahead, pieces = self.narrow.pieces()
        e, count = Name("e"), self.overlap.count
        kept, sums = (Tensor(name, f32, (4,), space="private") for name in (KEPT, self.overlap.sums.pointer))
        move = unrolled("e", count, Store(kept, (e,), Call("held", (Load(sums, (e,)),), f32)))
        products = self.overlap.products([[_when_kept(piece)] for piece in pieces])
        after = [Set(_ARE_KEPT, ONE), Set(_TOP, Name("top")), Set(_SIDE, Name("side"))]
        return [_when_kept(ahead), *products, move, *after]

    @property
    def end(self) -> list[Statement]:
        """The results of the last tile."""
        ahead, pieces = self.narrow.pieces()
        return [_when_kept([*ahead, *(s for piece in pieces for s in piece)])]


def _when_kept(work: list[Statement]) -> Statement:
    return When(less(ZERO, Name(_ARE_KEPT)), tuple(work))


def _kept(chunk: Chunk, sums: Tensor) -> Chunk:
    """A chunk of the sums that are kept."""

    def of(expr: Expr) -> Expr:
        assert isinstance(expr, Load) and expr.tensor == sums, "it is a sum"
        return replace(expr, tensor=replace(sums, pointer=KEPT))

    elements = [replace(element, sums=tuple(map(of, element.sums))) for element in chunk.elements]
    return replace(chunk, elements=elements)


__all__ = ["KEPT", "LateResults", "NarrowResults"]
