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
from dovetail.runtime.arbiter import Amplification, amplifications
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
    bound = BOUND if args.bound is None else args.bound
    place, found, noise = search(task, args.target, args.bound, args.output)
    bound = max(bound, noise.explained) if noise is not None else bound
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
    elif found.start.deviation > bound:
        told = f"{found.start.output} deviates by {found.start.deviation:.3g} {place} before any rule is applied"
        failure = CheckError(told, hint="no rule is to blame: raise --bound above what its precision gives")
    if args.json:
        return Answer(json.dumps(as_dict(found, teller, place, noise), indent=2), failure)
    return Answer(as_text(found, teller, place, bound, noise, look_of(sys.stdout)), failure, painted=True)


def search(
    task: Task, target: str, bound: float | None, output: str | None
) -> tuple[str, Bisection, Amplification | None]:
    """Search in float64; where nothing moves an output too far there, with compiled kernels.

    Where rounding alone moves an output further than the usual bound, kernels have what it explains.
    """
    exact = outputs_of(task.graph, task.drawn)
    most = BOUND if bound is None else bound
    found = bisect(task.history, lambda graph: outputs_of(graph, task.drawn), exact, most, output=output)
    if found.culprit is not None:
        return "in float64", found, None

    def run_compiled(graph: Graph) -> Mapping[str, Array]:
        known = {str(v.attrs["name"]) for v in graph.parameters}
        params = {name: array for name, array in task.drawn.params.items() if name in known}
        program = compile(graph, target=target, without=_OPTIONAL, params=params)
        return program.run(program.undonated(task.drawn.feeds))

    found = bisect(task.history, run_compiled, exact, most, output=output)
    if bound is not None or (found.final.deviation <= most and found.start.deviation <= most):
        return f"on {target}", found, None
    drawn = task.drawn
    noise = max(
        (
            a
            for n, a in amplifications(task.graph, drawn.feeds, drawn.params, exact, drawn.sizes).items()
            if output is None or n == output
        ),
        key=lambda a: a.moved,
    )
    if noise.explained > most:
        found = bisect(task.history, run_compiled, exact, noise.explained, output=output)
    return f"on {target}", found, noise


def as_text(
    found: Bisection,
    teller: Teller,
    place: str,
    bound: float,
    noise: Amplification | None = None,
    look: Look = PLAIN,
) -> str:
    """The culprit for people, or that there is none."""
    count = f"{found.edits:,} rule applications, {found.probes} runs of the model {place}"
    culprit = found.culprit
    if culprit is None:
        verdict = Piece("nothing moves an output so far", "good" if found.final.deviation <= bound else "bad")
        told = f"with all applied, {found.final.output} deviates by {found.final.deviation:.3g} (bound {bound:.3g})"
        told = told if noise is None else f"{told}; {noise.words}"
        return shown([line(verdict, f"  {count}"), line(told)], look)
    link = teller.link(culprit.made)
    return shown(
        [
            line(Piece(link.rule, "bad"), f"  is the first to move an output beyond {bound:.3g}: {count}", hang=2),
            line(f"application {culprit.number:,} of {found.edits:,}"),
            *chain_lines((link,), ""),
            line(f"before it, {culprit.before.output} deviates by {culprit.before.deviation:.3g}"),
            line(f"after it, {culprit.after.output} deviates by {culprit.after.deviation:.3g}"),
        ],
        look,
    )


def as_dict(found: Bisection, teller: Teller, place: str, noise: Amplification | None = None) -> dict[str, Any]:
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
        **({} if noise is None else {"amplification": min(noise.factor, 1e308)}),
    }


COMMAND = Command(
    "bisect",
    "Find the first rule application that moves an output beyond a bound from what the graph as written gives.",
    (
        *COMPILING,
        INPUT,
        Argument(
            "--bound",
            f"how far an output may be moved, relative to its largest value ({BOUND:g}, or what rounding explains)",
            {"metavar": "NUMBER", "type": float},
        ),
        Argument("--output", "look at this output only", {"metavar": "NAME"}),
        JSON,
    ),
    run,
)
