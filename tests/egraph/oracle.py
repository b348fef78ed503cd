"""Extraction as an integer program: exact, and only for small problems. The judge of local search."""

from __future__ import annotations

from collections.abc import Sequence
from graphlib import CycleError, TopologicalSorter
from itertools import product
from math import inf
from typing import Any, cast

import numpy as np
from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

from dovetail.egraph.cycles import components
from dovetail.egraph.joined import cost_of
from dovetail.egraph.problem import Option, Problem


def apart(problem: Problem) -> Problem:
    """The same choice where nothing is joined, and what is done once counts like what is done in each run."""
    plain = [[Option(o.cost + o.toll, o.reads, o.node) for o in listed] for listed in problem.options]
    return Problem(plain, problem.roots, problem.names)


def least_joined(problem: Problem) -> float:
    """The least cost of any choice without a cycle, found by trying them all."""
    found = inf
    for picks in product(*[range(len(listed)) for listed in problem.options]):
        if not _has_cycle(problem, picks):
            found = min(found, cost_of(problem, picks))
    return found


def _has_cycle(problem: Problem, picks: Sequence[int]) -> bool:
    reads = {c: problem.options[c][picks[c]].reads for c in _needed(problem, picks)}
    try:
        list(TopologicalSorter(reads).static_order())
    except CycleError:
        return True
    return False


def _needed(problem: Problem, picks: Sequence[int]) -> set[int]:
    found: set[int] = set()
    stack = list(problem.roots)
    while stack:
        c = stack.pop()
        if c not in found:
            found.add(c)
            stack += problem.options[c][picks[c]].reads
    return found


def least_cost(problem: Problem) -> float:
    """The least cost of any choice without a cycle. Nothing in it may be joined."""
    picked = [(c, i) for c, listed in enumerate(problem.options) for i in range(len(listed))]
    column = {pick: at for at, pick in enumerate(picked)}
    classes = len(problem.options)
    home = components(problem)
    width = len(picked) + classes
    rows: list[np.ndarray[Any, Any]] = []
    least: list[float] = []
    for root in problem.roots:
        rows.append(_row(width, {column[root, i]: 1.0 for i in range(len(problem.options[root]))}))
        least.append(1.0)
    for (c, i), at in column.items():
        for r in problem.options[c][i].reads:
            # What is picked has all that it reads, and each of these stands lower, where a cycle could be.
            rows.append(_row(width, {at: -1.0, **{column[r, j]: 1.0 for j in range(len(problem.options[r]))}}))
            least.append(0.0)
            if c in home and home[c] == home.get(r):
                rows.append(_row(width, {len(picked) + c: 1.0, len(picked) + r: -1.0, at: -float(classes)}))
                least.append(1.0 - classes)
    # Tolerances of the solver are absolute: costs are counted in units of the dearest.
    unit = max([option.cost for listed in problem.options for option in listed] + [0.0]) or 1.0
    costs = [problem.options[c][i].cost / unit for c, i in picked] + [0.0] * classes
    solver = cast(Any, optimize)
    found = solver.milp(
        costs,
        constraints=solver.LinearConstraint(np.array(rows), np.array(least), np.inf),
        bounds=solver.Bounds(0, [1.0] * len(picked) + [float(classes)] * classes),
        integrality=[1] * len(picked) + [0] * classes,
        options={"mip_rel_gap": 1e-9},
    )
    assert found.success, found.message
    return float(found.fun) * unit


def _row(width: int, entries: dict[int, float]) -> np.ndarray[Any, Any]:
    row = np.zeros(width)
    for at, entry in entries.items():
        row[at] += entry
    return row
