"""rms_norm_matmul: on where one panel of columns is all there is, off where the norm would be done again."""

from __future__ import annotations

import pytest

from dovetail.declare.cost import kernel_cost
from dovetail.derive.missed import COST
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.library.rms_norm import rms_norm
from dovetail.library.rms_norm_matmul import PANEL, rms_norm_matmul
from tests.library import judge
from tests.library.judge import fused, near, numbers, only_miss, run

X, GAIN = input("x", f32[256, 64]), param("gain", f32[64])
NARROW, WIDE = param("w", f32[64, PANEL]), param("w", f32[64, 32 * PANEL])
EPS = 2.0**-10


def test_it_fuses_a_narrow_weight() -> None:
    result = fused(rms_norm(X, GAIN, eps=EPS) @ NARROW)
    assert result.graph.outputs["y"] is rms_norm_matmul(X, NARROW, GAIN, eps=EPS)
    arrays = numbers(result.graph)
    near(run(result.graph, arrays)["y"], (judge.rms_norm(arrays["x"], EPS) * arrays["gain"]) @ arrays["w"])


def test_a_wide_weight_would_recompute_the_norm() -> None:
    result = fused(rms_norm(X, GAIN, eps=EPS) @ WIDE)
    assert only_miss(result) == ("rms_norm_matmul", COST)
    assert result.graph.count(rms_norm_matmul) == 0


def test_the_rows_are_read_once_a_panel() -> None:
    # 256 * 64 rows of 4 bytes, read once a panel; the weight once, the result once.
    for w, panels in ((NARROW, 1), (WIDE, 32)):
        moved = 4 * (panels * 256 * 64 + 64 * panels * PANEL + 256 * panels * PANEL)
        assert kernel_cost(rms_norm_matmul(X, w, GAIN, eps=EPS)).bytes == moved


@pytest.mark.parametrize("gain", [GAIN, None], ids=["gain", "no gain"])
def test_a_norm_that_others_read_stays(gain: judge.Value | None) -> None:
    normed = rms_norm(X, gain, eps=EPS)
    result = fused({"y": normed @ NARROW, "norm": normed})
    assert result.graph.outputs["norm"] is normed
    assert result.graph.count(rms_norm_matmul) == 0


def test_batched_weights_are_refused() -> None:
    result = fused(rms_norm(X, eps=EPS) @ param("w", f32[2, 64, 8]), always=True)
    assert only_miss(result) == ("rms_norm_matmul", "weight_is_a_matrix")
