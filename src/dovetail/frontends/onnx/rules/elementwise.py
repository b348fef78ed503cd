"""Operators that work element by element."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import numpy as np

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Rule, rule
from dovetail.ir import leaf
from dovetail.ir.dtype import NARROW, bool_, f32, f64, i64
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import Primitive

Binary = Callable[[Value, Value], Value]

FLOAT_MAX = float(np.finfo(np.float32).max)


def _of_one(primitives: Mapping[str, Primitive]) -> tuple[Rule, ...]:
    """Operators of one tensor that are one primitive."""
    return tuple(r for op_type, op in primitives.items() for r in _unary(op_type, op))


def _unary(op_type: str, op: Primitive) -> tuple[Rule, ...]:
    # consumed_inputs said which memory may be written over, up to opset 5.
    def function(n: Node, x: Value, *, consumed_inputs: tuple[int, ...] = ()) -> Value:
        return op(x)

    function.__doc__ = op.doc
    return rule(op_type)(function)


def _of_two(functions: Mapping[str, tuple[Binary, str]]) -> tuple[Rule, ...]:
    """Operators of two tensors that broadcast, with the rule of opset 7 and the older one."""
    return tuple(r for op_type, (op, doc) in functions.items() for r in _binary(op_type, op, doc))


def _binary(op_type: str, op: Binary, doc: str) -> tuple[Rule, ...]:
    def function(n: Node, x: Value, y: Value) -> Value:
        return op(x, y)

    def older(
        n: Node,
        x: Value,
        y: Value,
        *,
        broadcast: bool = False,
        axis: int | None = None,
        consumed_inputs: tuple[int, ...] = (),
    ) -> Value:
        return op(x, _aligned(n, x, y, axis) if broadcast else _same_shape(n, x, y))

    function.__doc__ = older.__doc__ = doc
    return (*rule(op_type, since=7)(function), *rule(op_type, until=6)(older))


def _aligned(n: Node, x: Value, y: Value, axis: int | None) -> Value:
    """The second tensor of an old broadcast, with axes of size 1 behind so that it starts at an axis of the first."""
    start = x.rank - y.rank if axis is None else axis + x.rank if axis < 0 else axis
    behind = x.rank - start - y.rank
    if start < 0 or behind < 0:
        raise n.malformed(f"{y.type} broadcast to {x.type} from axis {axis}")
    return build.expand_dims(y, range(y.rank, y.rank + behind))


def _same_shape(n: Node, x: Value, y: Value) -> Value:
    differ = [a for a, b in zip(x.shape, y.shape, strict=False) if isinstance(a, int) and isinstance(b, int) and a != b]
    if x.rank != y.rank or differ:
        raise n.malformed(f"{x.type} and {y.type} without broadcast", hint="before opset 7 it asks for broadcast=1")
    return y


def _power(x: Value, y: Value) -> Value:
    """x to the power y in the type of x, whatever the type of the exponent."""
    if x.dtype is y.dtype:
        return ops.pow_(x, y)
    number = leaf.scalar_of(y)
    if y.rank == 0 and isinstance(number, int | float) and (x.dtype.is_float or float(number).is_integer()):
        exponent = int(number) if x.dtype.is_integer else number
        return ops.pow_(x, leaf.scalar(exponent, x.dtype))
    wide = i64 if x.dtype.is_integer and y.dtype.is_integer else f64
    return ops.cast(ops.pow_(ops.cast(x, dtype=wide), ops.cast(y, dtype=wide)), dtype=x.dtype)


UNARY = _of_one(
    {
        "Abs": ops.abs_,
        "Acos": ops.acos,
        "Acosh": ops.acosh,
        "Asin": ops.asin,
        "Asinh": ops.asinh,
        "Atan": ops.atan,
        "Atanh": ops.atanh,
        "BitwiseNot": ops.bit_not,
        "Ceil": ops.ceil,
        "Cos": ops.cos,
        "Cosh": ops.cosh,
        "Exp": ops.exp,
        "Floor": ops.floor,
        "Log": ops.log,
        "Neg": ops.neg,
        "Not": ops.bit_not,
        "Reciprocal": ops.reciprocal,
        "Round": ops.round_,
        "Sign": ops.sign,
        "Sin": ops.sin,
        "Sinh": ops.sinh,
        "Sqrt": ops.sqrt,
        "Tan": ops.tan,
        "Tanh": ops.tanh,
    }
)

BINARY = _of_two(
    {
        "Add": (ops.add, "x + y"),
        "And": (ops.bit_and, "Logical and"),
        "BitwiseAnd": (ops.bit_and, "Bitwise and"),
        "BitwiseOr": (ops.bit_or, "Bitwise or"),
        "BitwiseXor": (ops.bit_xor, "Bitwise exclusive or"),
        "Div": (ops.div, "x / y; integers are truncated towards zero"),
        "Equal": (ops.equal, "x == y"),
        "Greater": (ops.greater, "x > y"),
        "GreaterOrEqual": (ops.greater_equal, "x >= y"),
        "Less": (ops.less, "x < y"),
        "LessOrEqual": (ops.less_equal, "x <= y"),
        "Mul": (ops.mul, "x * y"),
        "Or": (ops.bit_or, "Logical or"),
        "Pow": (_power, "x to the power y, in the type of x"),
        "Sub": (ops.sub, "x - y"),
        "Xor": (ops.bit_xor, "Logical exclusive or"),
    }
)


@rule("Erf")
def erf(n: Node, x: Value) -> Value:
    """Error function; of integers it is truncated to an integer."""
    return ops.erf(x) if x.dtype.is_float else ops.cast(ops.erf(ops.cast(x, dtype=f64)), dtype=x.dtype)


@rule("Mod")
def mod(n: Node, x: Value, y: Value, *, fmod: bool = False) -> Value:
    """The remainder with the sign of y, or of x with fmod."""
    return ops.rem(x, y) if fmod else ops.mod(x, y)


@rule("BitShift")
def bit_shift(n: Node, x: Value, y: Value, *, direction: str) -> Value:
    """The bits of x shifted by y."""
    match direction:
        case "LEFT":
            return ops.shift_left(x, y)
        case "RIGHT":
            return ops.shift_right(x, y)
        case _:
            raise n.malformed(f"direction is {direction!r}", hint="it is LEFT or RIGHT")


@rule("Where")
def where(n: Node, condition: Value, x: Value, y: Value) -> Value:
    """x where the condition holds, y elsewhere."""
    return ops.where(condition, x, y)


@rule("Max")
def largest(n: Node, *xs: Value, consumed_inputs: tuple[int, ...] = ()) -> Value:
    """The largest of all; NaN wins."""
    return _folded(n, ops.maximum, xs)


@rule("Min")
def smallest(n: Node, *xs: Value, consumed_inputs: tuple[int, ...] = ()) -> Value:
    """The smallest of all; NaN wins."""
    return _folded(n, ops.minimum, xs)


@rule("Sum")
def sum_(n: Node, *xs: Value, consumed_inputs: tuple[int, ...] = ()) -> Value:
    """The sum of all."""
    return _folded(n, ops.add, xs)


@rule("Mean")
def mean(n: Node, *xs: Value, consumed_inputs: tuple[int, ...] = ()) -> Value:
    """The sum of all, divided by how many they are."""
    return _folded(n, ops.add, xs) / len(xs)


def _folded(n: Node, op: Primitive, xs: tuple[Value, ...]) -> Value:
    if not xs:
        raise n.malformed("no inputs")
    result = xs[0]
    for x in xs[1:]:
        result = op(result, x)
    return result


@rule("Clip", since=11)
def clip(n: Node, x: Value, min: Value | None = None, max: Value | None = None) -> Value:
    """x between min and max; max wins where they cross."""
    return ops.clip(x, _bound(min), _bound(max))


def _bound(bound: Value | None) -> Value | None:
    """Bounds are scalars; some exporters give them an axis of size 1."""
    return bound if bound is None or bound.rank == 0 else build.reshape(bound, ())


@rule("Clip", since=6, until=10)
def clip_6(n: Node, x: Value, *, min: float = -FLOAT_MAX, max: float = FLOAT_MAX) -> Value:
    """x between min and max."""
    return ops.clip(x, min, max)


@rule("Clip", until=5)
def clip_1(
    n: Node, x: Value, *, min: float | None = None, max: float | None = None, consumed_inputs: tuple[int, ...] = ()
) -> Value:
    """x between min and max, where they are given."""
    return ops.clip(x, min, max)


def _computed(x: Value) -> Value:
    """x in a type that is computed in."""
    return ops.cast(x, dtype=f32) if x.dtype in NARROW else x


@rule("IsNaN")
def is_nan(n: Node, x: Value) -> Value:
    """Whether x is not a number."""
    return ops.is_nan(_computed(x))


@rule("IsInf")
def is_inf(n: Node, x: Value, *, detect_negative: bool = True, detect_positive: bool = True) -> Value:
    """Whether x is infinite, of one sign or of both."""
    if not detect_negative and not detect_positive:
        return build.full(x.shape, False, bool_)
    x = _computed(x)
    if detect_negative and detect_positive:
        return ops.is_inf(x)
    return ops.equal(x, math.inf if detect_positive else -math.inf)
