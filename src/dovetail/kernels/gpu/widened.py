"""Epilogues of 16-bit floats in f32: what is computed on the way to a result is not rounded.

Only the result is rounded. A float that is cast to a wider one in the graph keeps its rounding, and so do conditions.
"""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.dtype import bf16, f16, f32
from dovetail.kernels.loops.ir import Call, Expr, Number, Store

NARROW = (f16, bf16)
SMOOTH = frozenset(
    {"abs", "add", "cos", "div", "erf", "exp", "log", "maximum", "minimum", "mul", "neg", "pow", "reciprocal", "relu",
     "rsqrt", "sigmoid", "sin", "sqrt", "sub", "tanh"}
)  # fmt: skip
"""Ops whose result is nearer to the exact one when operands have more digits."""
_NEAR = {"erf": "near_erf", "rsqrt": "near_rsqrt"}
NEAR_QUOTIENT = "near_div"
"""Functions and quotients to the accuracy of 16-bit floats."""


def widened(store: Store) -> Store:
    """A store whose value is rounded once."""
    value = store.value
    if not isinstance(value, Call) or value.op == "cast" or value.dtype not in NARROW:
        return store
    return replace(store, value=Call("cast", (wide(value),), value.dtype))


def wide(expr: Expr) -> Expr:
    """A 16-bit expression in f32."""
    return _wide(expr, {})


def _wide(expr: Expr, known: dict[int, Expr]) -> Expr:
    found = known.get(id(expr))
    if found is None:
        found = known[id(expr)] = _widened(expr, known)
    return found


def _widened(expr: Expr, known: dict[int, Expr]) -> Expr:
    if isinstance(expr, Call) and expr.dtype in NARROW:
        if expr.op == "cast" and expr.operands[0].dtype is f32:
            return expr.operands[0]
        if expr.op == "where":
            condition, *others = expr.operands
            return Call("where", (condition, *[_wide(x, known) for x in others]), f32)
        if expr.op in SMOOTH and all(x.dtype in NARROW for x in expr.operands):
            return _near(expr, tuple([_wide(x, known) for x in expr.operands]))
    if isinstance(expr, Number):
        return Number(expr.rounded, f32)
    return Call("cast", (expr,), f32)


def _near(expr: Call, operands: tuple[Expr, ...]) -> Expr:
    """An op on wide operands, to the accuracy of its narrow result where that is faster."""
    if expr.op in _NEAR:
        return Call(_NEAR[expr.op], operands, f32)
    if expr.op != "div":
        return Call(expr.op, operands, f32)
    divisor = expr.operands[1]
    if isinstance(divisor, Number) and divisor.reciprocal is not None:
        return Call("mul", (operands[0], Number(divisor.reciprocal, f32)), f32)
    return Call(NEAR_QUOTIENT, operands, f32)


__all__ = ["NARROW", "SMOOTH", "wide", "widened"]
