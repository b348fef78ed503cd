"""Declaring groups: the errors of a declaration that does not hold together."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from dovetail import Value
from dovetail.declare.fused import Call
from dovetail.declare.group import group_rule
from dovetail.dtypes import f32
from dovetail.errors import TraceError
from dovetail.ir.leaf import input

X, Y = input("x", f32[2]), input("y", f32[2])


def test_the_shared_operand_must_be_one_of_every_member() -> None:
    with pytest.raises(TraceError, match="shares 'z'"):

        @group_rule(shared="z")
        def sums(x: Value, y: Value) -> Value:  # pyright: ignore[reportUnusedFunction]
            return x + y

    with pytest.raises(TraceError, match="shares 'y'"):

        @group_rule(shared="y")
        def perhaps(x: Value, y: Value | None = None) -> Value:  # pyright: ignore[reportUnusedFunction]
            return x if y is None else x + y


def test_a_group_that_does_not_say_how_it_is_joined() -> None:
    @group_rule(shared="x")
    def sums(x: Value, y: Value) -> Value:
        return x + y

    with pytest.raises(TraceError, match="does not say how"):
        sums.join([Call({"x": X, "y": Y})])


def test_one_value_for_each_member() -> None:
    @group_rule(shared="x")
    def sums(x: Value, y: Value) -> Value:
        """Sums of one value."""
        return x + y

    @sums.joined
    def too_few(members: Sequence[Call]) -> tuple[Value, ...]:  # pyright: ignore[reportUnusedFunction]
        return ()

    assert (sums.name, sums.doc, sums(X, Y)) == ("sums", "Sums of one value.", X + Y)
    with pytest.raises(TraceError, match="0 values of 1 members"):
        sums.join([Call({"x": X, "y": Y})])
