"""Algebra that pays, where it counts: in the kernels of each run, and in what is done once when weights are bound."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import f16, f32
from dovetail.ir.leaf import constant, input, param
from dovetail.library.layer_norm import layer_norm
from dovetail.ops.convolution import conv
from dovetail.runtime.compile import compilation, make_request


def kernels(value: Value, phase: str = "run") -> list[str]:
    """The ops of the kernels of a phase, as the e-graph chose them."""
    plan = compilation(Graph.of(value), make_request(target="cpu", engine="egraph")).plan
    return [step.value.op.name for step in plan.steps if step.phase == phase]


def _conv(x: Value, w: Value) -> Value:
    return conv(x, w, strides=(1, 1), dilations=(1, 1), padding=(0, 0, 0, 0), groups=1)


TALL, OTHER = input("tall", f32[2048, 256]), input("other", f32[2048, 256])
THIN = param("thin", f32[256, 2])
SLIM, BROAD = input("slim", f32[2048, 16]), param("broad", f32[16, 512])
PICTURE, WINDOWS = input("picture", f32[1, 16, 64, 64]), param("windows", f32[16, 16, 1, 1])
GAIN, BIAS = param("gain", f32[16, 1, 1]), param("bias", f32[16, 1, 1])
NORMED = layer_norm(TALL, param("g", f32[256]), param("b", f32[256]), eps=1e-5)
BACK = (-1, -2)
ONE_KERNEL: Mapping[str, Value] = {
    "a batch norm behind a convolution": _conv(PICTURE, WINDOWS) * GAIN + BIAS,
    "a transpose of a product of transposes": ops.permute(
        ops.permute(BROAD, order=BACK) @ ops.permute(SLIM, order=BACK), order=BACK
    ),
    "a reshape there and back": ops.relu(ops.merge(ops.split(TALL, axis=-1, parts=4), axis=-1)),
    "permutes that cancel": ops.relu(ops.permute(ops.permute(TALL, order=BACK), order=BACK)),
    "a product of numbers": ops.relu(SLIM * (constant(2.0, f32) * constant(3.0, f32))),
    "two biases": (SLIM @ BROAD + param("a", f32[512])) + param("c", f32[512]),
    "products side by side": ops.concat(TALL @ param("p", f32[256, 64]), TALL @ param("q", f32[256, 64]), axis=-1),
    "a cast there and back": ops.cast(ops.cast(input("h", f16[512, 256]), dtype=f32), dtype=f16)
    + input("i", f16[512, 256]),
    "the log of an exponential": ops.tanh(ops.log(ops.exp(TALL))),
    "the same twice": ops.tanh(TALL) * ops.tanh(TALL),
}


@pytest.mark.parametrize("name", ONE_KERNEL)
def test_it_is_one_kernel(name: str) -> None:
    assert len(kernels(ONE_KERNEL[name])) == 1


def test_a_scale_is_pushed_into_the_weight_when_it_is_bound() -> None:
    scaled = (SLIM @ BROAD) * param("s", f32[512])
    assert len(kernels(scaled)) == 1
    assert kernels(scaled, "bind"), "the weight is scaled once"


def test_the_gain_and_bias_of_a_layer_norm_move_into_the_layer_behind_it() -> None:
    found = compilation(Graph.of(NORMED @ THIN), make_request(target="cpu", engine="egraph")).plan
    norms = [s.value for s in found.steps if s.phase == "run" and s.value.op is layer_norm]
    assert [len(v.operands) for v in norms] == [1]


def test_a_chain_of_products_begins_where_it_is_thin() -> None:
    x, a, b = input("x", f32[4, 600]), input("l", f32[600, 600]), input("r", f32[600, 600])
    plan = compilation(Graph.of(x @ (a @ b)), make_request(target="cpu", engine="egraph")).plan
    sizes = [int(np.prod([s for s in step.value.shape if isinstance(s, int)])) for step in plan.steps]
    assert max(sizes) == 4 * 600
