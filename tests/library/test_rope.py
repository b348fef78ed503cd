"""rope and partial_rope from the forms that exporters write, judged pair by pair."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir import leaf
from dovetail.ir.leaf import input
from dovetail.library.partial_rope import partial_rope
from dovetail.library.rope import rope
from tests.library.attending import angles, feeds, near, recognised, rotate, run

S, D = 5, 8
X = input("x", f32[2, 3, S, D])
COS, SIN = input("cos", f32[S, D]), input("sin", f32[S, D])


def cut(x: Value, start: int, stop: int, step: int = 1) -> Value:
    return ops.slice_(x, axis=-1, start=start, stop=stop, step=step)


def halves(x: Value, cos: Value, sin: Value) -> Value:
    """Slices as exporters write them, with d / 2 worked out."""
    middle = int(str(x.shape[-1])) // 2
    turned = ops.concat(-cut(x, middle, 2 * middle), cut(x, 0, middle), axis=-1)
    return (x * cos) + (turned * sin)


def neighbours(x: Value, cos: Value, sin: Value) -> Value:
    """Every other feature, stacked again in pairs."""
    even, odd = cut(x, 0, D, 2), cut(x, 1, D, 2)
    pairs = ops.concat(ops.unsqueeze(-odd, axes=(-1,)), ops.unsqueeze(even, axes=(-1,)), axis=-1)
    return ops.merge(pairs, axis=-1) * sin + x * cos


def test_half_rotation() -> None:
    result = recognised(halves(X, COS, SIN))
    assert result.graph.outputs["y"] is rope(X, COS, SIN)
    cos, sin = angles(S, D)
    arrays = feeds(result.graph, cos=cos, sin=sin)
    near(run(result.graph, arrays)["y"], rotate(arrays["x"], cos, sin))


def test_neighbours() -> None:
    result = recognised(neighbours(X, COS, SIN))
    assert result.graph.outputs["y"] is rope(X, COS, SIN, form="interleaved")
    cos, sin = angles(S, D, neighbours=True)
    arrays = feeds(result.graph, cos=cos, sin=sin)
    near(run(result.graph, arrays)["y"], rotate(arrays["x"], cos, sin, neighbours=True))


def test_neighbours_written_in_place_of_zeros() -> None:
    """Even and odd features are rotated apart, and each is written with a step of two along the first axis."""
    even, odd = cut(X, 0, D, 2), cut(X, 1, D, 2)
    cos, sin = input("cos", f32[S, D // 2]), input("sin", f32[S, D // 2])
    first = leaf.constant(np.zeros((D, S, 3, 2), np.float32))
    for start, part in enumerate((even * cos - odd * sin, even * sin + odd * cos)):
        places = leaf.constant(np.arange(start, D, 2)[:, None])
        first = ops.scatter_nd(first, places, ops.permute(part, order=(-1, -2, -3, -4)), reduction="none")
    graph = recognised(ops.permute(first, order=(-1, -2, -3, -4))).graph
    assert graph.count(rope) == 1
    assert graph.count(ops.scatter_nd) == 0
    arrays = feeds(graph)
    x, c, s = (arrays[name] for name in ("x", "cos", "sin"))
    wanted = np.stack((x[..., ::2] * c - x[..., 1::2] * s, x[..., ::2] * s + x[..., 1::2] * c), -1)
    near(run(graph, arrays)["y"], wanted.reshape(x.shape))


def test_a_rotation_keeps_lengths() -> None:
    cos, sin = angles(S, D)
    graph = recognised(halves(X, COS, SIN)).graph
    arrays = feeds(graph, cos=cos, sin=sin)
    near(np.linalg.norm(run(graph, arrays)["y"], axis=-1), np.linalg.norm(arrays["x"], axis=-1))


@pytest.mark.parametrize("rotated", (2, 4, 6))
def test_part_of_the_head(rotated: int) -> None:
    cos, sin = input("cos", f32[S, rotated]), input("sin", f32[S, rotated])
    spelled = ops.concat(halves(cut(X, 0, rotated), cos, sin), cut(X, rotated, D), axis=-1)
    result = recognised(spelled)
    assert result.graph.outputs["y"] is partial_rope(X, cos, sin, rotated=rotated)
    turns = angles(S, rotated)
    arrays = feeds(result.graph, cos=turns[0], sin=turns[1])
    x = arrays["x"]
    expected = np.concatenate([rotate(x[..., :rotated], *turns), x[..., rotated:]], axis=-1)
    near(run(result.graph, arrays)["y"], expected)


def test_the_other_half_negated_is_the_rotation_by_the_opposite_angle() -> None:
    turned = ops.concat(cut(X, 4, 8), -cut(X, 0, 4), axis=-1)
    graph = recognised(X * COS + turned * SIN).graph
    assert graph.outputs["y"] is rope(X, COS, -SIN)
    cos, sin = angles(S, D)
    arrays = feeds(graph, cos=cos, sin=sin)
    near(run(graph, arrays)["y"], rotate(arrays["x"], cos, -sin))


def test_halves_of_unequal_width_are_none() -> None:
    turned = ops.concat(-cut(X, 3, 8), cut(X, 0, 3), axis=-1)
    assert all(v.op is not rope for v in recognised(X * COS + turned * SIN).graph.values)


def test_angles_that_are_larger_than_x() -> None:
    x = input("x", f32[S, D])
    cos, sin = input("cos", f32[2, S, D]), input("sin", f32[2, S, D])
    (missed,) = [m for m in recognised(halves(x, cos, sin)).missed if m.rule == "rope"]
    assert missed.reason == "angles_broadcast"
    assert "f32[2, 5, 8]" in missed.message


def test_one_angle_for_all_features() -> None:
    sin = input("sin", f32[S, 1])
    (missed,) = [m for m in recognised(halves(X, COS, sin)).missed if m.rule == "rope"]
    assert missed.reason == "angles_are_as_wide_as_x"
    assert "f32[5, 1]" in missed.message
