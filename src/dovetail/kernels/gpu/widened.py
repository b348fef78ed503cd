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
_NEAR = {"erf": "near_erf", "rsqrt": "near_rsqrt", "sigmoid": "near_sigmoid"}
_HALF, _ONE = Number(0.5, f32), Number(1.0, f32)
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
    widened_expr = known.get(id(expr))
    if widened_expr is None:
        widened_expr = known[id(expr)] = _widened(expr, known)
    return widened_expr


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
    if expr.op == "mul":
        return _product(*operands)
    if expr.op != "div":
        return Call(expr.op, operands, f32)
    divisor = expr.operands[1]
    if isinstance(divisor, Number) and divisor.reciprocal is not None:
        return Call("mul", (operands[0], Number(divisor.reciprocal, f32)), f32)
    return Call(NEAR_QUOTIENT, operands, f32)


def _product(x: Expr, y: Expr) -> Expr:
    """A product. Where a half and 1 + erf are factors, as in GELU, both together have fewer instructions."""
    for one, other in ((x, y), (y, x)):
        bent = _one_more(other)
        if bent is None or not isinstance(bent, Call) or bent.op != _NEAR["erf"]:
            continue
        half = _half_erf(bent.operands[0])
        if one == _HALF:
            return half
        match one:
            case Call("mul", (a, b)) if _HALF in (a, b):
                return Call("mul", (b if a == _HALF else a, half), f32)
            case _:
                continue
    return Call("mul", (x, y), f32)


def _half_erf(x: Expr) -> Expr:
    """Half of 1 + erf(x). A factor of x becomes part of the coefficients, unless their powers leave the range."""
    match x:
        case Call("mul", (y, Number() as scale)) if 0.1 < scale.rounded < 10:
            return Call("near_half_erf", (y, scale), f32)
        case _:
            return Call("near_half_erf", (x, _ONE), f32)


def _one_more(expr: Expr) -> Expr | None:
    """What 1 is added to; None where an expression is anything else."""
    match expr:
        case Call("add", (x, y)) if _ONE in (x, y):
            return y if x == _ONE else x
        case _:
            return None


__all__ = ["NARROW", "SMOOTH", "wide", "widened"]
