"""What a pattern needs at a glance: the ops at places that no operand order can change, and the pairs there."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from dovetail.ir import leaf
from dovetail.ir.value import Op, Value
from dovetail.match.undo import is_loose
from dovetail.ops.elementwise import div, mul
from dovetail.ops.movement import part, permute, slice_, split, unsqueeze
from dovetail.ops.view import VIEW_OPS

Equal: TypeAlias = Callable[[Value], Sequence[Value]]
"""The values that an operand may be taken for."""
Path: TypeAlias = tuple[int, ...]
"""A place under a root, as indices of operands from the root down."""
OneOf: TypeAlias = tuple[Op, ...]
"""What may stand at a place; nothing stands for anything."""


class Pair(NamedTuple):
    """What the two operands of a commutative op may be, in either order."""

    left: OneOf
    right: OneOf


class Place(NamedTuple):
    """What must stand at a path: one of some ops with its options, or a pair below it."""

    path: Path
    ops: OneOf | Pair
    options: tuple[tuple[str, Any], ...] = ()
    """Attributes that a pattern fixes: options of declared ops, of which a pattern has one trace for each choice."""


Outline: TypeAlias = tuple[Place, ...]

_OPEN = (leaf.HOLE, leaf.NUMBER, leaf.CONST)
SPELLED: dict[Op, OneOf] = {mul: (mul, div), div: (mul, div), part: (part, slice_), slice_: (part, slice_)}
"""What a loose op can be spelled with, whatever it is of; anything where it is not listed."""
SAME: dict[Op, OneOf] = {split: (split, unsqueeze)}
"""What an op with the same operand can be spelled with."""
_LOOSE: dict[Op, OneOf] = {**SPELLED, permute: VIEW_OPS}


def outline_of(pattern: Value) -> Outline:
    """Return the ops of a pattern down to the first commutative op on each way, and what that op is of; each once."""
    places: list[Place] = []
    seen: set[Value] = set()
    pending: list[tuple[Path, Value]] = [((), pattern)]
    for path, value in pending:
        if value in seen or value.op in _OPEN:
            continue
        if path and is_loose(value):
            if value.op in _LOOSE:
                places.append(Place(path, _LOOSE[value.op]))
            continue
        seen.add(value)
        options = tuple([(name, attr) for name, attr in value.attrs.items() if _is_option(attr)])
        if path or options:
            places.append(Place(path, SAME.get(value.op, (value.op,)), options))
        if not value.op.commutative:
            pending += [((*path, i), operand) for i, operand in enumerate(value.operands)]
        elif len(value.operands) == 2:
            left, right = (_ops_at(operand) for operand in value.operands)
            if left or right:
                places.append(Place(path, Pair(left, right)))
    return tuple(places)


def _is_option(attr: Any) -> bool:
    """Return whether an item is a choice of one trace, or the names of its operands."""
    listed = cast(tuple[Any, ...], attr) if isinstance(attr, tuple) else (attr,)
    return all([isinstance(a, str | bool) for a in listed])


def _ops_at(operand: Value) -> OneOf:
    if operand.op is leaf.NUMBER:
        return (leaf.CONST,)
    if operand.op in _OPEN:
        return ()
    return _LOOSE.get(operand.op, ()) if is_loose(operand) else SAME.get(operand.op, (operand.op,))


def fits(outline: Outline, value: Value, equal: Equal | None = None) -> bool:
    """Return whether all the ops stand where they must; with `equal`, an operand may be any value that it equals."""
    at: dict[Path, Sequence[Value]] = {(): (value,)}
    return all(any([_has(v, place, equal) for v in _at_any(place.path, at, equal)]) for place in outline)


class Outlines:
    """Many outlines, each with a number. What several begin with in common is looked at once."""

    def __init__(self) -> None:
        self._numbers: dict[Outline, int] = {}
        self._start = _Branch()

    def number(self, outline: Outline) -> int:
        """Return the number of an outline; add it where it is new."""
        known = self._numbers.get(outline)
        if known is not None:
            return known
        branch = self._start
        for place in outline:
            branch = branch.along(place)
        branch.number = self._numbers[outline] = len(self._numbers)
        return branch.number

    def fitting(self, value: Value, *, equal: Equal | None = None, but: int = 0) -> set[int]:
        """Return the outlines whose ops all stand where they must.

        With `equal`, an operand may be any value that it equals. `but` is how many ops the matcher can forgive.
        """
        numbers: set[int] = set()
        if but:
            self._forgiving(value, but, numbers)
            return numbers
        at: dict[Path, Sequence[Value]] = {(): (value,)}
        stack = [self._start]
        while stack:
            branch = stack.pop()
            if branch.number is not None:
                numbers.add(branch.number)
            for path, fork in branch.forks.items():
                stack += fork.taken(at.get(path) or _at_any(path, at, equal), equal)
        return numbers

    def _forgiving(self, value: Value, but: int, numbers: set[int]) -> None:
        stack = [(self._start, but)]
        while stack:
            branch, left = stack.pop()
            if branch.number is not None:
                numbers.add(branch.number)
            for path, fork in branch.forks.items():
                at = _at(path, value)
                if at is None:
                    continue
                for place, further in fork.branches.items():
                    if _has(at, place):
                        stack.append((further, left))
                    elif (strange := _strange(at, place.ops)) <= left:
                        stack.append((further, left - strange))


class _Branch:
    """Where outlines part that had all places so far in common."""

    __slots__ = ("forks", "number")

    def __init__(self) -> None:
        self.number: int | None = None
        self.forks: dict[Path, _Fork] = {}

    def along(self, place: Place) -> _Branch:
        fork = self.forks.setdefault(place.path, _Fork())
        fork.known.clear()
        fork.has_pairs |= isinstance(place.ops, Pair)
        return fork.branches.setdefault(place, _Branch())


class _Fork:
    """What may stand at one path, and where each leads. Values of the same ops are looked at once."""

    __slots__ = ("branches", "has_pairs", "known")

    def __init__(self) -> None:
        self.branches: dict[Place, _Branch] = {}
        self.has_pairs = False
        self.known: dict[Hashable, tuple[list[_Branch], list[tuple[Place, _Branch]]]] = {}

    def taken(self, values: Sequence[Value], equal: Equal | None) -> list[_Branch]:
        """Return the branches that one of the values allows."""
        if len(values) == 1:
            return self._of(values[0], equal)
        return list(dict.fromkeys([branch for value in values for branch in self._of(value, equal)]))

    def _of(self, value: Value, equal: Equal | None) -> list[_Branch]:
        key = (value.op, *[_ops(v, equal) for v in value.operands]) if self.has_pairs else value.op
        known = self.known.get(key)
        if known is None:
            fitting = [(p, b) for p, b in self.branches.items() if _stands(value, p.ops, equal)]
            known = ([b for p, b in fitting if not p.options], [(p, b) for p, b in fitting if p.options])
            self.known[key] = known
        plain, chosen = known
        return plain + [b for p, b in chosen if _has_options(value, p)] if chosen else plain


def _ops(value: Value, equal: Equal | None) -> Hashable:
    """Return the ops that a value may be taken to be of."""
    if equal is None:
        return value.op
    values = equal(value)
    return values[0].op if len(values) == 1 else frozenset([v.op for v in values])


def _stands(value: Value, expected: OneOf | Pair, equal: Equal | None) -> bool:
    """Return whether an op is one of those that may stand there, or the operands of a value are a pair, in either
    order.
    """
    if not isinstance(expected, Pair):
        return value.op in expected
    if len(value.operands) != 2:
        return False
    (x, y) = ((v,) if equal is None else equal(v) for v in value.operands)
    return (_meets(x, expected.left) and _meets(y, expected.right)) or (
        _meets(y, expected.left) and _meets(x, expected.right)
    )


def _meets(values: Sequence[Value], expected: OneOf) -> bool:
    return not expected or any([value.op in expected for value in values])


_TOO_MANY = 2


def _strange(value: Value, expected: OneOf | Pair) -> int:
    """How many ops stand where others must; one that is not elementwise, or should not be, cannot be forgiven."""
    if not isinstance(expected, Pair):
        return _TOO_MANY if value.op in expected else _stranger(value, expected)
    if len(value.operands) != 2:
        return _TOO_MANY
    (x, y), (left, right) = value.operands, expected
    return min(_stranger(x, left) + _stranger(y, right), _stranger(y, left) + _stranger(x, right))


def _stranger(value: Value, expected: OneOf) -> int:
    if not expected or value.op in expected:
        return 0
    return 1 if value.op.elementwise and any([op.elementwise for op in expected]) else _TOO_MANY


def _at(path: Path, value: Value) -> Value | None:
    for index in path:
        if index >= len(value.operands):
            return None
        value = value.operands[index]
    return value


def _has(value: Value, place: Place, equal: Equal | None = None) -> bool:
    return _stands(value, place.ops, equal) and _has_options(value, place)


def _has_options(value: Value, place: Place) -> bool:
    return all([value.attrs[name] == choice for name, choice in place.options])


def _at_any(path: Path, at: dict[Path, Sequence[Value]], equal: Equal | None) -> Sequence[Value]:
    """Return the values that may stand at the end of a path; `at` remembers those of all paths so far."""
    known = at.get(path)
    if known is None:
        index = path[-1]
        above = _at_any(path[:-1], at, equal)
        below = [v.operands[index] for v in above if index < len(v.operands)]
        if equal is not None:
            below = [v for operand in dict.fromkeys(below) for v in equal(operand)]
        known = at[path] = below
    return known
