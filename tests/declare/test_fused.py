"""Declaring: what a signature may say, what a call takes, what a trace refuses."""

from __future__ import annotations

from typing import Any, Literal

import pytest

from dovetail import Builder, Graph, Value, ops
from dovetail.declare import fused_op
from dovetail.dtypes import f16, f32
from dovetail.errors import TraceError, TypeRuleError
from dovetail.ir.leaf import input
from dovetail.ir.origin import scope
from dovetail.ir.type import TupleType


@fused_op(shapes="x[*, n] y[*, n]")
def mix(x: Value, y: Value | None = None, *, how: Literal["add", "mul"] = "add", scale: float = 2.0) -> Value:
    """x with y, scaled."""
    if y is None:
        return x * scale
    return (x + y if how == "add" else x * y) * scale


@fused_op(shapes="x[*, n] y[*, n]")
def both(x: Value, y: Value, *, keep: Literal[False, True] = False) -> Value | tuple[Value, ...]:
    """exp(x + y), and the sum."""
    total = x + y
    return (ops.exp(total), total) if keep else ops.exp(total)


X, Y = input("x", f32[2, 3]), input("y", f32[2, 3])


def test_every_choice_is_one_trace_and_equal_traces_are_one() -> None:
    # add, mul and (for both options) no y at all.
    assert sorted(v.size for v in mix.variants) == [1, 2, 2]


def test_every_variant_has_a_label_of_its_own() -> None:
    @fused_op
    def capped(x: Value, *, cap: float | None = None, eps: float, how: Literal["a, b", "plain"] = "plain") -> Value:
        """exp(x + eps), bent where a cap is given."""
        y = ops.exp(x + eps)
        y = ops.tanh(y) if how == "plain" else ops.sin(y)
        return y if cap is None else y * cap

    assert sorted(v.label for v in capped.variants) == [
        'x, cap, how="a, b"',
        "x, cap, how=plain",
        'x, how="a, b"',
        "x, how=plain",
    ]


def test_calling_builds_one_value_of_the_type_of_its_body() -> None:
    value = mix(X, Y, how="mul", scale=3.0)
    assert value.op is mix
    assert value.type == f32[2, 3]
    assert value is mix(X, Y, how="mul", scale=3.0)
    assert value is not mix(X, Y, how="mul", scale=4.0)


def test_operands_are_found_by_name() -> None:
    call = mix.of(mix(X, None, scale=3.0))
    assert (call.x, call.y, call.scale) == (X, None, 3.0)
    with pytest.raises(TypeRuleError, match="exp is not mix"):
        mix.of(ops.exp(X))


def test_several_results_are_items() -> None:
    value = both(X, Y, keep=True)
    assert isinstance(value.type, TupleType)
    assert value[1].type == f32[2, 3]
    assert both(X, Y).type == f32[2, 3]


@pytest.mark.parametrize(
    ("args", "kwargs", "message"),
    [
        ((), {}, "needs x"),
        ((X, Y, X), {}, "3 operands"),
        ((X,), {"how": "max"}, "how='max'"),
        ((X,), {"scale": "two"}, "scale='two'"),
        ((X,), {"scale": True}, "scale=True"),
        ((X,), {"bias": 1.0}, "takes no 'bias'"),
        ((1.0,), {}, "x=1.0"),
    ],
)
def test_a_wrong_call_is_one_typed_error(args: tuple[Any, ...], kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises(TypeRuleError, match=message):
        mix(*args, **kwargs)


def test_a_body_that_does_not_type_check_is_refused_when_it_is_called() -> None:
    with pytest.raises(TypeRuleError, match="f32 and f16"):
        mix(X, input("h", f16[2, 3]))


def test_a_body_must_not_ask_for_shapes() -> None:
    @fused_op(shapes="x[n]")
    def asks(x: Value) -> Value:
        """Asks."""
        return ops.exp(x) if x.rank == 1 else x

    with pytest.raises(TraceError, match="no type while a pattern is traced"):
        _ = asks.variants


def test_a_body_must_not_branch_on_caught_numbers() -> None:
    @fused_op(shapes="x[n]")
    def branches(x: Value, *, scale: float) -> Value:
        """Branches."""
        return x * scale if scale > 0 else x

    with pytest.raises(TraceError, match="cannot be traced"):
        _ = branches.variants


def test_a_second_result_must_be_part_of_the_first() -> None:
    @fused_op(shapes="x[n]")
    def strays(x: Value) -> tuple[Value, Value]:
        """Strays."""
        return ops.exp(x), ops.log(x)

    with pytest.raises(TraceError, match="not part of the first"):
        _ = strays.variants


def test_parameters_must_be_of_a_known_kind() -> None:
    def wrong(x: Value, *, names: list[str]) -> Value:
        return x

    with pytest.raises(TraceError, match="names"):
        fused_op(wrong)


def test_elementwise_is_derived_from_the_body() -> None:
    assert mix.elementwise

    @fused_op(shapes="x[*, n]")
    def centred(x: Value) -> Value:
        """x without its mean."""
        return x - ops.reduce_mean(x, axes=(-1,))

    assert not centred.elementwise


def test_constraints_of_the_body_are_those_of_the_value() -> None:
    x, y = input("x", f32["s", 3]), input("y", f32["t", 3])
    assert [str(c) for c in Graph.of(mix(x, y)).constraints] == ["s equals t"]


def test_tracing_leaves_no_origins_behind() -> None:
    """What a body spells out is kept, so that only the first of two equal graphs would be noted as written there."""

    @fused_op(shapes="x[*, n]")
    def shifted(x: Value) -> Value:
        """x + 0.3125, a number that the graph has too."""
        return x + 0.3125

    def origins() -> list[str]:
        builder = Builder("twice", lines=False)
        with builder.recording():
            x = builder.input("x", f32[3])
            with scope("outside"):
                y = x * 0.3125
            with scope("inside"):
                builder.output("y", shifted(y))
        graph = builder.graph()
        return [graph.where(v) for v in graph.values if v.op.name == "const"]

    assert origins() == origins() == ["outside"]


def test_a_pattern_needs_the_ops_that_no_other_can_spell() -> None:
    @fused_op
    def halved(x: Value, w: Value) -> Value:
        return ops.exp(x / 2.0) @ ops.permute(w, order=(-1, -2))

    (variant,) = halved.variants
    assert variant.needs == {ops.exp, ops.matmul}
