"""`dovetail explain`: what fused, what did not, why, and what both cost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace

from dovetail.cli.arrays import Given
from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.measuring import SEED, WHERE_MEASURED, measured_inputs
from dovetail.cli.options import COMPILING, GATES, HTML, JSON, PRECISION, QUANTIZE, asked_graph, numbers, ways
from dovetail.cli.progress import tell
from dovetail.cli.run import feeds_of
from dovetail.cli.terminal import look_of
from dovetail.errors import GateError
from dovetail.models.weights import random_weights
from dovetail.plan.marks import Mark
from dovetail.report.json_form import as_dict, as_json
from dovetail.report.measured import Measured
from dovetail.report.report import Report
from dovetail.report.text import as_text
from dovetail.runtime.compile import Compilation, Request, check_gates, compilation, make_request, priced, program_of


def run(args: argparse.Namespace) -> Answer:
    require = numbers("--require", args.require, alone=1)
    request = make_request(**ways(args), require=require, threads=args.threads)
    graph = asked_graph(args)
    given = measured_inputs(args) if args.measure else {}
    made = compilation(graph, request)
    measured, marks = _measured(made, request, args, given) if args.measure else (None, None)
    # The machine may be measured by a run, and prices are by its figures.
    made = priced(made, request) if args.measure else made
    report = replace(made.report(), measured=measured)
    text = _json(made, report, args.all) if args.json else as_text(report, look_of(sys.stdout), everything=args.all)
    if args.html is not None:
        from dovetail.runtime.page import write_page  # only a page needs the parts of pages

        place = write_page(made, report, args.html, marks)
        tell(f"the page is {place}")
    try:
        check_gates(report, require, args.require_clean)
    except GateError as failure:
        return Answer(text, failure, painted=True)
    return Answer(text, painted=True)


def _json(made: Compilation, report: Report, everything: bool) -> str:
    """The report as JSON; with everything, the kernel variants that were considered too."""
    if not everything:
        return as_json(report)
    # Kernels are reported in the order of the steps.
    steps = zip(report.kernels, made.plan.steps, strict=True)
    launches = made.launches()
    considered = {kernel.name: [asdict(one) for one in made.considered(step, launches)] for kernel, step in steps}
    return json.dumps({**as_dict(report), "considered": considered}, indent=2)


def _measured(
    made: Compilation, request: Request, args: argparse.Namespace, given: Mapping[str, Given]
) -> tuple[Measured, Sequence[Mark]]:
    """What many runs took, and the quickest of a few step by step."""
    from dovetail.runtime.page import watched

    graph = made.written
    feeds = feeds_of(graph, given, SEED)
    program = program_of(made, request, None if graph.params else random_weights(graph, SEED))
    return watched(program, feeds, args.runs)


_SWITCH = {"action": "store_true"}

COMMAND = Command(
    "explain",
    "Say what fused, what did not, why, and what both cost.",
    (
        *COMPILING,
        PRECISION,
        QUANTIZE,
        JSON,
        Argument(
            "--all",
            "list everything, where a summary has one line for what matters less; with --json, the kernel variants "
            "that were considered too",
            _SWITCH,
        ),
        Argument("--measure", "run it too, and show measured next to predicted time", _SWITCH, group="measuring"),
        *WHERE_MEASURED,
        HTML,
        *GATES,
    ),
    run,
)
