"""HIR to MIR: blocks under both policies."""

from __future__ import annotations

import numpy as np
import pytest

from dovetail import Graph, blocks, library
from dovetail.dtypes import f32
from dovetail.errors import TypeRuleError
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.library.linear import linear
from dovetail.library.swiglu import swiglu
from dovetail.passes.lower_blocks import lower_blocks
from dovetail.targets.reference.interpreter import evaluate

X, UP, GATE, DOWN = input("x", f32[4, 8]), input("up", f32[8, 16]), input("gate", f32[8, 16]), input("down", f32[16, 8])


def test_a_fusable_block_is_spelled_out() -> None:
    """Four operands, three matmuls, silu and the product."""
    lowered = lower_blocks(Graph.of(blocks.swiglu_ffn(X, UP, GATE, DOWN)), library.ALL)
    assert lowered.count() == 9
    assert lowered.count(swiglu) == 0


def test_a_direct_block_is_born_fused() -> None:
    lowered = lower_blocks(Graph.of(blocks.swiglu_ffn.build("direct", X, UP, GATE, DOWN)), library.ALL)
    assert lowered.count(swiglu) == 1
    assert lowered.count() == 6


def test_linear_is_a_block_of_its_own() -> None:
    b = input("b", f32[16])
    assert Graph.of(linear(X, UP, b, act="gelu")).count() <= 5
    assert Graph.of(linear.body(X, UP, b, act="gelu")).count() == 6


def test_both_policies_compute_the_same() -> None:
    rng = np.random.default_rng(0)
    shapes = {"x": (4, 8), "up": (8, 16), "gate": (8, 16), "down": (16, 8)}
    feeds: dict[str, Array] = {name: rng.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    x, up, gate, down = (feeds[n].astype(np.float64) for n in ("x", "up", "gate", "down"))
    activated = x @ gate / (1 + np.exp(-(x @ gate)))
    for policy in ("direct", "fusable"):
        graph = lower_blocks(Graph.of(blocks.swiglu_ffn.build(policy, X, UP, GATE, DOWN)), library.ALL)
        np.testing.assert_allclose(evaluate(graph, feeds, lift=True)["y"], ((x @ up) * activated) @ down, rtol=1e-9)


def test_an_unknown_policy_is_refused() -> None:
    with pytest.raises(TypeRuleError, match="policy 'fast'"):
        blocks.swiglu_ffn.build("fast", X, UP, GATE, DOWN)  # type: ignore[arg-type]


def test_a_graph_without_blocks_stays_as_it_is() -> None:
    graph = Graph.of(X @ UP)
    assert lower_blocks(graph, library.ALL) is graph
