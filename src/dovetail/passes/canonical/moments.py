"""Means, variances and roots of rows: the many ways in which norms are written become one."""

from __future__ import annotations

from functools import reduce

from dovetail import ops
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bf16, f16
from dovetail.ir.value import Value
from dovetail.passes.canonical.rule import listed, number_in, rule


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


@rule(ops.mul, ops.div, on_constant=True, numerics="reassociated")
def sum_over_count(value: Value) -> Value | None:
    """A sum times one over the number of its terms is a mean."""
    total, number = value.operands
    if value.known_type is None or total.op is not ops.reduce_sum or not value.dtype.is_float:
        return None
    axes: tuple[int, ...] = total.attrs["axes"]
    shape: tuple[Size, ...] = total.operands[0].shape
    count = product(tuple([shape[axis] for axis in axes]))
    factor = number_in(number)
    if not isinstance(count, int) or not count or factor is None or number.rank:
        return None
    inverse = factor if value.op is ops.mul else 1 / factor if factor else 0.0
    # The factor is rounded to the dtype.
    if abs(inverse * count - 1) > 2.0 ** -(8 if value.dtype is bf16 else 10 if value.dtype is f16 else 22):
        return None
    return ops.reduce_mean(total.operands[0], axes=axes)


@rule(ops.mul, numerics="reassociated")
def root_before_gain(value: Value) -> Value | None:
    """A row times the product of its root and a vector is the row times its root, times the vector."""
    if value.known_type is None:
        return None
    for x, factor in (value.operands, value.operands[::-1]):
        if factor.op is not ops.mul:
            continue
        for root, gain in (factor.operands, factor.operands[::-1]):
            if root.op is ops.rsqrt and root.rank == x.rank > gain.rank:
                return ops.mul(ops.mul(x, root), gain)
    return None


@rule(ops.add, numerics="reassociated")
def centred_before_scaled(value: Value) -> Value | None:
    """x * g + (b - mean(x) * g) is (x - mean(x)) * g + b, where g may be several factors."""
    if value.known_type is None:
        return None
    for scaled, rest in (value.operands, value.operands[::-1]):
        if rest.op is not ops.sub or rest.operands[1].op is not ops.mul:
            continue
        bias, moved = rest.operands
        factors, others = _factors(scaled), _factors(moved)
        middle = next((v for v in others if v.op is ops.reduce_mean and v.operands[0] in factors), None)
        if middle is None or len(factors) != len(others):
            continue
        others.remove(middle)
        at = factors.index(middle.operands[0])
        gains = factors[:at] + factors[at + 1 :]
        if sorted(map(id, gains)) == sorted(map(id, others)):
            return ops.add(reduce(ops.mul, gains, ops.sub(middle.operands[0], middle)), bias)
    return None


def _factors(value: Value) -> list[Value]:
    """What a product of products is made of, as far as three levels down."""
    found = [value]
    for _ in range(3):
        found = [x for v in found for x in (v.operands if v.op is ops.mul else (v,))]
    return found


RULES = listed(globals())
