"""Proofs: by which applications of rules two values are equal. Every step can be replayed and checked alone."""

from __future__ import annotations

from collections import deque
from typing import NamedTuple

from dovetail.dataclass import dataclass
from dovetail.derive.edit import Numerics
from dovetail.ir.value import Value

STRICTNESS: dict[Numerics, int] = {"exact": 0, "reassociated": 1, "approximate": 2}


class Application(NamedTuple):
    """One application of a rule: what stood there, and what may stand there instead."""

    rule: str
    variant: str
    numerics: Numerics
    root: Value
    """The value that the result equals; its operands stand for everything that they equal."""
    result: Value
    covers: tuple[Value, ...]
    """The values that the pattern took up, where it was found first."""
    taken: tuple[tuple[Value, Value], ...] = ()
    """Operands among these, each with the equal value that the pattern took in its place."""

    @property
    def name(self) -> str:
        return f"{self.rule}[{self.variant}]" if self.variant else self.rule


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a proof, as closed values: the rule makes `after` of `before`."""

    application: Application
    before: Value
    after: Value


class Proofs:
    """A forest of equal values. An edge is an application, or congruence: equal operands, the same op."""

    def __init__(self) -> None:
        self._edges: dict[Value, list[tuple[Value, Application | None]]] = {}

    def link(self, one: Value, other: Value, why: Application | None) -> None:
        """Note why two values that no path led between are equal."""
        self._edges.setdefault(one, []).append((other, why))
        self._edges.setdefault(other, []).append((one, why))

    def path(self, start: Value, goal: Value) -> list[tuple[Value, Value, Application | None]]:
        """Return the edges between two equal values; there is one path only."""
        came: dict[Value, tuple[Value, Application | None]] = {}
        waiting = deque([start])
        while waiting and goal not in came and start is not goal:
            value = waiting.popleft()
            for other, why in self._edges.get(value, ()):
                if other not in came and other is not start:
                    came[other] = (value, why)
                    waiting.append(other)
        edges: list[tuple[Value, Value, Application | None]] = []
        while goal is not start:
            before, why = came[goal]
            edges.append((before, goal, why))
            goal = before
        edges.reverse()
        return edges

    def explain(self, start: Value, goal: Value) -> list[Step]:
        """Return the applications by which two values are equal, those of their operands first; each once."""
        steps: dict[Application, None] = {}
        seen: set[tuple[Value, Value]] = set()
        agenda: list[tuple[Value, Value] | Application] = [(start, goal)]
        while agenda:
            task = agenda.pop()
            if isinstance(task, Application):
                steps[task] = None
                continue
            if task in seen or task[0] is task[1]:
                continue
            seen.add(task)
            for before, after, why in reversed(self.path(*task)):
                if why is None:
                    agenda += reversed(list(zip(before.operands, after.operands, strict=True)))
                else:
                    agenda.append(why)
                    agenda += reversed(why.taken)
        return [Step(a, matched(a), a.result) for a in steps]


def matched(application: Application, root: Value | None = None) -> Value:
    """Return the value that the pattern matched, or one inside, with everything in it as the pattern has it."""
    top = application.root if root is None else root
    taken, inside = dict(application.taken), set(application.covers)
    built: dict[Value, Value] = {}
    stack = [top]
    while stack:
        value = stack[-1]
        below = [taken.get(v, v) for v in value.operands]
        waiting = [v for v in below if v in inside and v not in built]
        stack.extend(waiting)
        if not waiting:
            built[stack.pop()] = value.with_operands(tuple([built.get(v, v) for v in below]))
    return built[top]


__all__ = ["STRICTNESS", "Application", "Numerics", "Proofs", "Step", "matched"]
