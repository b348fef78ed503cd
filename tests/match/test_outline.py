"""Outlines: what a glance at a value tells, for one pattern and for many at once."""

from __future__ import annotations

from typing import Literal

from dovetail import Value, fused_op, ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import hole, input
from dovetail.match import Outlines, fits
from dovetail.match.outline import Outline, outline_of

X, W, B = input("x", f32[2, 3]), input("w", f32[3, 4]), input("b", f32[4])
x, w, b = hole("x"), hole("w"), hole("b")

PATTERNS: dict[str, Value] = {
    "relu of a product": ops.relu(x @ w),
    "relu of a sum": ops.relu(x @ w + b),
    "tanh of a sum": ops.tanh(x @ w + b),
    "product": x @ w,
    "exp of tanh of a product": ops.exp(ops.tanh(x @ w)),
}
OUTLINES: dict[str, Outline] = {name: outline_of(pattern) for name, pattern in PATTERNS.items()}


def every(value: Value, *, but: int = 0) -> set[str]:
    """The patterns whose outlines fit, whatever op their root has."""
    outlines = Outlines()
    numbers = {name: outlines.number(outline) for name, outline in OUTLINES.items()}
    found = outlines.fitting(value, but=but)
    return {name for name, number in numbers.items() if number in found}


def fitting(value: Value, *, but: int = 0) -> set[str]:
    """The patterns whose root has the op of the value too, as a rule looks for them."""
    return {name for name in every(value, but=but) if PATTERNS[name].op is value.op}


def test_an_outline_is_of_the_ops_that_no_operand_order_moves() -> None:
    assert fitting(ops.relu(X @ W)) == {"relu of a product"}
    assert fitting(ops.relu(X @ W + B)) == fitting(ops.relu(B + X @ W)) == {"relu of a sum"}
    assert fitting(ops.relu(B + B)) == set()
    assert fitting(ops.relu(X)) == set()


def test_many_outlines_say_what_each_says_alone() -> None:
    values = [ops.relu(X @ W), ops.relu(X @ W + B), ops.tanh(X @ W), X @ W, X, ops.exp(ops.tanh(X @ W)), ops.relu(X)]
    for value in values:
        assert every(value) == {name for name in OUTLINES if fits(OUTLINES[name], value)}


def test_equal_outlines_have_one_number() -> None:
    outlines = Outlines()
    first = outlines.number(OUTLINES["relu of a sum"])
    assert first == outlines.number(outline_of(ops.relu(hole("a") @ hole("b") + hole("c"))))
    assert first != outlines.number(OUTLINES["relu of a product"])


def test_one_elementwise_op_may_be_another() -> None:
    assert "exp of tanh of a product" not in fitting(ops.exp(ops.sin(X @ W)))
    assert "exp of tanh of a product" in fitting(ops.exp(ops.sin(X @ W)), but=1)


def test_two_strangers_or_one_that_is_not_elementwise_are_too_many() -> None:
    assert "exp of tanh of a product" not in fitting(ops.exp(ops.sin(ops.sin(X))), but=1)
    assert "relu of a product" not in fitting(ops.relu(ops.reduce_sum(X, axes=(-1,))), but=1)
    assert "relu of a sum" not in fitting(ops.relu(ops.sin(B) + B), but=1)


def test_options_of_declared_ops_are_part_of_an_outline() -> None:
    @fused_op(shapes="x[n]")
    def turned(x: Value, *, way: Literal["left", "right"] = "left") -> Value:
        """Two ops with a name of their own."""
        return ops.exp(ops.sin(x)) if way == "left" else ops.exp(ops.cos(x))

    left = outline_of(ops.relu(turned(x, way="left")))
    assert fits(left, ops.relu(turned(X, way="left")))
    assert not fits(left, ops.relu(turned(X, way="right")))
    at_the_root = outline_of(turned(x, way="left"))
    assert fits(at_the_root, turned(X, way="left")) and not fits(at_the_root, turned(X, way="right"))


def test_what_other_ops_can_spell_is_told_by_those_ops() -> None:
    swapped = outline_of(x @ ops.permute(w, order=(-1, -2)))
    turned = input("v", f32[4, 3])
    assert fits(swapped, X @ ops.permute(turned, order=(-1, -2)))
    assert not fits(swapped, X @ W), "nothing was moved there"
    scaled = outline_of(ops.relu(x * 2.0))
    assert fits(scaled, ops.relu(X / 0.5)) and not fits(scaled, ops.relu(X + 2.0))


def test_operands_that_were_left_out_are_part_of_an_outline() -> None:
    @fused_op(shapes="x[n] y[n]")
    def doubled(x: Value, y: Value | None = None) -> Value:
        """Twice, and maybe more."""
        return ops.exp(ops.sin(x)) if y is None else ops.exp(ops.sin(x)) + y

    alone = outline_of(ops.relu(doubled(x)))
    assert fits(alone, ops.relu(doubled(B))) and not fits(alone, ops.relu(doubled(B, B)))


def test_an_operand_may_be_taken_for_what_it_equals() -> None:
    def equal(value: Value) -> tuple[Value, ...]:
        return (value, X @ W) if value is known else (value,)

    known = input("known", f32[2, 4])
    outlines = Outlines()
    product, total = (outlines.number(OUTLINES[name]) for name in ("relu of a product", "relu of a sum"))
    assert outlines.fitting(ops.relu(known)) == set()
    assert outlines.fitting(ops.relu(known), equal=equal) == {product}
    assert outlines.fitting(ops.relu(known + B), equal=equal) == {total}
    assert fits(OUTLINES["relu of a sum"], ops.relu(known + B), equal)


def test_what_was_seen_before_an_outline_was_added_is_looked_at_again() -> None:
    outlines = Outlines()
    first = outlines.number(OUTLINES["relu of a product"])
    assert outlines.fitting(ops.relu(X @ W)) == {first}
    second = outlines.number(outline_of(ops.relu(ops.relu(x) @ w)))
    assert outlines.fitting(ops.relu(ops.relu(X) @ W)) == {first, second}
