"""A trace of compiling and running, in the format that Perfetto and Chrome open: events with a start and a length."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan
from dovetail.report.record import Kernel
from dovetail.report.report import Report

RUNNING, COMPILING = 1, 2
"""The processes of a trace: what runs, and what was done before."""
STEPS, HOST, FIRST_THREAD = 0, 1, 2
"""The tracks of what runs: steps as a whole, those on the host, then one for each thread."""
MOST_NODES = 32
"""Names of nodes that an event lists."""


@dataclass(frozen=True, slots=True)
class Span:
    """Something that took its time: from when until when, in nanoseconds of one clock."""

    name: str
    begin: int
    end: int


def trace_of(
    phases: Iterable[Span], runs: Sequence[tuple[Span, Sequence[Mark]]], plan: Plan, report: Report, threads: int
) -> str:
    """The trace as JSON. Spans of phases may be nested."""
    kernels = {step.name: kernel for step, kernel in zip(plan.steps, report.kernels, strict=True)}
    tracks = {STEPS: "steps", HOST: "host", **{FIRST_THREAD + t: f"thread {t}" for t in range(threads)}}
    events: list[dict[str, Any]] = [_event(COMPILING, 0, span.name, span.begin, span.end) for span in phases]
    for whole, marks in runs:
        events.append(_event(RUNNING, STEPS, whole.name, whole.begin, whole.end))
        for mark in marks:
            events += _step(mark, kernels[mark.step.name])
    start = min((event["ts"] for event in events), default=0)
    for event in events:
        event["ts"] = (event["ts"] - start) / 1000
        event["dur"] = event["dur"] / 1000
    # Readers expect an outer event before those inside of it.
    events.sort(key=lambda event: (event["pid"], event["tid"], event["ts"], -event["dur"]))
    named = [
        *_names(RUNNING, f"{report.graph} on {report.target}", tracks),
        *_names(COMPILING, "compile", {0: "phases"}),
    ]
    told = {"traceEvents": [*named, *events], "displayTimeUnit": "ms", "otherData": {"calibration": report.calibration}}
    return json.dumps(told, ensure_ascii=True, allow_nan=False, indent=None, separators=(",", ":"))


def _step(mark: Mark, kernel: Kernel) -> list[dict[str, Any]]:
    seconds = mark.seconds
    about: dict[str, Any] = {
        "kernel": kernel.name,
        "type": kernel.type,
        "nodes": [f"{n.op} {n.name}" for n in kernel.works_for[:MOST_NODES]],
        "where": list(dict.fromkeys(n.where for n in kernel.works_for if n.where))[:MOST_NODES],
        "flops": kernel.flops,
        "bytes": kernel.bytes,
        "predicted_us": kernel.seconds * 1e6,
        "roofline": kernel.floor_seconds / seconds if seconds > 0 else 0.0,
        "on_host": mark.on_host,
    }
    events = [_event(RUNNING, STEPS, kernel.op, mark.begin, mark.end, about)]
    if mark.on_host:
        events.append(_event(RUNNING, HOST, kernel.op, mark.begin, mark.end, {"kernel": kernel.name}))
    for work in mark.work:
        events.append(
            _event(RUNNING, FIRST_THREAD + work.thread, kernel.op, work.begin, work.end, {"kernel": kernel.name})
        )
    return events


def _event(
    process: int, track: int, name: str, begin: int, end: int, about: Mapping[str, Any] | None = None
) -> dict[str, Any]:
    told = {"name": name, "ph": "X", "pid": process, "tid": track, "ts": begin, "dur": max(0, end - begin)}
    return {**told, "cat": "compile" if process == COMPILING else "run", "args": dict(about or {})}


def _names(process: int, name: str, tracks: Mapping[int, str]) -> list[dict[str, Any]]:
    """The names of a process and of its tracks, which are sorted by their numbers."""
    told: list[dict[str, Any]] = [{"name": "process_name", "ph": "M", "pid": process, "tid": 0, "args": {"name": name}}]
    for track, label in tracks.items():
        told.append({"name": "thread_name", "ph": "M", "pid": process, "tid": track, "args": {"name": label}})
        told.append(
            {"name": "thread_sort_index", "ph": "M", "pid": process, "tid": track, "args": {"sort_index": track}}
        )
    return told


__all__ = ["Span", "trace_of"]
