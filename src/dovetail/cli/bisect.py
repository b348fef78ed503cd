"""`dovetail bisect`: the first rule application that moves an output beyond a bound."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from dataclasses import asdict
from typing import Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.measuring import INPUT
from dovetail.cli.options import COMPILING, JSON, refuse_negative
from dovetail.cli.terminal import look_of
from dovetail.cli.verify import Task, task_of
from dovetail.errors import CheckError, OptionError
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.pipeline import PASSES, REQUIRED
from dovetail.report.chain import Teller, chain_lines, link_dict
from dovetail.report.paint import PLAIN, Look, Piece, line, shown
from dovetail.runtime.bisect import Bisection, bisect
from dovetail.runtime.compile import compile
from dovetail.runtime.verify import outputs_of

BOUND = 1e-3
_OPTIONAL = [p.name for p in PASSES if p.name not in REQUIRED]


def run(args: argparse.Namespace) -> Answer:
    refuse_negative("--bound", args.bound)
    task = task_of(args)
    if args.output is not None and args.output not in task.graph.outputs:
        listed = ", ".join(task.graph.outputs)
        raise OptionError(f"there is no output {args.output!r}", hint=f"the outputs are {listed}")
    place, found = search(task, args.target, args.bound, args.output)
    teller = Teller(task.history)
    culprit = found.culprit
    failure = None
    if culprit is not None:
        link = teller.link(culprit.made)
        at = f" at {link.node}" if link.node is not None else ""
        told = f"{link.name}{at} moves {culprit.after.output} by {culprit.after.deviation:.3g} {place}"
        failure = CheckError(
            told, hint=f"--without {link.rule} switches the rule off; dovetail verify checks all rules"
        )
    elif found.start.deviation > args.bound:
        told = f"{found.start.output} deviates by {found.start.deviation:.3g} {place} before any rule is applied"
        failure = CheckError(told, hint="no rule is to blame: raise --bound above what its precision gives")
    if args.json:
        return Answer(json.dumps(as_dict(found, teller, place), indent=2), failure)
    return Answer(as_text(found, teller, place, args.bound, look_of(sys.stdout)), failure, painted=True)


def search(task: Task, target: str, bound: float, output: str | None) -> tuple[str, Bisection]:
    """Search in float64; where nothing moves an output too far there, with compiled kernels."""
    wanted = outputs_of(task.graph, task.drawn)
    found = bisect(task.history, lambda graph: outputs_of(graph, task.drawn), wanted, bound, output=output)
    if found.culprit is not None:
        return "in float64", found

    def run_compiled(graph: Graph) -> Mapping[str, Array]:
        known = {str(v.attrs["name"]) for v in graph.parameters}
        params = {name: array for name, array in task.drawn.params.items() if name in known}
        program = compile(graph, target=target, without=_OPTIONAL, params=params)
        return program.run(program.undonated(task.drawn.feeds))

    return f"on {target}", bisect(task.history, run_compiled, wanted, bound, output=output)


def as_text(found: Bisection, teller: Teller, place: str, bound: float, look: Look = PLAIN) -> str:
    """The culprit for people, or that there is none."""
    count = f"{found.edits:,} rule applications, {found.probes} runs of the model {place}"
    culprit = found.culprit
    if culprit is None:
        verdict = Piece("nothing moves an output so far", "good" if found.final.deviation <= bound else "bad")
        told = f"with all applied, {found.final.output} deviates by {found.final.deviation:.3g} (bound {bound:g})"
        return shown([line(verdict, f"  {count}"), line(told)], look)
    link = teller.link(culprit.made)
    return shown(
        [
            line(Piece(link.rule, "bad"), f"  is the first to move an output beyond {bound:g}: {count}", hang=2),
            line(f"application {culprit.number:,} of {found.edits:,}"),
            *chain_lines((link,), ""),
            line(f"before it, {culprit.before.output} deviates by {culprit.before.deviation:.3g}"),
            line(f"after it, {culprit.after.output} deviates by {culprit.after.deviation:.3g}"),
        ],
        look,
    )


def as_dict(found: Bisection, teller: Teller, place: str) -> dict[str, Any]:
    """What was found as plain data."""
    culprit = found.culprit
    told: dict[str, Any] | None = None
    if culprit is not None:
        told = {
            "number": culprit.number,
            **link_dict(teller.link(culprit.made)),
            "deviation_before": asdict(culprit.before),
            "deviation_after": asdict(culprit.after),
        }
    return {
        "schema_version": SCHEMA_VERSION,
        "applications": found.edits,
        "runs": found.probes,
        "precision": place,
        "start": asdict(found.start),
        "final": asdict(found.final),
        "culprit": told,
    }


COMMAND = Command(
    "bisect",
    "Find the first rule application that moves an output beyond a bound from what the graph as written gives.",
    (
        *COMPILING,
        INPUT,
        Argument(
            "--bound",
            f"how far an output may be moved, relative to its largest value ({BOUND:g})",
            {"metavar": "NUMBER", "type": float, "default": BOUND},
        ),
        Argument("--output", "look at this output only", {"metavar": "NAME"}),
        JSON,
    ),
    run,
)
