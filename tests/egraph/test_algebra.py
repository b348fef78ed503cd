"""Each identity holds, is found, and is used where it pays and only there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import pytest

from dovetail import Graph, Value, ops
from dovetail.dtypes import f16, f32, f64, i64
from dovetail.egraph.algebra import ALGEBRA
from dovetail.egraph.decide import SAME
from dovetail.egraph.engine import egraph_of
from dovetail.egraph.identity import Identities, Identity, Sight
from dovetail.egraph.proof import Application
from dovetail.egraph.rules import admitted
from dovetail.ir.leaf import input, param
from dovetail.ir.literal import Array
from dovetail.library.layer_norm import layer_norm
from dovetail.library.linear import linear
from dovetail.ops.convolution import conv
from dovetail.targets.reference.interpreter import evaluate
from tests.egraph.models import decided

X, Y = input("x", f32[3, 4]), input("y", f32[3, 4])
PLACES = input("places", i64[5])
IMAGE, WINDOWS = input("image", f32[2, 3, 6, 6]), param("windows", f32[4, 3, 3, 3])
WINDOW = {"strides": (1, 1), "dilations": (1, 1), "padding": (1, 1, 1, 1), "groups": 1}
SHAPES: Mapping[str, Mapping[str, Any]] = {
    "scaled_operand": {"x": X, "w": param("w", f32[4, 5]), "s": param("s", f32[()])},
    "scaled_rows": {"x": X, "w": param("w", f32[4, 5]), "s": param("s", f32[4])},
    "scaled_columns": {"x": X, "w": param("w", f32[4, 5]), "s": param("s", f32[5])},
    "product_of_weights": {"x": X, "a": param("a", f32[4, 5]), "b": param("b", f32[5, 2])},
    "products_in_turn": {"x": X, "a": param("a", f32[4, 5]), "b": param("b", f32[5, 2])},
    "transposed_product": {"x": X, "y": param("w", f32[4, 5])},
    "joined_products": {"x": X, "a": param("a", f32[4, 5]), "b": param("b", f32[4, 2])},
    "product_of_slices": {"x": X, "y": Y, "w": param("w", f32[8, 5])},
    "sum_of_known": {"x": X, "a": param("a", f32[4]), "b": param("b", f32[3, 1])},
    "product_of_known": {"x": X, "a": param("a", f32[4]), "b": param("b", f32[3, 1])},
    "shifted_rows": {"x": X, "w": param("w", f32[4, 5]), "s": param("s", f32[4])},
    "scaled_sum": {"x": X @ param("w", f32[4, 5]), "a": param("a", f32[5]), "b": param("b", f32[5])},
    "scaled_channels": {"x": IMAGE, "w": WINDOWS, "s": param("s", f32[4, 1, 1]), **WINDOW},
    "scaled_image": {"x": IMAGE, "w": WINDOWS, "s": param("s", f32[()]), **WINDOW},
    "three_joined_products": {"x": X, **{n: param(n, f32[4, 2]) for n in "abc"}},
    "stacked_products": {"x": X, "y": Y, "w": param("w", f32[4, 5])},
    "product_of_stacked": {"x": param("x", f32[2, 4]), "y": Y, "w": param("w", f32[4, 5])},
    "product_of_exponentials": {"x": X, "y": Y},
    "quotient_of_exponentials": {"x": X, "y": Y},
    "log_of_an_exponential": {"x": X},
    "log_of_a_share": {"x": X, "axes": (-1,)},
    "cast_of_a_gather": {"table": param("t", f32[7, 4]), "indices": PLACES, "axis": -2, "dtype": f64},
    "cast_of_parts": {"x": param("p", f32[3, 4]), "y": Y, "axis": -1, "dtype": f64},
    "cast_of_a_permute": {"x": ops.cast(X, dtype=f64), "order": (-1, -2), "dtype": f32},
}


def applications(each: Identity, caught: Mapping[str, Any]) -> list[Application]:
    """What one identity says of its own left side, and of that alone."""
    left = next(each.sides(**caught))
    egraph = egraph_of([left])
    return [a for a in Identities([each]).applications(egraph, egraph.nodes) if a.root is left]


def numbers(values: Iterable[Value]) -> dict[str, Array]:
    rng = np.random.default_rng(1)
    found: dict[str, Array] = {}
    for value in values:
        drawn = rng.normal(size=[s for s in value.shape if isinstance(s, int)])
        found[str(value.attrs["name"])] = np.asarray(np.abs(drawn) if value.dtype.is_integer else drawn).astype(
            value.dtype.numpy
        )
    return found


def test_every_identity_is_tried() -> None:
    assert SHAPES.keys() == {each.name for each in ALGEBRA}
    assert all(each.doc for each in ALGEBRA)


@pytest.mark.parametrize("each", ALGEBRA, ids=lambda each: each.name)
def test_both_sides_are_equal(each: Identity) -> None:
    found = applications(each, SHAPES[each.name])
    assert found
    for application in found:
        graph = Graph.of({"left": application.root, "right": application.result})
        sides = evaluate(graph, numbers(graph.inputs), params=numbers(graph.parameters), lift=True)
        np.testing.assert_allclose(sides["left"], sides["right"], rtol=1e-10, atol=1e-10)


@pytest.mark.parametrize(
    "name",
    [
        "scaled_operand",
        "scaled_rows",
        "scaled_columns",
        "shifted_rows",
        "scaled_sum",
        "sum_of_known",
        "product_of_known",
    ],
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
    assert exact == {"cast_of_a_gather", "cast_of_parts", "cast_of_a_permute"}


LATE = input("late", f32[()])
REFUSED: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "scaled_operand": ("one_number", {"s": LATE}),
    "scaled_rows": ("row_factor", {"s": input("late", f32[4])}),
    "scaled_columns": ("column_factor", {"s": input("late", f32[5])}),
    "shifted_rows": ("row_factor", {"s": param("s", f32[()])}),
    "scaled_sum": ("known_around_a_product", {"x": input("plain", f32[3, 5])}),
    "scaled_channels": ("channel_factor", {"s": param("s", f32[6])}),
    "scaled_image": ("number_of_weights", {"s": param("s", f32[6])}),
    "joined_products": ("matrices", {"a": param("a", f32[2, 4, 5]), "b": param("b", f32[2, 4, 2])}),
    "three_joined_products": ("matrices", {n: param(n, f32[2, 4, 2]) for n in "abc"}),
    "stacked_products": ("one_matrix", {"w": param("w", f32[2, 4, 5])}),
    "product_of_stacked": ("one_of_them_known", {"x": input("late", f32[2, 4])}),
    "product_of_slices": ("weight_of_both", {"w": input("late", f32[8, 5])}),
    "sum_of_known": ("known_in_turn", {"b": LATE}),
    "product_of_known": ("both_known", {"b": LATE}),
    "product_of_exponentials": ("read_once", {"y": input("row", f32[4])}),
    "quotient_of_exponentials": ("read_once", {"y": input("row", f32[4])}),
    "cast_of_a_gather": ("known_table", {"table": input("late", f32[7, 4])}),
    "cast_of_parts": ("some_known_or_cast", {"x": X}),
    "cast_of_a_permute": ("was_cast", {"x": input("wide", f64[3, 4])}),
}
"""Examples that the named condition of an identity refuses, and nothing else: what is caught in place of its shapes."""


@pytest.mark.parametrize("each", ALGEBRA, ids=lambda each: each.name)
def test_its_condition_refuses_what_does_not_meet_it(each: Identity) -> None:
    if each.when is None:
        # What always holds is declined where every bit must stay.
        left = next(each.sides(**SHAPES[each.name]))
        egraph = egraph_of([left])
        assert not list(Identities([each], strict=True).applications(egraph, egraph.nodes))
        return
    condition, instead = REFUSED[each.name]
    assert each.condition == condition
    caught = {**SHAPES[each.name], **instead}
    next(each.sides(**caught))
    assert not applications(each, caught)


@pytest.mark.parametrize("each", [e for e in ALGEBRA if e.numerics == "exact"], ids=lambda each: each.name)
def test_exact_identities_keep_every_bit_in_their_own_dtype(each: Identity) -> None:
    for application in applications(each, SHAPES[each.name]):
        graph = Graph.of({"left": application.root, "right": application.result})
        sides = evaluate(graph, numbers(graph.inputs), params=numbers(graph.parameters))
        assert sides["left"].tobytes() == sides["right"].tobytes()


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


def _conv(x: Value, w: Value) -> Value:
    return conv(x, w, strides=(1, 1), dilations=(1, 1), padding=(0, 0, 0, 0), groups=1)


TALL, THIN = input("tall", f32[512, 256]), param("thin", f32[256, 16])
FEW, WIDE = input("few", f32[2, 64]), param("wide", f32[64, 4096])
PICTURE = input("picture", f32[1, 16, 64, 64])
TINY = input("tiny", f32[1, 16_384, 1, 1])
KERNELS, MANY = param("kernels", f32[16, 16, 1, 1]), param("many", f32[8192, 16_384, 1, 1])
SQUARE = input("square", f32[256, 256])
OTHER = input("other", f32[512, 256])
ROWS, SPREAD = input("slim", f32[2048, 16]), param("broad", f32[16, 512])
PAYS: Mapping[str, Value] = {
    "scaled_operand": (ops.tanh(TALL) * param("s", f32[()])) @ THIN,
    "scaled_rows": (ops.tanh(TALL) * param("s", f32[256])) @ THIN,
    "scaled_columns": (ROWS @ SPREAD) * param("s", f32[512]),
    "transposed_product": ops.permute(
        ops.permute(SPREAD, order=(-1, -2)) @ ops.permute(ROWS, order=(-1, -2)), order=(-1, -2)
    )
    + param("b", f32[512]),
    "joined_products": ops.concat(SQUARE @ param("a", f32[256, 64]), SQUARE @ param("b", f32[256, 64]), axis=-1),
    "product_of_slices": ops.concat(TALL, OTHER, axis=-1) @ param("w", f32[512, 16]),
    "sum_of_known": (ROWS @ SPREAD + param("a", f32[512])) + param("b", f32[512]),
    "product_of_known": ((ops.tanh(TALL) * param("a", f32[256])) * param("b", f32[256])) @ THIN,
    "product_of_exponentials": ops.exp(TALL) * ops.exp(OTHER),
    "products_in_turn": input("x", f32[4, 600]) @ (input("l", f32[600, 600]) @ input("r", f32[600, 600])),
    "shifted_rows": (ops.tanh(TALL) + param("s", f32[256])) @ THIN,
    "scaled_sum": (ROWS @ SPREAD + param("a", f32[512])) * param("b", f32[512]),
    "scaled_channels": _conv(PICTURE, KERNELS) * param("s", f32[16, 1, 1]),
    "scaled_image": _conv(PICTURE * param("s", f32[()]), KERNELS),
    "three_joined_products": ops.concat(*(SQUARE @ param(n, f32[256, 64]) for n in "abc"), axis=-1),
    "stacked_products": ops.concat(FEW @ WIDE, input("more", f32[2, 64]) @ WIDE, axis=-2),
    "product_of_stacked": ops.concat(param("prefix", f32[512, 256]), input("x", f32[16, 256]), axis=-2)
    @ param("w", f32[256, 256]),
    "product_of_weights": (input("q", f32[4, 512, 8]) @ input("k", f32[4, 8, 512])) @ input("v", f32[4, 512, 8]),
    "quotient_of_exponentials": ops.exp(TALL) / ops.exp(OTHER),
    "log_of_an_exponential": ops.tanh(ops.log(ops.exp(TALL))),
    "log_of_a_share": ops.log(ops.exp(TALL) / ops.reduce_sum(ops.exp(TALL), axes=(-1,))),
    "cast_of_a_gather": ops.cast(ops.gather(param("t", f32[64, 256]), PLACES, axis=-2), dtype=f64),
    "cast_of_parts": ops.cast(ops.concat(ops.cast(input("h", f16[512, 256]), dtype=f32), TALL, axis=-1), dtype=f16),
    "cast_of_a_permute": ops.cast(
        ops.permute(ops.cast(input("h", f16[512, 256]), dtype=f32), order=(-1, -2)), dtype=f16
    ),
}
DECLINES: Mapping[str, Value] = {
    "shifted_rows": (ops.tanh(FEW) + param("s", f32[64])) @ WIDE,
    "scaled_sum": (TALL @ THIN + param("a", f32[16])) * param("b", f32[16]),
    "scaled_channels": _conv(TINY, MANY) * param("s", f32[8192, 1, 1]),
    "scaled_image": _conv(TINY * param("s", f32[()]), MANY),
    "product_of_stacked": ops.concat(param("prefix", f32[1, 64]), input("rows", f32[512, 64]), axis=-2) @ WIDE,
    "product_of_weights": (input("q", f32[4, 8, 512]) @ input("k", f32[4, 512, 8])) @ input("v", f32[4, 8, 512]),
    "cast_of_a_gather": ops.cast(ops.gather(param("t", f32[500_000, 256]), PLACES, axis=-2), dtype=f64),
    "stacked_products": ops.concat(
        input("m", f32[4096, 512]) @ param("n", f32[512, 8]),
        input("p", f32[4096, 512]) @ param("n", f32[512, 8]),
        axis=-2,
    ),
}


def used(value: Value) -> set[str]:
    """The rules behind what was chosen for a graph."""
    found = decided(Graph.of(value))
    assert found.search.chosen <= found.search.greedy * (1 + SAME)
    assert found.selection is not None
    return {s.application.rule for leader in found.selection.nodes for s in found.selection.explain(leader)}


@pytest.mark.parametrize("name", PAYS)
def test_it_is_used_where_it_pays(name: str) -> None:
    assert name in used(PAYS[name])


@pytest.mark.parametrize("name", DECLINES)
def test_it_is_declined_where_it_does_not(name: str) -> None:
    (each,) = (e for e in ALGEBRA if e.name == name)
    value = DECLINES[name]
    egraph = egraph_of([value])
    assert list(Identities([each]).applications(egraph, egraph.nodes)), "it could have been used"
    assert name not in used(value)


def test_what_a_layer_norm_scales_and_shifts_by_moves_into_the_layer_behind_it() -> None:
    x, w, c = input("x", f32[2048, 256]), param("w", f32[256, 2]), param("c", f32[2])
    normed = layer_norm(x, param("gain", f32[256]), param("bias", f32[256]), eps=1e-5)
    found = decided(Graph.of(normed @ w + c))
    assert found.search.chosen < found.search.greedy
    norms = [v for v in found.fused.graph.values if v.op is layer_norm]
    assert [len(v.operands) for v in norms] == [1], "the norm itself has neither gain nor bias"
    assert len([v for v in found.fused.graph.values if v.op is linear]) == 1
