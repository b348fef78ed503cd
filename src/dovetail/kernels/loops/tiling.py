"""Cuts: a shape as tiles, and the loops inside of one tile."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import prod

from dovetail.codegen.llvm.loops import minimum
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import DType, bool_, i64, u8, u16, u32, u64
from dovetail.kernels.loops.ir import ZERO, Call, Expr, Extent, Loop, Name, Set, Statement, When, add, indices, mul

TILE_BYTES = 16_384
"""What a tile writes, more or less: it fits the first cache with what it reads, and starting it is nothing beside."""


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
        found = zip(indices(self.counts, tile), self.shape, self.steps, strict=True)
        return tuple(Set(f"t{a}", mul(i, Extent(step))) for a, (i, size, step) in enumerate(found) if size != step)

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
        return minimum(Extent(step), Call("sub", (Extent(size), Name(f"t{axis}")), i64))

    def nest(self, body: Sequence[Statement], depth: int = 0, early: Sequence[Statement] = ()) -> tuple[Statement, ...]:
        """The loops around a body; `early` is done as soon as the indices of `depth` axes are known."""
        found = (*(early if depth == len(self.shape) else ()), *body)
        for axis in reversed(range(len(self.shape))):
            if self.steps[axis] != 1:
                found = (Loop(f"j{axis}", self.extent(axis), found),)
            if depth == axis:
                found = (*early, *found)
        return found


def cut(shape: tuple[Size, ...], itemsize: int) -> Cut:
    """Tiles of a few thousand elements: as many of the last axes as fit are in them, and a piece of the one before."""
    if 0 in shape:
        return Cut(shape, (1,) * len(shape))
    left = max(1, TILE_BYTES // itemsize)
    steps: list[int] = []
    for size in reversed(shape):
        if left > 1 and isinstance(size, int) and size <= left:
            steps.append(size)
            left //= size
        else:
            steps.append(left)
            left = 1
    return Cut(shape, tuple(reversed(steps)))


SQUARE = 32
"""Rows and columns of a tile that goes crosswise: more of them get in each other's way in the cache."""


def cut_square(shape: tuple[Size, ...], itemsize: int) -> Cut:
    """Tiles that are as wide as they are high along the last two axes, or as long as they are thin."""
    if 0 in shape:
        return Cut(shape, (1,) * len(shape))
    high, wide = (_at_most(size, SQUARE) for size in shape[-2:])
    if high < SQUARE:
        wide = _at_most(shape[-1], max(SQUARE, TILE_BYTES // itemsize // high))
    elif wide < SQUARE:
        high = _at_most(shape[-2], max(SQUARE, TILE_BYTES // itemsize // wide))
    return Cut(shape, (*[1] * (len(shape) - 2), high, wide))


def _at_most(size: Size, step: int) -> int:
    return min(size, step) if isinstance(size, int) else step


@dataclass(frozen=True, slots=True)
class Turn:
    """One part of what a kernel does: a shape as tiles, and what is done at each element."""

    boxes: Cut
    body: tuple[Statement, ...]
    work: int
    """What a tile takes."""


def in_turn(turns: Sequence[Turn]) -> tuple[tuple[Statement, ...], Size, int]:
    """The tiles of the first part, then those of the second, and so on: statements, how many tiles, work of one."""
    if len(turns) == 1:
        (one,) = turns
        return (*one.boxes.head(Name("tile")), *one.boxes.nest(one.body)), one.boxes.tiles, one.work
    found: list[Statement] = []
    first: Size = 0
    local = Name("local")
    for turn in turns:
        inside = Call("greater_equal", (local, ZERO), bool_), Call("less", (local, Extent(turn.boxes.tiles)), bool_)
        found.append(Set("local", Call("sub", (Name("tile"), Extent(first)), i64)))
        statements = (*turn.boxes.head(local), *turn.boxes.nest(turn.body))
        found.append(When(Call("bit_and", inside, bool_), statements))
        first = first + turn.boxes.tiles
    return tuple(found), first, max((t.work for t in turns), default=1)


def word(dtype: DType) -> DType:
    """Whole numbers as wide as an element: what moves is moved as bits, whatever it means."""
    return {1: u8, 2: u16, 4: u32, 8: u64}[dtype.itemsize]


__all__ = ["TILE_BYTES", "Cut", "Turn", "cut", "cut_square", "in_turn", "word"]
