"""Views as strides, judged by addresses: the elements of a root hold their own numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from numpy.lib.stride_tricks import as_strided

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32, f64, i64
from dovetail.ir import leaf
from dovetail.ir.dim import symbol
from dovetail.ir.value import make
from dovetail.plan.alias import Alias, dense_strides, find_aliases, is_dense, locate
from dovetail.targets.reference.interpreter import evaluate
from tests.moving import MOVING
from tests.strategies import graphs

X = leaf.input("x", i64[4, 6, 5])
VIEWS = {
    "split": ops.split(X, axis=1, parts=3),
    "split_size": ops.split(X, axis=1, size=2),
    "merge": ops.merge(X, axis=-1),
    "merge_all": ops.merge(X, axis=-1, count=3),
    "permute": ops.permute(X, order=(-1, -3, -2)),
    "permute_last_two": ops.permute(X, order=(-1, -2)),
    "slice": ops.slice_(X, axis=1, start=1, stop=6, step=2),
    "part": ops.part(X, axis=1, index=2, parts=3),
    "flip": ops.flip(X, axes=(0, 2)),
    "again": ops.again(ops.flip(X, axes=(0, 2))),
    "stop_gradient": ops.stop_gradient(ops.flip(X, axes=(0, 2))),
    "unsqueeze": ops.unsqueeze(X, axes=(-2, -4)),
    "squeeze": ops.squeeze(ops.part(X, axis=0, index=3, parts=4), axes=(0,)),
    "expand": ops.expand(ops.unsqueeze(X, axes=(-3,)), axis=-3, size=7),
    "flip_then_merge": ops.merge(ops.flip(X, axes=(1, 2)), axis=-1),
    "heads": ops.permute(ops.split(X, axis=1, parts=2), order=(-3, -1, -2)),
    "merge_across_ones": ops.merge(ops.unsqueeze(X, axes=(-2,)), axis=-1, count=3),
    "merge_of_repeats": ops.merge(
        ops.expand(ops.expand(ops.unsqueeze(X, axes=(-1, -2)), axis=-1, size=2), axis=-2, size=3), axis=-1
    ),
    "deep": ops.flip(
        ops.slice_(ops.permute(ops.merge(X, axis=1), order=(-1, -2)), axis=1, start=3, stop=20), axes=(1,)
    ),
}


def addresses(value: Value) -> np.ndarray[Any, Any]:
    """For each element the number that it has in a root that counts from 0."""
    (x,) = [v for v in Graph.of(value).values if v.op is leaf.INPUT]
    shape = tuple(s for s in x.shape if isinstance(s, int))
    counted = np.arange(int(np.prod(shape)), dtype=np.int64).reshape(shape)
    return evaluate(Graph.of(value), {"x": counted})["y"]


def followed(value: Value, alias: Alias) -> np.ndarray[Any, Any]:
    """For each element the number that its offset and strides lead to."""
    size = value.dtype.itemsize
    assert isinstance(alias.offset, int) and alias.offset % size == 0
    total = np.full(tuple(s for s in value.shape if isinstance(s, int)), alias.offset // size)
    for axis, stride in enumerate(alias.strides):
        assert isinstance(stride, int) and stride % size == 0
        along = np.arange(total.shape[axis]) * (stride // size)
        total = total + along.reshape([-1 if a == axis else 1 for a in range(total.ndim)])
    return total


@pytest.mark.parametrize("name", VIEWS)
def test_strides_lead_to_the_same_elements(name: str) -> None:
    value = VIEWS[name]
    alias = find_aliases(Graph.of(value).values)[value]
    assert alias.root is X
    np.testing.assert_array_equal(followed(value, alias), addresses(value))


@pytest.mark.parametrize(
    "value",
    [
        ops.merge(ops.permute(X, order=(-1, -2)), axis=-1),
        ops.merge(ops.slice_(X, axis=2, start=0, stop=4), axis=-1),
        ops.merge(ops.flip(X, axes=(2,)), axis=-1),
        ops.merge(ops.expand(ops.unsqueeze(X, axes=(-2,)), axis=-2, size=2), axis=-2),
    ],
)
def test_what_strides_cannot_tell_is_no_alias(value: Value) -> None:
    assert value not in find_aliases(Graph.of(value).values)


def test_view_of_a_copy_leads_to_the_copy() -> None:
    copy = ops.merge(ops.permute(X, order=(-1, -2)), axis=-1)
    view = ops.split(copy, axis=-1, parts=5)
    assert find_aliases(Graph.of(view).values)[view] == Alias(copy, 0, (240, 48, 8))


@pytest.mark.slow
@given(graphs(moves=MOVING, empty=True))
def test_random_views_of_random_roots(drawn: tuple[Graph, dict[str, Any]]) -> None:
    graph, _ = drawn
    aliases = find_aliases(graph.values)
    for value, alias in aliases.items():
        assert alias.root not in aliases
        seen = leaf.input("x", i64[tuple(alias.root.shape)])
        moved = _on(value, alias.root, seen)
        rescaled = tuple(s // value.dtype.itemsize * 8 for s in alias.strides)
        if 0 not in value.shape:
            offset = alias.offset // value.dtype.itemsize * 8
            np.testing.assert_array_equal(followed(moved, Alias(seen, offset, rescaled)), addresses(moved))


def _on(value: Value, old: Value, new: Value) -> Value:
    """The view of another root."""
    chain: list[Value] = []
    while value is not old:
        chain.append(value)
        (value,) = value.operands
    for link in reversed(chain):
        new = link.with_operands((new,))
    return new


def test_views_without_elements_lie_nowhere() -> None:
    empty = ops.slice_(X, axis=1, start=6, stop=6)
    flipped = ops.flip(empty, axes=(1,))
    aliases = find_aliases(Graph.of(flipped).values)
    assert aliases[empty].offset == 0 == aliases[flipped].offset
    merged = ops.merge(ops.permute(empty, order=(-1, -2)), axis=-1)
    assert merged in find_aliases(Graph.of(merged).values)


def test_symbolic_strides() -> None:
    s, h = symbol("s"), symbol("h")
    x = leaf.input("x", f32["b", "s", "h"])
    view = ops.permute(ops.flip(ops.split(x, axis=-1, parts=4), axes=(1,)), order=(-2, -3, -1))
    (alias,) = [a for v, a in find_aliases(Graph.of(view).values).items() if v is view]
    heads = h // 4
    assert alias == Alias(x, (s - 1) * h * 4, (s * h * 4, heads * 4, -(h * 4), 4))
    assert ops.merge(x, axis=-1) in find_aliases([x, ops.merge(x, axis=-1)])
    turned = ops.merge(ops.permute(x, order=(-1, -2)), axis=-1)
    assert turned not in find_aliases(Graph.of(turned).values)


def test_item_of_a_pack_is_its_operand() -> None:
    x, y = leaf.input("x", f32[2, 3]), ops.permute(leaf.input("y", f32[4, 2]), order=(-1, -2))
    packed = make(leaf.ITEM, (leaf.pack((x, y)),), {"index": 1})
    aliases = find_aliases(Graph.of(packed).values)
    assert locate(packed, aliases) == aliases[y] == Alias(y.operands[0], 0, (4, 8))


def test_dense() -> None:
    assert dense_strides(f64[2, 3, 5]) == (120, 40, 8)
    assert is_dense(f32[1, 3], (0, 4)) and is_dense(f32[3, 1], (4, 77))
    assert not is_dense(f32[2, 3], (0, 4))
    assert is_dense(f32[()], ())
    s = symbol("s")
    assert is_dense(f32[2, "s"], (s * 4, 4)) and not is_dense(f32["s", 2], (4, 8))


def test_as_strided_agrees() -> None:
    """NumPy's own strided view of a real array, once, against mistakes in `followed`."""
    value = VIEWS["deep"]
    alias = find_aliases(Graph.of(value).values)[value]
    root = np.random.default_rng(0).integers(0, 99, (4, 6, 5))
    assert isinstance(alias.offset, int)
    start = root.reshape(-1)[alias.offset // 8 :]
    shape = tuple(s for s in value.shape if isinstance(s, int))
    strides = tuple(s for s in alias.strides if isinstance(s, int))
    expected = np.flip(root.reshape(24, 5).T[:, 3:20], 1)
    np.testing.assert_array_equal(as_strided(start, shape, strides), expected)
