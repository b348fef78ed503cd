"""Sizes of torch, sympy expressions, as sizes of ours: by their structure."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce
from typing import Any

from dovetail.errors import UnsupportedError
from dovetail.ir.dim import Size, floordiv, largest, smallest, symbol

Names = Mapping[str, str]
"""The names that a user gave to symbols of torch."""


def size_of(given: Any, names: Names) -> Size:
    """A size of a tensor, or the result of arithmetic of sizes."""
    if isinstance(given, int):
        return int(given)
    return _size(given.node.expr, names)


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
