"""Taking an op back: what stood under it, so that a pattern need not find the op itself."""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir import leaf
from dovetail.ir.dtype import bool_
from dovetail.ir.value import Value
from dovetail.match.attributes import slice_bounds
from dovetail.ops.build import cut
from dovetail.ops.elementwise import bit_not, div, equal, mul, not_equal
from dovetail.ops.movement import part, permute, slice_, split
from dovetail.ops.view import VIEW_OPS, View
from dovetail.ops.view_chain import build_view

RESPELLED = frozenset({mul, div, slice_, part, permute, split, bit_not})
"""The ops that may stand in a pattern and be spelled with others; what is of another op never is."""
_LONGEST = 32
"""How far down a chain of views is followed."""


def undone(pattern: Value, value: Value) -> Value | None:
    """Return what the hole under a pattern's op must be for the pattern to be `value`; None where that is unknown."""
    if pattern.op is permute and is_loose(pattern):
        return _swapped_back(value)
    return _negated(value) if pattern.op is bit_not and is_loose(pattern) else None


def is_loose(pattern: Value) -> bool:
    """Return whether other ops can spell it too: a hole swapped or negated, a product with a number, a slice."""
    if pattern.op is mul or pattern.op is div:
        return any(v.op is leaf.NUMBER for v in pattern.operands)
    if pattern.op is slice_ or pattern.op is part:
        return True
    swaps = pattern.op is permute and pattern.attrs["order"] == (-1, -2)
    return (swaps or pattern.op is bit_not) and pattern.operands[0].op is leaf.HOLE


def inverted(pattern: Value, value: Value) -> tuple[tuple[Value, Value], tuple[Value, Value]] | None:
    """x / c as x * (1 / c) and the other way round: the factors, and the numbers, pattern and value of each."""
    other = div if pattern.op is mul else mul if pattern.op is div else None
    if value.op is not other or not value.dtype.is_inexact:
        return None
    factor, number = _number_last(pattern)
    value_number, constant = _number_last(value)
    written = _inverse(number.attrs["value"]) if number.op is leaf.NUMBER and constant.op is leaf.CONST else None
    return None if written is None else ((factor, value_number), (leaf.scalar(written, None), constant))


def part_of(pattern: Value, value: Value) -> Value | None:
    """Return the slice of the value's source that has the value as this part, where the pattern takes a part of a
    slice.
    """
    if pattern.op is not part or value.op not in (part, slice_) or pattern.operands[0].op not in (leaf.HOLE, slice_):
        return None
    axis: int = value.attrs["axis"]
    bounds = slice_bounds(value)
    if axis != pattern.attrs["axis"] or bounds["step"] != 1:
        return None
    (source,) = value.operands
    length = value.shape[axis]
    start = bounds["start"] - length * pattern.attrs["index"]
    stop = start + length * pattern.attrs["parts"]
    inside = isinstance(start, int) and start >= 0 and isinstance(rest := source.shape[axis] - stop, int) and rest >= 0
    return cut(source, axis, start, stop) if inside else None


def _number_last(value: Value) -> tuple[Value, Value]:
    x, y = value.operands
    return (y, x) if value.op is mul and x.op in (leaf.NUMBER, leaf.CONST) else (x, y)


def _inverse(number: float | leaf.Hole) -> float | leaf.Hole | None:
    if not isinstance(number, leaf.Hole):
        return 1.0 / number if number else None
    turned = {"as_is": "inverse", "inverse": "as_is"}.get(number.written)
    return None if turned is None else replace(number, written=turned)


def _swapped_back(value: Value) -> Value | None:
    """Return the source of a view whose last two axes are swapped, in its minimal form."""
    chain: list[Value] = []
    source = value
    while source.op in VIEW_OPS and len(chain) < _LONGEST:
        chain.append(source)
        source = source.operands[0]
    if value.rank < 2 or all(v.op is not permute for v in chain):
        return None
    view = View(source)
    if not all(map(view.apply, reversed(chain))) or not view.permute((-1, -2)):
        return None
    inner = view.blocks[-1].pieces
    axes = [piece.axis for block in view.blocks for piece in block.pieces if piece.axis < 0]
    return build_view(view) if inner and inner[-1].axis == max(axes) and inner[-1].inner == 1 else None


def _negated(value: Value) -> Value | None:
    if value.dtype is not bool_:
        return None
    if value.op is bit_not:
        return value.operands[0]
    opposite = {equal: not_equal, not_equal: equal}.get(value.op)  # type: ignore[call-overload]  # ops are compared by identity
    return bit_not(value) if opposite is None else opposite(*value.operands)
