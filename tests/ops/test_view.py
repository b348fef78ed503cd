"""The algebra of views: what chains do, with and without types, and where they cannot be one."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.leaf import Hole, hole, input
from dovetail.ops.view import View, quotient
from dovetail.ops.view_chain import build_view
from tests.ops.meaning import run


def view_of(value: Value) -> View:
    """The view that a chain is of its leaf."""
    chain: list[Value] = []
    while value.operands:
        chain.append(value)
        value = value.operands[0]
    view = View(value)
    for step in reversed(chain):
        assert view.apply(step)
    return view


def rebuilt(value: Value) -> Value | None:
    return build_view(view_of(value))


def test_quotients_by_number_and_by_algebra() -> None:
    s = symbol("s")
    assert quotient(12, 4) == 3
    assert quotient(12, 5) is None
    assert quotient(12, 0) is None
    assert quotient(6 * s, 2) == 3 * s
    assert quotient(s, 2) is None


def test_every_op_alone_is_its_own_form() -> None:
    x, one = input("x", f32[6, 4, 5]), input("one", f32[6, 1, 5])
    for value in (
        ops.split(x, axis=-3, parts=2),
        ops.merge(x, axis=-1, count=2),
        ops.permute(x, order=(-1, -3, -2)),
        ops.unsqueeze(x, axes=(-4, -1)),
        ops.squeeze(one, axes=(-2,)),
        ops.expand(one, axis=-2, size=3),
    ):
        assert rebuilt(value) is value


def test_a_split_is_written_by_its_number_of_parts() -> None:
    x, y = input("x", f32[6, "n"]), input("y", f32["4*n"])
    assert rebuilt(ops.split(x, axis=-2, size=2)) is ops.split(x, axis=-2, parts=3)
    assert rebuilt(ops.split(y, axis=-1, parts=symbol("n"))) is ops.split(y, axis=-1, size=4)
    undecided = ops.split(x, axis=-1, size=2)
    assert rebuilt(undecided) is undecided


def test_splits_go_before_merges_and_the_first_axis_first() -> None:
    x = input("x", f32[4, 6, 8])
    value = ops.merge(ops.split(ops.split(x, axis=-1, parts=2), axis=-4, parts=2), axis=-3)
    wanted = ops.merge(ops.split(ops.split(x, axis=-3, parts=2), axis=-1, parts=2), axis=-3)
    assert rebuilt(value) is wanted


def test_the_last_axes_are_merged_first() -> None:
    """So that merged heads are a value of their own below a flattened batch."""
    y = input("y", f32["b", 3, "s", 4])
    turned = ops.permute(y, order=(-2, -3, -1))
    flat = ops.merge(ops.merge(turned, axis=-3), axis=-1)
    assert rebuilt(flat) is ops.merge(ops.merge(turned, axis=-1), axis=-2)


def test_repeats_come_late() -> None:
    x = input("x", f32[3, 1, 4])
    turned = ops.permute(ops.expand(x, axis=-2, size=2), order=(-1, -3, -2))
    assert rebuilt(turned) is ops.expand(ops.permute(x, order=(-1, -3, -2)), axis=-1, size=2)


def test_sizes_that_fit_no_axis_are_joined_and_cut() -> None:
    x = input("x", f32[5, 4, 6])
    view = View(x)
    assert view.reshape((5, 3, 8))
    assert view.has_spans
    assert build_view(view) is ops.split(ops.merge(x, axis=-1), axis=-1, parts=3)
    assert view.permute((-1, -2, -3)) is False
    assert view.permute((-2, -1, -3))
    assert view.shape == [3, 8, 5]


def test_what_algebra_cannot_tell_is_no_view() -> None:
    view = View(input("x", f32["n", 4]))
    assert not view.reshape((symbol("b"), symbol("s"), 4))
    assert not view.reshape((0, 4))
    assert view.shape == [symbol("n"), 4]


def test_a_pattern_knows_what_it_is_told() -> None:
    x, h = hole("x"), Hole("h")
    split = ops.split(x, axis=-1, parts=h)
    assert rebuilt(ops.merge(split, axis=-1)) is x
    assert rebuilt(ops.split(ops.merge(split, axis=-1), axis=-1, parts=h)) is split
    assert rebuilt(ops.merge(ops.split(x, axis=-1, size=2), axis=-1)) is x
    other = View(x)
    assert other.apply(ops.merge(x, axis=-1))
    assert not other.apply(ops.split(ops.merge(x, axis=-1), axis=-1, parts=h))


def test_a_pattern_that_is_squeezed_has_an_axis_of_one() -> None:
    x = hole("x")
    assert rebuilt(ops.unsqueeze(ops.squeeze(x, axes=(-2,)), axes=(-2,))) is x
    assert rebuilt(ops.expand(ops.permute(x, order=(-1, -2)), axis=-1, size=3)) is not None


@pytest.mark.parametrize("shape", [(1, 3, 1, 4), (3, 1, 1, 4), (1, 1, 3, 4), (3, 4, 1, 1)], ids=str)
@pytest.mark.parametrize("order", [(0, 1, 2, 3), (1, 0, 3, 2), (3, 2, 1, 0), (2, 3, 0, 1)], ids=str)
def test_axes_of_one_wherever_they_go(shape: tuple[int, ...], order: tuple[int, ...]) -> None:
    """No op is spent on both squeezing and unsqueezing."""
    array = np.arange(12.0).reshape(shape)
    wanted = array.transpose(order)
    turned = ops.permute(leaf.constant(array), order=tuple(a - 4 for a in order))
    value = build_view(view_of(turned))
    assert value is not None
    assert np.array_equal(run(value), wanted)
    assert value.op is ops.permute or value.op is leaf.CONST
