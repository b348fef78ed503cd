"""Views: what a chain of split, merge, permute, squeeze, unsqueeze and expand does, and its one minimal form.

A view cuts the axes of its source into pieces, puts the pieces in another order, repeats some, and joins them to new
axes. Axes of size 1 have no pieces: which of them goes where is decided when the chain is built, so that as few ops as
possible are needed. Without types every axis is a symbol of its own, so that patterns have the same normal form.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from dovetail.ir.dim import Dim, Size, Symbol, divide
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops.movement import expand, merge, permute, split, squeeze, unsqueeze

VIEW_OPS = (split, merge, permute, squeeze, unsqueeze, expand)

REPEATED = 0
"""The axis of a piece that no axis of the source has; real axes are counted from the end, from -1 on."""


class Piece(NamedTuple):
    """A factor of an axis of the source: `size` steps, each over `inner` elements of the axis."""

    axis: int
    inner: Size
    size: Size


class Block(NamedTuple):
    """Pieces that are joined to one axis, or to several whose sizes do not fit the pieces one by one."""

    pieces: tuple[Piece, ...]
    sizes: tuple[Size, ...]


_UNIT = Block((), (1,))


def quotient(left: Size, right: Size) -> Size | None:
    """left / right where that is an integer for every binding, else None."""
    if isinstance(left, int) and isinstance(right, int):
        return left // right if right and left % right == 0 else None
    return divide(left, right)


class View:
    """Where the elements of a source go. Each method is one op; False says that it does not fit in this view."""

    __slots__ = ("below", "blocks", "lengths", "source", "spelled", "typed")

    def __init__(self, source: Value, below: View | None = None) -> None:
        type = source.known_type
        self.source = source
        self.below = below
        """The view that the source itself is of, where this one starts anew."""
        self.typed = isinstance(type, TensorType)
        self.lengths: list[Size] = list(type.shape) if isinstance(type, TensorType) else []
        rank = len(self.lengths)
        self.blocks = [_UNIT if n == 1 else Block((Piece(i - rank, 1, n),), (n,)) for i, n in enumerate(self.lengths)]
        self.spelled: dict[Size, Any] = {}
        """What a pattern catches, by the symbol that stands for it here."""

    @property
    def shape(self) -> list[Size]:
        return [size for block in self.blocks for size in block.sizes]

    @property
    def has_spans(self) -> bool:
        """Whether some sizes do not fit the pieces one by one."""
        return any(len(block.sizes) > 1 for block in self.blocks)

    @property
    def keeps_order(self) -> bool:
        """Whether the elements stay in the order of the source."""
        seen = [p.axis for p in _joined(self._flat())]
        return REPEATED not in seen and seen == sorted(set(seen))

    def cut_axes(self) -> list[list[Piece]] | None:
        """Return the pieces of each axis of the source from the outermost in, none for an axis of size 1."""
        pieces_of: dict[int, dict[Size, Piece]] = {}
        for piece in self._flat():
            if piece.axis != REPEATED:
                pieces_of.setdefault(piece.axis, {})[piece.inner] = piece
        axes: list[list[Piece]] = []
        for axis in range(-len(self.lengths), 0):
            by_inner = pieces_of.get(axis, {})
            pieces: list[Piece] = []
            inner: Size = 1
            while (piece := by_inner.pop(inner, None)) is not None:
                pieces.insert(0, piece)
                inner = piece.inner * piece.size
            if by_inner or (not pieces and self.lengths[axis] != 1):
                return None
            axes.append(pieces)
        return axes

    def apply(self, value: Value) -> bool:
        """Let the view be followed by the op of a value."""
        attrs = value.attrs
        op = value.op
        if op is permute:
            return self.permute(attrs["order"])
        if op is split:
            return self.split(attrs["axis"], attrs["parts"], attrs["size"])
        if op is merge:
            return self.merge(attrs["axis"], attrs["count"])
        if op is unsqueeze:
            return self.unsqueeze(attrs["axes"])
        if op is squeeze:
            return self.squeeze(attrs["axes"])
        return op is expand and self.expand(attrs["axis"], attrs["size"])

    def reshape(self, shape: Sequence[Size]) -> bool:
        """Give the same elements in the same order another shape."""
        if 0 in shape:
            return False
        blocks = _regroup(_joined(self._flat()), shape)
        if blocks is None:
            return False
        self.blocks = blocks
        return True

    def permute(self, order: tuple[int, ...]) -> bool:
        self._need(len(order))
        if not self.has_spans:
            kept = len(self.blocks) - len(order)
            self.blocks[kept:] = [self.blocks[a] for a in order]
            return True
        places = [(i, k) for i, block in enumerate(self.blocks) for k in range(len(block.sizes))]
        moved = places[: len(places) - len(order)] + [places[a] for a in order]
        blocks: list[Block] = []
        at = 0
        while at < len(moved):
            block = self.blocks[moved[at][0]]
            if moved[at : at + len(block.sizes)] != [(moved[at][0], k) for k in range(len(block.sizes))]:
                return False
            blocks.append(block)
            at += len(block.sizes)
        self.blocks = blocks
        return True

    def split(self, axis: int, parts: Any, size: Any) -> bool:
        self._need(-axis)
        shape = self.shape
        whole = shape[axis]
        known = self._number(parts if parts is not None else size)
        other = quotient(whole, known)
        block = None if self.has_spans else self.blocks[axis]
        if other is None and block is not None and len(block.pieces) == 1:
            # Not by algebra, but the op says that it divides.
            rest = whole // known if self.typed else _symbol(f"{block.pieces[0]} / {known}")
            outer, inner = (known, rest) if parts is not None else (rest, known)
            (piece,) = block.pieces
            at = axis + len(self.blocks)
            self.blocks[at : at + 1] = [_block(p) for p in _cut(piece, outer, inner)]
            return True
        if other is None:
            return False
        at = axis + len(shape)
        return self.reshape([*shape[:at], *((known, other) if parts is not None else (other, known)), *shape[at + 1 :]])

    def merge(self, axis: int, count: int) -> bool:
        self._need(count - axis - 1)
        shape = self.shape
        last = axis + len(shape)
        whole: Size = 1
        for size in shape[last - count + 1 : last + 1]:
            whole = whole * size
        if self.has_spans:
            return self.reshape([*shape[: last - count + 1], whole, *shape[last + 1 :]])
        pieces = [p for block in self.blocks[last - count + 1 : last + 1] for p in block.pieces]
        self.blocks[last - count + 1 : last + 1] = [Block(tuple(_joined(pieces)), (whole,))]
        return True

    def squeeze(self, axes: tuple[int, ...]) -> bool:
        self._need(max((-a for a in axes), default=0))
        if not all(self._make_unit(a) for a in axes):
            return False
        shape = self.shape
        kept = [s for i, s in enumerate(shape) if i - len(shape) not in axes]
        if self.has_spans:
            return self.reshape(kept)
        self.blocks = [b for i, b in enumerate(self.blocks) if i - len(shape) not in axes]
        return True

    def unsqueeze(self, axes: tuple[int, ...]) -> bool:
        self._need(max((-a for a in axes), default=0) - len(axes))
        rank = len(self.shape) + len(axes)
        if self.has_spans:
            rest = iter(self.shape)
            return self.reshape([1 if a in axes else next(rest) for a in range(-rank, 0)])
        blocks = iter(self.blocks)
        self.blocks = [_UNIT if a in axes else next(blocks) for a in range(-rank, 0)]
        return True

    def expand(self, axis: int, size: Any) -> bool:
        self._need(-axis)
        at = self._block_at(axis)
        if at is None or not self._make_unit(axis):
            return False
        number = self._number(size)
        if number != 1:
            self.blocks[at] = _block(Piece(REPEATED, 1, number))
        return True

    def _flat(self) -> list[Piece]:
        return [p for block in self.blocks for p in block.pieces]

    def _need(self, count: int) -> None:
        """Add axes on first use: a pattern does not know its rank."""
        while not self.typed and len(self.blocks) < count:
            axis = -len(self.lengths) - 1
            length = _symbol(f"axis {axis}")
            self.lengths.insert(0, length)
            self.blocks.insert(0, _block(Piece(axis, 1, length)))

    def _block_at(self, axis: int) -> int | None:
        """Return which block is an axis of the result; None for an axis within a span."""
        places = [(i, len(block.sizes)) for i, block in enumerate(self.blocks) for _ in block.sizes]
        at, axes = places[axis]
        return at if axes == 1 else None

    def _make_unit(self, axis: int) -> bool:
        """Return whether an axis has size 1; in a pattern an axis that is squeezed or expanded has."""
        if self.has_spans:
            return self.shape[axis] == 1
        block = self.blocks[axis]
        if not block.pieces:
            return True
        (piece, *more) = block.pieces
        if self.typed or more or piece.axis == REPEATED or piece.size != self.lengths[piece.axis]:
            return False
        self.lengths[piece.axis] = 1
        self.blocks[axis] = _UNIT
        return True

    def _number(self, size: Any) -> Size:
        """Return a size to compute with: a number that a pattern catches is a symbol."""
        if isinstance(size, int | Dim):
            return size
        for known, stands_for in self.spelled.items():
            if stands_for == size:
                return known
        symbol = _symbol(f"caught {len(self.spelled)}")
        self.spelled[symbol] = size
        return symbol


def _symbol(name: str) -> Size:
    return Dim((((Symbol(f"?{name}"),), 1),))


def _block(piece: Piece) -> Block:
    return _UNIT if piece.size == 1 else Block((piece,), (piece.size,))


def _cut(piece: Piece, outer: Size, inner: Size) -> tuple[Piece, Piece]:
    axis, stride, _ = piece
    return Piece(axis, 1 if axis == REPEATED else stride * inner, outer), Piece(axis, stride, inner)


def _joined(pieces: Sequence[Piece]) -> list[Piece]:
    """Join neighbors that are neighbors in the source as well."""
    joined: list[Piece] = []
    for piece in pieces:
        if joined and joined[-1].axis == piece.axis:
            last = joined[-1]
            if piece.axis == REPEATED or last.inner == piece.inner * piece.size:
                joined[-1] = Piece(piece.axis, piece.inner, last.size * piece.size)
                continue
        joined.append(piece)
    return joined


def _regroup(flat: list[Piece], shape: Sequence[Size]) -> list[Block] | None:
    """Cut the pieces so that each size takes its own; return None where algebra cannot tell how."""
    blocks: list[Block] = []
    rest = flat[::-1]
    at = 0
    while at < len(shape):
        taken = _take(rest, shape[at])
        if taken is not None:
            pieces, rest = taken
            blocks.append(Block(tuple(pieces), (shape[at],)))
            at += 1
            continue
        span = _span(rest, shape, at)
        if span is None:
            return None
        block, rest = span
        blocks.append(block)
        at += len(block.sizes)
    return None if rest else blocks


def _take(rest: list[Piece], size: Size) -> tuple[list[Piece], list[Piece]] | None:
    """Take the first pieces that make up one size, cutting the last of them if need be, and return the rest too."""
    taken: list[Piece] = []
    left = size
    used = len(rest)
    while left != 1:
        if not used:
            return None
        used -= 1
        piece = rest[used]
        more = quotient(left, piece.size)
        if more is not None:
            taken.append(piece)
            left = more
            continue
        inner = quotient(piece.size, left)
        if inner is None:
            return None
        outer, behind = _cut(piece, left, inner)
        return [*taken, outer], [*rest[:used], behind]
    return taken, rest[:used]


def _span(rest: list[Piece], shape: Sequence[Size], at: int) -> tuple[Block, list[Piece]] | None:
    """Return the fewest pieces that have as many elements as the next sizes together."""
    pieces: list[Piece] = []
    have: Size = 1
    want: Size = 1
    end = at
    used = len(rest)
    while True:
        if end > at and have == want:
            return Block(tuple(pieces), tuple(shape[at:end])), rest[:used]
        if isinstance(have, int) and isinstance(want, int):
            grows = have < want
        else:
            grows = end == len(shape) or (end > at and quotient(want, have) is not None)
        if grows and used:
            used -= 1
            pieces.append(rest[used])
            have = have * rest[used].size
        elif end < len(shape):
            want = want * shape[end]
            end += 1
        else:
            return None
