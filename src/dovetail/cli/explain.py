"""`dovetail explain`: what fused, what did not, why, and what both cost."""

from __future__ import annotations

import argparse

from dovetail.cli.command import Answer, Argument, Command
from dovetail.cli.options import COMPILING, JSON, compiled, numbers
from dovetail.errors import GateError
from dovetail.report.json_form import as_json
from dovetail.runtime.compile import check_gates


def run(args: argparse.Namespace) -> Answer:
    require = numbers("--require", args.require, alone=1)
    report = compiled(args, require).report()
    text = as_json(report) if args.json else str(report)
    try:
        check_gates(report, require, args.require_clean)
    except GateError as failure:
        return Answer(text, failure)
    return Answer(text)


COMMAND = Command(
    "explain",
    "Say what fused, what did not, why, and what both cost.",
    (
        *COMPILING,
        JSON,
        Argument(
            "--require",
            "fail unless a rule made so many kernels, as in --require swiglu=24; may be given several times",
            {"metavar": "RULE=COUNT", "action": "append", "default": []},
        ),
        Argument(
            "--require-clean", "fail if any fusion was missed for another reason than cost", {"action": "store_true"}
        ),
    ),
    run,
)
