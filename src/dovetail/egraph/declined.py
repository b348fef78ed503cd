"""What the search priced and declined, with the price of the graph with it and without it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.derive.missed import COST, PRIVATE, Applied, Missed, declined_by_cost
from dovetail.egraph.engine import EGraph
from dovetail.egraph.extract import HillClimb
from dovetail.egraph.problem import Problem
from dovetail.errors import DovetailError
from dovetail.ir.value import Value

_MOST_PRICED = 256
"""How many alternatives are priced in the whole graph; a folded model has far fewer."""


@dataclass(frozen=True)
class Declined:
    """A choice, and what others would have cost."""

    egraph: EGraph
    problem: Problem
    picks: Sequence[int]

    def misses(
        self, missed: Iterable[Missed], applied: Iterable[Applied], ops: Mapping[str, FusedOp[...]]
    ) -> list[Missed]:
        """Return the misses of greedy fusion as the search decided them, and the fusions that greedy made and the
        search did not.

        What cost decided in greedy fusion says nothing here unless the search had that choice too.
        """
        misses_: list[Missed] = []
        priced = 0
        for miss in (*missed, *(_undone(a, ops[a.rule]) for a in applied if a.rule in ops)):
            if miss.reason not in (COST, PRIVATE) or miss.rule not in ops:
                misses_.append(miss)
                continue
            priced += 1
            prices = self._prices(miss, ops[miss.rule]) if priced <= _MOST_PRICED else None
            if prices is not None:
                misses_.append(_priced(miss, *prices))
        return misses_

    def _prices(self, miss: Missed, op: FusedOp[...]) -> tuple[float, float] | None:
        """Seconds of the kernels that differ, with the fused op and without it; None where the search had no such."""
        node = self._node(miss, op)
        place = None if node is None else self._numbers.get(self.egraph.find(node))
        if node is None or place is None:
            return None
        options = self.problem.options[place]
        index = next((i for i, option in enumerate(options) if option.node is node), None)
        if index is None or index == self.picks[place]:
            return None
        return self._choice.differing(place, index)

    def _node(self, miss: Missed, op: FusedOp[...]) -> Value | None:
        try:
            value = op(**miss.caught)
        except (DovetailError, TypeError):
            return None
        if any(v not in self.egraph for v in value.operands):
            return None
        node = self.egraph.canonical(value)
        return node if node in self.egraph else None

    @cached_property
    def _choice(self) -> HillClimb:
        climb = HillClimb(self.problem, self.picks)
        climb.begin(self.picks)
        return climb

    @cached_property
    def _numbers(self) -> dict[Value, int]:
        return {name: c for c, name in enumerate(self.problem.names)}


def _undone(fusion: Applied, op: FusedOp[...]) -> Missed:
    """Return a fusion of the greedy pass as a miss, in case the search has not made it."""
    caught: Mapping[str, Any] = op.of(fusion.value).names if fusion.value.op is op else {}
    return Missed(
        fusion.rule, fusion.variant, fusion.root, fusion.covers, COST, "", "", caught=caught, results=(fusion.root,)
    )


def _priced(miss: Missed, with_it: float, without: float) -> Missed:
    reason = declined_by_cost(with_it, without)
    message = f"{miss.message}: {reason}" if miss.reason == PRIVATE else reason
    return replace(miss, message=message, hint=miss.hint if miss.reason == PRIVATE else "")


__all__ = ["Declined"]
