"""The law of hints: following one gives the fusion, the same numbers, and a faster model by the prediction."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

from dovetail.declare import FusedOp, Guard
from dovetail.derive import laws
from dovetail.errors import DovetailError
from dovetail.ir.graph import Graph
from dovetail.report.record import MissedEntry
from dovetail.report.report import Report
from dovetail.runtime.compile import explain
from dovetail.targets.reference.interpreter import evaluate
from tests.hints import followed, repeated
from tests.library.test_laws import REMEDIED

SEEDS = range(6)
GIVING = ("rope", "rms_norm", "residual_rms_norm", "residual_layer_norm")
"""Ops whose guards soon meet a graph with a hint."""
SETUPS: tuple[dict[str, Any], ...] = (
    {"target": "cuda"},
    {"target": "cpu"},
    {"target": "cpu", "without": ["fuse_epilogues"]},
    {"target": "cpu", "without": ["fuse_epilogues"], "engine": "greedy"},
)


def refused(op: FusedOp[...], guard: Guard, seed: int) -> Graph | None:
    """A graph that the guard refuses; None where the one that was drawn is no graph."""
    chosen = laws.counterexample(op, guard, seed)
    try:
        return laws.graph_of(op.body(**chosen), chosen)
    except DovetailError:
        return None


def check(graph: Graph, before: Report, miss: MissedEntry, options: dict[str, Any]) -> None:
    """Follow one hint."""
    assert miss.gain_seconds > 0
    if not miss.changes:
        assert "changes the model" in miss.hint
        return
    changed = followed(graph, miss.changes)
    after = explain(changed, **options)
    # A larger op may take it up at once.
    assert len(after.kernels) < len(before.kernels) and after.fused, miss
    assert (miss.rule, miss.reason) not in {(m.rule, m.reason) for m in after.missed}
    assert after.predicted_seconds < before.predicted_seconds, miss
    feeds = laws.feeds_of(graph, 3)
    wanted = evaluate(graph, feeds, lift=True)
    got = evaluate(changed, repeated(feeds, miss.changes), lift=True)
    for name in wanted:
        np.testing.assert_allclose(got[name], wanted[name], rtol=1e-9, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("op", "guard"), REMEDIED, ids=[f"{op.name}.{guard.name}" for op, guard in REMEDIED])
def test_every_hint_of_every_guard_is_followed(op: FusedOp[...], guard: Guard, seed: int) -> None:
    """Each setup meets three graphs of a guard: seeds take two setups in turns."""
    graph = refused(op, guard, seed)
    if graph is None:
        return
    for options in SETUPS[seed % 2 :: 2]:
        report = explain(graph, **options)
        for miss in report.missed:
            if miss.hint:
                check(graph, report, miss, options)


@pytest.mark.exhaustive
def test_some_hints_are_given() -> None:
    """The law above is not kept by silence."""
    given: set[str] = set()
    for (op, guard), seed in product(sorted(REMEDIED, key=lambda pair: pair[0].name not in GIVING), SEEDS):
        graph = refused(op, guard, seed)
        given |= {m.rule for m in explain(graph, target="cuda").missed if m.changes} if graph is not None else set()
        if len(given) >= 4:
            return
    pytest.fail(f"hints of {given} alone")
