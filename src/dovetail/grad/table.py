"""The gradient of every primitive in one table, for docs/gradient-rules.md."""

from __future__ import annotations

import inspect
from collections import Counter

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_, f32
from dovetail.ir.value import Value
from dovetail.ops.gradient import Constant, Nested, Pull, Refused
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
    """Return the table, as Markdown."""
    rows = [(op, *described(op)) for op in ops.ALL]
    counts = Counter(kind for _, kind, _ in rows)
    totals = ", ".join(f"{counts[kind]} {kind}" for kind in ("rule", "constant", "refused"))
    lines = [
        _HEAD,
        f"{len(rows)} primitives: {totals}.",
        "",
        "| primitive | computes | gradient | |",
        "|---|---|---|---|",
    ]
    lines += [f"| `{op.name}` | {_cell(op.doc)} | {kind} | {_cell(note)} |" for op, kind, note in rows]
    return "\n".join([*lines, ""])


def described(op: Primitive) -> tuple[str, str]:
    """Return whether a primitive has a rule, is constant or is refused, and a note."""
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
            return "rule", _first_line(pull) or (_formula(op, pull) if op.elementwise and not op.kinds else "")


def _first_line(pull: object) -> str:
    return (inspect.getdoc(pull) or "").split("\n")[0].rstrip(".")


def _formula(op: Primitive, pull: Pull) -> str:
    """Return an elementwise rule applied to names: the gradient of each operand."""
    names = {1: "x", 2: "ab", 3: "cab"}[op.arity or 1]
    values = [leaf.input(name, (bool_ if name == "c" else f32)[4]) for name in names]
    parts = pull(leaf.input("g", f32[4]), leaf.input("y", f32[4]), *values)
    return ", ".join(f"`{_spelled(part, outer=True)}`" if part is not None else "none" for part in parts)


_SIGNS = {"add": "+", "sub": "-", "mul": "*", "div": "/", "greater": ">", "less": "<", "equal": "=="}


def _spelled(value: Value, *, outer: bool = False) -> str:
    if value.op is leaf.INPUT:
        return str(value.attrs["name"])
    number = leaf.scalar_of(value)
    if number is not None:
        return f"{number:g}"
    operands = [_spelled(v) for v in value.operands]
    sign = _SIGNS.get(value.op.name)
    if sign is not None:
        text = f"{operands[0]} {sign} {operands[1]}"
        return text if outer else f"({text})"
    inner = ", ".join(_spelled(v, outer=True) for v in value.operands)
    return f"-{operands[0]}" if value.op is ops.neg else f"{value.op.name}({inner})"


def _cell(text: str) -> str:
    return text.rstrip(".").replace("|", "\\|")


__all__ = ["described", "page"]
