"""Attention without an axis of heads is one head: fused, and right."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Builder, library, ops
from dovetail.dtypes import f32
from dovetail.ops import build

Array = NDArray[Any]


@pytest.mark.slow
@pytest.mark.parametrize("scale", [None, 0.3])
@pytest.mark.parametrize("masked", [False, True])
@pytest.mark.parametrize("sizes", [(1, 1, 4), (4, 6, 8), (33, 70, 16), (128, 256, 64)])
def test_attention_of_rank_2(scale: float | None, masked: bool, sizes: tuple[int, int, int]) -> None:
    m, n, d = sizes
    b = Builder("g")
    q, k, v = b.input("q", f32[m, d]), b.input("k", f32[n, d]), b.input("v", f32[n, d])
    s = q @ build.swap(k, -1, -2)
    s = s if scale is None else s * scale
    s = s + b.input("mask", f32[m, n]) if masked else s
    b.output("y", library.softmax.body(s, axis=-1) @ v)
    program = dovetail.compile(b.graph(), cache="off")
    rng = np.random.default_rng(0)
    shapes = {"q": (m, d), "k": (n, d), "v": (n, d), **({"mask": (m, n)} if masked else {})}
    feeds: dict[str, Array] = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    added = feeds["mask"] if masked else 0.0
    wide: Array = feeds["q"].astype(float) @ feeds["k"].T.astype(float) * (scale or 1.0) + added
    weights: Array = np.exp(wide - np.max(wide, axis=-1, keepdims=True))
    want = weights / weights.sum(-1, keepdims=True) @ feeds["v"]
    np.testing.assert_allclose(program.run(feeds)["y"], want, rtol=1e-4, atol=1e-5)
    assert program.report.count("attention") == 1


@pytest.mark.slow
def test_a_product_with_a_weight_is_no_attention() -> None:
    b = Builder("g")
    x, w, v = b.input("x", f32[4, 8]), b.param("w", f32[6, 8]), b.param("v", f32[6, 8])
    b.output("y", ops.relu((x @ build.swap(w, -1, -2)) * 0.3) @ v)
    assert dovetail.compile(b.graph(), cache="off").report.count("scores") == 0
