"""scores: one scaled product, and no product with a weight."""

from __future__ import annotations

import numpy as np

from dovetail import ops
from dovetail.dtypes import f32
from dovetail.ir.leaf import input, param
from dovetail.library.scores import scores
from tests.library.attending import feeds, found, near, recognised, run

Q, K = input("q", f32[2, 3, 4, 6]), input("k", f32[2, 3, 5, 6])


def test_a_scale_on_both_sides_is_one() -> None:
    spelled = (Q * 0.5) @ (ops.permute(K, order=(-1, -2)) * 0.5)
    assert found(spelled, "scores") is scores(Q, K, scale=0.25, scaled="both")
    graph = recognised(spelled).graph
    arrays = feeds(graph)
    near(run(graph, arrays)["y"], np.einsum("bhid,bhjd->bhij", arrays["q"], arrays["k"]) / 4)


def test_a_scale_that_reads_elsewhere_too_keeps_its_value() -> None:
    product = Q @ ops.permute(K, order=(-1, -2))
    graph = recognised({"product": product, "y": product * 0.25}).graph
    arrays = feeds(graph)
    got = run(graph, arrays)
    near(got["product"], 4 * got["y"])


def test_a_product_with_a_weight_is_none() -> None:
    x, w = input("x", f32[2, 4, 6]), param("w", f32[5, 6])
    result = recognised((x @ ops.permute(w, order=(-1, -2))) * 0.25)
    assert all(v.op is not scores for v in result.graph.values)
    assert "keys_are_batched" in [m.reason for m in result.missed if m.rule == "scores"]
