"""Elementwise steps of a region after a convolution: those that every variant applies to its sums."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_, f32
from dovetail.ir.rewrite import rebuild_values
from dovetail.ir.value import Value
from dovetail.library.activation import Activation
from dovetail.library.conv_bias_act import conv_bias_act
from dovetail.ops.convolution import conv, conv_transpose
from dovetail.ops.region import anchor_of, region

Operand: TypeAlias = int | float
"""The number of an earlier step, of which 0 is the convolution itself, or a literal as a float."""
ANCHORS = (conv, conv_bias_act, conv_transpose)
AXES = ("image", "channel", "row", "column")
"""The axes of a result. Where all operands are level, `column` counts the pixels of an image."""
CHEAP = 2
"""Instructions up to which steps are applied in registers; more run on finished rows, in one loop for all tiles."""
_TRUTHS = frozenset({"equal", "not_equal", "less", "less_equal", "greater", "greater_equal", "is_nan"})
VECTOR_OPS = _TRUTHS | {
    "add",
    "sub",
    "mul",
    "neg",
    "abs",
    "relu",
    "maximum",
    "minimum",
    "floor",
    "ceil",
    "trunc",
    "round",
    "where",
}
"""Primitives of few instructions, which are vector code on f32."""


@dataclass(frozen=True, slots=True)
class EpilogueSteps:
    """An activation by name, then steps: each an op with its operands."""

    act: Activation
    steps: tuple[tuple[str, tuple[Operand, ...]], ...]

    def __str__(self) -> str:
        """What they are called in the name of a function: all that its text depends on."""
        return f"steps_{hashlib.blake2b(repr((self.act, self.steps)).encode(), digest_size=8).hexdigest()}"

    @property
    def is_cheap(self) -> bool:
        """Whether they are so few instructions that every register tile has them."""
        return self.act in ("none", "relu", "relu6") and sum(2 if op == "relu" else 1 for op, _ in self.steps) <= CHEAP


@dataclass(frozen=True, slots=True)
class RegionConvolution:
    """The convolution inside a region: its operands among those of the region, its activation, and the steps."""

    call: Value
    """The convolution as it stands in the body."""
    operands: Mapping[str, Value]
    act: Activation
    steps: EpilogueSteps | None
    """None where they run on finished rows: they read other tensors, write another dtype or several results, or are
    more than a few instructions."""

    @property
    def applied(self) -> Activation | EpilogueSteps:
        """What becomes of a sum in registers, or on a row in L1."""
        return self.act if self.steps is None else self.steps


def find_convolution(value: Value) -> RegionConvolution | None:
    """A region as a convolution with steps on its result; None for other regions."""
    if value.op is not region:
        return None
    anchor = anchor_of(value.attrs["body"])
    if anchor is None or anchor.op not in ANCHORS:
        return None
    if any(v.op is not leaf.ARGUMENT for v in anchor.operands):
        return None
    if anchor.op is conv_bias_act:
        call = conv_bias_act.of(anchor)
        inside: dict[str, Value | None] = {"x": call.x, "w": call.w, "b": call.b, "residual": call.residual}
        act: Activation = call.act
    else:
        inside, act = {"x": anchor.operands[0], "w": anchor.operands[1]}, "none"
    results = value.attrs["body"].results
    steps = steps_of(results[0], anchor) if len(results) == 1 else None
    operands = {name: value.operands[int(v.attrs["index"])] for name, v in inside.items() if v is not None}
    epilogue = None if steps is None else EpilogueSteps(act, steps)
    return RegionConvolution(anchor, operands, act, epilogue if epilogue is not None and epilogue.is_cheap else None)


def steps_of(result: Value, source: Value) -> tuple[tuple[str, tuple[Operand, ...]], ...] | None:
    """What is done to a tensor, element by element; None where it is not vector code, or something else is read."""
    while True:
        lower = rebuild_values([result], lambda v, operands: None if v is source else v.op.expansion(operands, v.attrs))
        if lower[result] is result:
            break
        result = lower[result]
    number: dict[Value, Operand] = {source: 0}
    listed: list[tuple[str, tuple[Operand, ...]]] = []
    for value in _above(result, source):
        literal_of = leaf.scalar_of(value)
        if literal_of is not None and isinstance(literal_of, float) and value.dtype is f32:
            number[value] = literal_of
            continue
        if (
            value.op.name not in VECTOR_OPS
            or value.shape != source.shape
            or not all(v in number for v in value.operands)
        ):
            return None
        if value.dtype not in (f32, bool_) or (value.dtype is bool_) != (value.op.name in _TRUTHS):
            return None
        listed.append((value.op.name, tuple([number[v] for v in value.operands])))
        number[value] = len(listed)
    return tuple(listed) if result in number and isinstance(number[result], int) and result.dtype is f32 else None


def _above(result: Value, source: Value) -> list[Value]:
    """What a result needs above a source, operands first."""
    order: dict[Value, None] = {}
    stack = [result]
    while stack:
        value = stack[-1]
        pending = [v for v in value.operands if v not in order and v is not source]
        if value is source or value in order or not pending:
            stack.pop()
            if value is not source:
                order[value] = None
        else:
            stack += pending
    return list(order)


__all__ = [
    "ANCHORS",
    "AXES",
    "VECTOR_OPS",
    "EpilogueSteps",
    "Operand",
    "RegionConvolution",
    "find_convolution",
    "steps_of",
]
