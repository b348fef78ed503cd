"""Compiling under a memory budget: the fastest choice of what is saved whose plan stays within it.

The choices are a ladder that does not depend on the budget, the fastest first. The first one within the budget is
taken, so that a smaller budget never gives a larger peak or a shorter time.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import replace
from typing import NamedTuple

from dovetail.declare.cost import estimate
from dovetail.errors import BudgetError, OptionError
from dovetail.passes.pipeline import Lowered, Setup
from dovetail.plan.plan import Plan

LEAST = "least"
_UNITS = {"": 1, "B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "KIB": 1 << 10, "MIB": 1 << 20, "GIB": 1 << 30}
_BUDGET = re.compile(r"(\d+(?:\.\d+)?)\s*([a-z]*)", re.IGNORECASE)
_WORSE = 2
"""After this many choices in a row that save less and have no lower peak, those that save still less are not tried."""


class Planned(NamedTuple):
    """A graph that was lowered and planned with a setup."""

    setup: Setup
    lowered: Lowered
    plan: Plan

    @property
    def bytes(self) -> int:
        """What a run allocates for its tensors, at the sizes that symbols count as."""
        return estimate(self.plan.arena_size, self.setup.sizes)


def budget_of(text: str) -> int | None:
    """A budget in bytes; None for the least that can be had."""
    found = _BUDGET.fullmatch(text.strip())
    if text == LEAST:
        return None
    if found is None or found.group(2).upper() not in _UNITS:
        raise OptionError(f"the option memory is {text!r}", hint="write a size such as 200MB or 1.5GB, or least")
    return int(float(found.group(1)) * _UNITS[found.group(2).upper()])


def within(memory: str, first: Planned, planned: Callable[[Setup], Planned]) -> Planned:
    """The first plan of the ladder within a budget; `first` is the one without a budget.

    Plans are judged with greedy fusion, which is faster; the one that is taken is made anew and checked.
    """
    budget = budget_of(memory)
    chosen = first.lowered.state.recompute
    if chosen is None or (budget is not None and first.bytes <= budget):
        return _checked(first, budget)
    best, worse = first, 0
    for worth, choice in chosen.halves.ladder():
        if choice.saved == chosen.choice.saved:
            continue
        judged = planned(replace(first.setup, worth=worth, engine="greedy"))
        if budget is not None and judged.bytes <= budget:
            found = planned(replace(first.setup, worth=worth))
            if found.bytes <= budget:
                return found
        worse = 0 if judged.bytes < best.bytes else worse + 1
        best = judged if judged.bytes < best.bytes else best
        if worse == _WORSE:
            break
    return _checked(best if best is first else planned(replace(first.setup, worth=best.setup.worth)), budget)


def _checked(least: Planned, budget: int | None) -> Planned:
    """A plan with the smallest peak, unless a budget is smaller still."""
    if budget is not None and least.bytes > budget:
        raise BudgetError(
            f"a budget of {budget:,} bytes, where the smallest plan takes {least.bytes:,}",
            least=least.bytes,
            budget=budget,
            hint=f'pass memory="{-(-least.bytes // 10**6)}MB", or a smaller batch',
        )
    return least


__all__ = ["LEAST", "Planned", "budget_of", "within"]
