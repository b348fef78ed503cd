"""What a signature leaves open: what is handed on, what goes together, what is not written."""

from __future__ import annotations

from typing import Annotated, Literal

import pytest

from dovetail import Graph, Value, ops
from dovetail.declare import HANDED_ON, UnwrittenError, fused_op
from dovetail.derive.fuse import fuse
from dovetail.dtypes import f32
from dovetail.errors import TraceError, TypeRuleError
from dovetail.ir.leaf import Hole, input

X, Y = input("x", f32[3]), input("y", f32[3])
Sign = Literal["plus", "minus"]


@fused_op(shapes="x[n] y[n]", stage="recognise")
def inner(x: Value, y: Value, *, c: float | None = None, sign: Sign = "plus") -> Value:
    """A sum or a difference, scaled."""
    total = ops.maximum(x, y) if sign == "plus" else ops.minimum(x, y)
    return ops.exp(total if c is None else total * c)


@fused_op(shapes="x[n] y[n]")
def outer(
    x: Value, y: Value, *, c: Annotated[float | None, HANDED_ON] = None, sign: Annotated[Sign, HANDED_ON] = "plus"
) -> Value:
    """The same with a tanh behind."""
    return ops.tanh(inner(x, y, c=c, sign=sign))


def test_what_is_handed_on_takes_one_trace() -> None:
    assert len(inner.variants) == 4
    (variant,) = outer.variants
    assert variant.choice["c"] == Hole("c", or_none=True)


@pytest.mark.parametrize("c", (None, 3.0))
@pytest.mark.parametrize("sign", ("plus", "minus"))
def test_what_is_handed_on_is_caught_whatever_it_is(c: float | None, sign: Sign) -> None:
    graph = Graph.of(ops.tanh(inner(X, Y, c=c, sign=sign)))
    assert fuse(graph, [outer]).graph.outputs["y"] is outer(X, Y, c=c, sign=sign)


@fused_op(shapes="x[n] a[n]")
def picky(x: Value, a: Value | None = None, *, c: float | None = None) -> Value:
    """exp(x * c) with an addend, which only a scaled one has."""
    if a is not None and c is None:
        raise UnwrittenError("an addend without a scale", hint="pass c=1.0")
    y = ops.exp(x if c is None else x * c)
    return y if a is None else y + a


@picky.spelling
def addend_first(x: Value, a: Value | None = None, *, c: float | None = None) -> Value:
    if a is None or c is None:
        raise UnwrittenError("nothing to add", hint="use the body")
    return a - ops.neg(ops.exp(x * c))


def test_what_is_not_written_has_no_variant_and_a_typed_error() -> None:
    assert sorted(v.label for v in picky.variants) == ["x", "x, a, c", "x, a, c, addend_first", "x, c"]
    with pytest.raises(TypeRuleError, match="an addend without a scale") as refused:
        picky(X, Y)
    assert refused.value.hint == "pass c=1.0"


@fused_op(shapes="x[n] a[n]")
def choosy(
    x: Value, a: Value | None = None, *, c: float | None = None, sign: Sign = "plus", d: float | None = None
) -> Value:
    """exp(x * c) with an addend, which only a scaled one has; a negative one has nothing else."""
    addends_are_scaled(a, c)
    negatives_are_plain(a, sign, d)
    traced.append(sign)
    y = ops.exp(x if c is None else x * c)
    y = y if a is None else y + a
    y = y if d is None else y / d
    return y if sign == "plus" else ops.neg(y)


traced: list[str] = []


@choosy.refuses
def addends_are_scaled(a: Value | None, c: float | None) -> None:
    if a is not None and c is None:
        raise UnwrittenError("an addend without a scale", hint="pass c=1.0")


@choosy.refuses
def negatives_are_plain(a: Value | None, sign: Sign, d: float | None) -> None:
    if sign == "minus" and (a is not None or d is not None):
        raise UnwrittenError("a negative with more", hint="pass sign='plus'")


def test_what_is_refused_is_not_traced_and_has_a_typed_error() -> None:
    plus = ["x, a, c, sign=plus", "x, c, sign=plus", "x, sign=plus"]
    with_d = ["x, a, c, sign=plus, d", "x, c, sign=plus, d", "x, sign=plus, d"]
    minus = ["x, c, sign=minus", "x, sign=minus"]
    assert sorted(v.label for v in choosy.variants) == sorted([*plus, *with_d, *minus])
    assert len(traced) == 8
    with pytest.raises(TypeRuleError, match="a negative with more") as refused:
        choosy(X, d=2.0, sign="minus")
    assert refused.value.hint == "pass sign='plus'"
    with pytest.raises(TypeRuleError, match="an addend without a scale"):
        choosy.body(X, Y)


def test_only_parameters_are_refused() -> None:
    with pytest.raises(TraceError, match="choosy has no 'b'"):

        @choosy.refuses
        def wrong(b: Value) -> None:  # pyright: ignore[reportUnusedFunction]
            raise AssertionError
