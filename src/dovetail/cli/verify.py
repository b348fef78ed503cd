"""`dovetail verify`: every rule application of a compilation, evaluated before and after in float64."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Mapping
from typing import Any

from dovetail.cli.arrays import named_arrays
from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.measuring import INPUT
from dovetail.cli.options import COMPILING, JSON, PRECISION, asked_graph, refuse_negative, ways
from dovetail.cli.run import given_feeds
from dovetail.cli.terminal import look_of
from dovetail.dataclass import dataclass
from dovetail.errors import CheckError, DovetailError, VerifyError
from dovetail.ir.graph import Graph
from dovetail.passes.history import History
from dovetail.report.chain import Link, Teller, link_dict
from dovetail.report.paint import PLAIN, Line, Look, Piece, line, shown
from dovetail.runtime.compile import Compilation, compilation, compile, make_request
from dovetail.runtime.random_inputs import RandomInputs, random_inputs
from dovetail.runtime.verify import EditCheck, OutputCheck, RuleCheck, Verification, verify_compilation

SEED = 0
_MOST_RULES = 12


@dataclass(frozen=True, slots=True)
class Task:
    """A model, compiled with its history, and the arrays to try it on."""

    graph: Graph
    made: Compilation
    history: History
    drawn: RandomInputs


def task_of(args: argparse.Namespace) -> Task:
    """The model of a command line, with the inputs that it gives and made-up ones for the rest."""
    graph = asked_graph(args)
    drawn = random_inputs(graph, given_feeds(graph, named_arrays("--input", args.input)), seed=SEED)
    made = compilation(graph, make_request(**ways(args)), history=True)
    history = made.lowered.history
    assert history is not None, "it was asked for"
    return Task(graph, made, history, drawn)


def run(args: argparse.Namespace) -> Answer:
    refuse_negative("--tolerance", args.tolerance)
    if args.gradients:
        from dovetail.cli import verify_gradients  # only this option needs it

        return verify_gradients.run(args)
    task = task_of(args)
    program = compile(task.graph, **ways(args), params=task.drawn.params)
    found = verify_compilation(task.made, task.drawn, run=program.run, tolerance=args.tolerance)
    teller = Teller(task.history)
    failure = failure_of(found, teller, args.target)
    if args.json:
        return Answer(json.dumps(as_dict(found, teller), indent=2), failure)
    return Answer(as_text(found, teller, args.target, look_of(sys.stdout)), failure, painted=True)


def failure_of(found: Verification, teller: Teller, target: str) -> DovetailError | None:
    """The rule that is wrong by the node it was applied at; or the outputs that differ."""
    if found.wrong:
        lines: list[str] = []
        for check in found.wrong:
            link = teller.link(check.made)
            at = f" at {link.node}" if link.node is not None else ""
            lines.append(f"  {link.name}{at}: {_moved(check)}")
        hint = "dovetail bisect says whether it moves an output; --without switches a rule off"
        return VerifyError("\n".join(["rules are wrong:", *lines]), hint=hint)
    if not found.replays:
        hint = "this is a mistake in a pass of dovetail, not in the model: please report it"
        return VerifyError("the graph as compiled is not what its edits make of the graph as written", hint=hint)
    apart = [o for o in found.outputs if not o.holds]
    if apart:
        said = [f"{o.name} by {o.deviation:.3g} {_PLACES[o.where].format(target)}" for o in apart]
        told = ", ".join(
            text if o.amplification is None else f"{text} ({o.amplification.words})"
            for text, o in zip(said, apart, strict=True)
        )
        hint = "dovetail bisect finds the first edit that moves it so far; --tolerance says how far it may be"
        return CheckError(f"outputs differ from the graph as written: {told}", hint=hint)
    return None


_PLACES = {"float64": "in float64", "program": "on {}"}


def _moved(check: EditCheck) -> str:
    if check.message:
        return f"what it makes cannot be computed: {check.message}"
    return f"moves its value by {check.deviation:.3g}, and {check.bound:.1g} is allowed"


def as_text(found: Verification, teller: Teller, target: str, look: Look = PLAIN) -> str:
    """What was found, for people: the rules that came nearest to their bounds first."""
    total, checked = sum(r.applications for r in found.rules), sum(r.checked for r in found.rules)
    kinds = sum(r.kinds for r in found.rules)
    sizes = "".join(f", {name} = {size}" for name, size in sorted(found.sizes.items()))
    verdict = Piece("verified", "good") if found.holds else Piece("WRONG", "bad")
    lines = [
        line(verdict, f"  {total:,} rule applications of {kinds:,} kinds, {checked:,} evaluated in float64{sizes}"),
        line("of applications that look alike up to three are evaluated; deviations are relative to the largest value"),
    ]
    if found.in_bodies:
        lines.append(line(f"{found.in_bodies} inside branches and loops are evaluated with these as a whole"))
    lines += [line(), line(Piece(f"{'rule':<28}{'applied':>8}{'evaluated':>11}  {'class':<13}", "strong"), "deviation")]
    shown_rules = [r for i, r in enumerate(found.rules) if i < _MOST_RULES or (r.worst and not r.worst.holds)]
    for rule in shown_rules:
        lines += _rule(rule, teller)
    if len(found.rules) > len(shown_rules):
        rest = found.rules[len(shown_rules) :]
        most = max((r.worst.deviation for r in rest if r.worst is not None), default=0.0)
        lines.append(line(f"and {len(rest)} rules more, which deviate by {most:.2g} at most"))
    lines += [line(), *_replayed(found), *(_output(o, target) for o in found.outputs)]
    return shown(lines, look)


def _rule(rule: RuleCheck, teller: Teller) -> list[Line]:
    worst = rule.worst
    start = f"{rule.rule:<28}{rule.applications:>8}{rule.checked:>11}  {rule.numerics:<13}"
    if worst is None:
        return [line(start, Piece("could not be evaluated", "warn"))]
    told = f"{worst.deviation:.2g} of {worst.bound:.1g}"
    if worst.holds:
        return [line(start, told)]
    link = teller.link(worst.made)
    at = f"at {link.node}, " if link.node is not None else ""
    return [
        line(Piece(start, "bad"), Piece(told, "bad")),
        line(f"    {at}by {link.sweep}", hang=6),
        line(f"    {link.before} → {link.after}", hang=6),
        *([line(f"    {worst.message}", hang=6)] if worst.message else []),
    ]


def _replayed(found: Verification) -> list[Line]:
    if found.replays:
        return [line("replayed from the graph as written, the edits give the graph as compiled, value for value")]
    return [line(Piece("replayed from the graph as written, the edits do NOT give the graph as compiled", "bad"))]


def _output(output: OutputCheck, target: str) -> Line:
    place = "the final graph in float64" if output.where == "float64" else f"the program on {target}"
    told = f"{output.name}: {place} deviates by {output.deviation:.2g} (tolerance {output.tolerance:g})"
    if output.amplification is not None:
        told = f"{told}; {output.amplification.words}"
    return line(Piece(told, "plain" if output.holds else "bad"), hang=2)


def as_dict(found: Verification, teller: Teller) -> dict[str, Any]:
    """What was found as plain data."""
    return {
        "schema_version": SCHEMA_VERSION,
        "holds": found.holds,
        "replays": found.replays,
        "sizes": dict(found.sizes),
        "in_bodies": found.in_bodies,
        "rules": [_rule_dict(rule, teller) for rule in found.rules],
        "outputs": [
            {
                "name": o.name,
                "where": o.where,
                "deviation": min(o.deviation, 1e308),
                "tolerance": o.tolerance,
                **({} if o.amplification is None else {"amplification": min(o.amplification.factor, 1e308)}),
                "holds": o.holds,
            }
            for o in found.outputs
        ],
    }


def _rule_dict(rule: RuleCheck, teller: Teller) -> dict[str, Any]:
    worst = rule.worst
    told: Mapping[str, object] | None = None
    if worst is not None:
        link: Link = teller.link(worst.made)
        told = {
            "deviation": min(worst.deviation, 1e308),
            "bound": worst.bound,
            "holds": worst.holds,
            "message": worst.message,
            **link_dict(link),
        }
    return {
        "rule": rule.rule,
        "numerics": rule.numerics,
        "applications": rule.applications,
        "kinds": rule.kinds,
        "checked": rule.checked,
        "worst": told,
    }


TOLERANCE = Argument(
    "--tolerance",
    "how far whole outputs may differ, relative to their largest value; by dtype without: floats 1e-4 (f16 1e-2, "
    "bf16 5e-2) on the target, a tenth of that in float64",
    {"metavar": "NUMBER", "type": float},
)
GRADIENTS = Argument(
    "--gradients",
    "verify gradients instead: compare each with central differences in float64, and name the first value, forward or "
    "backward, that is not finite",
    {"action": "store_true"},
)
WRT = Argument(
    "--wrt",
    "which parameters, or inputs, gradients are by: a pattern",
    {"metavar": "PATTERN", "default": "*"},
    needs="--gradients",
)
COMMAND = Command(
    "verify",
    "Evaluate every kind of rule application before and after in float64, then the whole model; name what is wrong.",
    (*COMPILING, PRECISION, INPUT, TOLERANCE, GRADIENTS, WRT, JSON),
    run,
)
