"""`dovetail verify --gradients`: the gradients of a model, against central differences in float64."""

from __future__ import annotations

import argparse
import json
import sys
from typing import Any

from dovetail.cli.arrays import named_arrays
from dovetail.cli.command import SCHEMA_VERSION, Answer
from dovetail.cli.options import ENGINE, PRECISION, TARGET, WITHOUT, asked_graph
from dovetail.cli.run import given_feeds
from dovetail.cli.terminal import look_of
from dovetail.errors import CheckError, DovetailError, OptionError
from dovetail.report.paint import PLAIN, Line, Look, Piece, line, shown
from dovetail.runtime.random_inputs import random_inputs
from dovetail.runtime.verify_gradients import TOLERANCE, GradientVerification, NotFinite, SlopeCheck, verify_gradients

_MOST = 12


def run(args: argparse.Namespace) -> Answer:
    for argument in (TARGET, WITHOUT, ENGINE, PRECISION):
        if getattr(args, argument.key) != argument.how.get("default"):
            raise OptionError(
                f"{argument.name} with --gradients, which nothing compiles", hint=f"leave {argument.name} out"
            )
    graph = asked_graph(args)
    drawn = random_inputs(graph, given_feeds(graph, named_arrays("--input", args.input)))
    tolerance = TOLERANCE if args.tolerance is None else args.tolerance
    found = verify_gradients(graph, drawn, wrt=args.wrt, tolerance=tolerance)
    failure = failure_of(found)
    if args.json:
        return Answer(json.dumps(as_dict(found), indent=2), failure)
    return Answer(as_text(found, look_of(sys.stdout)), failure, painted=True)


def failure_of(found: GradientVerification) -> DovetailError | None:
    """What is not finite, or the gradients that are off."""
    if found.not_finite is not None:
        return CheckError(_told(found.not_finite), hint="give inputs with --input, or mask the elements with where")
    wrong = [c.name for c in found.checks if not c.holds]
    if wrong:
        hint = "a kink or a jump near these inputs looks like this too; try others with --input"
        return CheckError(f"gradients are off: {', '.join(wrong)}", hint=hint)
    return None


def _told(bad: NotFinite) -> str:
    at = f" at {bad.where}" if bad.where else ""
    return f"the first value that is not finite is {bad.value!r}{at}: {bad.count} elements"


def as_text(found: GradientVerification, look: Look = PLAIN) -> str:
    """What was found, for people: the gradients that are furthest off first."""
    sizes = "".join(f", {name} = {size}" for name, size in sorted(found.sizes.items()))
    verdict = Piece("verified", "good") if found.holds else Piece("WRONG", "bad")
    lines = [line(verdict, f"  {len(found.checks)} gradients against central differences in float64{sizes}"), line()]
    if found.not_finite is not None:
        lines += [line(Piece(_told(found.not_finite), "bad")), line()]
    lines.append(line(Piece(f"{'gradient by':<36}{'derived':>14}{'differences':>14}", "strong"), "  deviation"))
    lines += [_row(c) for i, c in enumerate(found.checks) if i < _MOST or not c.holds]
    if len(found.checks) > _MOST:
        lines.append(line(f"and {len(found.checks) - _MOST} more"))
    if found.unreached:
        lines.append(line(Piece(f"no output depends on {', '.join(found.unreached)}", "warn"), hang=2))
    return shown(lines, look)


def _row(check: SlopeCheck) -> Line:
    told = f"{check.name:<36}{check.derived:>14.6g}{check.by_differences:>14.6g}  {check.deviation:.2g}"
    return line(Piece(told, "plain" if check.holds else "bad"))


def as_dict(found: GradientVerification) -> dict[str, Any]:
    """What was found as plain data."""
    bad = found.not_finite
    return {
        "schema_version": SCHEMA_VERSION,
        "holds": found.holds,
        "sizes": dict(found.sizes),
        "gradients": [
            {
                "name": c.name,
                "derived": c.derived,
                "by_differences": c.by_differences,
                "deviation": min(c.deviation, 1e308),
                "holds": c.holds,
            }
            for c in found.checks
        ],
        "unreached": list(found.unreached),
        "not_finite": None if bad is None else {"value": repr(bad.value), "where": bad.where, "count": bad.count},
    }
