"""Means, variances and roots of rows: the many ways in which norms are written become one."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.value import Value
from dovetail.passes.canonical.rule import listed, rule


@rule(ops.relu)
def mean_of_squares_is_not_negative(value: Value) -> Value | None:
    """The mean of squares is at least 0 already."""
    (x,) = value.operands
    return x if x.op is ops.reduce_mean and _root_of_square(x.operands[0]) is not None else None


@rule(ops.sub, numerics="reassociated")
def variance_from_squares(value: Value) -> Value | None:
    """mean(x²) - mean(x)² is mean((x - mean(x))²), of which rounding takes less."""
    squares, square = value.operands
    if squares.op is not ops.reduce_mean or value.known_type is None:
        return None
    x, middle = _root_of_square(squares.operands[0]), _root_of_square(square)
    if x is None or middle is None or middle.op is not ops.reduce_mean:
        return None
    if middle.operands[0] is not x or middle.attrs["axes"] != squares.attrs["axes"]:
        return None
    centred = ops.sub(x, middle)
    return ops.reduce_mean(ops.mul(centred, centred), axes=squares.attrs["axes"])


def _root_of_square(value: Value) -> Value | None:
    """x, of x * x."""
    return value.operands[0] if value.op is ops.mul and value.operands[0] is value.operands[1] else None


@rule(ops.mul, numerics="reassociated")
def root_before_gain(value: Value) -> Value | None:
    """A row times the product of its root and a vector is the row times its root, times the vector."""
    if value.known_type is None:
        return None
    for x, factor in (value.operands, value.operands[::-1]):
        if factor.op is not ops.mul:
            continue
        for root, gain in (factor.operands, factor.operands[::-1]):
            if root.op is ops.rsqrt and root.rank == x.rank > gain.rank and _is_for_each_row(root, x):
                return ops.mul(ops.mul(x, root), gain)
    return None


def _is_for_each_row(number: Value, x: Value) -> bool:
    """Whether there is one number for each row of x, along whichever axis."""
    return any(n == 1 and size != 1 for n, size in zip(number.shape, x.shape, strict=True))


@rule(ops.add, numerics="reassociated")
def centred_before_scaled(value: Value) -> Value | None:
    """x * g + (b - mean(x) * g) is (x - mean(x)) * g + b."""
    if value.known_type is None:
        return None
    for scaled, rest in (value.operands, value.operands[::-1]):
        if scaled.op is not ops.mul or rest.op is not ops.sub or rest.operands[1].op is not ops.mul:
            continue
        bias, moved = rest.operands
        for x, gain in (scaled.operands, scaled.operands[::-1]):
            for middle, again in (moved.operands, moved.operands[::-1]):
                if again is gain and middle.op is ops.reduce_mean and middle.operands[0] is x:
                    return ops.add(ops.mul(ops.sub(x, middle), gain), bias)
    return None


RULES = listed(globals())
