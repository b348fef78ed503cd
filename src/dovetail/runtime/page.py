"""The report as one page for a browser, from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Unpack

from dovetail.ir.literal import Array
from dovetail.plan.marks import Mark
from dovetail.plan.plan import Plan
from dovetail.progress import phase
from dovetail.renamed import old_options
from dovetail.report.atomic_write import write_atomically
from dovetail.report.html.code import Code, code_of
from dovetail.report.html.lanes import MeshEntry, MeshJoint, MeshRemedy
from dovetail.report.html.page import page, page_source
from dovetail.report.html.timeline import spans_of
from dovetail.report.measured import Measured
from dovetail.report.report import Report
from dovetail.runtime.compile import Compilation, Compiled, compilation, make_request, priced, program_of
from dovetail.runtime.options import CompileOptions
from dovetail.runtime.program import Program
from dovetail.runtime.source import source_of
from dovetail.targets import Target

if TYPE_CHECKING:
    from dovetail.targets.xla.explain.explained import Explained

_MARKED = 5
"""Runs that are watched step by step; the quickest is the one that the page shows."""


@old_options(sizes="assume_sizes")
def write_report(
    graph: Compiled,
    path: str | os.PathLike[str],
    *,
    inputs: Mapping[str, Array] | None = None,
    params: Mapping[str, Array] | None = None,
    runs: int = 10,
    placement: Explained | None = None,
    **options: Unpack[CompileOptions],
) -> Path:
    """Write the report of compiling a graph as one page. With `inputs` it is run as well, and the page shows when.

    `placement` is what `explain_placement` gives for the graph: the page shows its devices and collectives, too.
    `options` are those of `compile`. Sizes that the inputs tell are best given to the graph first: `specialize`.
    """
    source = source_of(graph, options.get("ops", ()), options.pop("fixed", None))
    request = make_request(**options)
    made = compilation(source.graph(), request)
    measured, marks = None, None
    if inputs is not None:
        measured, marks = watched(program_of(made, request, params), inputs, runs)
        made = priced(made, request)
    mesh = None if placement is None else mesh_entry(placement)
    return write_page(made, replace(made.report(), measured=measured), path, marks, mesh)


def watched(program: Program, inputs: Mapping[str, Array], runs: int) -> tuple[Measured, Sequence[Mark]]:
    """What many runs took, and the quickest of a few step by step."""
    measured = program.profile(inputs, runs=runs)
    marked = [program.run_marked(program.undonated(inputs))[1] for _ in range(min(runs, _MARKED))]
    return measured, min(marked, key=lambda marks: marks[-1].end - marks[0].begin if marks else 0)


def write_page(
    made: Compilation,
    report: Report,
    path: str | os.PathLike[str],
    marks: Sequence[Mark] | None,
    mesh: MeshEntry | None = None,
) -> Path:
    """Write a compilation and its report as a page, with the steps of a run and a placement where there are some."""
    spans = spans_of(marks, made.plan) if marks is not None else None
    with phase("write the page"):
        shown = page_source(
            report,
            made.lowered,
            made.plan,
            made.machine,
            made.setup.sizes,
            spans,
            code_shown(made.target, made.plan),
            mesh,
        )
        return write_atomically(path, page(shown), "page")


def mesh_entry(found: Explained) -> MeshEntry:
    """An explained placement as the page shows it: collectives that move bytes, and remedies for those they mend."""
    from dovetail.targets.xla.explain.collective import repeated  # few explain a mesh

    remedies = found.remedies
    everything, mine = found.weights
    joints = [
        MeshJoint(
            kind=c.kind,
            axes=c.axes,
            devices=c.devices,
            type=f"{c.dtype}[{', '.join(map(str, c.shape))}]",
            bytes=c.bytes,
            seconds=c.seconds(found.links),
            place=c.place,
            why=c.why,
            remedies=tuple(i for i, r in enumerate(remedies) if r.pattern in map(repeated, c.origins)),
        )
        for c in found.collectives
    ]
    return MeshEntry(
        axes=tuple(found.placement.mesh),
        joints=tuple(joints),
        remedies=tuple(
            MeshRemedy(r.pattern, r.placed, r.instead_of, r.collectives, r.seconds, r.weights) for r in remedies
        ),
        seconds=found.seconds,
        all_weights=everything,
        weights=mine,
        unexplained=found.unexplained,
    )


def code_shown(target: Target, plan: Plan) -> Code | None:
    """The code of a plan's kernels in the first notation of its target; None where it shows none."""
    view = target.code
    return None if view is None else code_of(view.notations[0].language, view.texts(plan))


__all__ = ["code_shown", "mesh_entry", "watched", "write_page", "write_report"]
