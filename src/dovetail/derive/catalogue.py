"""The catalogue: one page for each declared op or group, generated from its declaration."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from dovetail.declare.fused import FusedOp
from dovetail.declare.group import Group
from dovetail.declare.guard import Guard
from dovetail.derive.rules import rules

Entry: TypeAlias = FusedOp[...] | Group


def page(entry: Entry, kept_by: Sequence[str] | None = None) -> str:
    """Return the page of one declaration, as Markdown; `kept_by` are the targets that have a kernel for it, where
    known.
    """
    lines = [f"# `{entry.name}`", "", entry.doc, "", f"Stage: {stage_of(entry)}. Shapes: `{entry.shapes}`.", ""]
    if kept_by is not None and isinstance(entry, FusedOp):
        lines += [f"One kernel on: {', '.join(kept_by) or 'no target; its body is fused in parts'}.", ""]
    title, body = ("Body", entry.body) if isinstance(entry, FusedOp) else ("Member", entry.member)
    # Not "python": the source of a body is to be read, and does not run on a page of its own.
    lines += [f"## {title}", "", "```py", _source(body), "```", ""]
    if entry.guards:
        lines += ["## Fuses when", ""]
        lines += [f"- `{g.name}`. Otherwise: {g.reason}. {_what_if(g)}." for g in entry.guards]
        lines.append("")
    lines += _derived(entry) if isinstance(entry, FusedOp) else _joined(entry)
    return "\n".join(lines) + "\n"


def index(entries: Sequence[Entry], kept_by: Mapping[str, Sequence[str]]) -> str:
    """Return the front page: every declaration in one line, with the targets that have a kernel for it."""
    rows = [
        f"| [`{e.name}`]({e.name}.md) | {stage_of(e)} | {', '.join(kept_by.get(e.name, ())) or '-'} | {_cell(e.doc)} |"
        for e in sorted(entries, key=_name)
    ]
    head = ["# Catalogue of fused ops", "", "| op | stage | one kernel on | computes |", "|---|---|---|---|"]
    return "\n".join([*head, *rows]) + "\n"


def stage_of(entry: Entry) -> str:
    """Return the stage that searches for it."""
    return entry.stage if isinstance(entry, FusedOp) else "join"


def _derived(op: FusedOp[...]) -> list[str]:
    lines: list[str] = []
    if op.spellings:
        lines += ["## Also written as", ""]
        lines += [f"- `{s.__name__}`: {_first_line(inspect.getdoc(s))}" for s in op.spellings]
        lines.append("")
    derived = rules([op])
    opaque = sorted({r.opaque for r in derived if r.opaque})
    lines += ["## Derived", "", f"- {len(derived)} patterns, the largest of {op.patterns[0].size} ops."]
    if op.parts:
        lines.append(f"- Made of {', '.join(sorted(f'`{p.name}`' for p in op.parts))}.")
    lines.append(f"- Cost: {_cost(op)}.")
    conditions = f"asked of each match: {'; '.join(opaque)}" if opaque else "every guard is a condition"
    lines.append(f"- e-graph: {conditions}.")
    lines.append(f"- Gradient: {_gradient(op)}.")
    if op.form is not None:
        lines += ["", "## Gradient", "", "```py", _source(op.form), "```"]
    return lines


def _gradient(op: FusedOp[...]) -> str:
    """Describe its backward op in words."""
    if op.back is None:
        return "by its body"
    how = "the form below, which a law proves equal to the pull of the body" if op.form else "the pull of the body"
    form = "differentiated in parts"
    if op.differentiates_by_row:
        form = "one pass over rows"
    elif op.backward:
        form = f"one kernel for {', '.join(f'`{name}`' for name in op.backward)}"
    return f"`{op.back.name}`, {how}; {form}"


def _joined(group: Group) -> list[str]:
    return [
        "## Joined",
        "",
        f"Members that share `{group.shared}` become one; a member that a guard refuses stays out alone.",
        f"{len(group.variants)} patterns of a member.",
    ]


def _what_if(guard: Guard) -> str:
    return "No automatic remedy" if guard.remedy is None else f"What if: {guard.remedy.words}"


def _name(entry: Entry) -> str:
    return entry.name


def _cost(op: FusedOp[...]) -> str:
    if op.cost_of is None:
        return "every operand read once, every result written once, all flops of the body"
    return _first_line(inspect.getdoc(op.cost_of)) or "declared"


def _cell(doc: str) -> str:
    """Return the first line up to a bar."""
    return _first_line(doc).replace("|", "\\|")


def _first_line(doc: str | None) -> str:
    return (doc or "").split("\n")[0].rstrip(".")


def _source(body: Callable[..., Any]) -> str:
    source = textwrap.dedent(inspect.getsource(body))
    return source[source.index("def ") :].rstrip()
