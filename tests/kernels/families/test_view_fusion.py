"""Elementwise steps with movement between them: one kernel, whatever is joined, padded, split and merged on the way."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from dovetail import Graph, Value, library, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import FLOATS, DType, i64
from dovetail.ir.inline import outline
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.library.rope import Form
from dovetail.ops.region import region
from dovetail.ops.resize import Coordinates, Rounding, resize
from dovetail.plan.plan import make_plan
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cpu.native import NativeGraph
from tests.kernels.native import compiled, near, numbers, same_bits


def one(result: Value, inputs: Sequence[Value]) -> Value:
    """A region of all that lies between."""
    return region(outline([result], tuple(inputs)), tuple(inputs))


def normal(*shape: int, seed: int = 0) -> Array:
    return np.random.default_rng([seed, *shape]).normal(size=shape).astype(np.float32)


@pytest.mark.slow
@pytest.mark.parametrize("form", ["half", "interleaved"])
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_rope(dtype: DType, form: Form) -> None:
    x, cos, sin = input("x", dtype["b", 3, "s", 8]), input("c", dtype["s", 8]), input("n", dtype["s", 8])
    wide = input("w", dtype["b", 3, "s", 13])
    made = {
        "whole": library.rope(x, cos, sin, form=form),
        "part": library.partial_rope(wide, cos, sin, rotated=8, form=form),
    }
    runner = compiled(made)
    for b, s in ((1, 1), (2, 7), (1, 100), (3, 0), (0, 4)):
        feeds = {"x": normal(b, 3, s, 8), "c": normal(s, 8), "n": normal(s, 8, seed=1), "w": normal(b, 3, s, 13)}
        near(runner, {name: a.astype(dtype.numpy) for name, a in feeds.items()})


def test_rope_of_heads_where_they_lie() -> None:
    x, cos, sin = input("x", f32["s", 4 * 64]), input("c", f32["s", 64]), input("n", f32["s", 64])
    heads = ops.permute(ops.split(x, axis=-1, parts=4), order=(-2, -3, -1))
    runner = compiled(library.rope(heads, cos, sin))
    for s in (1, 2, 17, 128):
        near(runner, {"x": normal(s, 256), "c": normal(s, 64), "n": normal(s, 64, seed=1)})


@pytest.mark.slow
def test_merged_axes_that_do_not_lie_densely() -> None:
    x, b = input("x", f32["h", "s", 16]), input("b", f32["s", "n"])
    rows = ops.merge(ops.permute(x, order=(-2, -3, -1)), axis=-1)
    made = one(ops.relu(rows) + ops.sized(b, axis=-1, size=symbol("h") * 16), (x, b))
    runner = compiled(made)
    for h, s in ((1, 1), (4, 7), (3, 100)):
        near(runner, {"x": normal(h, s, 16), "b": normal(s, 16 * h)})


@pytest.mark.parametrize("axis", [-1, -2])
def test_joined_padded_and_turned(axis: int) -> None:
    x, y = input("x", f32[6, 10]), input("y", f32[6, 10])
    joined = ops.concat(ops.neg(x), ops.exp(y), x, axis=axis)
    padded = ops.pad(joined * 2.0, 0.5, axis=axis, before=3, after=4)
    turned = ops.flip(padded, axes=(axis,))
    stepped = ops.slice_(turned, axis=axis, start=1, stop=turned.shape[axis], step=2)
    near(compiled(one(stepped + 1.0, (x, y))), {"x": normal(6, 10), "y": normal(6, 10, seed=1)})


def test_repeated_and_blocked() -> None:
    x, scale = input("x", f32[4, 12]), input("s", f32[4, 3])
    blocks = ops.merge(ops.expand(ops.unsqueeze(scale, axes=(-1,)), axis=-1, size=4), axis=-1)
    near(compiled(one(x * blocks - 1.0, (x, scale))), {"x": normal(4, 12), "s": normal(4, 3)})


def test_indices_are_computed_where_they_are_needed() -> None:
    x = input("x", f32["s", "t"])
    row = ops.unsqueeze(ops.iota(size=symbol("s"), dtype=i64), axes=(-1,))
    made = ops.where(ops.less_equal(ops.iota(size=symbol("t")), row + ops.extent(size=symbol("t"))), x, 0.0)
    runner = compiled(one(made + 0.0, (x,)))
    assert len(runner.graph.sections[0].steps) == 1
    for s, t in ((1, 1), (7, 3), (100, 33)):
        same_bits(runner, {"x": numbers(f32, s, t)})


def test_borders_that_no_algebra_orders_stay_on_the_host() -> None:
    x, y = input("x", f32["a", 4]), input("y", f32["b", 4])
    made = one(ops.concat(x, y, axis=-2) * ops.concat(y, x, axis=-2), (x, y))
    native = NativeGraph(make_plan(Graph.of(made), target=CPU))
    assert [s.value.op for s in native.on_host] == [region]
    for a, b in ((1, 3), (3, 1), (2, 2)):
        near(native.bind({}), {"x": normal(a, 4), "y": normal(b, 4)})


@pytest.mark.slow
@pytest.mark.parametrize("coordinates", ["asymmetric", "half_pixel", "tf_half_pixel_for_nn", "pytorch_half_pixel"])
@pytest.mark.parametrize("rounding", ["floor", "round_prefer_floor", "ceil"])
@pytest.mark.parametrize("factor", [2, 3])
def test_resized_inside(coordinates: Coordinates, rounding: Rounding, factor: int) -> None:
    x, y = input("x", f32["b", 3, "h", "w"]), input("y", f32["b", 3, symbol("h") * factor, symbol("w") * factor])
    scales = (float(factor), float(factor))
    wide = resize(x, axes=(-2, -1), scales=scales, mode="nearest", coordinates=coordinates, rounding=rounding)
    native = NativeGraph(make_plan(Graph.of(one(ops.relu(wide) + y, (x, y))), target=CPU))
    if (coordinates, rounding) in (("asymmetric", "floor"), ("half_pixel", "round_prefer_floor")):
        assert not native.on_host
    runner = native.bind({})
    for b, h, w in ((1, 1, 1), (2, 5, 7), (1, 16, 33)):
        near(runner, {"x": normal(b, 3, h, w), "y": normal(b, 3, h * factor, w * factor)})
