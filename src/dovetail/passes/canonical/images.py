"""Around convolutions: padding that they can do themselves, and channels that stand last for a while."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import f16
from dovetail.ir.value import Value
from dovetail.ops import elementwise
from dovetail.passes.canonical.rule import listed, number_in, rule

_LONGEST = 12
"""How many elementwise ops are looked under."""


@rule(ops.conv)
def padded_by_conv(value: Value) -> Value | None:
    """Zeros around an image are put there by the convolution that reads it."""
    x, w = value.operands
    if x.op is not ops.pad or value.known_type is None or x.attrs["axis"] <= -value.rank + 1:
        return None
    zero = number_in(x.operands[1])
    if zero is None or zero != 0:
        return None
    count = value.rank - 2
    padding: list[Size] = list(value.attrs["padding"])
    axis = x.attrs["axis"] + count
    padding[axis] = padding[axis] + x.attrs["before"]
    padding[count + axis] = padding[count + axis] + x.attrs["after"]
    attrs = {**value.attrs, "padding": tuple(padding)}
    return ops.conv(x.operands[0], w, **attrs)


@rule(*elementwise.FAMILY)
def channels_last_later(value: Value) -> Value | None:
    """What is done to each channel of a convolution's result is done before its axes are turned."""
    turned = [v for v in value.operands if v.op is ops.permute]
    if not turned or value.known_type is None:
        return None
    order: tuple[int, ...] = turned[0].attrs["order"]
    if any(v.attrs["order"] != order or not is_of_conv(v.operands[0]) for v in turned):
        return None
    if any(v.op is not ops.permute and not _is_vector_of_weights(v) for v in value.operands):
        return None
    axis = order[-1]
    operands = [
        v.operands[0] if v.op is ops.permute else _for_each_channel(v, axis) if v.rank else v for v in value.operands
    ]
    return ops.permute(value.with_operands(tuple(operands)), order=order)


@rule(ops.mul, on_constant=True, numerics="reassociated")
def scaled_before_shifted(value: Value) -> Value | None:
    """(conv + b) * s of known vectors is conv * s + b * s, so that a batch norm has one shift."""
    total, slope = value.operands
    if total.op is not ops.add or slope.op is not leaf.CONST or not slope.rank or slope.dtype is f16:
        return None
    x, shift = total.operands
    if x.op is not ops.conv or shift.op is not leaf.CONST or shift.shape != slope.shape:
        return None
    return ops.add(ops.mul(x, slope), ops.mul(shift, slope))


def _is_vector_of_weights(value: Value) -> bool:
    """Whether it is a number or a vector, maybe with axes of size 1 in front, that is known before a run."""
    if value.known_type is None or any(size != 1 for size in value.shape[:-1]):
        return False
    return value.op in (leaf.CONST, leaf.PARAM)


def _for_each_channel(vector: Value, axis: int) -> Value:
    """A vector along the last axis as one along another axis."""
    if vector.rank > 1:
        vector = ops.squeeze(vector, axes=tuple(range(-vector.rank, -1)))
    return ops.unsqueeze(vector, axes=tuple(range(axis + 1, 0)))


def is_of_conv(value: Value) -> bool:
    """Whether it is the result of a convolution, maybe with elementwise ops after it."""
    for _ in range(_LONGEST):
        if value.op is ops.conv:
            return True
        if not value.op.elementwise or not value.operands:
            return False
        value = value.operands[0]
    return False


RULES = listed(globals())
