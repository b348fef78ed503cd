"""Guards as conditions: a guard is run on stand-ins for values, and what it asks is written down.

A guard is plain Python. Each time it reads a truth value the trace forks, so that `and`, `or` and `if` become a
disjunction of conjunctions. What cannot be asked of a stand-in (a loop over a shape of unknown rank) is opaque.
"""

from __future__ import annotations

import operator
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.guard import Guard
from dovetail.ir.leaf import Hole
from dovetail.ir.value import Value

_MOST_PATHS = 256


class OpaqueGuardError(Exception):
    """A guard that asks something that no condition can say."""


@dataclass(frozen=True, slots=True)
class Term:
    """A question: a property of a caught value, a caught number, or an expression of those."""

    kind: str
    arguments: tuple[Any, ...]

    def answer(self, names: Mapping[str, Any]) -> Any:
        """Return what the term is for actual values."""
        match self.kind:
            case "number":
                return names[self.arguments[0]]
            case "rank" | "dtype" | "type" | "shape":
                return getattr(names[self.arguments[0]], self.kind)
            case "size":
                return names[self.arguments[0]].shape[self.arguments[1]]
            case "sizes":
                name, start, stop = self.arguments
                return names[name].shape[start:stop]
            case _:
                left, right = (a.answer(names) if isinstance(a, Term) else a for a in self.arguments)
                return _OPERATIONS[self.kind](left, right)

    def __str__(self) -> str:
        match self.kind:
            case "number":
                return str(self.arguments[0])
            case "size":
                return f"{self.arguments[0]}.shape[{self.arguments[1]}]"
            case "sizes":
                start, stop = ("" if a is None else a for a in self.arguments[1:])
                return f"{self.arguments[0]}.shape[{start}:{stop}]"
            case "rank" | "dtype" | "type" | "shape":
                return f"{self.arguments[0]}.{self.kind}"
            case _:
                left, right = (f"({a})" if self._needs_brackets(a) else str(a) for a in self.arguments)
                return f"{left} {self.kind} {right}"

    def _needs_brackets(self, inner: Any) -> bool:
        """Return whether an expression inside this one would be read as another; sizes that are compared would not."""
        if not isinstance(inner, Term) or inner.kind not in _OPERATIONS:
            return False
        return self.kind in _ARITHMETIC or inner.kind not in _ARITHMETIC


_OPERATIONS: dict[str, Callable[[Any, Any], Any]] = {
    "==": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "//": lambda a, b: a // b,
    "%": operator.mod,
}
_ARITHMETIC = ("+", "-", "*", "//", "%")


@dataclass(frozen=True, slots=True)
class Condition:
    """A disjunction of conjunctions of terms that must be true or false."""

    paths: tuple[tuple[tuple[Term, bool], ...], ...]

    def holds(self, names: Mapping[str, Any]) -> bool:
        return any(all(bool(term.answer(names)) is expected for term, expected in path) for path in self.paths)

    def __str__(self) -> str:
        return " or ".join(
            " and ".join(str(t) if expected else f"not ({t})" for t, expected in path) or "always"
            for path in self.paths
        )


def condition_of(guard: Guard, choices: Mapping[str, Any]) -> Condition:
    """Return the guard as a condition. `choices` maps names to fixed choices, or to a Value or Hole that is caught."""
    paths: list[tuple[tuple[Term, bool], ...]] = []
    pending: list[tuple[bool, ...]] = [()]
    while pending:
        decisions = pending.pop()
        trace = _Trace(decisions)
        try:
            answer = guard.holds(**{name: trace.stand_in(name, choices.get(name)) for name in guard.asks})
            truth = bool(answer)
        except OpaqueGuardError:
            raise
        except Exception as error:
            raise OpaqueGuardError(f"{guard.name}: {error}") from error
        if truth:
            paths.append(tuple(trace.answers))
        for index in range(len(decisions), len(trace.answers)):
            pending.append((*(expected for _, expected in trace.answers[:index]), not trace.answers[index][1]))
        if len(paths) + len(pending) > _MOST_PATHS:
            raise OpaqueGuardError(f"{guard.name} has too many cases")
    return Condition(tuple(paths))


