"""Operators that put something around a tensor, or cut something off."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.frontends.shared.computed import size_value
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Number, rule
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("constant_pad_nd.default")
def constant_pad(n: Node, x: Value, pad: Sequence[Size], value: Number = 0) -> Value:
    """A number around the last axes; a negative amount cuts off."""
    return _padded(n, x, pad, "constant", value)


@rule("pad.default")
def pad(n: Node, x: Value, pad: Sequence[Size], mode: str = "constant", value: float | None = None) -> Value:
    """A number, a reflection, the edge or the other end around the last axes."""
    return _padded(n, x, pad, mode, 0 if value is None else value)


@rule(
    "reflection_pad1d.default",
    "reflection_pad2d.default",
    "reflection_pad3d.default",
    "replication_pad1d.default",
    "replication_pad2d.default",
    "replication_pad3d.default",
)
def pad_by_content(n: Node, x: Value, padding: Sequence[Size]) -> Value:
    """A reflection or the edge around the last axes."""
    return _padded(n, x, padding, "reflect" if "reflection" in n.op_type else "replicate", 0)


def _padded(n: Node, x: Value, amounts: Sequence[Size], mode: str, number: Number) -> Value:
    for index in range(len(amounts) // 2):
        before, after = amounts[2 * index], amounts[2 * index + 1]
        axis = -1 - index
        if mode == "constant":
            fill = n.value(number, x.dtype)
            lead = [0] * (x.rank + axis)
            tail = [0] * (-axis - 1)
            x = build.pad_dims(x, [*lead, before, *tail], [*lead, after, *tail], fill)
            continue
        if before == 0 and after == 0:
            continue
        front, back = (-b if isinstance(b, int) and b < 0 else 0 for b in (before, after))
        if mode != "replicate" and (front or back):
            x = build.cut(x, axis, front, x.shape[axis] - back)
            before, after = before + front, after + back
        whole = size_value(x.shape[axis])
        places = ops.iota(size=x.shape[axis] + before + after) - size_value(before)
        x = ops.gather(x, _place(n, places, whole, mode), axis=axis)
    return x


def _place(n: Node, places: Value, whole: Value, mode: str) -> Value:
    match mode:
        case "replicate":
            return ops.minimum(ops.maximum(places, 0), whole - 1)
        case "circular":
            return ops.mod(places, whole)
        case "reflect":
            turn = ops.maximum((whole - 1) * 2, 1)
            there = ops.mod(places, turn)
            return ops.minimum(there, turn - there)
        case _:
            raise n.malformed(f"the mode {mode!r}")
