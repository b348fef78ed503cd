"""Gradients on their way: terms added up, masks kept outermost, broadcasts undone."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops.primitive import Primitive


class Masked(NamedTuple):
    """A gradient that is 0 wherever a condition is `False`, or wherever it is `True`."""

    condition: Value
    keeps: bool
    """The truth of the condition where the gradient is kept."""
    inner: Value

    def value(self) -> Value:
        """Return the gradient itself."""
        return _chosen(self.condition, self.keeps, self.inner)

    def around(self, part: Value) -> Value:
        """Return a gradient pulled from the inner one, under the same mask and its own: one `where` for both."""
        own = masked(part)
        if own is None or own.condition is self.condition:
            return _chosen(self.condition, self.keeps, part)
        return ops.where(ops.bit_and(self.holds(), own.holds()), own.inner, 0.0)

    def is_by_row(self, x: Value) -> bool:
        """Return whether it keeps or drops whole rows, and x has the same rows."""
        shape = self.condition.shape
        return bool(shape) and shape[-1] == 1 and x.shape[:-1] == self.inner.shape[:-1]

    def holds(self) -> Value:
        """Return the condition under which the gradient is kept."""
        return self.condition if self.keeps else ops.bit_not(self.condition)


def _chosen(condition: Value, keeps: bool, inner: Value) -> Value:
    return ops.where(condition, inner, 0.0) if keeps else ops.where(condition, 0.0, inner)


def masked(g: Value) -> Masked | None:
    """Return the mask of a gradient, where its outermost op is one: `where(c, t, 0)` or `where(c, 0, t)`."""
    if g.op is not ops.where:
        return None
    condition, yes, no = g.operands
    for inner, other, keeps in ((yes, no, True), (no, yes, False)):
        if leaf.scalar_of(other) == 0 and inner.shape == g.shape:
            return Masked(condition, keeps, inner)
    return None


def added(terms: Sequence[Value]) -> Value:
    """Return the sum of gradients. Those under one mask stay under it, and slices that tile an axis are one concat."""
    if len(terms) == 1:
        return terms[0]
    tiled = _tiled(terms)
    if tiled is not None:
        return tiled
    groups: dict[tuple[Value, bool] | None, list[Value]] = {}
    for term in terms:
        mask = masked(term)
        if mask is None:
            groups.setdefault(None, []).append(term)
        else:
            groups.setdefault((mask.condition, mask.keeps), []).append(mask.inner)
    sums: list[Value] = []
    for key, group in groups.items():
        total = _sum(group)
        sums.append(total if key is None else _chosen(*key, total))
    return _sum(sums)


def _sum(terms: Sequence[Value]) -> Value:
    total = terms[0]
    for term in terms[1:]:
        total = total + term
    return total


def _tiled(terms: Sequence[Value]) -> Value | None:
    """Gradients of all slices of one axis, each padded with zeros: together they are a concat."""
    first = terms[0]
    if any(t.op is not ops.pad or t.attrs["axis"] != first.attrs["axis"] for t in terms):
        return None
    if any(leaf.scalar_of(t.operands[1]) != 0 for t in terms):
        return None
    axis: int = first.attrs["axis"]
    rest = list(terms)
    end: Size = 0
    slices: list[Value] = []
    while rest:
        following = next((t for t in rest if t.attrs["before"] == end), None)
        if following is None:
            return None
        rest.remove(following)
        slices.append(following.operands[0])
        end = end + following.operands[0].shape[axis]
    return ops.concat(*slices, axis=axis) if end == first.shape[axis] else None


def moves_only(value: Value) -> bool:
    """Return whether every element of the operand is one element of the result: then the mask of a gradient moves
    along.
    """
    return isinstance(value.op, Primitive) and value.op in _MOVES


_MOVES = (ops.split, ops.merge, ops.unsqueeze, ops.squeeze, ops.permute, ops.sized, ops.flip, ops.again)


__all__ = ["Masked", "added", "masked", "moves_only"]
