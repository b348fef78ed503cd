"""Constants are folded, and stand last."""

from __future__ import annotations

from typing import Any, cast

import numpy as np

from dovetail import ops
from dovetail.errors import DovetailError
from dovetail.ir import leaf
from dovetail.ir.dim import Dim
from dovetail.ir.graph import subgraphs
from dovetail.ir.literal import Array, Literal
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops import elementwise
from dovetail.ops.primitive import Primitive
from dovetail.passes.canonical.rule import Rule, dtype_if_known, is_constant, listed, number_in, rule
from dovetail.passes.fold_limit import is_cheap_to_fold

FOLD_BYTES = 1 << 16
"""Results up to this size are folded unless another limit is asked for."""
_READ_BYTES = 1 << 24
"""Constants up to this size are read for it; a reshape of one costs no more than reading it."""
_REPEAT_BYTES = 1 << 10
"""What is repeated is better kept small."""
_RESHAPES = (ops.split, ops.merge, ops.squeeze, ops.unsqueeze)
_EXTREMES = (ops.maximum, ops.minimum)
_COMMUTATIVE = tuple(op for op in elementwise.FAMILY if op.commutative)


def folding(limit: int) -> tuple[Rule, Rule]:
    """The rules that compute ops of constants whose results have at most `limit` bytes."""

    @rule(*(op for op in ops.ALL if op.arity != 0), on_constant=True)
    def fold_constants(value: Value) -> Value | None:
        """An op of constants is a constant, if it is small."""
        return _folded(value, value, None, limit)

    @rule(leaf.ITEM)
    def fold_item(value: Value) -> Value | None:
        """One of several results of an op of constants is a constant, if it is small."""
        return _folded(value, value.operands[0], value.attrs["index"], limit)

    return fold_constants, fold_item


fold_constants, fold_item = folding(FOLD_BYTES)


def _folded(value: Value, computed: Value, index: int | None, limit: int) -> Value | None:
    """The constant that a value is, where `computed` has it as its result or as one of them."""
    for operand in computed.operands:
        if operand.op is not leaf.CONST:
            return None
    type, op = value.known_type, computed.op
    if not isinstance(type, TensorType) or not isinstance(op, Primitive) or subgraphs(computed):
        return None
    if op is ops.dequantise and type.rank > 1:
        return None  # weights stay bytes: a product of bytes reads them, as it reads large ones
    size = type.bytes
    if not isinstance(size, int) or size > _most(op, limit) or any(map(_is_symbolic, computed.attrs.values())):
        return None
    literals: list[Literal] = [operand.attrs["value"] for operand in computed.operands]
    if sum(literal.array.nbytes for literal in literals) > _READ_BYTES or not is_cheap_to_fold(computed.attrs):
        return None
    try:
        result = op.compute(*[literal.array for literal in literals], **computed.attrs)
    except (DovetailError, ArithmeticError, LookupError, TypeError, ValueError):
        return None  # it fails where it is run, with the words for that
    array: Array = cast(Any, result) if index is None else result[index]
    return leaf.constant(np.asarray(array, dtype=type.dtype.numpy))


def _most(op: Primitive, limit: int) -> int:
    if op is ops.expand:
        return min(limit, _REPEAT_BYTES)
    return _READ_BYTES if op in _RESHAPES and limit else limit


def _is_symbolic(attr: Any) -> bool:
    return any(map(_is_symbolic, cast(tuple[Any, ...], attr))) if isinstance(attr, tuple) else isinstance(attr, Dim)


@rule(ops.extent)
def known_extent(value: Value) -> Value | None:
    """A size that is known is a number."""
    size = value.attrs["size"]
    if not isinstance(size, int) or value.known_type is None:
        return None
    return leaf.constant(cast(Array, ops.extent.compute(**value.attrs)))


@rule(*_COMMUTATIVE, on_constant=True)
def constant_last(value: Value) -> Value | None:
    """Of two operands in any order the constant stands last; which zero is the larger depends on the order."""
    x, y = value.operands
    if not is_constant(x) or is_constant(y):
        return None
    if value.op in _EXTREMES and not _order_is_free(x):
        return None
    return value.with_operands((y, x))


def _order_is_free(constant: Value) -> bool:
    dtype, number = dtype_if_known(constant), number_in(constant)
    return (dtype is not None and dtype.is_integer) or (number is not None and number != 0)


@rule(*_EXTREMES, on_constant=True, numerics="reassociated")
def zero_last(value: Value) -> Value | None:
    """A constant that holds zeros stands last as well; the sign of a zero may change."""
    x, y = value.operands
    return value.with_operands((y, x)) if is_constant(x) and not is_constant(y) else None


RULES = listed(globals())
