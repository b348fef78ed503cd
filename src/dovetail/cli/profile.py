"""`dovetail profile`: where the time of a run goes, by kernel and by the nodes as written."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.measuring import MEASURING, ready
from dovetail.cli.options import COMPILING, JSON, PRECISION
from dovetail.errors import OptionError
from dovetail.report.profile_text import as_text


def run(args: argparse.Namespace) -> Answer:
    if args.top < 1:
        raise OptionError(f"--top {args.top}", hint="show one kernel at least")
    made = ready(args)
    measured = made.program.profile(made.feeds, runs=args.runs)
    name = made.program.graph.name
    if args.json:
        told = {"schema_version": SCHEMA_VERSION, "graph": name, "target": args.target, **asdict(measured)}
        return Answer(json.dumps(told, indent=2))
    return Answer(as_text(name, measured, args.top))


COMMAND = Command(
    "profile",
    "Run a model several times and say where the time goes: by kernel, by place in the model, and on the host.",
    (
        *COMPILING,
        PRECISION,
        *MEASURING,
        Argument("--top", "how many kernels and places to show (12)", {"metavar": "N", "type": int, "default": 12}),
        JSON,
    ),
    run,
)
