"""Cuts: a shape as tiles, and the loops inside of one tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from math import prod

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, bool_, i64, u8, u16, u32, u64
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    Barrier,
    Call,
    Elements,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    When,
    add,
    in_block,
    indices,
    minimum,
    mul,
)
from dovetail.kernels.loops.policy import TilePolicy
from dovetail.ops.view import quotient


@dataclass(frozen=True, slots=True)
class Cut:
    """A shape cut into boxes. Each axis has a step: 1 where a tile has one index, the size where it has all of them."""

    shape: tuple[Size, ...]
    steps: tuple[int, ...]

    @property
    def counts(self) -> tuple[Size, ...]:
        """How many tiles there are along each axis."""
        pairs = zip(self.shape, self.steps, strict=True)
        return tuple(1 if size == step else (size + (step - 1)) // step for size, step in pairs)

    @property
    def tiles(self) -> Size:
        return 0 if 0 in self.shape else product(self.counts)

    @property
    def work(self) -> int:
        """Elements of a tile."""
        return prod(self.steps)

    def head(self, tile: Expr) -> tuple[Statement, ...]:
        """Where the tile starts along each axis that is cut."""
        axes = zip(indices(self.counts, tile), self.shape, self.steps, strict=True)
        return tuple(Set(f"t{a}", mul(i, Extent(step))) for a, (i, size, step) in enumerate(axes) if size != step)

    @property
    def at(self) -> tuple[Expr, ...]:
        """The index along each axis, inside of the loops."""
        return tuple(map(self._index, range(len(self.shape))))

    def _index(self, axis: int) -> Expr:
        size, step = self.shape[axis], self.steps[axis]
        inside = ZERO if step == 1 else Name(f"j{axis}")
        return inside if size == step else add(Name(f"t{axis}"), inside)

    def extent(self, axis: int) -> Expr:
        """How many indices of an axis the tile has."""
        size, step = self.shape[axis], self.steps[axis]
        if step in (1, size):
            return Extent(step)
        return in_block(step, size, Name(f"t{axis}"))

    def nest(self, body: Sequence[Statement], depth: int = 0, early: Sequence[Statement] = ()) -> tuple[Statement, ...]:
        """The loops around a body; `early` is done as soon as the indices of `depth` axes are known."""
        nested = (*(early if depth == len(self.shape) else ()), *body)
        for axis in reversed(range(len(self.shape))):
            if self.steps[axis] != 1:
                nested = (Loop(f"j{axis}", self.extent(axis), nested),)
            if depth == axis:
                nested = (*early, *nested)
        return nested


def cut(shape: tuple[Size, ...], itemsize: int, tiles: TilePolicy, width: int = 1) -> Cut | Flat:
    """Tiles of a few thousand elements: as many of the last axes as fit are in them, and a piece of the one before.

    Where threads share a tile, each takes groups of `width` neighbours along the last axis.
    """
    if tiles.is_shared:
        return Flat(shape, width, tiles.threads)
    if 0 in shape:
        return Cut(shape, (1,) * len(shape))
    left = max(1, tiles.tile_bytes // itemsize)
    steps: list[int] = []
    for size in reversed(shape):
        if left > 1 and isinstance(size, int) and size <= left:
            steps.append(size)
            left //= size
        else:
            steps.append(left)
            left = 1
    return Cut(shape, tuple(reversed(steps)))


def cut_square(shape: tuple[Size, ...], itemsize: int, tiles: TilePolicy) -> Cut:
    """Tiles that are as wide as they are high along the last two axes, or as long as they are thin."""
    if 0 in shape:
        return Cut(shape, (1,) * len(shape))
    square = tiles.square
    high, wide = (_at_most(size, square) for size in shape[-2:])
    if high < square:
        wide = _at_most(shape[-1], max(square, tiles.tile_bytes // itemsize // high))
    elif wide < square:
        high = _at_most(shape[-2], max(square, tiles.tile_bytes // itemsize // wide))
    return Cut(shape, (*[1] * (len(shape) - 2), high, wide))


@dataclass(frozen=True, slots=True)
class Flat:
    """A shape whose elements are numbered through; the threads of a block share a tile, some neighbours each."""

    shape: tuple[Size, ...]
    width: int
    """Neighbours along the last axis that one thread takes. They never leave the axis."""
    threads: int

    @property
    def count(self) -> Size:
        return product(self.shape)

    @property
    def work(self) -> int:
        """Elements of a tile."""
        return self.width * self.threads

    @property
    def tiles(self) -> Size:
        return 0 if 0 in self.shape else (self.count + (self.work - 1)) // self.work

    @property
    def at(self) -> tuple[Expr, ...]:
        """The index along each axis, inside of the loops."""
        return tuple(Name(f"j{axis}") for axis in range(len(self.shape)))

    def head(self, tile: Expr) -> tuple[Statement, ...]:
        """The number of the tile's first element."""
        return (Set("start", mul(tile, Extent(self.work))),)

    def nest(self, body: Sequence[Statement], depth: int = 0, early: Sequence[Statement] = ()) -> tuple[Statement, ...]:
        """The loop of the tile. `early` comes before the body, in every iteration."""
        inner = (*early, *body)
        left = Call("sub", (Extent(self.count), Name("start")), i64)
        if self.width == 1:
            count = minimum(Extent(self.threads), left)
            indexed = self.indexed(add(Name("start"), Name("j")))
            elements = Elements(Name("start"), self.threads, self.count)
            return (Loop("j", count, (*indexed, *inner), kind="parallel", elements=elements),)
        first = add(Name("start"), mul(Name("j"), Extent(self.width)))
        last = len(self.shape) - 1
        step = Set(f"j{last}", add(Name("column"), Name("v")))
        group = (*self.indexed(first), Set("column", Name(f"j{last}")))
        groups = minimum(
            Extent(self.threads), Call("div", (add(left, Extent(self.width - 1)), Extent(self.width)), i64)
        )
        full = Loop("v", Extent(self.width), (step, *inner), kind="unrolled")
        if isinstance(self.shape[last], int) and self.shape[last] % self.width == 0:
            return (Loop("j", groups, (*group, full), kind="parallel"),)
        # The shape has one axis here: the last group may be short.
        rest = Call("sub", (Extent(self.count), Name("column")), i64)
        whole = Call("greater_equal", (rest, Extent(self.width)), bool_)
        short = Loop("v", rest, (step, *inner))
        parts = (When(whole, (full,)), When(Call("bit_not", (whole,), bool_), (short,)))
        return (Loop("j", groups, (*group, *parts), kind="parallel"),)

    def indexed(self, flat: Expr) -> tuple[Statement, ...]:
        """The indices of the element with a number."""
        return tuple(Set(f"j{axis}", index) for axis, index in enumerate(indices(self.shape, flat)))


