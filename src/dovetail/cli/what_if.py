"""`dovetail what-if`: what each missed fusion would bring if its hint were followed."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict, replace
from typing import Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.measuring import MEASURING, Ready, medians, ready, ready_graph
from dovetail.cli.options import COMPILING, JSON, PRECISION, QUANTIZE, asked_graph, ways
from dovetail.ir.value import Value
from dovetail.progress import phase
from dovetail.report.text import percent, time_text
from dovetail.runtime.assume import Assumptions, WhatIf, assume
from dovetail.runtime.compile import make_request


def run(args: argparse.Namespace) -> Answer:
    # Measured first: the machine may be measured then too, and prices are by its figures.
    before = ready(args) if args.apply else None
    found = assume(asked_graph(args), make_request(**ways(args)), args.miss)
    if before is not None:
        found = replace(found, what_ifs=tuple(_measured(w, before, args) for w in found.what_ifs))
    return Answer(json.dumps(_as_dict(found), indent=2) if args.json else "\n".join(_lines(found)))


def _measured(what_if: WhatIf, before: Ready, args: argparse.Namespace) -> WhatIf:
    """The same with what a run takes before and after, both in turn."""
    if what_if.remedied is None:
        return what_if
    after = ready_graph(what_if.remedied.graph, args, dict(before.feeds))
    with phase("measure", still=True):
        first, second = medians([before, after], args.runs)
    seen = what_if.comparison
    told = replace(
        seen,
        before=replace(seen.before, measured_seconds=first),
        after=replace(seen.after, measured_seconds=second),
    )
    return replace(what_if, comparison=told)


def _lines(found: Assumptions) -> Iterable[str]:
    before = found.before
    predicted = time_text(before.predicted_seconds)
    yield f"{before.graph} on {before.target}: {before.kernels} kernels, predicted {predicted}"
    if not found.what_ifs:
        yield "no fusion was missed but what cost declined: there is nothing to assume"
        return
    yield "What if? Each change is tried alone, everywhere at once. The changed model need not compute the same."
    for what_if in found.what_ifs:
        yield ""
        yield from _told(what_if, before.predicted_seconds)


def _told(what_if: WhatIf, total: float) -> Iterable[str]:
    kind = what_if.kind
    share = f" ({percent(kind.seconds / total)})" if total else ""
    places = f"   at {', '.join(kind.places)}" if kind.places else ""
    price = f"costs {time_text(kind.seconds)}{share}" if kind.seconds else "has no price of its own"
    yield f"{kind.number}  {kind.count} × {kind.rule}: {kind.reason}   {price}{places}"
    yield f"   {kind.message}"
    if what_if.remedied is None:
        yield f"   {what_if.refusal}"
        if kind.hint:
            yield f"   hint: {kind.hint}"
        return
    yield f"   assume: {what_if.remedied.words}"
    yield from (f"     {change}" for change in _changes(what_if))
    yield from _gains(what_if)


def _changes(what_if: WhatIf) -> Iterable[str]:
    remedied = what_if.remedied
    if remedied is None:
        return
    yield from remedied.changes
    for (op, type), values in _by_type(remedied.fresh).items():
        several = f"{len(values)} new {op}s {values[0]}, …" if len(values) > 1 else f"a new {op} {values[0]}"
        yield f"{several}: {type}"
    if remedied.kept:
        several = f"{len(remedied.kept)} more outputs" if len(remedied.kept) > 1 else "one more output"
        yield f"{several}, so that what was computed for it still counts"


def _by_type(fresh: Sequence[Value]) -> dict[tuple[str, str], list[str]]:
    found: dict[tuple[str, str], list[str]] = {}
    for value in fresh:
        found.setdefault((value.op.name, str(value.type)), []).append(str(value.attrs["name"]))
    return found


def _gains(what_if: WhatIf) -> Iterable[str]:
    seen, kind = what_if.comparison, what_if.kind
    fires = f"{kind.rule} fires {what_if.fires} of {kind.count}" if what_if.fires > 0 else f"{kind.rule} does not fire"
    host = (
        f"   on the host {seen.before.on_host} → {seen.after.on_host}"
        if seen.after.on_host > seen.before.on_host
        else ""
    )
    yield f"   {fires}   kernels {seen.before.kernels} → {seen.after.kernels}{host}"
    yield f"   {_gain('predicted', seen.before.predicted_seconds, seen.after.predicted_seconds)}"
    if seen.before.measured_seconds is not None and seen.after.measured_seconds is not None:
        yield f"   {_gain('measured', seen.before.measured_seconds, seen.after.measured_seconds)}"
    own = f"{kind.rule}: {kind.reason}"
    for change in seen.missed:
        if change.what != own and (change.after or 0) > (change.before or 0):
            yield f"   then missed {change.before:.0f} → {change.after:.0f} × {change.what}"
    for change in seen.fused:
        if change.what != kind.rule:
            yield f"   then fused {change.before:.0f} → {change.after:.0f} × {change.what}"


def _gain(how: str, before: float, after: float) -> str:
    gain = before - after
    word = "gains" if gain >= 0 else "loses"
    share = f" ({percent(abs(gain) / before)})" if before else ""
    return f"{how:<9} {time_text(before)} → {time_text(after)}   {word} {time_text(abs(gain))}{share}"


def _as_dict(found: Assumptions) -> dict[str, Any]:
    return {
        "schema_version": SCHEMA_VERSION,
        "graph": found.before.graph,
        "target": found.before.target,
        "before": asdict(found.before),
        "what_ifs": [_what_if(w) for w in found.what_ifs],
    }


def _what_if(what_if: WhatIf) -> dict[str, Any]:
    remedied, seen = what_if.remedied, what_if.comparison
    made = () if remedied is None else remedied.fresh
    return {
        **asdict(what_if.kind),
        "remedy": None if remedied is None else remedied.words,
        "refusal": what_if.refusal,
        "changes": [] if remedied is None else list(remedied.changes),
        "fresh": [{"name": str(v.attrs["name"]), "kind": v.op.name, "type": str(v.type)} for v in made],
        "dropped_outputs": [] if remedied is None else list(remedied.dropped),
        "added_outputs": [] if remedied is None else list(remedied.kept),
        "fires": what_if.fires,
        "after": None if remedied is None else asdict(seen.after),
        "predicted_gain_seconds": what_if.predicted_gain,
        "measured_before_seconds": seen.before.measured_seconds,
        "measured_gain_seconds": what_if.measured_gain,
        "differences": [asdict(c) for c in (*seen.numbers, *seen.fused, *seen.missed) if c.is_change],
    }


COMMAND = Command(
    "what-if",
    "Follow the hint of each missed fusion, compile again, and say what that would bring.",
    (
        *COMPILING,
        PRECISION,
        QUANTIZE,
        Argument(
            "--miss",
            "the number, the rule or the reason of missed fusions; may be given several times; all that cost did not "
            "decline without; the changed model need not compute the same",
            {"metavar": "MISS", "action": "append", "default": []},
        ),
        Argument(
            "--apply",
            "run the model as it is and as it would be in turn, and show measured beside predicted gains",
            {"action": "store_true"},
        ),
        *(replace(argument, needs="--apply") for argument in MEASURING),
        JSON,
    ),
    run,
)

__all__ = ["COMMAND", "run"]
