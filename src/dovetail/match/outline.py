"""What a pattern asks for at a glance: the ops at places that no operand order can change, and the pairs there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

from dovetail.ir import leaf
from dovetail.ir.op import Op
from dovetail.ir.value import Value
from dovetail.match.undo import is_loose
from dovetail.ops.elementwise import div, mul
from dovetail.ops.movement import part, slice_

Pair: TypeAlias = tuple[tuple[Op, ...], tuple[Op, ...]]
"""What the two operands of a commutative op may be, in either order; nothing stands for anything."""
Options: TypeAlias = tuple[tuple[str, str | bool], ...]
"""Attributes that a pattern fixes: the options of declared ops, of which a pattern has one trace for each choice."""
Place: TypeAlias = tuple[tuple[int, ...], Op | Pair, Options]
"""A place under a root, as indices of operands from the root down, and the op with its options or the pair there."""
Outline: TypeAlias = tuple[Place, ...]

_OPEN = (leaf.HOLE, leaf.NUMBER, leaf.CONST)
SPELLED: dict[Op, tuple[Op, ...]] = {mul: (mul, div), div: (mul, div), part: (part, slice_), slice_: (part, slice_)}
"""What a loose op can be spelled with; anything where it is not listed."""


def outline_of(pattern: Value) -> Outline:
    """The ops of a pattern down to the first commutative op on each way, and what that op is of; each once."""
    places: list[Place] = []
    seen: set[Value] = set()
    pending: list[tuple[tuple[int, ...], Value]] = [((), pattern)]
    for path, value in pending:
        if value in seen or value.op in _OPEN or (path and is_loose(value)):
            continue
        seen.add(value)
        options = tuple([(name, attr) for name, attr in value.attrs.items() if isinstance(attr, str | bool)])
        if path or options:
            places.append((path, value.op, options))
        if not value.op.commutative:
            pending += [((*path, i), operand) for i, operand in enumerate(value.operands)]
        elif len(value.operands) == 2:
            left, right = (_asked(operand) for operand in value.operands)
            if left or right:
                places.append((path, (left, right), ()))
    return tuple(places)


def _asked(operand: Value) -> tuple[Op, ...]:
    if operand.op is leaf.NUMBER:
        return (leaf.CONST,)
    if operand.op in _OPEN:
        return ()
    return SPELLED.get(operand.op, ()) if is_loose(operand) else (operand.op,)


def fits(outline: Outline, value: Value) -> bool:
    """Whether all the ops stand where they must."""
    return all((at := _at(place[0], value)) is not None and _has(at, place) for place in outline)


def fits_any(outline: Outline, value: Value, equal: Callable[[Value], Sequence[Value]]) -> bool:
    """Whether all the ops may stand where they must, if operands may each be any value that they equal."""
    at: dict[tuple[int, ...], Sequence[Value]] = {(): (value,)}
    return all(any([_has_any(v, place, equal) for v in _at_any(place[0], at, equal)]) for place in outline)


class Outlines:
    """Many outlines, each with a number. What several begin with in common is looked at once."""

    def __init__(self) -> None:
        self._numbers: dict[Outline, int] = {}
        self._start = _Branch()

    def number(self, outline: Outline) -> int:
        """The number of an outline, which is added where it is new."""
        known = self._numbers.get(outline)
        if known is not None:
            return known
        branch = self._start
        for place in outline:
            branch = branch.ways.setdefault(place, _Branch())
        branch.number = self._numbers[outline] = len(self._numbers)
        return branch.number

    def fitting(self, value: Value, *, but: int = 0) -> set[int]:
        """The outlines whose ops all stand where they must, but for a number of them that the matcher can forgive."""
        found: set[int] = set()
        stack = [(self._start, but)]
        while stack:
            branch, left = stack.pop()
            if branch.number is not None:
                found.add(branch.number)
            for place, further in branch.ways.items():
                at = _at(place[0], value)
                if at is not None and _has(at, place):
                    stack.append((further, left))
                elif at is not None and left and (strange := _strange(at, place[1])) <= left:
                    stack.append((further, left - strange))
        return found

    def fitting_any(self, value: Value, equal: Callable[[Value], Sequence[Value]]) -> list[int]:
        """The outlines that fit a value whose operands may each be any value that they equal."""
        found: list[int] = []
        at: dict[tuple[int, ...], Sequence[Value]] = {(): (value,)}
        stack = [self._start]
        while stack:
            branch = stack.pop()
            if branch.number is not None:
                found.append(branch.number)
            for place, further in branch.ways.items():
                if any([_has_any(v, place, equal) for v in _at_any(place[0], at, equal)]):
                    stack.append(further)
        return found


class _Branch:
    """Where outlines part that had all places so far in common."""

    __slots__ = ("number", "ways")

    def __init__(self) -> None:
        self.number: int | None = None
        self.ways: dict[Place, _Branch] = {}


_TOO_MANY = 2


def _strange(value: Value, asked: Op | Pair) -> int:
    """How many ops stand where others must; one that is not elementwise, or should not be, cannot be forgiven."""
    if not isinstance(asked, tuple):
        return _TOO_MANY if value.op is asked else _stranger(value, (asked,))
    if len(value.operands) != 2:
        return _TOO_MANY
    (x, y), (left, right) = value.operands, asked
    return min(_stranger(x, left) + _stranger(y, right), _stranger(y, left) + _stranger(x, right))


def _stranger(value: Value, asked: tuple[Op, ...]) -> int:
    if not asked or value.op in asked:
        return 0
    return 1 if value.op.elementwise and any([op.elementwise for op in asked]) else _TOO_MANY


def _at(path: tuple[int, ...], value: Value) -> Value | None:
    for index in path:
        if index >= len(value.operands):
            return None
        value = value.operands[index]
    return value


def _has(value: Value, place: Place) -> bool:
    _, asked, options = place
    if not isinstance(asked, tuple):
        return value.op is asked and (not options or all([value.attrs[name] == choice for name, choice in options]))
    if len(value.operands) != 2:
        return False
    left, right = asked
    x, y = value.operands[0].op, value.operands[1].op
    straight = (not left or x in left) and (not right or y in right)
    return straight or ((not left or y in left) and (not right or x in right))


def _at_any(
    path: tuple[int, ...], at: dict[tuple[int, ...], Sequence[Value]], equal: Callable[[Value], Sequence[Value]]
) -> Sequence[Value]:
    """The values that may stand at the end of a path; `at` remembers those of all paths that were asked for."""
    known = at.get(path)
    if known is None:
        index = path[-1]
        above = _at_any(path[:-1], at, equal)
        below = [v.operands[index] for v in above if index < len(v.operands)]
        known = at[path] = [v for operand in dict.fromkeys(below) for v in equal(operand)]
    return known


def _has_any(value: Value, place: Place, equal: Callable[[Value], Sequence[Value]]) -> bool:
    _, asked, options = place
    if not isinstance(asked, tuple):
        return value.op is asked and (not options or all([value.attrs[name] == choice for name, choice in options]))
    if len(value.operands) != 2:
        return False
    left, right = asked
    x, y = equal(value.operands[0]), equal(value.operands[1])
    straight = _meets(x, left) and _meets(y, right)
    return straight or (_meets(y, left) and _meets(x, right))


def _meets(found: Sequence[Value], asked: tuple[Op, ...]) -> bool:
    if not asked:
        return True
    # A loop, because generators cost more than what they skip here.
    for value in found:  # noqa: SIM110
        if value.op in asked:
            return True
    return False
