"""What traps 48 to 51 are defended by, taken away."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import Any

from dovetail.derive.fuse import Fused
from dovetail.derive.missed import COST, PRIVATE, Missed
from dovetail.ir.graph import Graph
from dovetail.passes.pipeline import Lowered
from tests.traps import test_reports as reports
from tests.traps.removal import Defence, constantly, replaced, wrapped

Misses = tuple[Missed, ...]


def guards_only(still: Callable[[Iterable[Missed]], Misses]) -> Callable[[Iterable[Missed]], Misses]:
    """What was refused for another reason than a guard is not told."""
    return lambda missed: tuple(m for m in still(missed) if m.reason not in (COST, PRIVATE))


def without_near(lowered: Lowered) -> Misses:
    return lowered.state.missed


def without_cuts(mark: Callable[..., Fused]) -> Callable[..., Fused]:
    """Regions are cut, and nobody is told."""

    def marked(graph: Graph, *options: Any) -> Fused:
        return replace(mark(graph, *options), missed=())

    return marked


IN_ANY_ORDER = """
from dovetail.report import build
counted = build._histogram
build._histogram = lambda graph: {name: counted(graph)[name] for name in set(counted(graph))}
"""

DEFENCES = (
    Defence(
        reports.test_trap_48_a_matmul_without_a_bias_is_no_miss,
        "half of a pattern is a near miss",
        replaced("dovetail.derive.near._SMALLEST", 2),
    ),
    Defence(
        reports.test_trap_49_what_matched_and_did_not_fuse_is_reported,
        "nothing is missed",
        replaced("dovetail.derive.fuse.still_missed", constantly(())),
    ),
    Defence(
        reports.test_trap_49_what_matched_and_did_not_fuse_is_reported,
        "only guards refuse",
        wrapped("dovetail.derive.fuse.still_missed", guards_only),
    ),
    Defence(
        reports.test_trap_49_what_matched_and_did_not_fuse_is_reported,
        "near misses are not told",
        replaced("dovetail.report.build.with_near_misses", without_near),
    ),
    Defence(
        reports.test_trap_49_what_matched_and_did_not_fuse_is_reported,
        "cuts are not told",
        wrapped("dovetail.passes.pipeline.mark_regions", without_cuts),
    ),
    Defence(
        reports.test_trap_50_hints_are_true,
        "no change is found to pay",
        replaced("dovetail.report.hints.Hints._gain", constantly(0.0)),
    ),
    Defence(
        reports.test_trap_51_a_report_says_the_same_in_every_process,
        "ops are counted in the order of a set",
        replaced("tests.traps.test_reports.FIRST", IN_ANY_ORDER),
    ),
)
