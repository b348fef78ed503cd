"""Casts that change nothing."""

from __future__ import annotations

from functools import cache

import numpy as np

from dovetail import ops
from dovetail.ir.dtype import NARROW, DType, bf16, bool_, c64, f8e5m2, f8e8m0, f16, f32, f64
from dovetail.ir.value import Value
from dovetail.passes.canonical.rule import dtype_if_known, listed, rule

_WHOLE_BITS = {f16: 11, bf16: 8, f32: 24, f64: 53, c64: 24}
"""Whole numbers of up to so many bits are exact in these."""
_WITHIN: dict[DType, tuple[DType, ...]] = {
    f16: (),
    bf16: (),
    f32: (f16, bf16),
    f64: (f16, bf16, f32),
    c64: (f16, bf16, f32),
}


def loses_nothing(source: DType, target: DType) -> bool:
    """Whether every number of one dtype is a number of another."""
    if source is target:
        return True
    if source is bool_:
        return target is not f8e8m0  # it has no 0
    if source in NARROW:
        return _survives(source, target)
    if target is bool_ or target in NARROW:
        return False
    if source.is_integer:
        bits = source.bits - (source.kind == "int")
        if target.is_integer:
            return bits <= target.bits - (target.kind == "int") and (source.kind == "uint" or target.kind == "int")
        # The least number of a signed type is a power of two, which every float type has.
        return bits <= _WHOLE_BITS[target]
    return not target.is_integer and source in _WITHIN[target]


@cache
def _survives(source: DType, target: DType) -> bool:
    """Whether the numbers of a narrow dtype, which are few, are the same in another."""
    numbers = np.arange(2**source.bits, dtype=np.uint8).view(source.numpy)
    cast = ops.cast.compute(numbers, dtype=target)
    a, b = (np.asarray(ops.cast.compute(np.asarray(x), dtype=f64)) for x in (numbers, cast))
    same = (a == b) & (np.signbit(a) == np.signbit(b)) & (target is not bool_)
    return bool((same | (np.isnan(a) & np.isnan(b))).all())


@rule(ops.cast)
def cast_to_own_dtype(value: Value) -> Value | None:
    """A cast to the dtype that a value has does nothing."""
    x = value.operands[0]
    return x if x.known_type is not None else None


@rule(ops.cast)
def cast_of_cast(value: Value) -> Value | None:
    """A cast of a cast is one cast where the first loses nothing."""
    inner = value.operands[0]
    if inner.op is not ops.cast:
        return None
    x = inner.operands[0]
    source, between, target = dtype_if_known(x), dtype_if_known(inner), dtype_if_known(value)
    if source is None or between is None or target is None or not loses_nothing(source, between):
        return None
    if source is target is f8e5m2:
        return None  # the way back keeps infinity in range
    # Floats are kept in range where whole numbers wrap.
    wraps = target.is_integer and source.is_integer and not between.is_integer
    return None if wraps and not loses_nothing(source, target) else ops.cast(x, dtype=target)


RULES = listed(globals())
