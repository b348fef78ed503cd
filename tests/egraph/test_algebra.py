"""Each identity holds, is found, and is used where it pays and only there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np
import pytest

from dovetail import Graph, Value, f16, f32, ops
from dovetail.egraph.algebra import ALGEBRA
from dovetail.egraph.engine import egraph_of
from dovetail.egraph.identity import Identities, Identity, Sight
from dovetail.egraph.proof import Application
from dovetail.egraph.rules import admitted
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.targets.reference.interpreter import evaluate
from tests.egraph.models import decided

X, Y = input("x", f32[3, 4]), input("y", f32[3, 4])
SHAPES: Mapping[str, Mapping[str, Value]] = {
    "scaled_operand": {"x": X, "w": param("w", f32[4, 5]), "s": param("s", f32[()])},
    "scaled_rows": {"x": X, "w": param("w", f32[4, 5]), "s": param("s", f32[4])},
    "scaled_columns": {"x": X, "w": param("w", f32[4, 5]), "s": param("s", f32[5])},
    "product_of_weights": {"x": X, "a": param("a", f32[4, 5]), "b": param("b", f32[5, 2])},
    "products_in_turn": {"x": X, "a": param("a", f32[4, 5]), "b": param("b", f32[5, 2])},
    "transposed_product": {"x": X, "y": param("w", f32[4, 5])},
    "joined_products": {"x": X, "a": param("a", f32[4, 5]), "b": param("b", f32[4, 2])},
    "product_in_parts": {"x": X, "y": Y, "w": param("w", f32[8, 5])},
    "sum_of_known": {"x": X, "a": param("a", f32[4]), "b": param("b", f32[3, 1])},
    "product_of_known": {"x": X, "a": param("a", f32[4]), "b": param("b", f32[3, 1])},
    "product_of_exponentials": {"x": X, "y": Y},
}


def applications(each: Identity, caught: Mapping[str, Value]) -> list[Application]:
    """What one identity says of its own left side, and of that alone."""
    left = next(each.sides(**caught))
    egraph = egraph_of([left])
    return [a for a in Identities([each]).found(egraph, egraph.nodes) if a.root is left]


def numbers(values: Iterable[Value]) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    shapes = {str(v.attrs["name"]): [s for s in v.shape if isinstance(s, int)] for v in values}
    return {name: np.asarray(rng.normal(size=shape), np.float32) for name, shape in shapes.items()}


def test_every_identity_is_tried() -> None:
    assert SHAPES.keys() == {each.name for each in ALGEBRA}
    assert all(each.doc for each in ALGEBRA)


@pytest.mark.parametrize("each", ALGEBRA, ids=lambda each: each.name)
def test_both_sides_are_equal(each: Identity) -> None:
    found = applications(each, SHAPES[each.name])
    assert found
    for application in found:
        graph = Graph.of({"left": application.root, "right": application.result}, inputs=(X, Y))
        sides = evaluate(graph, numbers(graph.inputs), params=numbers(graph.parameters), lift=True)
        np.testing.assert_allclose(sides["left"], sides["right"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name", ["scaled_operand", "scaled_rows", "scaled_columns", "sum_of_known", "product_of_known"]
)
def test_what_a_run_is_given_does_not_move_to_the_weights(name: str) -> None:
    (each,) = (e for e in ALGEBRA if e.name == name)
    last = list(SHAPES[name])[-1]
    late = {**SHAPES[name], last: input("late", SHAPES[name][last].tensor)}
    assert not applications(each, late)


def test_a_factor_of_a_narrow_weight_could_leave_its_range() -> None:
    (each,) = (e for e in ALGEBRA if e.name == "scaled_columns")
    caught = {"x": input("h", f16[3, 4]), "w": param("wh", f16[4, 5]), "s": param("sh", f16[5])}
    assert not applications(each, caught)


def test_a_value_that_others_read_is_kept() -> None:
    left = ops.exp(X) * ops.exp(Y)
    sight = Sight(egraph_of([left], {ops.exp(X): 2}))
    assert not sight.is_read_once(ops.exp(X)) and sight.is_read_once(ops.exp(Y))


def test_strictly_only_exact_identities_are_admitted() -> None:
    exact = {each.name for each in ALGEBRA if admitted(each.numerics, strict=True)}
    assert exact == {"transposed_product", "joined_products"}


def test_a_chain_of_products_is_done_in_the_cheapest_order() -> None:
    x = input("x", f32[4, 600])
    a, b = input("a", f32[600, 600]), input("b", f32[600, 4])
    assert decided(Graph.of(x @ (a @ b))).fused.graph.outputs["y"] in (x @ (a @ b), (x @ a) @ b)
    wide, narrow, back = input("p", f32[512, 8]), input("q", f32[8, 512]), input("r", f32[512, 8])
    cheap = decided(Graph.of((wide @ narrow) @ back)).fused.graph.outputs["y"]
    assert cheap is wide @ (narrow @ back)


def test_products_side_by_side_become_one() -> None:
    x, a, b = input("x", f32[16, 64]), param("a", f32[64, 64]), param("b", f32[64, 64])
    found = decided(Graph.of(ops.concat(x @ a, x @ b, axis=-1))).fused.graph
    assert found.outputs["y"] is x @ ops.concat(a, b, axis=-1)


def test_a_gain_after_a_norm_moves_into_the_weight_where_that_pays() -> None:
    x, gain, w = input("x", f32[512, 256]), param("gain", f32[256]), param("w", f32[256, 16])
    graph = Graph.of((ops.tanh(x) * gain) @ w)
    found = decided(graph)
    assert found.search.chosen < found.search.greedy
    assert not any(
        v.op is ops.mul and gain in v.operands and ops.tanh(x) in v.operands for v in found.fused.graph.values
    )
