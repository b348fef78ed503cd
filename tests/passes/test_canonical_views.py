"""The one form of views: heads, keys and masks as exporters write them, patterns, and movement at random."""

from __future__ import annotations

from itertools import permutations
from math import prod
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.dtype import i64
from dovetail.ir.leaf import Hole, hole, input
from dovetail.ir.type import TensorType
from dovetail.ops import build
from dovetail.passes.canonicalize import canonical_value, canonicalize
from dovetail.targets.reference.interpreter import evaluate, evaluate_values


def canonical(value: Value) -> Value:
    return canonicalize(Graph.of(value)).outputs["y"]


def heads(x: Value, count: Any) -> Value:
    return ops.permute(ops.split(x, axis=-1, parts=count), order=(-2, -3, -1))


def merged_heads(y: Value) -> Value:
    return ops.merge(ops.permute(y, order=(-2, -3, -1)), axis=-1)


def widened(k: Value, groups: Any) -> Value:
    return ops.merge(ops.expand(ops.unsqueeze(k, axes=(-3,)), axis=-3, size=groups), axis=-3)


SHAPES = [(2, 5, 12), (2, 1, 12), (1, 1, 12), (1, 5, 12), ("b", "s", 12)]


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_heads_stay_as_bodies_write_them(shape: tuple[Any, ...]) -> None:
    """A sequence of one token has the same form as any other, so that a decoding step matches as well."""
    x = input("x", f32[shape])
    b, s, _ = x.shape
    split = build.transpose(build.reshape(x, (b, s, 3, 4)), (0, 2, 1, 3))
    assert canonical(split) is heads(x, 3)
    y = input("y", TensorType(f32, (b, 3, s, 4)))
    assert canonical(build.reshape(build.transpose(y, (0, 2, 1, 3)), (b, s, 12))) is merged_heads(y)
    assert canonical(build.reshape(build.transpose(heads(x, 3), (0, 2, 1, 3)), (b, s, 12))) is x


@pytest.mark.parametrize("shape", [(2, 3, 5, 4), (2, 3, 1, 4), (1, 3, 1, 4), ("b", 3, "s", 4)], ids=str)
def test_grouped_heads(shape: tuple[Any, ...]) -> None:
    k = input("k", f32[shape])
    b, h, s, d = k.shape
    wide = build.reshape(build.broadcast_to(build.expand_dims(k, 2), (b, h, 2, s, d)), (b, h * 2, s, d))
    assert canonical(wide) is widened(k, 2)


@pytest.mark.parametrize("b", [1, 2])
@pytest.mark.parametrize("s", [1, 5])
def test_grouped_heads_of_a_projection(b: int, s: int) -> None:
    """A batch of one and a step of one token keep their places, and the groups are the new axis."""
    x = input("x", f32[b, s, 12])
    rows = build.expand_dims(build.transpose(build.reshape(x, (b, s, 3, 4)), (0, 2, 1, 3)), 2)
    wide = build.reshape(build.broadcast_to(rows, (b, 3, 2, s, 4)), (b, 6, s, 4))
    assert canonical(wide) is widened(heads(x, 3), 2)


def test_one_head_for_all_needs_no_widening() -> None:
    q, k = input("q", f32[2, 6, 5, 4]), input("k", f32[2, 1, 5, 4])
    assert canonical(widened(k, 6)) is ops.expand(k, axis=-3, size=6)
    assert canonical(q @ build.swap(widened(k, 6), -1, -2)) is q @ build.swap(k, -1, -2)


def transposed_keys(x: Value, b: Any, s: Any) -> dict[str, Value]:
    """The ways in which exporters get from a projection [b, s, h * d] to [b, h, d, s]."""
    split = build.reshape(x, (b, s, 3, 4))
    rows = build.transpose(split, (0, 2, 1, 3))
    flat = build.transpose(build.reshape(rows, (-1, s, 4)), (0, 2, 1))
    return {
        "straight": build.transpose(split, (0, 2, 3, 1)),
        "twice": build.transpose(rows, (0, 1, 3, 2)),
        "through rank 3": build.reshape(flat, (b, 3, 4, s)),
        "by a detour": build.transpose(build.transpose(split, (3, 2, 1, 0)), (3, 1, 0, 2)),
    }


@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_keys_however_they_are_transposed(shape: tuple[Any, ...]) -> None:
    """A matmul reads the swap of what attention takes as its keys."""
    x = input("x", f32[shape])
    b, s, _ = x.shape
    q = input("q", TensorType(f32, (b, 3, s, 4)))
    for keys in transposed_keys(x, b, s).values():
        assert canonical(q @ keys) is q @ build.swap(heads(x, 3), -1, -2)


