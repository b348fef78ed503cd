"""`dovetail operators`: the ONNX operators that are read, and how."""

from __future__ import annotations

import argparse
import json
from dataclasses import asdict
from typing import TYPE_CHECKING

from dovetail.cli.command import SCHEMA_VERSION, Answer, Argument, Command
from dovetail.cli.options import JSON
from dovetail.errors import OptionError
from dovetail.nearest import nearest

if TYPE_CHECKING:
    from dovetail.frontends.onnx.table import Row


def run(args: argparse.Namespace) -> Answer:
    from dovetail.frontends.onnx.table import rows  # a fifth of a second, for those who need it

    listed = rows()
    if args.op is not None:
        listed = _named(listed, args.op)
    if args.json:
        return Answer(
            json.dumps({"schema_version": SCHEMA_VERSION, "operators": [asdict(r) for r in listed]}, indent=2)
        )
    if args.op is not None:
        return Answer("\n\n".join(map(_whole, listed)))
    width = max(len(_title(row)) for row in listed)
    return Answer("\n".join(f"{_title(row):<{width}}  {_short(row)}" for row in listed))


def _named(listed: tuple[Row, ...], name: str) -> tuple[Row, ...]:
    found = tuple(row for row in listed if name in (row.name, _title(row)))
    if not found:
        names = sorted({row.name for row in listed})
        lower = {n.lower(): n for n in names}
        near = [lower[name.lower()]] if name.lower() in lower else nearest(name, names)
        hint = f"did you mean {near[0]}?" if near else "dovetail operators lists them"
        raise OptionError(f"there is no operator {name!r}", hint=hint)
    return found


def _title(row: Row) -> str:
    return f"{row.domain}.{row.name}" if row.domain else row.name


def _short(row: Row) -> str:
    match row.how:
        case "rule":
            return f"{row.versions:<16} {row.doc}"
        case "body":
            return f"{row.versions:<16} as ONNX writes it out"
        case "none":
            return "not supported"


def _whole(row: Row) -> str:
    lines = [f"{_title(row)}: {_short(row)}"]
    for title, names in (("known inputs", row.known), ("attributes", row.attributes), ("refused", row.refused)):
        if names:
            lines.append(f"  {title}: {', '.join(names)}")
    return "\n".join(lines)


COMMAND = Command(
    "operators",
    "List the ONNX operators, which versions of each are read, or say what is known of one.",
    (Argument("op", "the name of an operator; all are listed without", {"metavar": "OP", "nargs": "?"}), JSON),
    run,
)
"""The command."""