@dataclass(frozen=True, slots=True)
class Transpose:
    """Square tiles that go through shared memory, so that reads and writes both run along neighbours."""

    boxes: Cut
    read: Tensor
    written: Tensor
    pointer: str
    """The name of the tile in shared memory."""
    side: int

    @property
    def tiles(self) -> Size:
        return self.boxes.tiles

    @property
    def work(self) -> int:
        return self.boxes.work

    def head(self, tile: Expr) -> tuple[Statement, ...]:
        return self.boxes.head(tile)

    def nest(self, body: Sequence[Statement]) -> tuple[Statement, ...]:
        """Read along the axis before the last into shared memory, then write along the last; there is no other body."""
        high = len(self.boxes.shape) - 2
        itemsize = self.read.dtype.itemsize
        # Another column for each row: neighbours along either axis are then in different banks.
        strides = ((self.side + 1) * itemsize, itemsize)
        tile = Tensor(self.pointer, self.read.dtype, strides, space="shared")
        inside = (Name(f"j{high + 1}"), Name(f"j{high}"))
        put = Store(tile, inside, Load(self.read, self.boxes.at))
        take = Store(self.written, self.boxes.at, Load(tile, inside))
        return (
            Alloc(self.pointer, self.read.dtype, self.side * (self.side + 1), "shared"),
            self._loop(high, high + 1, put),
            Barrier(),
            self._loop(high + 1, high, take),
            Barrier(),
        )

    def _loop(self, fast: int, slow: int, body: Statement) -> Loop:
        """A body for each element of the tile, neighbours along one axis first."""
        index = {
            fast: Call("rem", (Name("j"), Extent(self.side)), i64),
            slow: Call("div", (Name("j"), Extent(self.side)), i64),
        }
        sets = tuple(Set(f"j{axis}", at) for axis, at in index.items())
        there = [Call("less", (Name(f"j{axis}"), self.boxes.extent(axis)), bool_) for axis in (fast, slow)]
        guarded = When(Call("bit_and", tuple(there), bool_), (body,))
        return Loop("j", Extent(self.side * self.side), (*sets, guarded), kind="parallel")


