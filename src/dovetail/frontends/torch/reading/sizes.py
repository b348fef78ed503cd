"""Sizes of torch, sympy expressions, as sizes of ours: by their structure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any, Literal

from dovetail.errors import UnsupportedError
from dovetail.frontends.torch.exported import Real, Unknown
from dovetail.ir.dim import Size, floordiv, largest, smallest, symbol

Names = Mapping[str, str]
"""The names that a user gave to symbols of torch."""


def size_of(given: Any, names: Names) -> Size:
    """A size of a tensor, or the result of arithmetic of sizes."""
    if isinstance(given, int):
        return int(given)
    expr = given.node.expr
    if _chooses(expr):
        bounds = given.node.shape_env.bound_sympy(expr)
        if bounds.is_singleton():
            return int(bounds.lower)  # max(1 - length, 0), of a length that is at least 1
    return _size(expr, names)


def _chooses(e: Any) -> bool:
    return type(e).__name__ in ("Max", "Min") or any(map(_chooses, e.args))


def real_of(given: Any, names: Names) -> Real | Unknown:
    """A float of sizes."""
    try:
        return _real(given.node.expr, names)
    except UnsupportedError:
        return Unknown(f"the number {given}, which sizes decide")


_REALS: Mapping[str, Literal["add", "mul", "div", "pow", "sqrt"]] = {
    "Add": "add",
    "Mul": "mul",
    "FloatTrueDiv": "div",
    "IntTrueDiv": "div",
    "FloatPow": "pow",
    "Pow": "pow",
    "OpaqueUnaryFn_sqrt": "sqrt",
}


def _real(e: Any, names: Names) -> Real:
    kind = type(e).__name__
    if kind in _REALS and not getattr(e, "is_integer", False):
        return Real(_REALS[kind], tuple([_real(a, names) for a in e.args]))
    if getattr(e, "is_number", False) and not getattr(e, "is_Integer", False):
        return Real("number", (float(e),))
    return Real("size", (_size(e.args[0] if kind == "ToFloat" else e, names),))


def _size(e: Any, names: Names) -> Size:
    if getattr(e, "is_Integer", False):
        return int(e)
    if getattr(e, "is_Symbol", False):
        return symbol(names.get(str(e), str(e)))
    kind = type(e).__name__
    if kind == "Mul" and e.args[0].is_Rational and not e.args[0].is_Integer:
        part = e.args[0]
        rest = e.func(int(part.p), *e.args[1:])
        return floordiv(_size(rest, names), int(part.q))
    parts = [_size(a, names) for a in e.args]
    match kind:
        case "Add":
            return reduce(lambda a, b: a + b, parts)
        case "Mul":
            return reduce(lambda a, b: a * b, parts)
        case "Pow" if isinstance(parts[1], int) and parts[1] > 0:
            return reduce(lambda a, b: a * b, [parts[0]] * parts[1])
        case "PowByNatural" if isinstance(parts[1], int) and parts[1] > 0:
            return reduce(lambda a, b: a * b, [parts[0]] * parts[1])
        case "FloorDiv" | "CleanDiv":
            return floordiv(parts[0], parts[1])
        case "CeilToInt" | "TruncToInt" | "FloorToInt" if isinstance(parts[0], int):
            return parts[0]
        case "CeilDiv":
            return floordiv(parts[0] + parts[1] - 1, parts[1])
        case "Mod" | "PythonMod":
            return parts[0] - floordiv(parts[0], parts[1]) * parts[1]
        case "Max":
            return reduce(largest, parts)
        case "Min":
            return reduce(smallest, parts)
        case _:
            raise UnsupportedError(f"the size {e}", hint="export the model with this size fixed")
