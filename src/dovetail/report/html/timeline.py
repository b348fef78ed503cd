"""The timeline of a measured run: which kernel ran when, and on which thread."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail.dataclass import dataclass
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan


@dataclass(frozen=True, slots=True)
class Span:
    """A kernel in a run: its number, when it started and how long it took, in seconds, and on which thread."""

    kernel: int
    start: float
    seconds: float
    thread: int


def spans_of(marks: Iterable[Mark], plan: Plan) -> list[Span]:
    """What each thread did for each step of a plan, from the start of the run; marks of other steps are left out."""
    number = {step.name: i for i, step in enumerate(plan.steps)}
    listed = [mark for mark in marks if mark.step.name in number]
    begin = min((mark.begin for mark in listed), default=0)
    spans: list[Span] = []
    for mark in listed:
        kernel = number[mark.step.name]
        # What ran on the host has no threads to tell of.
        pieces = [(w.thread, w.begin, w.end) for w in mark.work] or [(0, mark.begin, mark.end)]
        spans += [Span(kernel, (b - begin) * 1e-9, (e - b) * 1e-9, thread) for thread, b, e in pieces]
    return spans
