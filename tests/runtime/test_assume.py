"""What-ifs: each remedy, applied to a graph that misses a fusion for that reason, makes the fusion happen."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np
import pytest

from dovetail import Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import OptionError
from dovetail.ir import leaf
from dovetail.ir.dtype import f16, f64
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.library import attention
from dovetail.ops.convolution import conv
from dovetail.runtime.assume import Assumptions, WhatIf, assume
from dovetail.runtime.request import make_request
from dovetail.targets.reference.interpreter import evaluate
from tests.tolerances import assert_close

X = leaf.input("x", f32[64, 96])
W = leaf.param("w", f32[96, 96])
PRODUCT = X @ W


def asked(outputs: Mapping[str, Value] | Value, *wanted: str, engine: str = "greedy") -> Assumptions:
    return assume(Graph.of(outputs), make_request(engine=engine, without=["fuse_epilogues"]), wanted)


def one(outputs: Mapping[str, Value] | Value, rule: str, reason: str, engine: str = "greedy") -> WhatIf:
    """The what-if of one rule and reason; the graph has such a miss."""
    found = asked(outputs, engine=engine).what_ifs
    (what_if,) = [w for w in found if (w.kind.rule, w.kind.reason) == (rule, reason)]
    return what_if


def types(what_if: WhatIf) -> list[str]:
    assert what_if.remedied is not None
    return [f"{v.op.name} {v.type}" for v in what_if.remedied.fresh]


def layers(bias: tuple[int, ...], count: int) -> Value:
    y: Value = X
    for index in range(count):
        y = ops.relu(y @ leaf.param(f"w{index}", f32[96, 96]) + leaf.param(f"b{index}", f32[bias]))
    return y


@pytest.mark.slow
@pytest.mark.parametrize("engine", ["greedy", "egraph"])
def test_a_bias_that_is_no_vector_in_every_layer(engine: str) -> None:
    what_if = one(layers((64, 96), 3), "linear", "bias_is_a_vector", engine)
    assert what_if.kind.count == 3 and what_if.fires == 3
    assert types(what_if) == ["param f32[96]"] * 3, "each layer has a bias of its own"
    assert what_if.predicted_gain > 0 and what_if.measured_gain is None
    assert what_if.comparison.after.kernels == 3
    assert "linear: bias_is_a_vector" not in what_if.comparison.after.missed


@pytest.mark.slow
def test_a_bias_with_axes_of_size_1_in_front_is_no_miss() -> None:
    assert not asked(layers((1, 96), 2)).what_ifs


def arrays(values: Sequence[Value]) -> dict[str, Array]:
    rng = np.random.default_rng(0)
    shapes = {str(v.attrs["name"]): (tuple(s for s in v.shape if isinstance(s, int)), v.dtype) for v in values}
    return {name: rng.normal(size=shape).astype(dtype.numpy) for name, (shape, dtype) in shapes.items()}


def assert_same(wanted: Graph, found: Graph) -> None:
    """Both compute the same; they have the same inputs and parameters."""
    feeds, params = arrays(wanted.inputs), arrays(wanted.parameters)
    expected, got = (evaluate(graph, feeds, params=params, lift=True) for graph in (wanted, found))
    for name in got:
        assert_close(got[name], expected[name], f64)


def test_residual_operands_of_two_shapes() -> None:
    x, row = leaf.input("x", f32[4, 64, 96]), leaf.param("row", f32[64, 96])
    total = x + row
    squares = ops.reduce_mean(total * total, axes=(-1,))
    y = total * ops.rsqrt(squares + 1e-5) * leaf.param("gain", f32[96])
    what_if = one(y, "residual_rms_norm", "operands_have_one_shape")
    assert what_if.fires == 1 and types(what_if) == ["param f32[4, 64, 96]"]
    assert what_if.remedied is not None and what_if.remedied.changes == ("r: f32[64, 96] → f32[4, 64, 96]",)


def test_a_mask_that_stretches_the_queries() -> None:
    q, k, v = (leaf.input(name, f32[1, 4, 32, 16]) for name in "qkv")
    mask = leaf.input("mask", f32[3, 1, 32, 32])
    what_if = one(attention.body(q, k, v, mask, scale=0.25), "attention", "masks_broadcast")
    assert what_if.fires == 1 and types(what_if) == ["input f32[3, 4, 32, 16]"]


def test_a_number_that_does_not_hide() -> None:
    q, k, v = (leaf.input(name, f32[1, 4, 32, 16]) for name in "qkv")
    y = attention.body(q, k, v, scale=0.25, causal=True, fill=-1e3)
    what_if = one(y, "attention", "fill_hides")
    assert what_if.fires == 1 and not types(what_if)
    assert what_if.remedied is not None and what_if.remedied.changes == ("fill: -1000.0 → -inf",)


def test_an_inner_value_that_is_an_output_is_dropped() -> None:
    y = ops.relu(PRODUCT + leaf.param("b", f32[96]))
    what_if = one({"y": y, "inner": PRODUCT}, "linear", "interior_is_private")
    assert what_if.fires == 1 and what_if.comparison.after.kernels == 1
    assert what_if.remedied is not None and what_if.remedied.dropped == ("inner",)
    assert_same(Graph.of(y), what_if.remedied.graph)


def test_others_that_read_an_inner_value_read_an_input() -> None:
    y = ops.relu(PRODUCT + leaf.param("b", f32[96]))
    outputs = {"y": y, "sums": ops.reduce_sum(PRODUCT, axes=(-1,))}
    what_if = one(outputs, "linear", "interior_is_private")
    assert what_if.fires == 1 and types(what_if) == ["input f32[64, 96]"]
    assert what_if.remedied is not None and set(what_if.remedied.graph.outputs) == {"y", "sums"}


@pytest.mark.slow
def test_a_convolution_in_f16_with_a_norm() -> None:
    x, w = leaf.input("x", f16[1, 8, 16, 16]), leaf.param("w", f16[8, 8, 3, 3])
    gain, bias, mean, variance = (leaf.param(n, f16[8, 1, 1]) for n in ("gain", "bias", "mean", "variance"))
    y = conv(x, w, strides=(1, 1), dilations=(1, 1), padding=(1, 1, 1, 1), groups=1)
    y = (y - mean) * ops.rsqrt(variance + 1e-3) * gain + bias
    what_if = one(y, "conv_batch_norm", "weights_have_the_range")
    assert what_if.fires == 1 and not types(what_if)
    assert what_if.remedied is not None and "w: f16[8, 8, 3, 3] → f32[8, 8, 3, 3]" in what_if.remedied.changes
    assert what_if.remedied.graph.outputs["y"].type == y.type


@pytest.mark.slow
def test_a_pattern_that_fits_but_for_one_op_is_written_as_it_has_it() -> None:
    y = PRODUCT * ops.sigmoid(X @ leaf.param("gate", f32[96, 96]))
    found = [w for w in asked(y).what_ifs if w.kind.reason == "near_miss"]
    assert found and all(w.remedied is not None and w.fires == 1 for w in found)


def test_a_guard_without_a_remedy_says_so() -> None:
    x, w = leaf.input("x", f32[3, 32, 48]), leaf.input("w", f32[3, 48, 32])
    what_if = one(ops.relu(x @ w + leaf.param("b", f32[32])), "linear", "weight_is_a_matrix")
    assert what_if.remedied is None and what_if.fires == 0 and what_if.predicted_gain == 0
    assert what_if.refusal == "no automatic remedy for weight_is_a_matrix"


def test_a_change_that_the_rest_does_not_take_says_so() -> None:
    x = leaf.input("x", f32[1, 96])
    what_if = one(ops.relu(x @ W + leaf.param("b", f32[64, 96])), "linear", "bias_is_a_vector")
    assert what_if.remedied is None
    assert what_if.refusal.startswith("no automatic remedy: it would be f32[1, 96]")


@pytest.mark.slow
def test_what_was_computed_for_a_new_leaf_still_counts() -> None:
    bias = ops.exp(leaf.input("more", f32[64, 96]))
    what_if = one(ops.relu(PRODUCT + bias), "linear", "bias_is_a_vector")
    assert what_if.fires == 1 and what_if.remedied is not None and what_if.remedied.kept == ("kept_0",)
    assert what_if.remedied.graph.outputs["kept_0"] is bias
    assert what_if.comparison.after.kernels == 2


def test_a_model_with_arrays_gets_arrays_for_what_is_new() -> None:
    y = layers((64, 96), 1)
    plain = Graph.of(y)
    graph = replace(plain, params=arrays(plain.parameters))
    (what_if,) = assume(graph, make_request(without=["fuse_epilogues"]), ["linear"]).what_ifs
    assert what_if.remedied is not None
    assert {name: a.shape for name, a in what_if.remedied.graph.params.items()} == {
        "w0": (96, 96),
        "b0_assumed": (96,),
    }
    assert what_if.remedied.graph.params["w0"] is graph.params["w0"]


@pytest.mark.slow
def test_misses_are_named_by_number_rule_or_reason() -> None:
    y = layers((64, 96), 1)
    every = asked(y).what_ifs
    assert [w.kind.number for w in every] == list(range(1, len(every) + 1)) and every
    for word in ("1", every[0].kind.rule, every[0].kind.reason):
        assert [w.kind for w in asked(y, word).what_ifs] == [every[0].kind]
    with pytest.raises(OptionError, match="no miss 'swiglu'") as refused:
        asked(y, "swiglu")
    assert "linear: bias_is_a_vector" in refused.value.hint


def test_a_clean_model_has_nothing_to_assume() -> None:
    assert not asked(ops.relu(PRODUCT + leaf.param("b", f32[96]))).what_ifs
