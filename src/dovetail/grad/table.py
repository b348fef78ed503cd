"""The gradient of every primitive in one table, for docs/gradient-rules.md."""

from __future__ import annotations

import inspect
from collections import Counter

from dovetail import ops
from dovetail.ops.gradient import Constant, Nested, Refused
from dovetail.ops.primitive import Primitive

_HEAD = """# Gradient rules

The gradient of every primitive, generated from the declarations by `make golden`.

- *Rule*: `pull(g, y, *operands)` is declared with the primitive; a law compares it with central differences in float64.
- *Constant*: nothing flows.
- *Refused*: a gradient that would pass there is a `GradientError` with this reason.

Integers, bools and bits never have a gradient, whatever op they are operands of. Operands that tie (`maximum`,
`reduce_max`, `scatter_nd` with `max`) have equal shares; of a window of `max_pool` the first of equals has all of it.
"""


def page() -> str:
    """The table, as Markdown."""
    rows = [(op, *described(op)) for op in ops.ALL]
    counts = Counter(kind for _, kind, _ in rows)
    told = ", ".join(f"{counts[kind]} {kind}" for kind in ("rule", "constant", "refused"))
    lines = [
        _HEAD,
        f"{len(rows)} primitives: {told}.",
        "",
        "| primitive | computes | gradient | |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{op.name}` | {_cell(op.doc)} | {kind} | {_cell(note)} |" for op, kind, note in rows]
    return "\n".join([*lines, ""])


def described(op: Primitive) -> tuple[str, str]:
    """Whether a primitive has a rule, is constant or is refused, and a note."""
    match op.pull:
        case Constant(reason):
            return "constant", reason
        case Refused(reason, hint):
            return "refused", f"{reason}; {hint}"
        case Nested(pull):
            return "rule", _first_line(pull)
        case None:
            return "missing", ""
        case pull:
            return "rule", _first_line(pull)


def _first_line(pull: object) -> str:
    return (inspect.getdoc(pull) or "").split("\n")[0].rstrip(".")


def _cell(text: str) -> str:
    return text.rstrip(".").replace("|", "\\|")


__all__ = ["described", "page"]
