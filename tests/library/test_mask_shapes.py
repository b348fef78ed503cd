"""Masks are brought to four axes by the rule that is named, never by a guess."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from dovetail import Graph, Value
from dovetail.dtypes import bool_, f16, f32, i64
from dovetail.errors import TypeRuleError
from dovetail.ir.leaf import input
from dovetail.library import mask_shapes
from dovetail.library.attention import attention
from tests.library.attending import INF, Array, attend, feeds, near, run

B, H, SQ, SK, D = 2, 3, 2, 4, 6
Q, K, V = input("q", f32[B, H, SQ, D]), input("k", f32[B, H, SK, D]), input("v", f32[B, H, SK, D])
Rule = Callable[[Value, Value, Value], Value]

RULES: dict[str, tuple[Rule, tuple[int, ...], Callable[[Array], Array]]] = {
    "keys": (mask_shapes.mask_of_keys, (B, SK), lambda m: m.reshape(B, 1, 1, SK)),
    "queries": (mask_shapes.mask_of_queries, (SQ, SK), lambda m: m.reshape(1, 1, SQ, SK)),
    "batches": (mask_shapes.mask_of_batches, (B, SQ, SK), lambda m: m.reshape(B, 1, SQ, SK)),
    "heads": (mask_shapes.mask_of_heads, (B, H, SQ, SK), lambda m: m),
}


@pytest.mark.parametrize("name", RULES)
def test_each_rule_stretches_in_its_own_way(name: str) -> None:
    rule, shape, stretched = RULES[name]
    mask, keep = input("mask", f32[shape]), input("keep", bool_[shape])
    graph = Graph.of(
        {
            "added": attention(Q, K, V, rule(mask, Q, K), scale=0.5),
            "kept": attention(Q, K, V, None, rule(keep, Q, K), scale=0.5, fill=-INF),
        }
    )
    arrays = feeds(graph)
    got = run(graph, arrays)
    q, k, v = (arrays[n] for n in "qkv")
    near(got["added"], attend(q, k, v, scale=0.5, added=stretched(arrays["mask"])))
    near(got["kept"], attend(q, k, v, scale=0.5, keep=stretched(arrays["keep"])))


def test_batch_and_queries_of_one_size_are_told_apart_by_the_rule() -> None:
    """[2, 4] is [b, sk] to one rule and [sq, sk] to another, and they are not the same."""
    mask = input("mask", f32[2, SK])
    by_keys = mask_shapes.mask_of_keys(mask, Q, K)
    by_queries = mask_shapes.mask_of_queries(mask, Q, K)
    assert by_keys.shape == (2, 1, 1, SK)
    assert by_queries.shape == (1, 1, 2, SK)
    graph = Graph.of({"keys": attention(Q, K, V, by_keys), "queries": attention(Q, K, V, by_queries)})
    got = run(graph, feeds(graph))
    assert not np.allclose(got["keys"], got["queries"])


@pytest.mark.parametrize(
    ("name", "shape"),
    [
        ("keys", (B, SQ, SK)),
        ("keys", (3, SK)),
        ("keys", (B, 5)),
        ("queries", (3, SK)),
        ("batches", (H, SQ, SK)),
        ("batches", (B, H, SK)),
        ("heads", (B, SQ, SK)),
        ("heads", (B, 2, SQ, SK)),
    ],
)
def test_a_mask_that_does_not_fit_its_rule_is_refused(name: str, shape: tuple[int, ...]) -> None:
    with pytest.raises(TypeRuleError, match=f"mask_of_{name}") as refused:
        RULES[name][0](input("mask", f32[shape]), Q, K)
    assert refused.value.hint


def test_masks_need_heads_to_go_to() -> None:
    with pytest.raises(TypeRuleError, match="queries"):
        mask_shapes.mask_of_keys(input("mask", f32[B, SK]), input("q", f32[B, SQ, D]), input("k", f32[B, SK, D]))


def test_kept_and_added_are_never_confused() -> None:
    keep, bias, padding = input("keep", bool_[SQ, SK]), input("bias", f32[SQ, SK]), input("padding", i64[SQ, SK])
    assert mask_shapes.kept(keep) is keep
    assert mask_shapes.kept(padding).dtype is bool_
    with pytest.raises(TypeRuleError, match="f32"):
        mask_shapes.kept(bias)
    assert mask_shapes.added(bias, f32) is bias
    assert mask_shapes.added(bias, f16).dtype is f16
    with pytest.raises(TypeRuleError, match="i64"):
        mask_shapes.added(padding, f32)
    graph = Graph.of({"added": mask_shapes.added(keep, f32), "kept": mask_shapes.kept(padding)})
    seen = np.array([[True, False, True, True], [False, True, True, False]])
    got = run(graph, {"keep": seen, "padding": seen * 7})
    assert got["added"].tolist() == [[0, -INF, 0, 0], [-INF, 0, 0, -INF]]
    assert got["kept"].tolist() == seen.tolist()
