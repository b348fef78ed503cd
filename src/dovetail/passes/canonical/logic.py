"""Identities of comparisons, choices and bits."""

from __future__ import annotations

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dtype import bool_
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ops.build import broadcast_to, full
from dovetail.ops.primitive import Primitive
from dovetail.passes.canonical.rule import dtype_if_known, is_constant, listed, number_in, rule

_LARGEST_LOOKED_AT = 1 << 20
"""Elements of a constant that are compared."""
_TURNED: dict[object, Primitive] = {
    ops.less: ops.greater,
    ops.less_equal: ops.greater_equal,
    ops.greater: ops.less,
    ops.greater_equal: ops.less_equal,
}
_OPPOSITE: dict[object, Primitive] = {
    ops.less: ops.greater_equal,
    ops.less_equal: ops.greater,
    ops.greater: ops.less_equal,
    ops.greater_equal: ops.less,
}


@rule(ops.bit_not)
def not_of_not(value: Value) -> Value | None:
    """not not x is x."""
    inner = value.operands[0]
    return inner.operands[0] if inner.op is ops.bit_not else None


@rule(ops.bit_not)
def not_of_equal(value: Value) -> Value | None:
    """not x == y is x != y, and the other way round; for NaN as well."""
    inner = value.operands[0]
    if inner.op is ops.equal:
        return ops.not_equal(*inner.operands)
    return ops.equal(*inner.operands) if inner.op is ops.not_equal else None


@rule(ops.bit_not)
def not_of_order(value: Value) -> Value | None:
    """not x < y of whole numbers is x >= y, and so on; of floats it is not, for NaN."""
    inner = value.operands[0]
    if inner.op not in _OPPOSITE or inner.known_type is None or inner.operands[0].dtype.is_float:
        return None
    return _OPPOSITE[inner.op](*inner.operands)


@rule(ops.bit_and, ops.bit_or, ops.bit_xor, on_constant=True)
def neutral_bits(value: Value) -> Value | None:
    """x and true, x or false, x xor false are x; so with all bits and none of whole numbers."""
    x, y = value.operands
    neutral = _all_bits(value) if value.op is ops.bit_and else 0
    number = number_in(y)
    if number is not None:
        return x if number == neutral else None
    if value.known_type is None or y.op is not leaf.CONST or x.op is leaf.CONST:
        return None
    known: Array = y.attrs["value"].array
    return broadcast_to(x, value.shape) if known.size <= _LARGEST_LOOKED_AT and (known == neutral).all() else None


@rule(ops.bit_and, ops.bit_or, on_constant=True)
def decided_bits(value: Value) -> Value | None:
    """x and false is false, x or true is true."""
    _, y = value.operands
    number, dtype = number_in(y), dtype_if_known(value)
    if number is None or dtype is None or number != (0 if value.op is ops.bit_and else _all_bits(value)):
        return None
    return full(value.shape, number, dtype)


def _all_bits(value: Value) -> int:
    dtype = dtype_if_known(value)
    if dtype is None or dtype is bool_:
        return 1
    return -1 if dtype.kind == "int" else 2**dtype.bits - 1


@rule(ops.where)
def known_choice(value: Value) -> Value | None:
    """A condition that is the same everywhere chooses one side."""
    condition, yes, no = value.operands
    if value.known_type is None or condition.op is not leaf.CONST:
        return None
    asked: Array = condition.attrs["value"].array
    if asked.all():
        return broadcast_to(yes, value.shape)
    return None if asked.any() else broadcast_to(no, value.shape)


@rule(ops.where)
def choice_of_same(value: Value) -> Value | None:
    """x or x is x, whatever the condition."""
    _, yes, no = value.operands
    return yes if yes is no else None


@rule(ops.where)
def choice_by_not(value: Value) -> Value | None:
    """Where not c, x else y, is where c, y else x."""
    condition, yes, no = value.operands
    return ops.where(condition.operands[0], no, yes) if condition.op is ops.bit_not else None


@rule(ops.where, on_constant=True)
def choice_is_condition(value: Value) -> Value | None:
    """True where c, else false, is c."""
    condition, yes, no = value.operands
    if dtype_if_known(value) is not bool_:
        return None
    match number_in(yes), number_in(no):
        case True, False:
            return condition
        case False, True:
            return ops.bit_not(condition)
        case _:
            return None


@rule(ops.equal, ops.not_equal, on_constant=True)
def compared_with_bool(value: Value) -> Value | None:
    """x == true and x != false are x, the others are not x."""
    x, y = value.operands
    number = number_in(y)
    if number is None or dtype_if_known(x) is not bool_:
        return None
    return x if bool(number) == (value.op is ops.equal) else ops.bit_not(x)


@rule(ops.less, ops.less_equal, ops.greater, ops.greater_equal, on_constant=True)
def number_compared_last(value: Value) -> Value | None:
    """c < x is x > c: a number stands last."""
    x, y = value.operands
    return _TURNED[value.op](y, x) if _is_number(x) and not is_constant(y) else None


@rule(ops.greater, ops.greater_equal)
def less_rather_than_greater(value: Value) -> Value | None:
    """x > y is y < x, unless y is a number."""
    x, y = value.operands
    return None if _is_number(y) else _TURNED[value.op](y, x)


def _is_number(value: Value) -> bool:
    return value.op is leaf.NUMBER or number_in(value) is not None


RULES = listed(globals())
