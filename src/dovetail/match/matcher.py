"""The one matcher: a traced pattern against a graph. What fuses is what explains."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, TypeAlias

import numpy as np

from dovetail.ir import leaf
from dovetail.ir.leaf import DTypeOf, Hole, SizeOf
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.match.attributes import attributes_as
from dovetail.match.mismatch import Bound, Kind, Mismatch
from dovetail.match.outline import SAME
from dovetail.match.undo import inverted, is_loose, part_of, undone

_NOTHING = object()
_Goals: TypeAlias = "tuple[Value, Value, _Goals] | None"
Equal: TypeAlias = Callable[[Value], Sequence[Value]]
"""The values that an operand may be taken for: all that an e-graph knows to be equal to it."""


def match(pattern: Value, value: Value, *, forgive: bool = False) -> Bound | Mismatch:
    """Match, or say where it failed. With `forgive`, one inner op, number, option or operand may be another."""
    return _Attempt(forgive).run(pattern, value)


def matches(pattern: Value, value: Value, *, equal: Equal | None = None) -> Iterator[Bound]:
    """Yield every way to match, one for each operand order that fits: guards may refuse the first.

    With `equal`, every operand below the root may be any of the values that it equals.
    """
    return _Attempt(forgive=False, equal=equal).every(pattern, value)


class _Attempt:
    """Backtracking over the operand orders of commutative ops, with an explicit agenda."""

    __slots__ = (
        "best",
        "choices",
        "equal",
        "explains",
        "forgive",
        "forgiven",
        "names",
        "only",
        "queries",
        "seen",
        "trail",
    )

    def __init__(self, forgive: bool, equal: Equal | None = None) -> None:
        self.explains = True
        """Whether a report will say where it failed."""
        self.forgive = forgive
        self.equal = equal
        self.only: Value | None = None
        self.forgiven: Mismatch | None = None
        self.names: dict[str, Any] = {}
        self.seen: dict[Value, Value] = {}
        self.queries: list[tuple[SizeOf | DTypeOf, Any, Value]] = []
        self.trail: list[tuple[dict[Any, Any], Any]] = []
        self.choices: list[tuple[_Goals, int, int, Mismatch | None, Value | None]] = []
        self.best: Mismatch | None = None

    def run(self, pattern: Value, value: Value) -> Bound | Mismatch:
        goals: _Goals = (pattern, value, None)
        while True:
            failed = self._solve(goals)
            if failed is None:
                return Bound(self.names, self.seen, self.forgiven)
            if self.best is None or failed.matched > self.best.matched:
                self.best = failed
            if not self.choices:
                return self.best
            goals = self._back()

    def every(self, pattern: Value, value: Value) -> Iterator[Bound]:
        goals: _Goals = (pattern, value, None)
        self.only = value
        self.explains = False
        while True:
            if self._solve(goals) is None:
                yield Bound(dict(self.names), dict(self.seen), self.forgiven)
            if not self.choices:
                return
            goals = self._back()

    def _back(self) -> _Goals:
        """Return the goals of the last choice, and release everything that was caught since then."""
        goals, undo, count, self.forgiven, self.only = self.choices.pop()
        while len(self.trail) > undo:
            table, key = self.trail.pop()
            del table[key]
        del self.queries[count:]
        return goals

    def _solve(self, goals: _Goals) -> Mismatch | None:
        while goals is not None:
            pattern, value, goals = goals
            failed: Mismatch | None = None
            if pattern.op is leaf.HOLE:
                name = pattern.attrs["name"]
                if name not in self.names:
                    self.names[name] = value
                    self.trail.append((self.names, name))
                elif self._is_another(name, value):
                    failed = self._miss(value, f"the same {name} as before", "another one", "operand")
                    if not self._forgiven(failed):
                        return failed
                continue
            if pattern.op is leaf.NUMBER:
                failed = self._number(pattern.attrs["value"], value)
                if failed is not None and self._forgiven(failed):
                    failed = None
            else:
                known = self.seen.get(pattern)
                if known is not None:
                    if known is not value and (self.equal is None or known not in self.equal(value)):
                        failed = self._miss(value, f"the same {pattern.op.name} as before", "another value", "operand")
                        if self._forgiven(failed):
                            failed = None
                else:
                    if self.equal is not None:
                        value = self._one_of(pattern, value, goals)
                    failed = self._node(pattern, value)
                    others = () if failed is None else self._otherwise(pattern, value)
                    if others:
                        failed = None
                        for part in others:
                            goals = (*part, goals)
                    elif failed is None or self._passes_for(failed, pattern, value):
                        failed = None
                        goals = self._operands(pattern, value, goals)
            if failed is not None:
                return failed
        return self._answer()

    def _is_another(self, name: str, value: Value) -> bool:
        """Return whether a name stands for another value already."""
        return self.names[name] is not value

    def _one_of(self, pattern: Value, value: Value, goals: _Goals) -> Value:
        """Return the next value to try among those that an operand may be; the others are choices for later."""
        if self.only is not None:
            due, self.only = self.only, None
            return due
        assert self.equal is not None
        values = self.equal(value)
        if len(values) == 1:
            return values[0]
        fitting = [v for v in values if _may(pattern, v)]
        for other in fitting[:0:-1]:
            self.choices.append(((pattern, value, goals), len(self.trail), len(self.queries), self.forgiven, other))
        return fitting[0] if fitting else value

    def _may(self, pattern: Value, value: Value) -> bool:
        """Return whether the first look allows a match with a value, or with one that it equals."""
        if pattern.op is leaf.HOLE:
            return True
        if self.equal is None:
            return _may(pattern, value)
        # A loop, because generators cost more than what they skip here.
        for one in self.equal(value):  # noqa: SIM110
            if _may(pattern, one):
                return True
        return False

    def _otherwise(self, pattern: Value, value: Value) -> tuple[tuple[Value, Value], ...]:
        """Return the remaining goals where another op spells the same, the last first; none where none does."""
        rest = undone(pattern, value)
        if rest is not None:
            return ((pattern.operands[0], rest),)
        pairs = inverted(pattern, value)
        if pairs is not None:
            self._see(pattern, value)
            return pairs
        whole = part_of(pattern, value)
        if whole is not None:
            of = pattern.operands[0]
            # A slice could be a part of many things: it must be of one that is known already.
            if of.op is not leaf.HOLE or self.names.get(of.attrs["name"]) is whole:
                return ((of, whole),)
        return ()

    def _passes_for(self, failed: Mismatch, pattern: Value, value: Value) -> bool:
        """Return whether one op may be another of its kind, or have another option.

        Of its kind is elementwise for elementwise, with as many operands.
        """
        if not self.forgive or len(pattern.operands) != len(value.operands):
            return False
        if pattern.op is value.op:
            if not self._forgiven(failed):
                return False
            self._see(pattern, value)
            return True
        elementwise = pattern.op.elementwise and value.op.elementwise
        return elementwise and self.forgiven is None and self._forgive(failed)

    def _forgiven(self, failed: Mismatch) -> bool:
        """Return whether one number, option or operand may be another."""
        if not self.forgive or self.forgiven is not None or failed.kind not in ("number", "operand"):
            return False
        return self._forgive(failed)

    def _forgive(self, failed: Mismatch) -> bool:
        self.forgiven = failed
        return True

    def _node(self, pattern: Value, value: Value) -> Mismatch | None:
        attributes = attributes_as(pattern, value)
        if attributes is None:
            return self._miss(value, pattern.op.name, value.op.name)
        if len(pattern.operands) != len(value.operands):
            return self._miss(value, f"{len(pattern.operands)} operands", str(len(value.operands)))
        for key, expected in pattern.attrs.items():
            failed = self._attribute(key, expected, attributes[key], value)
            if failed is not None:
                return failed
        self._see(pattern, value)
        return None

    def _see(self, pattern: Value, value: Value) -> None:
        self.seen[pattern] = value
        self.trail.append((self.seen, pattern))

    def _attribute(self, key: str, expected: Any, actual: Any, value: Value) -> Mismatch | None:
        if expected.__class__ is Hole:
            if actual is None and not expected.or_none:
                return self._miss(value, f"{value.op.name} with {key}", "none", "number")
            return self._catch(expected.name, actual, value)
        if expected.__class__ is SizeOf or expected.__class__ is DTypeOf:
            self.queries.append((expected, actual, value))
            return None
        if _are_one(expected, actual):
            return None
        if expected.__class__ is tuple and actual.__class__ is tuple and len(expected) == len(actual):
            pairs = zip(expected, actual, strict=True)
            return next((miss for w, f in pairs if (miss := self._attribute(key, w, f, value)) is not None), None)
        return self._miss(value, f"{value.op.name} with {key}={expected}", f"{key}={actual}", "number")

    def _operands(self, pattern: Value, value: Value, goals: _Goals) -> _Goals:
        patterns, operands = pattern.operands, value.operands
        if len(operands) == 2:
            (a, b), (x, y) = patterns, operands
            if value.op.commutative and x is not y and self._may(a, y) and self._may(b, x):
                crossed: _Goals = (a, y, (b, x, goals))
                if not (self._may(a, x) and self._may(b, y)):
                    return crossed
                self.choices.append((crossed, len(self.trail), len(self.queries), self.forgiven, None))
            return (a, x, (b, y, goals))
        for index in range(len(patterns) - 1, -1, -1):
            goals = (patterns[index], operands[index], goals)
        return goals

    def _number(self, expected: Any, value: Value) -> Mismatch | None:
        number = leaf.scalar_of(value)
        if number is None:
            return self._miss(value, "a constant number", value.op.name)
        if isinstance(expected, Hole):
            if isinstance(number, complex):
                return self._miss(value, "a real number", "a complex one")
            if expected.written != "as_is":
                rounded = partial(rounded_to, value.attrs["value"].array.dtype)
                number = expected.recover(float(number), rounded)
                if not math.isfinite(rounded(number)) or not rounded(number):
                    return self._miss(value, f"a number whose {expected.name} is in range", str(number))
            return self._catch(expected.name, float(number) if isinstance(number, bool) else number, value)
        if is_number(value.attrs["value"].array, expected):
            return None
        return self._miss(value, f"the constant {expected}", str(number), "number")

    def _catch(self, name: str, caught: Any, at: Value) -> Mismatch | None:
        known = self.names.get(name, _NOTHING)
        if known is _NOTHING:
            self.names[name] = caught
            self.trail.append((self.names, name))
            return None
        if known is caught or (not isinstance(caught, Value) and _are_one(known, caught)):
            return None
        return self._miss(at, f"the same {name} as before", "another one", "operand")

    def _answer(self) -> Mismatch | None:
        """Check that the sizes and dtypes in the pattern are those of what was caught."""
        for query, actual_, value in self.queries:
            of = query.of
            known: Value | None = self.names.get(of.attrs["name"]) if of.op is leaf.HOLE else self.seen.get(of)
            if known is None:
                continue
            if isinstance(query, DTypeOf):
                actual: Any = known.dtype
            else:
                actual = known.shape[query.axis] if known.rank >= -query.axis else None
            if actual != actual_:
                return self._miss(value, f"{actual}", str(actual_), "size")
        return None

    def _miss(self, at: Value, expected: str, actual: str, kind: Kind = "op") -> Mismatch:
        return Mismatch(at, expected, actual, len(self.seen), kind) if self.explains else _SOMEWHERE


_SOMEWHERE = Mismatch(leaf.hole("anything"), "", "", 0)


def _are_one(known: Any, caught: Any) -> bool:
    """== takes 0.0 for -0.0 and tells NaN from itself; what a value is made of does neither."""
    if known.__class__ is float and caught.__class__ is float:
        return known.hex() == caught.hex()
    return bool(known == caught)


def is_number(array: Array, number: complex) -> bool:
    """Return whether a constant of one element is this number as its dtype has it."""
    try:
        return bool(array.dtype.type(number).tobytes() == array.tobytes())
    except (OverflowError, ValueError):
        return False


def rounded_to(dtype: np.dtype[Any], number: float) -> float:
    """Return a number as a constant of this dtype has it."""
    try:
        with np.errstate(over="ignore"):
            return float(dtype.type(number))
    except (OverflowError, ValueError):
        # No integer is infinite.
        return math.inf


def _may(pattern: Value, value: Value) -> bool:
    """Return whether the first look allows a match: it saves most of the backtracking."""
    op = pattern.op
    if op is value.op or op is leaf.HOLE or value.op in SAME.get(op, ()):
        return True
    return value.op is leaf.CONST if op is leaf.NUMBER else is_loose(pattern)
