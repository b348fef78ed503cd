"""`dovetail catalog`: the fused ops that there are, and the page of each."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from dovetail import library
from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.options import JSON
from dovetail.declare.fused import FusedOp
from dovetail.derive.catalogue import Entry, page, stage_of
from dovetail.errors import OptionError
from dovetail.nearest import nearest
from dovetail.runtime.keepers import keepers

ENTRIES: Mapping[str, Entry] = {
    entry.name: entry for entry in sorted((*library.ALL, *library.GROUPS), key=lambda entry: entry.name)
}
"""Every declared rule by name."""


def run(args: argparse.Namespace) -> Answer:
    if args.op is None:
        listed = [as_dict(entry) for entry in ENTRIES.values()]
        width = max(map(len, ENTRIES))
        kept = {row["name"]: ", ".join(row["kept_by"]) or "-" for row in listed}
        rows = [
            f"{row['name']:<{width}}  {row['stage']:<9}  {kept[row['name']]:<9}  {row['doc'].splitlines()[0]}"
            for row in listed
        ]
        return Answer(_json({"ops": listed}) if args.json else "\n".join(rows))
    entry = entry_named(args.op)
    return Answer(_json(as_dict(entry)) if args.json else page(entry, keepers(entry.name)))


def entry_named(name: str) -> Entry:
    """The declaration of a name."""
    entry = ENTRIES.get(name)
    if entry is None:
        near = nearest(name, ENTRIES)
        hint = f"did you mean {near[0]}?" if near else "dovetail catalog lists them"
        raise OptionError(f"there is no fused op {name!r}", hint=hint)
    return entry


def as_dict(entry: Entry) -> dict[str, Any]:
    """A declaration as data."""
    return {
        "name": entry.name,
        "stage": stage_of(entry),
        "doc": entry.doc,
        "shapes": entry.shapes,
        "kept_by": list(keepers(entry.name)) if isinstance(entry, FusedOp) else [],
        "guards": [
            {"name": g.name, "reason": g.reason, "hint": g.hint, "remedy": g.remedy and g.remedy.words}
            for g in entry.guards
        ],
        "spellings": [s.__name__ for s in entry.spellings] if isinstance(entry, FusedOp) else [],
        "patterns": len(entry.variants),
    }


def _json(content: dict[str, Any]) -> str:
    return json.dumps({"schema_version": SCHEMA_VERSION, **content}, indent=2)


COMMAND = Command(
    "catalog",
    "List the fused ops, or print the page of one: its body, its guards, what is derived from it.",
    (Argument("op", "the name of a fused op; all are listed without", {"metavar": "OP", "nargs": "?"}), JSON),
    run,
)
