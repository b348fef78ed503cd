"""Sizes of torch as ours: the same numbers at every point."""

from __future__ import annotations

import importlib
from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

import pytest

from dovetail.errors import UnsupportedError
from dovetail.ir.dim import evaluate

torch: Any = pytest.importorskip("torch")
sympy: Any = pytest.importorskip("sympy")
functions: Any = pytest.importorskip("torch.utils._sympy.functions")


class Sized:
    """A SymInt, as far as it is read."""

    def __init__(self, expr: Any, low: int = 1, high: int = 1 << 20) -> None:
        ranges = importlib.import_module("torch.utils._sympy.value_ranges")
        bounds = ranges.bound_sympy(expr, {s: ranges.ValueRanges(low, high) for s in expr.free_symbols})
        self.node = SimpleNamespace(expr=expr, shape_env=Mock(bound_sympy=Mock(return_value=bounds)))


def test_a_choice_that_bounds_decide_is_a_number() -> None:
    from dovetail.frontends.torch.reading.sizes import size_of

    length = sympy.Symbol("s0", integer=True, positive=True)
    assert size_of(Sized(functions.Max(1 - length, 0)), {"s0": "length"}) == 0
    assert not isinstance(size_of(Sized(functions.Max(length - 1, 3)), {"s0": "length"}), int)


def test_expressions_of_sizes_keep_their_value() -> None:
    from dovetail.frontends.torch.reading.sizes import size_of

    a, b = (sympy.Symbol(name, integer=True, positive=True) for name in ("s0", "s1"))
    expressions = [
        a + 2 * b - 1,
        a * b * b,
        functions.FloorDiv(a + 3, 4) * b,
        functions.Mod(a, 3) + 1,
        functions.PythonMod(a + b, 5),
        functions.Max(a, b - 2),
        functions.Min(a, 7),
        functions.FloorDiv(functions.FloorDiv(a, 2) + 1, 2),
    ]
    for expression in expressions:
        size = size_of(Sized(expression), {"s0": "batch"})
        for x, y in ((1, 1), (2, 9), (7, 3), (31, 16)):
            wanted = int(expression.subs({a: x, b: y}))
            assert evaluate(size, {"batch": x, "s1": y}) == wanted, expression


def test_other_expressions_are_refused() -> None:
    from dovetail.frontends.torch.reading.sizes import size_of

    with pytest.raises(UnsupportedError):
        size_of(Sized(sympy.sin(sympy.Symbol("s0"))), {})