def test_keys_of_grouped_heads() -> None:
    q, k = input("q", f32[2, 6, 5, 4]), input("k", f32[2, 3, 5, 4])
    scores = canonical(q @ build.swap(widened(k, 2), -1, -2))
    assert scores is q @ build.swap(widened(k, 2), -1, -2)


def test_a_vector_as_a_column_is_no_swap() -> None:
    x, v = input("x", f32[3, 4]), input("v", f32[4])
    product = x @ ops.unsqueeze(v, axes=(-1,))
    assert canonical(product) is product


def test_one_projection_for_queries_keys_and_values() -> None:
    """By slices with computed bounds, and by the detour of nn.MultiheadAttention."""
    x = input("x", f32["s", 2, 12])
    s = x.shape[0]
    split = build.reshape(x, (s, 2, 3, 4))
    turned = build.squeeze_dims(build.transpose(build.expand_dims(split, 0), (3, 1, 2, 0, 4)), 3)
    for i in range(3):
        third = ops.part(x, axis=-1, index=i, parts=3)
        assert canonical(ops.slice_(x, axis=-1, start=4 * i, stop=4 * i + 4)) is third
        assert canonical(build.select(turned, axis=0, index=i)) is third


def test_pairs_by_a_step_or_by_a_split() -> None:
    x = input("x", f32["s", 8])
    even = ops.squeeze(ops.part(ops.split(x, axis=-1, size=2), axis=-1, index=0, parts=2), axes=(-1,))
    assert canonical(ops.slice_(x, axis=-1, start=0, stop=8, step=2)) is canonical(even)


def test_halves_of_a_rotation_keep_their_heads() -> None:
    """A part of heads stays a part of the very value that the rest of the rotation reads."""
    x = heads(input("x", f32[2, 5, 12]), 3)
    low, high = (build.slice_axis(x, axis=-1, start=i, stop=i + 2) for i in (0, 2))
    turned = canonical(ops.concat(-high, low, axis=-1) + x)
    assert (
        turned
        is ops.concat(-ops.part(x, axis=-1, index=1, parts=2), ops.part(x, axis=-1, index=0, parts=2), axis=-1) + x
    )


def test_noise_of_exporters() -> None:
    x = input("x", f32["b", "s", 4])
    y = ops.concat(ops.cast(ops.cast(x, dtype=f32), dtype=f32), axis=-1) * 1.0
    y = build.reshape(build.reshape(y, (-1, 4)), x.shape)
    y = ops.expand(ops.unsqueeze(y, axes=(-1,)), axis=-1, size=1)
    y = ops.squeeze(y, axes=(-1,)) + leaf.constant(np.array([[-0.0]], np.float32))
    assert canonical(y) is x


def test_a_mask_that_hides_nothing() -> None:
    scores = input("scores", f32["b", 2, 17, 17])
    kept = build.broadcast_to(leaf.constant(np.ones((1, 1, 17, 1), np.bool_)), (scores.shape[0], 1, 17, 17))
    masked = scores + ops.where(kept, leaf.constant(0.0, f32), leaf.constant(-3e38, f32))
    assert canonical(masked) is scores


def test_a_padding_mask_is_not_repeated() -> None:
    scores, mask = input("scores", f32["b", 2, "s", "s"]), input("mask", i64["b", "s"])
    b, _, s, _ = scores.shape
    wide = build.broadcast_to(ops.unsqueeze(mask, axes=(-3, -2)), (b, 1, s, s))
    bias = (1.0 - ops.cast(wide, dtype=f32)) * -3e38
    plain = (1.0 - ops.cast(ops.unsqueeze(mask, axes=(-3, -2)), dtype=f32)) * -3e38
    assert canonical(scores + bias) is canonical(scores + plain)
    assert canonical(scores + plain) is scores + plain


def steps(value: Value) -> list[tuple[str, dict[str, Any]]]:
    found: list[tuple[str, dict[str, Any]]] = []
    while value.operands:
        found.append((value.op.name, dict(value.attrs)))
        value = value.operands[0]
    return found


