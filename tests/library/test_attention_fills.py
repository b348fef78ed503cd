"""attention where queries see nothing: a fill and a mask make of hidden keys what the model as written makes."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn

from dovetail import Graph, Value, ops
from dovetail.dtypes import bool_, f16, f32
from dovetail.ir import leaf
from dovetail.ir.leaf import input
from dovetail.library.attention import attention
from dovetail.targets.reference.interpreter import evaluate
from tests.library.attending import (
    INF,
    LOWEST,
    Array,
    added_mask,
    causal,
    feeds,
    found,
    near,
    plain_softmax,
    qkv,
    recognised,
    run,
    swap,
)

B, H, S, D = 2, 2, 5, 4
SCALE = 1 / math.sqrt(3)
Q, K, V = (input(name, f32[B, H, S, D]) for name in "qkv")
FILLS = (-INF, LOWEST, -1e9)
TRIANGLE = leaf.constant(np.tril(np.ones((1, 1, S, S), np.bool_)))


def positions(rank: int = 2) -> Value:
    """Whether a key stands at the position of the query or in front of it."""
    front = tuple(range(-rank, -2))
    rows = ops.unsqueeze(ops.iota(size=S), axes=(*front, -1))
    return ops.less_equal(ops.unsqueeze(ops.iota(size=S), axes=(*front, -2)), rows)


Form = Callable[[Value, float, Value | None], Value]
"""What goes into the softmax, from which keys are seen, the fill and a mask."""


def _plus(x: Value, mask: Value | None) -> Value:
    return x if mask is None else x + mask


FORMS: dict[str, Form] = {
    "last": lambda seen, fill, mask: ops.where(seen, _plus((Q @ swap(K)) * SCALE, mask), fill),
    "hidden": lambda seen, fill, mask: ops.where(ops.bit_not(seen), fill, _plus((Q @ swap(K)) * SCALE, mask)),
    "first": lambda seen, fill, mask: _plus(ops.where(seen, (Q @ swap(K)) * SCALE, fill), mask),
    "unscaled": lambda seen, fill, mask: _plus(ops.where(seen, Q @ swap(K), fill) * SCALE, mask),
    "divided": lambda seen, fill, mask: _plus(ops.where(seen, Q @ swap(K), fill) / math.sqrt(3), mask),
    "added": lambda seen, fill, mask: _plus((Q @ swap(K)) * SCALE + added_mask(seen, fill), mask),
}
SEEN: dict[str, Callable[[], Value]] = {
    "triangle": lambda: TRIANGLE,
    "positions": positions,
    "positions of rank 4": lambda: positions(4),
    "keep": lambda: input("keep", bool_[B, 1, S, S]),
    "positions and keep": lambda: ops.bit_and(positions(4), input("keep", bool_[B, 1, 1, S])),
}


def padded(lowest: float) -> Array:
    """A mask that hides all that the first queries of the second row may see."""
    mask = np.zeros((B, 1, 1, S))
    mask[1, ..., :3] = lowest
    return mask


@pytest.mark.parametrize("fill", FILLS)
@pytest.mark.parametrize("form", ["last", "first", "unscaled"])
@pytest.mark.parametrize("seen", ["triangle", "positions"])
def test_queries_whose_keys_are_all_padded(form: str, fill: float, seen: str) -> None:
    spelled = plain_softmax(FORMS[form](SEEN[seen](), fill, input("mask", f32[B, 1, 1, S]))) @ V
    value = found(spelled, "attention")
    assert attention.of(value).filled == ("last" if form == "last" else "first")
    assert attention.of(value).causal == (seen == "positions")
    graph = recognised(spelled).graph
    for low in (LOWEST, -1e9, -INF):
        arrays = feeds(graph, mask=padded(low))
        got = run(graph, arrays)["y"]
        with np.errstate(invalid="ignore"):
            expected = qkv(
                arrays,
                scale=SCALE,
                added=arrays["mask"],
                keep=causal(S, S),
                fill=fill * SCALE if form == "unscaled" else fill,
                filled=attention.of(value).filled,
            )
        near(got, expected)


@pytest.mark.parametrize("fill", FILLS)
def test_positions_that_are_added(fill: float) -> None:
    spelled = plain_softmax(FORMS["added"](SEEN["positions and keep"](), fill, None)) @ V
    options = attention.of(found(spelled, "attention"))
    assert (options.causal, options.filled, options.mask) == (True, "added", None)
    graph = recognised(spelled).graph
    keep = np.ones((B, 1, 1, S), np.bool_)
    keep[1, ..., :3] = False
    arrays = feeds(graph, keep=keep)
    with np.errstate(invalid="ignore"):
        expected = qkv(arrays, scale=SCALE, keep=causal(S, S) & keep, fill=fill, filled="added")
    near(run(graph, arrays)["y"], expected)


def test_a_fill_of_f16_that_was_scaled() -> None:
    q, k, v = (input(name, f16[1, 2, 4, 64]) for name in "qkv")
    keep, mask = input("keep", bool_[1, 1, 4, 4]), input("mask", f16[1, 1, 1, 4])
    spelled = plain_softmax(ops.where(keep, q @ swap(k), -65504.0) / 8.0 + mask) @ v
    fused = attention(q, k, v, mask, keep, scale=0.125, fill=-8188.0, filled="first")
    assert found(spelled, "attention") is fused


def test_a_scale_that_would_make_the_fill_infinite_stays_behind_it() -> None:
    filled = ops.where(TRIANGLE, Q @ swap(K), LOWEST) * 2.0
    graph = recognised(filled).graph
    assert graph.outputs["y"].op is not ops.where
    arrays = {name: array for name, array in feeds(graph).items() if name in ("q", "k")}
    got = evaluate(graph, {name: array.astype(np.float32) for name, array in arrays.items()}, lift=True)["y"]
    assert np.isfinite(got).all()


@dataclass(frozen=True, slots=True)
class Case:
    """A softmax as somebody wrote it, with masks that may hide all."""

    form: str
    seen: str
    fill: float
    mask: Array | None
    keep: Array
    guarded: bool


@st.composite
def cases(draw: DrawFn) -> Case:
    """Masks of every kind of low number, whole rows of them among others."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    seen = draw(st.sampled_from(sorted(SEEN)))
    rows = 1 if seen == "positions and keep" else S
    keep = rng.random((B, 1, rows, S)) < 0.7
    keep[rng.random((B, 1, rows)) < 0.3] = False
    mask = None
    if draw(st.booleans()):
        shape = (B, draw(st.sampled_from((1, H))), draw(st.sampled_from((1, S))), S)
        lows = np.array(draw(st.lists(st.sampled_from((LOWEST, -1e9, -1e4, -INF, 0.0)), min_size=1)))
        mask = np.where(rng.random(shape) < 0.5, rng.normal(size=shape), rng.choice(lows, shape))
        mask[rng.random(shape[:-1]) < 0.3] = rng.choice(lows)
    return Case(
        draw(st.sampled_from(sorted(FORMS))), seen, draw(st.sampled_from(FILLS)), mask, keep, draw(st.booleans())
    )


@pytest.mark.slow
@given(cases())
def test_fused_is_what_is_written(case: Case) -> None:
    mask = None if case.mask is None else input("mask", f32[case.mask.shape])
    weights = plain_softmax(FORMS[case.form](SEEN[case.seen](), case.fill, mask))
    if case.guarded:
        weights = ops.where(ops.is_nan(weights), 0.0, weights)
    fused = recognised(weights @ V).graph
    assert [v.op for v in fused.values if v.op is attention]
    given_to: dict[str, Any] = {"keep": case.keep}
    if case.mask is not None:
        given_to["mask"] = case.mask
    arrays = feeds(Graph.of(weights @ V), **given_to)
    seen = case.keep if case.seen == "keep" else causal(S, S)
    with np.errstate(all="ignore"):
        expected = qkv(
            arrays,
            scale=SCALE,
            added=0.0 if case.mask is None else case.mask,
            keep=seen & case.keep if case.seen == "positions and keep" else seen,
            fill=case.fill * SCALE if case.form in ("unscaled", "divided") else case.fill,
            filled="last" if case.form in ("last", "hidden") else "added" if case.form == "added" else "first",
            empty=0.0 if case.guarded else np.nan,
        )
        near(run(fused, arrays)["y"], expected)