def transposed(read: Tensor, written: Tensor, shape: tuple[Size, ...], number: int, tiles: TilePolicy) -> Turn:
    """A copy whose source is dense along the axis before the last, and whose result is along the last."""
    boxes = Cut(shape, (*[1] * (len(shape) - 2), tiles.square, tiles.square))
    transpose = Transpose(boxes, read, written, f"tile{number}", tiles.square)
    return Turn(transpose, (), transpose.work)


def vector_width(
    shape: tuple[Size, ...], tensors: Sequence[Tensor], alignment: Mapping[str, int], tiles: TilePolicy
) -> int:
    """Neighbours along the last axis that a thread loads and stores at once; 1 where some are not aligned for it."""
    if not tiles.is_shared or not shape:
        return 1
    last = len(shape) - 1
    widest = max((t.dtype.itemsize for t in tensors), default=1)
    width = min(8, max(1, tiles.vector_bytes // widest))
    while width > 1 and not _fits(shape, tensors, alignment, width, last):
        width //= 2
    return width


def _fits(
    shape: tuple[Size, ...], tensors: Sequence[Tensor], alignment: Mapping[str, int], width: int, last: int
) -> bool:
    inner = shape[last]
    if last > 0 and not (isinstance(inner, int) and inner % width == 0):
        return False
    for tensor in tensors:
        if tensor.strides[last] == 0:
            continue
        bytes = width * tensor.dtype.itemsize
        apart = (tensor.offset, *tensor.strides[:last], alignment.get(tensor.pointer, tensor.dtype.itemsize))
        if tensor.strides[last] != tensor.dtype.itemsize or any(quotient(step, bytes) is None for step in apart):
            return False
    return True


def _at_most(size: Size, step: int) -> int:
    return min(size, step) if isinstance(size, int) else step


@dataclass(frozen=True, slots=True)
class Turn:
    """One part of what a kernel does: a shape as tiles, and what is done at each element."""

    boxes: Cut | Flat | Transpose
    body: tuple[Statement, ...]
    work: int
    """What a tile takes."""


def in_turn(turns: Sequence[Turn], *, rolled: bool = False) -> tuple[tuple[Statement, ...], Size, int]:
    """The tiles of the first part, then those of the second, and so on: statements, how many tiles, work of one.

    Loops of several parts are not unrolled, nor those of one if it is `rolled`: nine parts of 8 × 8 × 8 elements took
    LLVM two seconds.
    """
    if len(turns) == 1:
        (one,) = turns
        nest = one.boxes.nest(one.body)
        nest = tuple(map(_rolled, nest)) if rolled else nest
        return (*one.boxes.head(Name("tile")), *nest), one.boxes.tiles, one.work
    guarded: list[Statement] = []
    first: Size = 0
    local = Name("local")
    for turn in turns:
        inside = Call("greater_equal", (local, ZERO), bool_), Call("less", (local, Extent(turn.boxes.tiles)), bool_)
        guarded.append(Set("local", Call("sub", (Name("tile"), Extent(first)), i64)))
        statements = (*turn.boxes.head(local), *map(_rolled, turn.boxes.nest(turn.body)))
        guarded.append(When(Call("bit_and", inside, bool_), statements))
        first = first + turn.boxes.tiles
    return tuple(guarded), first, max((t.work for t in turns), default=1)


def _rolled(statement: Statement) -> Statement:
    """A statement whose loops are not unrolled, but for those that are vectors of a thread."""
    if not isinstance(statement, Loop) or statement.kind != "serial":
        return statement
    return replace(statement, body=tuple(map(_rolled, statement.body)), rolled=True)


def word(dtype: DType) -> DType:
    """Integers as wide as an element: what moves is moved as bits, whatever it means."""
    return {1: u8, 2: u16, 4: u32, 8: u64}[dtype.itemsize]


__all__ = ["Cut", "Flat", "Turn", "cut", "cut_square", "in_turn", "transposed", "vector_width", "word"]