def test_patterns_have_the_forms_of_graphs() -> None:
    x, count = hole("x"), Hole("h")
    for pattern in (heads(x, count), merged_heads(x), widened(x, count), x * x, ops.part(x, axis=-1, index=0, parts=2)):
        assert canonical_value([pattern]) == [pattern]
    keys = ops.permute(heads(x, count), order=(-1, -2))
    assert steps(canonical_value([keys])[0])[0] == ("permute", {"order": (-2, -1, -3)})
    q = hole("q")
    assert canonical_value([q @ keys]) == [q @ build.swap(heads(x, count), -1, -2)]
    assert canonical_value([merged_heads(heads(x, count))]) == [x]
    assert canonical_value([ops.squeeze(ops.unsqueeze(x, axes=(-2,)), axes=(-2,))]) == [x]
    grouped = ops.split(x, axis=-3, parts=count)
    assert canonical_value([ops.merge(grouped, axis=-1, count=3)]) == [ops.merge(grouped, axis=-1, count=3)]


@st.composite
def movements(draw: st.DrawFn) -> tuple[Value, Value]:
    """The same movement of one source, once straight and once by detours."""
    sizes = st.sampled_from((1, 2, 4, 8))
    x = input("x", f32[tuple(draw(st.lists(sizes, min_size=1, max_size=4)))])
    straight = winding = x
    for _ in range(draw(st.integers(1, 4))):
        if draw(st.booleans()):
            order = draw(st.permutations(range(straight.rank)))
            straight, winding = (build.transpose(v, order) for v in (straight, winding))
        elif 1 in straight.shape and draw(st.booleans()):
            axis = straight.shape.index(1)
            straight, winding = (ops.expand(v, axis=axis, size=2) for v in (straight, winding))
        else:
            shape = draw(shapes_of(count(straight)))
            straight, winding = (build.reshape(v, shape) for v in (straight, winding))
        for _ in range(draw(st.integers(0, 2))):
            winding = detour(draw, winding)
    return straight, winding


def count(value: Value) -> int:
    return prod(s for s in value.shape if isinstance(s, int))


@st.composite
def shapes_of(draw: st.DrawFn, elements: int) -> tuple[int, ...]:
    shape: list[int] = []
    while elements > 1:
        size = draw(st.sampled_from([d for d in (2, 4, 8) if elements % d == 0]))
        shape.append(size)
        elements //= size
    for _ in range(draw(st.integers(0, 2))):
        shape.insert(draw(st.integers(0, len(shape))), 1)
    return tuple(shape)


def detour(draw: st.DrawFn, value: Value) -> Value:
    """Somewhere else and back again."""
    order = draw(st.permutations(range(value.rank)))
    turned = build.transpose(value, order)
    back = build.reshape(build.reshape(turned, draw(shapes_of(count(turned)))), turned.shape)
    return build.transpose(back, [order.index(i) for i in range(value.rank)])


@pytest.mark.slow
@given(movements())
def test_a_movement_has_one_form(pair: tuple[Value, Value]) -> None:
    straight, winding = pair
    assert canonical_value([straight])[0] is canonical_value([winding])[0]
    (x,) = Graph.of(straight).inputs
    numbers = np.arange(count(x), dtype=np.float32).reshape(tuple(int(s) for s in x.shape if isinstance(s, int)))
    got, wanted = evaluate_values([canonical(winding), straight], {x: numbers})
    assert np.array_equal(got, wanted)


@pytest.mark.parametrize("order", list(permutations(range(3))), ids=str)
def test_a_reshape_that_fits_no_axis(order: tuple[int, ...]) -> None:
    """[4, 6] to [3, 2, 4] joins both axes and cuts them anew; what follows starts from there."""
    x = input("x", f32[4, 6])
    y = build.transpose(build.reshape(x, (3, 2, 4)), order)
    numbers = np.arange(24, dtype=np.float32).reshape(4, 6)
    got = evaluate(Graph.of(canonical(y)), {"x": numbers})["y"]
    assert np.array_equal(got, numbers.reshape(3, 2, 4).transpose(order))
    back = build.reshape(build.transpose(y, np.argsort(order).tolist()), (4, 6))
    assert canonical(back) is x


@pytest.mark.heavy
def test_many_reshapes_that_fit_no_axis() -> None:
    """A chain that is longer than anyone looks down stays right, and its form is found in one go."""
    y = x = input("x", f32[4, 6, 5])
    array = np.arange(120, dtype=np.float32).reshape(4, 6, 5)
    wanted = array
    for i, shape in enumerate([(3, 8, 5), (10, 3, 4), (5, 4, 6), (8, 15), (6, 20), (12, 10), (4, 6, 5)] * 8):
        order = [(a + i) % len(shape) for a in range(len(shape))]
        y, wanted = build.transpose(build.reshape(y, shape), order), wanted.reshape(shape).transpose(order)
    changed = canonicalize(Graph.of(y))
    assert np.array_equal(evaluate(changed, {x.attrs["name"]: array})["y"], wanted)
    assert canonicalize(changed) is changed
