"""Backward ops: their attributes, their types, and what they refuse."""

from __future__ import annotations

from typing import Any

import pytest

import dovetail
from dovetail import library
from dovetail.declare import BackwardOp, fused_op
from dovetail.declare.cost import flops_of
from dovetail.dtypes import f32, i64
from dovetail.errors import DovetailError, TraceError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value, make


def back_of(op: Any) -> BackwardOp:
    assert isinstance(op.back, BackwardOp)
    return op.back


def norm_back() -> Value:
    x, gain, g = leaf.input("x", f32["n", 4]), leaf.input("gain", f32[4]), leaf.input("g", f32["n", 4])
    y = library.layer_norm(x, gain, eps=1e-5)
    return back_of(library.layer_norm).of_value(y, {0: g}, (0, 1))


def test_one_result_for_each_operand_that_is_wanted() -> None:
    value = norm_back()
    assert str(value.type) == "(f32[n, 4], f32[4])"
    assert value.op.name == "layer_norm_back"
    assert flops_of(value) != 0, "it costs what its body costs"


def test_it_is_written_as_text_and_read_again() -> None:
    value = norm_back()
    graph = Graph.of({"dx": value[0], "dgain": value[1]})
    again = dovetail.graphs.parse(dovetail.graphs.print_graph(graph))
    assert again.outputs["dx"] is graph.outputs["dx"]


@pytest.mark.parametrize(
    ("attrs", "words"),
    [
        ({"wanted": (2,), "given": (0,)}, "by operand 2"),
        ({"wanted": (), "given": (0,)}, "wanted"),
        ({"wanted": (1, 0), "given": (0,)}, "rising order"),
        ({"wanted": (0,), "given": (1,)}, "a gradient has the type of its result"),
        ({"wanted": "x", "given": (0,)}, "wanted"),
    ],
)
def test_what_does_not_fit_is_refused(attrs: dict[str, Any], words: str) -> None:
    value = norm_back()
    op = back_of(library.layer_norm)
    with pytest.raises(TypeRuleError) as error:
        make(op, value.operands, op.normal(value.operands, {**value.attrs, **attrs}))
    assert words in str(error.value)


def test_a_form_that_leaves_out_an_operand_is_refused() -> None:
    @fused_op(shapes="x[n] y[n]")
    def both(x: Value, y: Value) -> Value:
        """x * y."""
        return x * y

    @both.gradient
    def half(g: Value, result: Value, *, x: Value, y: Value) -> tuple[Value | None, ...]:
        return g * y, None

    assert both.form is half
    a, b = leaf.input("a", f32[3]), leaf.input("b", f32[3])
    with pytest.raises(TraceError, match="leaves out an operand"):
        dovetail.graphs.gradient(both(a, b), [a, b], leaf.input("g", f32[3]))


def test_integers_have_no_gradient() -> None:
    @fused_op(shapes="x[n] n:i64[n]")
    def raised(x: Value, n: Value) -> Value:
        """x of two dtypes."""
        return x * x

    value = raised(leaf.input("x", f32[3]), leaf.input("n", i64[3]))
    with pytest.raises(DovetailError, match="only floats"):
        back_of(raised).of_value(value, {0: leaf.input("g", f32[3])}, (1,))
