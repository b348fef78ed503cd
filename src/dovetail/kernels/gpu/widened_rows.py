"""Rows of 16-bit floats in f32: totals, and what is computed of them, are rounded where results are stored alone.

A norm of few rows is one dependent step after the other. Each rounding is two of them, and a mean in f64 that is
rounded to 16 bits is ten.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any, cast

from dovetail.ir.dtype import f32, f64
from dovetail.kernels.gpu.widened import NARROW, SMOOTH, wide, widened
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Call, Expr, Kernel, Name, Number, Set, Statement, Store, bodies, expand, rewrite


def widened_rows(kernel: Kernel) -> Kernel:
    """A kernel that keeps scalars of a row in f32, not in 16 bits, and sums products that are not rounded."""
    sets = [s for s in everything(kernel.body) if isinstance(s, Set)]
    times = Counter([s.name for s in sets])
    names = frozenset([s.name for s in sets if times[s.name] == 1 and _is_widened(s.value)])
    summed: set[str] = set()
    for s in reversed(sets):
        if s.name in names or s.name in summed:
            summed |= _sums(s.value)
    kernel = replace(kernel, body=_body(kernel.body, names, frozenset(summed))) if names else kernel
    stored = [s.tensor for s in everything(kernel.body) if isinstance(s, Store) and s.tensor.pointer in kernel.written]
    is_narrow = all([tensor.dtype in NARROW for tensor in stored])
    return replace(kernel, body=_near(kernel.body)) if is_narrow else kernel


def _near(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """The same where the graph has scalars of f32: results of 16 bits need neither a mean in f64 nor the nearest
    reciprocal root."""

    def near(s: Statement) -> list[Statement] | None:
        match s:
            case Set(name, Call("cast", (Call("mul", (_, Number()), wide_dtype),), dtype) as value) if (
                dtype is f32 and wide_dtype is f64
            ):
                return [Set(name, _total(value))]
            case Set(name, Call("rsqrt", operands, dtype)) if dtype is f32:
                return [Set(name, Call("near_rsqrt", operands, f32))]
            case _:
                return None

    return expand(body, near)


def _sums(value: Expr) -> set[str]:
    """The sums that a total of 16 bits is made of: those of a total of f32 are sums of what the graph rounds."""
    if isinstance(value, Name):
        return {value.name} if value.dtype in (f32, f64) else set()
    if isinstance(value, Call) and value.op in ("add", "mul", "cast"):
        return {name for x in value.operands for name in _sums(x)}
    return set()


def _is_widened(value: Expr) -> bool:
    return isinstance(value, Call) and value.dtype in NARROW and (value.op == "cast" or value.op in SMOOTH)


def _body(body: tuple[Statement, ...], names: frozenset[str], summed: frozenset[str]) -> tuple[Statement, ...]:

    def read(part: Any) -> Any:
        """Names that are f32 now, as narrow as they were."""
        is_widened = isinstance(part, Name) and part.name in names and part.dtype in NARROW
        return Call("cast", (Name(part.name, f32),), part.dtype) if is_widened else None

    def changed(s: Statement) -> list[Statement] | None:
        if bodies(s):
            return None
        s = rewrite(s, read)
        match s:
            case Store():
                return [widened(s)]
            case Set(name, value) if name in names:
                return [Set(name, _total(value))]
            case Set(name, Call("add", (Name(other), Call("cast", (Call() as value,), into))) as total) if (
                name == other and name in summed and into is f32 and _is_widened(value)
            ):
                return [Set(name, replace(total, operands=(total.operands[0], wide(value))))]
            case _:
                return [s]

    return expand(body, changed)


def _total(value: Expr) -> Expr:
    """A 16-bit scalar in f32; a mean of a total in f64 is exact enough in f32."""
    if isinstance(value, Call) and value.op == "cast" and value.operands[0].dtype is f64:
        (whole,) = value.operands
        if isinstance(whole, Call) and whole.op == "mul" and isinstance(whole.operands[1], Number):
            total, factor = whole.operands
            return Call("mul", (Call("cast", (total,), f32), Number(cast(Number, factor).value, f32)), f32)
        return Call("cast", (whole,), f32)
    return wide(value)


__all__ = ["widened_rows"]
