"""Elementwise steps that read through any views: compiled, whatever the views are."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dovetail import Graph, Value, ops
from dovetail.dtypes import f32
from dovetail.ir.dim import floordiv, symbol
from dovetail.ir.dtype import DType, f16, f64, i32
from dovetail.ir.inline import outline
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.ops import build
from dovetail.ops.region import region
from tests.kernels.native import check

SIDE = input("side", f32[1])


def one(result: Value, *inputs: Value) -> Graph:
    """A region of everything between inputs and result."""
    return Graph.of(region(outline([result], inputs), inputs))


def normal(*shape: int) -> Array:
    return np.random.default_rng([3, *shape]).normal(size=shape).astype(np.float32)


@st.composite
def moved(draw: st.DrawFn, value: Value) -> Value:
    """A value through a few views, and elementwise steps between them."""
    for _ in range(draw(st.integers(1, 6))):
        kinds = ["permute", "merge", "slice", "flip", "split", "unsqueeze", "expand", "relu"]
        kind = draw(st.sampled_from(kinds if value.rank < 5 else kinds[:4]))
        sizes = [s for s in value.shape if isinstance(s, int)]
        axis = draw(st.integers(-value.rank, -1))
        match kind:
            case "permute":
                order = draw(st.permutations(range(-value.rank, 0)))
                value = ops.permute(value, order=tuple(order))
            case "merge" if axis > -value.rank:
                value = ops.merge(value, axis=axis, count=2)
            case "slice":
                start = draw(st.integers(0, sizes[axis] - 1))
                value = build.slice_axis(value, axis=axis, start=start, step=draw(st.integers(1, 3)))
            case "flip":
                value = ops.flip(value, axes=(axis,))
            case "split":
                divisors = [n for n in range(1, sizes[axis] + 1) if sizes[axis] % n == 0]
                n = draw(st.sampled_from(divisors))
                at = axis + value.rank
                value = build.reshape(value, (*sizes[:at], n, sizes[at] // n, *sizes[at + 1 :]))
            case "unsqueeze":
                value = ops.unsqueeze(value, axes=(axis,))
            case "expand" if sizes[axis] == 1:
                value = ops.expand(value, axis=axis, size=draw(st.integers(1, 4)))
            case _:
                value = ops.relu(value)
    return value


@pytest.mark.slow
@given(st.data())
def test_any_views(data: st.DataObject) -> None:
    shape = tuple(data.draw(st.lists(st.integers(1, 6), min_size=2, max_size=3)))
    x = input("x", f32[shape])
    y = ops.tanh(data.draw(moved(x)))
    check(one(y + SIDE, x, SIDE), {"x": normal(*shape), "side": normal(1)})


@pytest.mark.slow
@pytest.mark.parametrize("dtype", [f16, f64, i32])
def test_a_slice_across_merged_axes(dtype: DType) -> None:
    x = input("x", dtype[3, 7, 11])
    y = ops.neg(
        build.slice_axis(ops.merge(ops.permute(x, order=(-1, -2)), axis=-1, count=2), axis=-1, start=5, stop=70)
    )
    fed = (normal(3, 7, 11) * 9).astype(dtype.numpy)
    check(one(y, x), {"x": fed}, kernel="index_map")


def test_a_size_that_is_a_quotient() -> None:
    """Frames that a convolution made, put one after the other and cut to a length."""
    n = symbol("n")
    x = input("x", f32["b", 160, n])
    length = floordiv(n * 441, 5)
    signal = ops.merge(ops.permute(x, order=(-1, -2)), axis=-1, count=2)
    y = ops.relu(ops.slice_(signal, axis=-1, start=0, stop=length))
    check(one(y, x), *({"x": normal(b, 160, n)} for b, n in ((1, 1), (2, 7), (1, 40))), kernel="index_map")
