"""Attention whose queries, keys and values are columns, or whose masks are subtracted or written twice."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import bool_, f32
from dovetail.ir import leaf
from dovetail.ir.leaf import input
from tests.library.attending import Array, attend, feeds, found, near, plain_softmax, recognised, run, swap

COLUMNS = [input(name, f32[2, 8, 5]) for name in "qkv"]
ROWS = [input(name, f32[2, 2, 5, 4]) for name in "qkv"]


def heads(x: Value) -> Value:
    """[batch, heads * d, rows] as [batch, heads, d, rows]."""
    return ops.split(x, axis=-2, parts=2)


def rows(x: Array) -> Array:
    return x.reshape(2, 2, 4, 5).transpose(0, 1, 3, 2)


def check_columns(spelled: Value, turned: bool) -> None:
    assert found(spelled, "attention") is not None
    graph = recognised(spelled).graph
    given = feeds(graph)
    wanted = attend(*(rows(given[name]) for name in "qkv"), scale=0.5)
    near(run(graph, given)["y"], wanted.transpose(0, 1, 3, 2) if turned else wanted)


def test_keys_that_are_columns_already() -> None:
    q, k, v = map(heads, COLUMNS)
    check_columns(plain_softmax((swap(q) @ k) * 0.5) @ swap(v), turned=False)
    check_columns(plain_softmax((swap(q) * 0.5) @ k) @ swap(v), turned=False)


def test_values_times_turned_weights() -> None:
    q, k, v = map(heads, COLUMNS)
    check_columns(v @ swap(plain_softmax((swap(q) @ k) * 0.5)), turned=True)


def test_a_product_of_columns_that_is_no_attention_stays_one_kernel() -> None:
    q, k, _ = map(heads, COLUMNS)
    graph = recognised(swap(q) @ k).graph
    given = feeds(graph)
    near(run(graph, given)["y"], rows(given["q"]) @ given["k"].reshape(2, 2, 4, 5))


def test_a_mask_that_is_subtracted() -> None:
    q, k, v = ROWS
    mask = input("mask", f32[2, 1, 1, 5])
    value = found(plain_softmax((q @ swap(k)) * 0.5 - mask * 1e4) @ v, "attention")
    assert "mask" in {str(x.attrs.get("name")) for operand in value.operands for x in (operand, *operand.operands)}
    graph = recognised(plain_softmax((q @ swap(k)) * 0.5 - mask * 1e4) @ v).graph
    given = feeds(graph, mask=np.array([[0, 0, 1, 1, 0], [1, 0, 0, 0, 0]], np.float32).reshape(2, 1, 1, 5))
    near(run(graph, given)["y"], attend(given["q"], given["k"], given["v"], scale=0.5, added=given["mask"] * -1e4))


def zeroed(hidden: Value, fill: float) -> Value:
    q, k, v = ROWS
    weights = plain_softmax(ops.where(hidden, leaf.scalar(fill, f32), (q @ swap(k)) * 0.5))
    return ops.where(hidden, leaf.scalar(0.0, f32), weights) @ v


@pytest.mark.slow
def test_weights_that_are_zeroed_where_scores_were_filled() -> None:
    mask = input("mask", f32[2, 1, 5, 5])
    seen = np.random.default_rng(3).random((2, 1, 5, 5)) < 0.5
    seen[0, 0, 2] = False
    seen[1, 0, :2, :2] = True
    for hidden, given_mask in (
        (input("hidden", bool_[2, 1, 5, 5]), {"hidden": ~seen}),
        (ops.equal(mask, 0.0), {"mask": seen.astype(np.float32)}),
        (ops.cast(1.0 - mask, dtype=bool_), {"mask": seen.astype(np.float32)}),
    ):
        for fill in (-np.inf, float(np.finfo(np.float32).min)):
            value = found(zeroed(hidden, fill), "attention")
            assert value.attrs["zero_unseen"] is True
            graph = recognised(zeroed(hidden, fill)).graph
            given = feeds(graph, **given_mask)
            wanted = attend(given["q"], given["k"], given["v"], scale=0.5, keep=seen, empty=0.0)
            near(run(graph, given)["y"], wanted)
