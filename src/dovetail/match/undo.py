"""Taking an op back: what stood under it, so that a pattern need not find the op itself."""

from __future__ import annotations

from dovetail.ir import leaf
from dovetail.ir.dtype import bool_
from dovetail.ir.value import Value
from dovetail.ops.elementwise import bit_not, equal, not_equal
from dovetail.ops.movement import permute


def undone(pattern: Value, value: Value) -> Value | None:
    """What the hole under the pattern's op must be for the pattern to be `value`; None where that is not said."""
    if not is_loose(pattern):
        return None
    return _permuted_back(pattern, value) if pattern.op is permute else _negated(value)


def is_loose(pattern: Value) -> bool:
    """Whether the pattern is a hole that is permuted or negated, which other ops can spell too."""
    return (pattern.op is permute or pattern.op is bit_not) and pattern.operands[0].op is leaf.HOLE


def _permuted_back(pattern: Value, value: Value) -> Value | None:
    """Any permutation is the wanted one after another one; the views stay as many as they were."""
    order: tuple[int, ...] = pattern.attrs["order"]
    if value.op is not permute or value.rank < len(order):
        return None
    found: tuple[int, ...] = value.attrs["order"]
    length = max(len(order), len(found))
    wanted, stood = _extended(order, length), _extended(found, length)
    # Axis a of what is caught becomes axis wanted.index(a) of the value.
    rest = [stood[wanted.index(axis)] for axis in range(-length, 0)]
    while rest and rest[0] == -len(rest):
        rest.pop(0)
    return permute(value.operands[0], order=tuple(rest)) if rest else value.operands[0]


def _extended(order: tuple[int, ...], length: int) -> list[int]:
    return [*range(-length, -len(order)), *order]


def _negated(value: Value) -> Value | None:
    if value.dtype is not bool_:
        return None
    if value.op is bit_not:
        return value.operands[0]
    opposite = {equal: not_equal, not_equal: equal}.get(value.op)  # type: ignore[call-overload]  # ops are compared by identity
    return bit_not(value) if opposite is None else opposite(*value.operands)
