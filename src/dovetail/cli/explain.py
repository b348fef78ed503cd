"""`dovetail explain`: what fused, what did not, why, and what both cost."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, replace

from dovetail.cli import assume, placement
from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.measuring import MEASURING, ready
from dovetail.cli.options import COMPILING, JSON, PRECISION, QUANTIZE, compiled, numbers
from dovetail.cli.progress import tell
from dovetail.cli.terminal import look_of
from dovetail.errors import GateError
from dovetail.plan.marks import Mark
from dovetail.report.json_form import as_dict, as_json
from dovetail.report.measured import Measured
from dovetail.report.report import Report
from dovetail.report.text import as_text
from dovetail.runtime.compile import Compilation, check_gates


def run(args: argparse.Namespace) -> Answer:
    if placement.is_asked(args):
        return placement.run(args)
    if assume.is_asked(args):
        return assume.run(args)
    require = numbers("--require", args.require, alone=1)
    # Measured first: the machine may be measured then too, and prices are by its figures.
    measured, marks = _measured(args) if args.measure else (None, None)
    made = compiled(args, require)
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


def _measured(args: argparse.Namespace) -> tuple[Measured, Sequence[Mark]]:
    """What many runs took, and the quickest of a few step by step."""
    made = ready(args)
    from dovetail.runtime.page import watched

    return watched(made.program, made.feeds, args.runs)


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
        Argument("--measure", "run it too, and show measured next to predicted time", _SWITCH),
        *MEASURING,
        Argument(
            "--html",
            "write the report as one page for a browser too: the graph with its kernels, gaps, memory and code",
            {"metavar": "FILE"},
        ),
        *assume.ARGUMENTS,
        *placement.ARGUMENTS,
        Argument(
            "--require",
            "fail unless a rule made at least this many kernels, as in --require swiglu=24; may be given several times",
            {"metavar": "RULE=COUNT", "action": "append", "default": []},
        ),
        Argument("--require-clean", "fail if any fusion was missed for another reason than cost", _SWITCH),
    ),
    run,
)