class _Trace:
    """One run of a guard: the first truths are decided, later ones are taken as true."""

    def __init__(self, decisions: tuple[bool, ...]) -> None:
        self.decisions = decisions
        self.answers: list[tuple[Term, bool]] = []

    def stand_in(self, name: str, choice: Any) -> Any:
        if isinstance(choice, Value):
            return _ValueStandIn(self, name)
        return _StandIn(self, Term("number", (name,))) if isinstance(choice, Hole) else choice

    def decide(self, term: Term) -> bool:
        for known, truth in self.answers:
            if known == term:
                return truth
        index = len(self.answers)
        truth = self.decisions[index] if index < len(self.decisions) else True
        self.answers.append((term, truth))
        return truth


class _StandIn:
    """A stand-in for a number, a size or a truth value."""

    __slots__ = ("_term", "_trace")
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, trace: _Trace, term: Term) -> None:
        self._trace = trace
        self._term = term

    def _with(self, kind: str, other: Any, *, swapped: bool = False) -> _StandIn:
        plain = other._term if isinstance(other, _StandIn) else other
        sides = (plain, self._term) if swapped else (self._term, plain)
        return _StandIn(self._trace, Term(kind, sides))

    def __eq__(self, other: object) -> Any:
        return self._with("==", other)

    def __ne__(self, other: object) -> Any:
        return self._with("!=", other)

    def __lt__(self, other: Any) -> _StandIn:
        return self._with("<", other)

    def __le__(self, other: Any) -> _StandIn:
        return self._with("<=", other)

    def __gt__(self, other: Any) -> _StandIn:
        return self._with(">", other)

    def __ge__(self, other: Any) -> _StandIn:
        return self._with(">=", other)

    def __add__(self, other: Any) -> _StandIn:
        return self._with("+", other)

    def __radd__(self, other: Any) -> _StandIn:
        return self._with("+", other, swapped=True)

    def __sub__(self, other: Any) -> _StandIn:
        return self._with("-", other)

    def __mul__(self, other: Any) -> _StandIn:
        return self._with("*", other)

    def __rmul__(self, other: Any) -> _StandIn:
        return self._with("*", other, swapped=True)

    def __floordiv__(self, other: Any) -> _StandIn:
        return self._with("//", other)

    def __mod__(self, other: Any) -> _StandIn:
        return self._with("%", other)

    def __bool__(self) -> bool:
        return self._trace.decide(self._term)


class _ShapeStandIn(_StandIn):
    """A stand-in for a shape of unknown rank."""

    def __getitem__(self, index: int | slice[Any, Any, Any]) -> _StandIn:
        name = self._term.arguments[0]
        if isinstance(index, slice):
            if index.step is not None:
                raise OpaqueGuardError("a slice of a shape with a step")
            return _StandIn(self._trace, Term("sizes", (name, index.start, index.stop)))
        return _StandIn(self._trace, Term("size", (name, index)))

    def __iter__(self) -> Any:
        raise OpaqueGuardError("a loop over a shape of unknown rank")


class _ValueStandIn:
    """A stand-in for a caught value."""

    def __init__(self, trace: _Trace, name: str) -> None:
        self._trace = trace
        self._name = name

    @property
    def rank(self) -> _StandIn:
        return _StandIn(self._trace, Term("rank", (self._name,)))

    @property
    def dtype(self) -> _StandIn:
        return _StandIn(self._trace, Term("dtype", (self._name,)))

    @property
    def type(self) -> _StandIn:
        return _StandIn(self._trace, Term("type", (self._name,)))

    @property
    def shape(self) -> _ShapeStandIn:
        return _ShapeStandIn(self._trace, Term("shape", (self._name,)))

    def __getattr__(self, name: str) -> Any:
        raise OpaqueGuardError(f"a guard asks for .{name}")
