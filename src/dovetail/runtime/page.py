"""The report as one page for a browser, from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan
from dovetail.progress import phase
from dovetail.report.atomic_write import write_atomically
from dovetail.report.html.code import Code, code_of
from dovetail.report.html.page import page, page_source
from dovetail.report.html.timeline import spans_of
from dovetail.report.measured import Measured
from dovetail.report.report import Report
from dovetail.runtime.compile import Compilation, compilation, compile, make_request
from dovetail.runtime.program import Program
from dovetail.runtime.source import source_of
from dovetail.targets import Target

_MARKED = 5
"""Runs that are watched step by step; the quickest is the one that the page shows."""


def write_report(
    graph: Graph | str | os.PathLike[str],
    path: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Array] | None = None,
    params: Mapping[str, Array] | None = None,
    runs: int = 10,
    **options: Any,
) -> Path:
    """Write the report of compiling a graph as one page. With `inputs` it is run as well, and the page shows when.

    `options` are those of `compile`. Sizes that the inputs tell are best given to the graph first: `specialize`.
    """
    source = source_of(graph, options.get("ops", ()), options.pop("fixed", None))
    written = source.graph()
    measured, marks = None, None
    if inputs is not None:
        measured, marks = watched(compile(written, params=params, **options), inputs, runs)
    made = compilation(written, make_request(**options))
    return write_page(made, replace(made.report(), measured=measured), path, marks)


def watched(program: Program, inputs: Mapping[str, Array], runs: int) -> tuple[Measured, Sequence[Mark]]:
    """What many runs took, and the quickest of a few step by step."""
    measured = program.profile(inputs, runs=runs)
    marked = [program.run_marked(program.undonated(inputs))[1] for _ in range(min(runs, _MARKED))]
    return measured, min(marked, key=lambda marks: marks[-1].end - marks[0].begin if marks else 0)


def write_page(made: Compilation, report: Report, path: str | os.PathLike[str], marks: Sequence[Mark] | None) -> Path:
    """Write a compilation and its report as a page, with the steps of a run where there was one."""
    spans = spans_of(marks, made.plan) if marks is not None else None
    with phase("write the page"):
        shown = page_source(
            report, made.lowered, made.plan, made.machine, made.setup.sizes, spans, code_shown(made.target, made.plan)
        )
        return write_atomically(path, page(shown), "page")


def code_shown(target: Target, plan: Plan) -> Code | None:
    """The code of a plan's kernels in the first notation of its target; None where it shows none."""
    view = target.code
    return None if view is None else code_of(view.notations[0].language, view.texts(plan))


__all__ = ["code_shown", "watched", "write_page", "write_report"]
