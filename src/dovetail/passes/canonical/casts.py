"""Casts that change nothing."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir.dtype import (
    DType,
    bf16,
    bool_,
    c64,
    f4e2m1,
    f8e4m3fn,
    f8e4m3fnuz,
    f8e5m2,
    f8e5m2fnuz,
    f8e8m0,
    f16,
    f32,
    f64,
)
from dovetail.ir.value import Value
from dovetail.passes.canonical.rule import dtype_if_known, listed, rule

_WHOLE_BITS = {f16: 11, bf16: 8, f32: 24, f64: 53, c64: 24}
"""Whole numbers of up to so many bits are exact in these; narrow types lose some of them."""
_EIGHT = (f8e4m3fn, f8e4m3fnuz, f8e5m2, f8e5m2fnuz, f4e2m1)
_WITHIN: dict[DType, tuple[DType, ...]] = {
    f16: _EIGHT,
    bf16: (*_EIGHT, f8e8m0),
    f32: (f16, bf16, *_EIGHT, f8e8m0),
    f64: (f16, bf16, f32, *_EIGHT, f8e8m0),
    c64: (f16, bf16, f32, *_EIGHT, f8e8m0),
}


def loses_nothing(source: DType, target: DType) -> bool:
    """Whether every number of one dtype is a number of another."""
    if source is target or (source is bool_ and target is not f8e8m0):
        return True
    if target is bool_:
        return False
    if source.is_integer:
        bits = source.bits - (source.kind == "int")
        if target.is_integer:
            return bits <= target.bits - (target.kind == "int") and (source.kind == "uint" or target.kind == "int")
        # The least number of a signed type is a power of two, which every float type has.
        return bits <= _WHOLE_BITS.get(target, 0)
    return not target.is_integer and source in _WITHIN.get(target, ())


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
    # Floats are kept in range where whole numbers wrap.
    wraps = target.is_integer and source.is_integer and not between.is_integer
    return None if wraps and not loses_nothing(source, target) else ops.cast(x, dtype=target)


RULES = listed(globals())
