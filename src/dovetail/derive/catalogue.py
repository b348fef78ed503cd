"""The catalogue: one page for each declared op, generated from its declaration."""

from __future__ import annotations

import inspect
import textwrap
from collections.abc import Sequence

from dovetail.declare.fused import FusedOp
from dovetail.derive.rules import rules


def page(op: FusedOp[...]) -> str:
    """The page of one op, as Markdown."""
    lines = [f"# `{op.name}`", "", op.doc, "", f"Stage: {op.stage}. Shapes: `{op.shapes}`.", ""]
    lines += ["## Body", "", "```python", _source(op), "```", ""]
    if op.guards:
        lines += ["## Fuses when", ""]
        lines += [f"- `{g.name}`. Otherwise: {g.reason}. Hint: {g.hint}." for g in op.guards]
        lines.append("")
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
    lines.append(f"- e-graph: {'; '.join(opaque) if opaque else 'every guard is a condition'}.")
    return "\n".join(lines) + "\n"


def index(ops: Sequence[FusedOp[...]]) -> str:
    """The front page: every op in one line."""
    rows = [f"| [`{op.name}`]({op.name}.md) | {op.stage} | {_first_line(op.doc)} |" for op in sorted(ops, key=_name)]
    return "\n".join(["# Catalogue of fused ops", "", "| op | stage | computes |", "|---|---|---|", *rows]) + "\n"


def _name(op: FusedOp[...]) -> str:
    return op.name


def _cost(op: FusedOp[...]) -> str:
    if op.cost_of is None:
        return "every operand read once, every result written once, all flops of the body"
    return _first_line(inspect.getdoc(op.cost_of)) or "declared"


def _first_line(doc: str | None) -> str:
    return (doc or "").split("\n")[0].rstrip(".")


def _source(op: FusedOp[...]) -> str:
    source = textwrap.dedent(inspect.getsource(op.body))
    return source[source.index("def ") :].rstrip()
