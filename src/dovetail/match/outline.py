"""What a pattern asks for at a glance: the ops at places that no operand order can change."""

from __future__ import annotations

from typing import TypeAlias

from dovetail.ir import leaf
from dovetail.ir.op import Op
from dovetail.ir.value import Value
from dovetail.match.undo import is_loose

Outline: TypeAlias = tuple[tuple[tuple[int, ...], Op], ...]
"""Places under a root, as indices of operands from the root down, and the op at each."""

_OPEN = (leaf.HOLE, leaf.NUMBER, leaf.CONST)


def outline_of(pattern: Value) -> Outline:
    """The ops of a pattern that stand under no commutative op, each once, the root left out."""
    places: list[tuple[tuple[int, ...], Op]] = []
    seen: set[Value] = set()
    pending: list[tuple[tuple[int, ...], Value]] = [((), pattern)]
    for path, value in pending:
        if value in seen or value.op in _OPEN or is_loose(value):
            continue
        seen.add(value)
        if path:
            places.append((path, value.op))
        if not value.op.commutative:
            pending += [((*path, i), operand) for i, operand in enumerate(value.operands)]
    return tuple(places)


def fits(outline: Outline, value: Value, *, but: int = 0) -> bool:
    """Whether all the ops stand where they must, but for a number of them."""
    for path, op in outline:
        found = value
        for index in path:
            if index >= len(found.operands):
                break
            found = found.operands[index]
        else:
            if found.op is op:
                continue
        but -= 1
        if but < 0:
            return False
    return True
