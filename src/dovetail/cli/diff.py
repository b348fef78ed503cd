"""`dovetail diff`: two models, two versions or two ways to compile one, side by side."""

from __future__ import annotations

import argparse
import json
import shlex
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.measuring import WHERE_MEASURED, Ready, medians, ready
from dovetail.cli.options import ENGINE, FIXED, JSON, SIZE, TARGET, WITHOUT, compiled
from dovetail.errors import GateError, LoadError, OptionError
from dovetail.report.compare import Comparison
from dovetail.report.outline import Outline, outline_from, outline_of
from dovetail.runtime.deviation import difference

TOLERANCE = 1e-3
"""How far results may lie apart for a gate, as a share of the largest one."""
_WAYS = (TARGET, WITHOUT, ENGINE, SIZE, FIXED)


def run(args: argparse.Namespace) -> Answer:
    before = _side(args, args.before, args.before_options)
    after = _side(args, args.after, args.after_options)
    first, second = _outline(before), _outline(after)
    deviations: dict[str, float] = {}
    if args.measure:
        first, second, deviations = _measured(args, before, after, first, second)
    comparison = Comparison(first, second, deviations)
    worse = comparison.worse(args.tolerance) if args.gate else ()
    failure = None
    if worse:
        failure = GateError(f"it became worse: {'; '.join(worse)}", hint="leave out --gate to see the difference only")
    return Answer(_as_json(comparison, worse) if args.json else str(comparison), failure)


def _side(args: argparse.Namespace, model: str, options: str | None) -> argparse.Namespace:
    """The command line of one side: what both share, and its own options."""
    side = argparse.Namespace(**{**vars(args), "model": model})
    if options is None:
        return side
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False, exit_on_error=False)
    for argument in _WAYS:
        how: dict[str, Any] = {**argument.how, "default": None}
        parser.add_argument(argument.name, **how)
    try:
        own, rest = parser.parse_known_args(shlex.split(options))
    except (argparse.ArgumentError, ValueError) as error:
        raise OptionError(f"options {options!r}: {error}", hint=_HOW) from error
    if rest:
        raise OptionError(f"options {options!r} have {rest[0]!r} in them", hint=_HOW)
    for name, value in vars(own).items():
        if value is not None:
            setattr(side, name, value)
    return side


_HOW = (
    f"they may hold {', '.join(a.name for a in _WAYS if not a.hidden)}, in one word of the shell: '--without attention'"
)


def _is_report(model: str) -> bool:
    return Path(model).suffix == ".json"


def _outline(side: argparse.Namespace) -> Outline:
    if not _is_report(side.model):
        return outline_of(compiled(side).report())
    try:
        told = json.loads(Path(side.model).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        raise LoadError(
            f"the report cannot be read: {why}", hint="write it with explain --json", where=side.model
        ) from error
    return outline_from(told, side.model)


def _measured(
    args: argparse.Namespace, before: argparse.Namespace, after: argparse.Namespace, first: Outline, second: Outline
) -> tuple[Outline, Outline, dict[str, float]]:
    """Both sides run in turn on the same inputs: their medians, and how far their results lie apart."""
    for side in (before, after):
        if _is_report(side.model):
            raise OptionError(f"{side.model} is a report, which cannot be run", hint="measure two models")
    sides = [ready(before), ready(after)]
    feeds = sides[0].feeds
    if set(feeds) != set(sides[1].feeds):
        raise OptionError("the models have other inputs", hint="compare them without --measure")
    results = [side.program.run(side.program.undonated(feeds)) for side in sides]
    took = medians([Ready(side.program, feeds) for side in sides], args.runs)
    return (
        replace(first, measured_seconds=took[0]),
        replace(second, measured_seconds=took[1]),
        {n: difference(results[1][n], a) if n in results[1] else float("inf") for n, a in results[0].items()},
    )


def _as_json(comparison: Comparison, worse: Sequence[str]) -> str:
    told: dict[str, Any] = {
        "schema_version": SCHEMA_VERSION,
        **asdict(comparison),
        "changes": [asdict(c) for c in (*comparison.numbers, *comparison.fused, *comparison.missed) if c.is_change],
        "worse": list(worse),
    }
    return json.dumps(told, indent=2)


COMMAND = Command(
    "diff",
    "Compare two models, two versions or two ways to compile one: kernels, fusions, bytes, times and results.",
    (
        Argument("before", "a model, or a report that explain --json wrote", {"metavar": "BEFORE"}),
        Argument("after", "what to compare it with, likewise", {"metavar": "AFTER"}),
        *_WAYS,
        Argument("--before-options", f"options of the first side alone; {_HOW}", {"metavar": "OPTIONS"}),
        Argument("--after-options", "options of the second side alone, likewise", {"metavar": "OPTIONS"}),
        Argument("--measure", "run both in turn, and compare times and results too", {"action": "store_true"}),
        *WHERE_MEASURED,
        Argument("--gate", "fail if the second is worse in anything", {"action": "store_true"}),
        Argument(
            "--tolerance",
            f"how far results may differ for --gate, as a share of the largest ({TOLERANCE:g})",
            {"metavar": "SHARE", "type": float, "default": TOLERANCE},
            needs="--gate",
        ),
        JSON,
    ),
    run,
)
