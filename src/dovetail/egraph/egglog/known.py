"""Which patterns can be in a graph at all: a glance at ops and fixed attributes keeps most rules out of a program."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Mapping
from typing import Any, cast

from dovetail.ir import leaf
from dovetail.ir.value import Op, Value, attrs_key
from dovetail.match.attributes import UNITS
from dovetail.match.outline import SAME, SPELLED
from dovetail.match.undo import is_loose

_LEAVES = (leaf.INPUT, leaf.PARAM, leaf.ARGUMENT, leaf.CONST, leaf.HOLE, leaf.NUMBER)
_OPEN = (leaf.Hole, leaf.SizeOf, leaf.DTypeOf)


class Known:
    """Ops that are there or can be made, with their numbers of operands and attributes."""

    def __init__(self, values: Iterable[Value]) -> None:
        self._ops: dict[Op, dict[Hashable, tuple[int, Mapping[str, Any]]]] = {}
        for value in values:
            self.add(value)

    def add(self, value: Value) -> None:
        if value.op not in _LEAVES:
            key = (len(value.operands), attrs_key(value.attrs))
            self._ops.setdefault(value.op, {}).setdefault(key, (len(value.operands), value.attrs))

    def may_hold(self, inside: Iterable[Value]) -> bool:
        """Return whether the graph has something for every op of a pattern."""
        return all(value.op in _LEAVES or self._may_be(value) for value in inside)

    def _may_be(self, pattern: Value) -> bool:
        if pattern.op in SPELLED:
            return any(op in self._ops for op in SPELLED[pattern.op])
        if is_loose(pattern):
            return True
        if pattern.op in SAME:
            # By parts or by size: each is the other too.
            return any(op in self._ops for op in SAME[pattern.op])
        if pattern.op in UNITS:
            return pattern.op in self._ops
        count, expected = len(pattern.operands), pattern.attrs
        return any(
            arity == count and all(_may_be_one(expected[key], attributes[key]) for key in expected)
            for arity, attributes in self._ops.get(pattern.op, {}).values()
        )


def _may_be_one(expected: Any, actual: Any) -> bool:
    if isinstance(expected, _OPEN) or isinstance(actual, _OPEN):
        return True
    if isinstance(expected, tuple) and isinstance(actual, tuple):
        pairs = cast("tuple[tuple[Any, ...], tuple[Any, ...]]", (expected, actual))
        return len(pairs[0]) == len(pairs[1]) and all(map(_may_be_one, *pairs))
    return bool(expected == actual)
