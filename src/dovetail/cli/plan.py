"""`dovetail plan`: how a graph runs, and in which memory."""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from dovetail.cli.command import SCHEMA_VERSION, Answer, Command
from dovetail.cli.options import COMPILING, JSON, compiled
from dovetail.ir.dim import Size
from dovetail.ir.text import local_names
from dovetail.plan.phases import Phase
from dovetail.plan.plan import Plan, Step

_PHASES: tuple[Phase, ...] = ("bind", "run")
_MEANING = {"bind": "once, when parameters are bound", "run": "in every run"}


def run(args: argparse.Namespace) -> Answer:
    plan = compiled(args).plan
    return Answer(json.dumps(as_dict(plan), indent=2) if args.json else as_text(plan))


def as_dict(plan: Plan) -> dict[str, Any]:
    """The plan as plain lists and numbers; sizes that are not known yet are text."""
    names = local_names(plan.graph, plan.graph.values)
    return {
        "schema_version": SCHEMA_VERSION,
        "graph": plan.graph.name,
        "target": plan.target,
        "fingerprint": plan.fingerprint,
        "alignment": plan.alignment,
        "symbols": list(plan.symbols),
        "arena_bytes": _plain(plan.arena_size),
        "peak_bytes": _plain(plan.peak),
        "unshared_bytes": _plain(plan.unshared_bytes),
        "bytes_saved": _plain(plan.bytes_saved),
        "scratch_bytes": _plain(plan.scratch_size),
        "bound_bytes": _plain(plan.bound_size),
        "inputs": {name: str(type) for name, type in plan.manifest.inputs.items()},
        "params": {name: str(type) for name, type in plan.manifest.params.items()},
        "outputs": {name: str(type) for name, type in plan.manifest.outputs.items()},
        "steps": [
            {
                "name": step.name,
                "value": names[step.value],
                "op": step.value.op.name,
                "phase": step.phase,
                "over": names[step.over] if step.over is not None else None,
                "slots": [
                    {"value": names.get(r, names[step.value]), "type": str(r.type), **_slot(plan, r)}
                    for r in step.results
                ],
            }
            for step in plan.steps
        ],
        "donations": [
            {"output": d.output, "input": d.input, "copied_bytes": _plain(d.copied), "reason": d.reason}
            for d in plan.donations
        ],
        "views": [
            {
                "value": names[value],
                "of": names[alias.root],
                "offset": _plain(alias.offset),
                "strides": [_plain(s) for s in alias.strides],
            }
            for value, alias in plan.aliases.items()
        ],
    }


def as_text(plan: Plan) -> str:
    """Totals, then every step with its slots, phase by phase."""
    names = local_names(plan.graph, plan.graph.values)
    lines = [
        f"{plan.graph.name} on {plan.target}: {len(plan.steps)} steps, {len(plan.slots)} slots, "
        f"{len(plan.aliases)} views",
        f"arena        {plan.arena_size} bytes a run",
        f"peak         {plan.peak} bytes held at once",
        f"saved        {plan.bytes_saved} bytes of {plan.unshared_bytes} by sharing memory",
        f"bound        {plan.bound_size} bytes kept from the bind phase, which needs {plan.scratch_size} of scratch",
        f"fingerprint  {plan.fingerprint}",
    ]
    for one in plan.donations:
        how = f"copied, {one.copied} bytes a run: {one.reason}" if one.reason else "in place"
        lines.append(f"donated      {one.input} to {one.output}, {how}")
    if plan.symbols:
        lines.append(f"symbols      {', '.join(plan.symbols)}")
    for phase in _PHASES:
        steps = plan.phase(phase)
        if steps:
            lines += ["", f"{phase}: {len(steps)} steps, {_MEANING[phase]}"]
            lines += _columns([_cells(step, plan, names) for step in steps])
    return "\n".join(lines)


def _cells(step: Step, plan: Plan, names: dict[Any, str]) -> tuple[str, str, str, str]:
    slots = [plan.slots[r] for r in step.results]
    places = ", ".join(
        f"{s.pool} {s.offset}+{s.size}" if s.donor is None else f"memory of {names[s.donor]}" for s in slots
    )
    over = f" in place of {names[step.over]}" if step.over is not None else ""
    return step.name, names[step.value], str(step.value.type), places + over


def _columns(rows: list[tuple[str, ...]]) -> Iterable[str]:
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    return ["  " + "  ".join(f"{cell:<{w}}" for cell, w in zip(row, widths, strict=True)).rstrip() for row in rows]


def _slot(plan: Plan, value: Any) -> dict[str, Any]:
    slot = plan.slots[value]
    told: dict[str, Any] = {"pool": slot.pool, "offset": _plain(slot.offset), "size": _plain(slot.size)}
    return told if slot.donor is None else {**told, "donor": str(slot.donor.attrs["name"])}


def _plain(size: Size) -> int | str:
    return size if isinstance(size, int) else str(size)


COMMAND = Command(
    "plan",
    "Print how the graph runs: steps by phase, slots, arena, peak, and what sharing memory saves.",
    (*COMPILING, JSON),
    run,
)
