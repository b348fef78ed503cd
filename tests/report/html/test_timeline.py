"""Marks of a run as spans by kernel and thread."""

from __future__ import annotations

from dovetail.plan.marks import Mark, Work
from dovetail.report.html.timeline import Span, spans_of
from tests.report.html.models import compiled


def test_spans_start_with_the_run_and_tell_threads() -> None:
    plan = compiled("resnet").plan
    first, second = plan.phase("run")[:2]
    marks = [
        Mark(first, 1_000_000, 3_000_000, False, (Work(0, 1_000_000, 3_000_000), Work(1, 1_500_000, 2_500_000))),
        Mark(second, 3_000_000, 4_000_000, True),
    ]
    at = plan.steps.index(first)
    spans = spans_of(marks, plan)
    assert [(s.kernel, s.thread) for s in spans] == [(at, 0), (at, 1), (plan.steps.index(second), 0)]
    assert spans[0] == Span(at, 0.0, 0.002, 0) and abs(spans[1].start - 0.0005) < 1e-12
    assert spans_of([], plan) == []
