"""Indices that are sums of multiples of loop variables, and where elements of a value come from in these terms.

A piece is a box of a result with its loops. Going from a value to its operands turns indices into indices. Where they
are no such sums, the piece is refined: a loop becomes two, nested or in sequence.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, at_least
from dovetail.ir.value import Op, Value
from dovetail.ops.resize import resize
from dovetail.ops.view import quotient


class NotAffineError(Exception):
    """Indices that are not affine; another kernel family takes the body."""


@dataclass(frozen=True, slots=True)
class AffineIndex:
    """constant + the sum of multiples of loop variables."""

    constant: Size
    terms: tuple[tuple[int, Size], ...] = ()

    def __add__(self, other: AffineIndex) -> AffineIndex:
        return AffineIndex(self.constant + other.constant, (*self.terms, *other.terms))

    def scaled(self, factor: Size) -> AffineIndex:
        return AffineIndex(self.constant * factor, tuple((v, c * factor) for v, c in self.terms))

    def moved(self, by: Size) -> AffineIndex:
        return replace(self, constant=self.constant + by)


AxisIndices: TypeAlias = tuple[AffineIndex, ...]
"""An index for each axis."""
NOWHERE = AffineIndex(0)


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a result: how far each loop goes, and the element that the loops stand at."""

    sizes: tuple[Size, ...]
    place: AxisIndices

    def nested(self, variable: int, inner: Size, outer: Size) -> Piece:
        """A loop as two, one inside of the other."""
        sizes = (*self.sizes[:variable], outer, inner, *self.sizes[variable + 1 :])

        def terms(index: AffineIndex) -> AffineIndex:
            terms: list[tuple[int, Size]] = []
            for v, c in index.terms:
                terms += [(v, c * inner), (v + 1, c)] if v == variable else [(v + (v > variable), c)]
            return AffineIndex(index.constant, tuple(terms))

        return Piece(sizes, tuple(map(terms, self.place)))

    def behind(self, variable: int, first: Size) -> tuple[Piece, Piece]:
        """A loop as two in sequence."""
        size = self.sizes[variable]
        one, other = ((*self.sizes[:variable], n, *self.sizes[variable + 1 :]) for n in (first, size - first))
        moved = tuple(
            index.moved(sum((c * first for v, c in index.terms if v == variable), start=0)) for index in self.place
        )
        return Piece(one, self.place), Piece(other, moved)


class RefineError(Exception):
    """The pieces that a piece has to become."""

    def __init__(self, *pieces: Piece) -> None:
        super().__init__()
        self.pieces = pieces


def whole(shape: Sequence[Size]) -> Piece:
    """All of a shape, one loop for each axis."""
    return Piece(tuple(shape), tuple(AffineIndex(0, ((a, 1),)) if n != 1 else NOWHERE for a, n in enumerate(shape)))


def operands_at(piece: Piece, value: Value, place: AxisIndices) -> list[tuple[Value, AxisIndices]]:
    """Return the operands that an element of a value needs, each with the place of its element."""
    if value.op.elementwise:
        return [(v, _spread(v, place)) for v in value.operands]
    if value.op is ops.concat or value.op is ops.pad:
        return [_of_parts(piece, value, place)]
    rule = _RULES.get(value.op)
    if rule is None:
        raise NotAffineError
    return [(value.operands[0], rule(piece, value, place, value.attrs))]


def _spread(operand: Value, place: AxisIndices) -> AxisIndices:
    """The place in an operand that is broadcast."""
    near = place[len(place) - operand.rank :]
    return tuple(NOWHERE if n == 1 else index for n, index in zip(operand.shape, near, strict=True))


def _bounds(piece: Piece, index: AffineIndex) -> tuple[Size, Size]:
    """The least and the largest that an index can be."""
    low = high = index.constant
    for v, c in index.terms:
        far = c * (piece.sizes[v] - 1)
        if _not_negative(c):
            high = high + far
        elif _not_negative(-c):
            low = low + far
        else:
            raise NotAffineError
    return low, high


def _is_inside(piece: Piece, index: AffineIndex, first: Size, size: Size) -> bool:
    low, high = _bounds(piece, index)
    return _not_negative(low - first) and _not_negative(first + size - 1 - high)


def _not_negative(size: Size) -> bool:
    least = at_least(size)
    return least is not None and least >= 0


def _of_parts(piece: Piece, value: Value, place: AxisIndices) -> tuple[Value, AxisIndices]:
    """The operand of a concat or a pad that holds the whole piece; where there is none, the piece is cut."""
    x = value.operands[0]
    at = int(value.attrs["axis"]) + x.rank
    index = place[at]
    parts: list[tuple[Value, Size]] = [(v, v.shape[at]) for v in value.operands] if value.op is ops.concat else []
    if value.op is ops.pad:
        number = value.operands[1]
        parts = [(number, value.attrs["before"]), (x, x.shape[at]), (number, value.attrs["after"])]
    first: Size = 0
    borders: list[Size] = []
    for operand, size in parts:
        if _is_inside(piece, index, first, size):
            moved = (*place[:at], index.moved(-first), *place[at + 1 :])
            return operand, _spread(operand, moved)
        borders.append(first)
        first = first + size
    low, high = _bounds(piece, index)
    for border in borders:
        outside = _not_negative(low - border) or _not_negative(border - 1 - high)
        if not outside:
            _cut(piece, index, border)
    raise NotAffineError


