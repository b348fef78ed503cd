"""HIR to MIR: blocks are spelled out."""

from __future__ import annotations

import numpy as np

from dovetail import Graph, blocks
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.library.linear import linear
from dovetail.library.swiglu import swiglu
from dovetail.passes.lower_blocks import lower_blocks
from dovetail.targets.reference.interpreter import evaluate

X, UP, GATE, DOWN = input("x", f32[4, 8]), input("up", f32[8, 16]), input("gate", f32[8, 16]), input("down", f32[16, 8])


def test_a_block_is_spelled_out() -> None:
    """Four operands, three matmuls, silu and the product."""
    lowered = lower_blocks(Graph.of(blocks.swiglu_ffn(X, UP, GATE, DOWN)))
    assert lowered.count() == 9
    assert lowered.count(swiglu) == 0


def test_linear_is_a_block_of_its_own() -> None:
    b = input("b", f32[16])
    assert Graph.of(linear(X, UP, b, act="gelu")).count() <= 5
    assert Graph.of(linear.body(X, UP, b, act="gelu")).count() == 6


def test_it_computes_the_same() -> None:
    rng = np.random.default_rng(0)
    shapes = {"x": (4, 8), "up": (8, 16), "gate": (8, 16), "down": (16, 8)}
    feeds: dict[str, Array] = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x, up, gate, down = (feeds[n].astype(np.float64) for n in ("x", "up", "gate", "down"))
    activated = x @ gate / (1 + np.exp(-(x @ gate)))
    graph = lower_blocks(Graph.of(blocks.swiglu_ffn(X, UP, GATE, DOWN)))
    np.testing.assert_allclose(evaluate(graph, feeds, lift=True)["y"], ((x @ up) * activated) @ down, rtol=1e-9)


def test_a_graph_without_blocks_stays_as_it_is() -> None:
    graph = Graph.of(X @ UP)
    assert lower_blocks(graph) is graph
