"""Comparisons, logical and bitwise operators."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from dovetail import ops
from dovetail.frontends.torch.importing.node import Node
from dovetail.frontends.torch.importing.rule import Number, Rule, rule
from dovetail.ir.dtype import bool_, f32
from dovetail.ir.value import Value

Binary = Callable[[Value, Value], Value]


def _comparisons(functions: Mapping[str, tuple[Binary, str]]) -> tuple[Rule, ...]:
    """Comparisons, in the dtype that both sides promote to."""

    def declared(op: str, function: Binary, doc: str) -> tuple[Rule, ...]:
        def read(n: Node, x: Number, other: Number) -> Value:
            a, b = n.promoted(x, other)
            if a.dtype is bool_ and op not in ("eq", "ne"):
                a, b = ops.cast(a, dtype=f32), ops.cast(b, dtype=f32)
            return function(a, b)

        read.__doc__ = doc
        return rule(f"{op}.Tensor", f"{op}.Scalar")(read)

    return tuple(r for op, (function, doc) in functions.items() for r in declared(op, function, doc))


COMPARISONS = _comparisons(
    {
        "eq": (ops.equal, "x == y"),
        "ge": (ops.greater_equal, "x >= y"),
        "gt": (ops.greater, "x > y"),
        "le": (ops.less_equal, "x <= y"),
        "lt": (ops.less, "x < y"),
        "ne": (ops.not_equal, "x != y"),
    }
)


def truth(x: Value) -> Value:
    """Whether elements differ from 0."""
    return x if x.dtype is bool_ else ops.not_equal(x, 0)


@rule("logical_not.default")
def logical_not(n: Node, x: Value) -> Value:
    """Whether x is 0."""
    return ops.bit_not(truth(x))


def _of_two(functions: Mapping[str, tuple[Binary, bool, str]]) -> tuple[Rule, ...]:
    """Logical operators on truths, bitwise ones on the promoted dtype."""

    def declared(op: str, function: Binary, logical: bool, doc: str) -> tuple[Rule, ...]:
        def read(n: Node, x: Number, other: Number) -> Value:
            if logical:
                return function(*(truth(v) if isinstance(v, Value) else n.value(v, bool_) for v in (x, other)))
            return function(n.value(x, n.dtype), n.value(other, n.dtype))

        read.__doc__ = doc
        number = "Tensor_Scalar" if op.endswith("shift") else "Scalar"
        overloads = ("default",) if logical else ("Tensor", number, "Scalar_Tensor")
        return rule(*(f"{op}.{kind}" for kind in overloads))(read)

    return tuple(r for op, (f, logical, doc) in functions.items() for r in declared(op, f, logical, doc))


BITWISE = _of_two(
    {
        "bitwise_and": (ops.bit_and, False, "Bitwise and"),
        "bitwise_or": (ops.bit_or, False, "Bitwise or"),
        "bitwise_xor": (ops.bit_xor, False, "Bitwise exclusive or"),
        "bitwise_left_shift": (ops.shift_left, False, "Bits shifted left"),
        "bitwise_right_shift": (ops.shift_right, False, "Bits shifted right, keeping the sign"),
        "logical_and": (ops.bit_and, True, "Whether both are not 0"),
        "logical_or": (ops.bit_or, True, "Whether one is not 0"),
        "logical_xor": (ops.bit_xor, True, "Whether one alone is not 0"),
    }
)


@rule("bitwise_not.default")
def bitwise_not(n: Node, x: Value) -> Value:
    """Bitwise not."""
    return ops.bit_not(x)
