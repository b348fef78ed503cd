"""The floor counts products, the weights that they read, and loops by how often they go round."""

from __future__ import annotations

import numpy as np

from dovetail import Graph, ops
from dovetail.bench.convnets import UnetBlock, unet_block
from dovetail.bench.roofline import roofline_of
from dovetail.bench.workloads import feeds_for
from dovetail.dtypes import f32
from dovetail.frontends.onnx import import_model
from dovetail.ir import leaf


def test_convolutions_and_their_weights() -> None:
    model = unet_block(UnetBlock(channels=32, size=8))
    flops, read = roofline_of(import_model(model), feeds_for(model))
    assert flops == 4 * 2 * 32 * 32 * 9 * 8 * 8
    assert read == 4 * 32 * 32 * 9 * 4


def test_symbols_come_from_the_inputs_and_a_weight_is_read_once() -> None:
    x, w = leaf.input("x", f32["n", 16]), leaf.param("w", f32[16, 16])
    graph = Graph.of((x @ w) @ w)
    flops, read = roofline_of(graph, {"x": np.zeros((3, 16), np.float32)})
    assert flops == 2 * 2 * 3 * 16 * 16
    assert read == 16 * 16 * 4


def test_a_loop_counts_every_round() -> None:
    xs, start, w = leaf.input("xs", f32["n", 1, 4]), leaf.input("h", f32[1, 4]), leaf.param("w", f32[4, 4])

    scanned = ops.scan(lambda h, x, w: (h @ w + x,), [start], [xs], [w])
    graph = Graph.of(scanned.carries[0])
    feeds = {"xs": np.zeros((5, 1, 4), np.float32), "h": np.zeros((1, 4), np.float32)}
    flops, read = roofline_of(graph, feeds)
    assert flops == 5 * (2 * 4 * 4 + 4)
    assert read == 4 * 4 * 4
