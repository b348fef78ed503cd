"""Numbers near the limits of f16: what the graph as written keeps in range stays in range once it is fused."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.declare import fused_op
from dovetail.derive import laws
from dovetail.derive.fuse import Fused
from dovetail.dtypes import f16
from dovetail.ir.leaf import constant, input
from dovetail.library.conv_batch_norm import conv_batch_norm
from dovetail.library.scores import Scaled, scores
from dovetail.ops.convolution import conv
from dovetail.passes.canonicalize import canonicalize
from dovetail.targets.reference.interpreter import evaluate
from tests.library.judge import Array, fused

Q, K = input("q", f16[1, 2, 3, 64]), input("k", f16[1, 2, 5, 64])
KEYS = ops.permute(K, order=(-1, -2))


def full(value: Value, number: float) -> Array:
    return np.full(tuple(int(str(s)) for s in value.shape), number, np.float16)


def stays_in_range(written: Value, result: Fused, feeds: Mapping[str, Array]) -> None:
    expected = evaluate(Graph.of(written), feeds)["y"]
    assert np.isfinite(expected).all()
    got = evaluate(Graph.of(result.graph.outputs["y"]), feeds)["y"]
    np.testing.assert_allclose(got.astype(np.float64), expected.astype(np.float64), rtol=2e-3)


@pytest.mark.parametrize(
    ("scaled", "write"),
    [
        ("both", lambda: (Q * 0.125**0.5) @ (KEYS * 0.125**0.5)),
        ("queries", lambda: (Q * 0.125) @ KEYS),
        ("queries", lambda: (Q / 8.0) @ KEYS),
    ],
)
def test_a_scale_before_the_product_stays_before_it(scaled: Scaled, write: Callable[[], Value]) -> None:
    result = fused(write(), [scores])
    assert result.graph.outputs["y"] is scores(Q, K, scale=0.125, scaled=scaled)
    stays_in_range(write(), result, {"q": full(Q, 40), "k": full(K, 40)})


def test_a_divisor_whose_inverse_overflows_stays_a_divisor() -> None:
    written = (Q @ KEYS) / 1e-5
    result = fused(written, [scores])
    assert result.graph.count(scores) == 0
    stays_in_range(written, result, {"q": full(Q, 0.01), "k": full(K, 0.02)})


def test_a_norm_is_not_folded_into_weights_of_f16() -> None:
    x, w = input("x", f16[1, 1, 4, 4]), input("w", f16[2, 1, 1, 1])
    gain, bias, mean, variance = (input(n, f16[2, 1, 1]) for n in ("gain", "bias", "mean", "variance"))
    written = ((conv(x, w) - mean) * ops.rsqrt(variance + 2.0**-10)) * gain + bias
    result = fused(written, [conv_batch_norm])
    assert [m.reason for m in result.missed] == ["weights_have_the_range"]
    numbers = {x: 0.01, w: 3000, gain: 10, bias: 1, mean: 0, variance: 0}
    stays_in_range(written, result, {str(v.attrs["name"]): full(v, number) for v, number in numbers.items()})


def test_two_small_factors_are_not_folded_into_one_that_loses_bits() -> None:
    x = input("x", f16[8])
    written = (x * constant(3e-4, f16)) * constant(3e-4, f16)
    got = evaluate(canonicalize(Graph.of(written)), {"x": full(x, 6e4)})["y"]
    np.testing.assert_allclose(got, 6e4 * np.float16(3e-4).astype(np.float64) ** 2, rtol=2e-3)
    folded = canonicalize(Graph.of((x * constant(0.5, f16)) * constant(0.5, f16)))
    assert [v.op.name for v in folded.values] == ["input", "const", "mul"]


def test_the_law_finds_a_product_that_overflows_before_its_scale() -> None:
    @fused_op(shapes="x[m, k] w[k, n]")
    def late(x: Value, w: Value, *, scale: float) -> Value:
        return (x @ w) * scale

    @late.spelling
    def early(x: Value, w: Value, *, scale: float) -> Value:
        return (x * scale) @ w

    (variant,) = (v for v in late.variants if v.spelling == early.__name__)
    with np.errstate(all="ignore"), pytest.raises(laws.LawError, match="overflows in f16"):
        laws.check_range(late, variant, 6, evaluate)
