"""The scope of an edit: the values inside it, its free operands, and a key that equal edits share."""

from __future__ import annotations

import heapq
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.derive.edit import Edit
from dovetail.ir import leaf
from dovetail.ir.literal import Literal
from dovetail.ir.value import Value, attrs_key
from dovetail.ir.walk import walk

_MOST_INSIDE = 400
"""Most values inside a scope; deeper ones count as operands."""
_BEFORE, _AFTER = 1, 2


@dataclass(frozen=True, slots=True)
class EditScope:
    """The values of an edit above those that both of its sides read."""

    inside: frozenset[Value]
    key: Hashable
    writes_numbers: bool
    """Whether its result holds numbers that were not there before: these are rounded to their dtype."""
    drops_numbers: bool
    """Whether numbers are gone, which were rounded to their dtype: the rule may stand for what they are meant to be."""


class ScopeFinder:
    """Finds the operands that both sides of an edit share. Deepest values are visited first, and each once."""

    def __init__(self) -> None:
        self._depth: dict[Value, int] = {}
        self._in_body: set[Value] = set()

    def depth(self, value: Value) -> int:
        """The longest path from a leaf to a value."""
        known = self._depth
        if value not in known:
            for each in walk([value], until=known):
                if each not in known:
                    known[each] = 1 + max([known[v] for v in each.operands], default=-1)
                    if each.op is leaf.ARGUMENT or not self._in_body.isdisjoint(each.operands):
                        self._in_body.add(each)
        return known[value]

    def is_in_body(self, edit: Edit) -> bool:
        """Whether an edit is inside a branch or a loop, where nothing is known of the operands."""
        for value in (*edit.before, *edit.after):
            self.depth(value)
        return not self._in_body.isdisjoint((*edit.before, *edit.after))

    def scope(self, edit: Edit) -> EditScope:
        sides: dict[Value, int] = {}
        order: dict[Value, int] = {}
        inside: dict[Value, None] = {}
        heap: list[tuple[int, int, Value]] = []

        def meet(value: Value, side: int) -> None:
            if value not in sides:
                heapq.heappush(heap, (-self.depth(value), len(sides), value))
            sides[value] = sides.get(value, 0) | side

        for before, after in zip(edit.before, edit.after, strict=True):
            meet(before, _BEFORE)
            meet(after, _AFTER)
        while heap:
            _, _, value = heapq.heappop(heap)
            order[value] = len(order)
            if sides[value] != _BEFORE | _AFTER and value.operands and len(inside) < _MOST_INSIDE:
                inside[value] = None
                for operand in value.operands:
                    meet(operand, sides[value])
        numbers = {side: _numbers([v for v in sides if sides[v] & side], inside) for side in (_BEFORE, _AFTER)}
        ends = tuple(order[v] for v in (*edit.before, *edit.after))
        key = (edit.rule, edit.variant, ends, tuple(_signature(v, order, inside) for v in order))
        written, gone = numbers[_AFTER] - numbers[_BEFORE], numbers[_BEFORE] - numbers[_AFTER]
        return EditScope(frozenset(inside), key, bool(written), bool(gone))


def _signature(value: Value, order: Mapping[Value, int], inside: Mapping[Value, None]) -> Hashable:
    if value in inside:
        return (value.op, attrs_key(value.attrs), tuple([order[v] for v in value.operands]))
    return value if value.op is leaf.CONST else value.type


def _numbers(values: Sequence[Value], inside: Mapping[Value, None]) -> frozenset[Hashable]:
    """The floats that are written into values: constants, and numbers among the attributes."""
    found: set[Hashable] = set()
    for value in values:
        if value.op is leaf.CONST:
            literal: Literal = value.attrs["value"]
            if literal.dtype.is_inexact:
                found.add(float(literal.array) if literal.array.shape == () and literal.dtype.is_float else literal)
        elif value in inside:
            numbers: list[Any] = [a for a in value.attrs.values() if isinstance(a, float)]
            found.update(numbers)
    return frozenset(found)


__all__ = ["EditScope", "ScopeFinder"]
