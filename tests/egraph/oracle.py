"""Extraction as an integer program: exact, and only for small problems. The judge of local search."""

from __future__ import annotations

from typing import Any, cast

import numpy as np
from scipy import optimize  # pyright: ignore[reportMissingTypeStubs]

from dovetail.egraph.extract import components
from dovetail.egraph.problem import Problem


def least_cost(problem: Problem) -> float:
    """The least cost of any choice without a cycle."""
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
