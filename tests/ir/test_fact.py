"""Constraints on sizes: decided where they are known, recorded where they are not."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail.errors import BindError, GraphError, TypeRuleError
from dovetail.ir.dim import symbol
from dovetail.ir.fact import Constraint, Facts, Relation

S, T = symbol("s"), symbol("t")


def test_known_sizes_are_decided_at_once() -> None:
    facts = Facts("matmul")
    assert facts.equal(3, 3, "sizes") == 3
    facts.at_least(4, 4, "sizes")
    assert facts.multiple(12, 4, "sizes") == 3
    assert facts.recorded == []


def test_algebra_is_used() -> None:
    facts = Facts("op")
    assert facts.equal(S + S, 2 * S, "sizes") == 2 * S
    facts.at_least(S + 3, 2, "sizes")
    assert facts.multiple(6 * S, 3, "sizes") == 2 * S
    assert facts.recorded == []


def test_unknown_sizes_are_recorded_with_a_reason() -> None:
    facts = Facts("matmul")
    assert facts.equal(S, T, "the contracted sizes") == T
    assert facts.equal(S, 8, "sizes") == 8
    assert facts.equal(8, S, "sizes") == 8
    facts.at_least(S, 4, "a window")
    assert facts.multiple(S, 4, "heads") == S // 4
    assert [str(c) for c in facts.recorded] == [
        "s equals t",
        "s equals 8",
        "8 equals s",
        "s at_least 4",
        "s multiple_of 4",
    ]
    assert facts.recorded[0].why == "matmul: the contracted sizes"


def test_what_does_not_hold_is_an_error_that_says_what_was_found() -> None:
    facts = Facts("matmul")
    with pytest.raises(TypeRuleError, match="matmul: the contracted sizes: found 3 and 4") as caught:
        facts.equal(3, 4, "the contracted sizes")
    assert caught.value.hint == "3 must be equal to 4"
    with pytest.raises(TypeRuleError):
        facts.equal(S, S + 1, "sizes")
    with pytest.raises(TypeRuleError, match="found 3 and 4"):
        facts.at_least(3, 4, "sizes")
    with pytest.raises(TypeRuleError, match="found 7 and 2"):
        facts.multiple(7, 2, "sizes")


@pytest.mark.parametrize("size", [0, 6, S])
def test_nothing_is_a_multiple_of_zero(size: int) -> None:
    with pytest.raises(TypeRuleError):
        Facts("split").multiple(size, 0, "parts")


@given(
    st.sampled_from(("equals", "at_least", "multiple_of")), st.integers(0, 20), st.integers(0, 20), st.integers(0, 3)
)
def test_a_constraint_holds_when_the_integers_say_so(relation: Relation, s: int, t: int, extra: int) -> None:
    constraint = Constraint(S + extra, relation, T, "")
    left = s + extra
    expected = {"equals": left == t, "at_least": left >= t, "multiple_of": t != 0 and left % t == 0}[relation]
    binding = {"s": s, "t": t}
    assert constraint.holds(binding) is expected
    if expected:
        assert constraint.bind(binding) is None
    else:
        with pytest.raises(BindError):
            constraint.bind(binding)


def test_binding_in_part_keeps_the_rest() -> None:
    constraint = Constraint(S, "equals", T + 2, "because")
    assert constraint.symbols == {"s", "t"}
    left = constraint.bind({"t": 4})
    assert left == Constraint(S, "equals", 6, "because")
    assert left is not None
    assert left.bind({"s": 6}) is None
    with pytest.raises(BindError, match=r"found 5 and 6") as caught:
        left.bind({"s": 5})
    assert "because" in caught.value.hint


def test_a_constraint_without_its_symbols_is_not_decided() -> None:
    with pytest.raises(BindError, match="needs a value for t"):
        Constraint(S, "equals", T, "").holds({"s": 3})
    with pytest.raises(GraphError):
        Constraint(S // T, "equals", 3, "").holds({"s": 3, "t": 0})