def _cut(piece: Piece, index: AffineIndex, border: Size) -> None:
    """Cut a loop such that the border falls between two of its steps."""
    for v, c in index.terms:
        rest = AffineIndex(0, tuple(t for t in index.terms if t[0] != v))
        low, high = _bounds(piece, rest)
        step = _step_at(index.constant - border, c) if low == high == 0 else quotient(border - index.constant, c)
        if step is None or step in (0, piece.sizes[v]) or low != 0:
            continue
        if all(map(_not_negative, (step, piece.sizes[v] - step))) and (high == 0 or _not_negative(c - 1 - high)):
            raise RefineError(*piece.behind(v, step))
    raise NotAffineError


def _step_at(start: Size, c: Size) -> Size | None:
    """The first step at which start + c * step is on the other side of 0, which counts as above."""
    if isinstance(start, int) and isinstance(c, int):
        return -(start // c) if c > 0 else start // -c + 1
    if c == -1:
        return start + 1
    return quotient(-start, c) if _not_negative(c) else None


_Rule: TypeAlias = Callable[[Piece, Value, AxisIndices, Mapping[str, Any]], AxisIndices]


def _split(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    at = int(attrs["axis"]) + value.rank - 1
    return (*place[:at], place[at].scaled(value.shape[at + 1]) + place[at + 1], *place[at + 2 :])


def _merge(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    shape = value.operands[0].shape
    last = int(attrs["axis"]) + len(shape)
    first = last - int(attrs["count"]) + 1
    rest, inside = place[first], list[AffineIndex]()
    for a in range(last, first, -1):
        rest, inner = _divided(piece, rest, shape[a])
        inside.insert(0, inner)
    return (*place[:first], rest, *inside, *place[first + 1 :])


def _divided(piece: Piece, index: AffineIndex, size: Size) -> tuple[AffineIndex, AffineIndex]:
    """An index as a multiple of one plus another that is smaller."""
    outer: list[tuple[int, Size]] = []
    inner: list[tuple[int, Size]] = []
    for v, c in index.terms:
        times = quotient(c, size)
        if times is None:
            inner.append((v, c))
        else:
            outer.append((v, times))
    whole = quotient(index.constant, size)
    left: Size = 0
    if whole is None:
        if not (isinstance(index.constant, int) and isinstance(size, int)):
            raise NotAffineError
        whole, left = divmod(index.constant, size)
    small = AffineIndex(left, tuple(inner))
    if _is_inside(piece, small, 0, size):
        return AffineIndex(whole, tuple(outer)), small
    for v, c in inner:
        width = quotient(size, c)
        times = None if width is None else quotient(piece.sizes[v], width)
        if width is not None and times is not None and times != 1:
            raise RefineError(piece.nested(v, width, times))
    raise NotAffineError


def _unsqueeze(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    return tuple(index for a, index in enumerate(place) if a - value.rank not in attrs["axes"])


def _squeeze(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    rest, rank = iter(place), value.operands[0].rank
    return tuple([NOWHERE if a - rank in attrs["axes"] else next(rest) for a in range(rank)])


def _permute(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    order: tuple[int, ...] = attrs["order"]
    kept = value.rank - len(order)
    by_axis = dict(zip(order, place[kept:], strict=True))
    return (*place[:kept], *(by_axis[a] for a in range(-len(order), 0)))


def _slice(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    at = int(attrs["axis"]) + value.rank
    return (*place[:at], place[at].scaled(attrs["step"]).moved(attrs["start"]), *place[at + 1 :])


def _part(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    at = int(attrs["axis"]) + value.rank
    return (*place[:at], place[at].moved(attrs["index"] * value.shape[at]), *place[at + 1 :])


def _expand(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    at = int(attrs["axis"]) + value.rank
    return (*place[:at], NOWHERE, *place[at + 1 :])


def _flip(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    def turned(a: int, index: AffineIndex) -> AffineIndex:
        return index.scaled(-1).moved(value.shape[a] - 1) if a - value.rank in attrs["axes"] else index

    return tuple(turned(a, index) for a, index in enumerate(place))


def _resize(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    """Every element repeated; where a scale is no integer, places are no sums of multiples."""
    indices = list(place)
    axes: tuple[int, ...] = attrs["axes"]
    for i, axis in enumerate(axes):
        factor = quotient(value.shape[axis], value.operands[0].shape[axis])
        scale = factor if attrs["scales"] is None else attrs["scales"][i]
        if not isinstance(factor, int) or scale != factor or not _repeats(factor, attrs):
            raise NotAffineError
        indices[axis], _ = _divided(piece, place[axis], factor)
    return tuple(indices)


def _repeats(factor: int, attrs: Mapping[str, Any]) -> bool:
    """Whether the nearest element of place i is number i // factor."""
    if attrs["mode"] != "nearest":
        return False
    rounds = attrs["rounding"] in ("round_prefer_floor", "round_prefer_ceil")
    match attrs["coordinates"]:
        case "half_pixel" | "pytorch_half_pixel" | "half_pixel_symmetric":
            return rounds
        case "asymmetric":
            return attrs["rounding"] == "floor" or (attrs["rounding"] == "round_prefer_floor" and factor <= 2)
        case "tf_half_pixel_for_nn":
            return attrs["rounding"] == "floor"
        case _:
            return False


def _same(piece: Piece, value: Value, place: AxisIndices, attrs: Mapping[str, Any]) -> AxisIndices:
    return place


_RULES: Mapping[Op, _Rule] = {
    ops.split: _split,
    ops.merge: _merge,
    ops.unsqueeze: _unsqueeze,
    ops.squeeze: _squeeze,
    ops.permute: _permute,
    ops.slice_: _slice,
    ops.part: _part,
    ops.expand: _expand,
    ops.flip: _flip,
    ops.sized: _same,
    ops.again: _same,
    ops.stop_gradient: _same,
    resize: _resize,
}


def is_followed(value: Value) -> bool:
    """Whether indices can be followed through an op that is not elementwise."""
    return value.op in _RULES or value.op is ops.concat or value.op is ops.pad
