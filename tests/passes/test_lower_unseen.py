"""Zeros of queries that see no key, where a finite fill hides keys: a step after an attention that has a kernel."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32
from dovetail.ir.leaf import input
from dovetail.ir.value import Value
from dovetail.passes.claims import Claims
from dovetail.passes.legalize import legalize
from dovetail.passes.lowerings import LOWERINGS
from dovetail.targets.cpu.claims import CLAIMS as CPU
from dovetail.targets.cuda.claims import CLAIMS as CUDA
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.simulated import SimulatedDriver, target_of
from tests.tolerances import assert_close

QUERIES, KEYS, WIDTH = 16, 24, 16
HIDDEN = [0, 3]
"""Queries that see no key."""


def attended(dtype: DType, op: str = "attention", **call: Any) -> Value:
    keys = KEYS if op == "attention" else QUERIES
    q, k, v = (input(n, dtype[1, 2, s, WIDTH]) for n, s in (("q", QUERIES), ("k", keys), ("v", keys)))
    if op == "attention":
        return library.attention(q, k, v, scale=0.25, zero_unseen=True, **call)
    cos, sin = (input(n, dtype[QUERIES, WIDTH]) for n in ("cos", "sin"))
    return library.rope_attention(q, k, v, cos, sin, scale=0.25, zero_unseen=True, **call)


def kept(keys: int = KEYS) -> Value:
    return input("keep", bool_[1, 1, QUERIES, keys])


def masked(dtype: DType) -> Value:
    return input("mask", dtype[1, 1, QUERIES, KEYS])


def feeds_of(graph: Graph) -> dict[str, Any]:
    """Some keys are hidden, and all of them for a few queries."""
    rng = np.random.default_rng(0)
    found: dict[str, Any] = {}
    for value in graph.inputs:
        shape = tuple(int(str(n)) for n in value.shape)
        found[str(value.attrs["name"])] = content = rng.normal(size=shape).astype(value.dtype.numpy)
        if value.dtype is bool_:
            content[...] = rng.random(shape) < 0.4
            content[..., HIDDEN, :] = False
        elif value.attrs["name"] == "mask":
            content[..., HIDDEN, :] = -np.inf
    return found


LOWERED: dict[str, Value] = {
    "keep": attended(bf16, keep=kept(), fill=-1e9),
    "keep_f16": attended(f16, keep=kept(), fill=-1e4),
    "mask_and_window": attended(bf16, mask=masked(bf16), causal=True, window=3, fill=-1e9),
    "rope": attended(f16, "rope_attention", keep=kept(QUERIES), fill=-1e4),
}


@pytest.mark.parametrize("claims", [CPU, CUDA], ids=["cpu", "cuda"])
@pytest.mark.parametrize("name", LOWERED)
def test_the_attention_stays_one_and_zeros_follow_it(name: str, claims: Claims) -> None:
    graph = Graph.of({"y": LOWERED[name]})
    legal = legalize(graph, claims, lowerings=LOWERINGS).graph
    assert legal.outputs["y"].op is dovetail.ops.where
    (inside,) = (v for v in legal.values if v.op in library.ATTENTIONS)
    assert inside.op is LOWERED[name].op and inside.attrs["zero_unseen"] is False
    feeds = feeds_of(graph)
    np.testing.assert_array_equal(evaluate(legal, feeds)["y"], evaluate(graph, feeds)["y"])


@pytest.mark.parametrize("dtype", [f16, f32], ids=["f16", "f32"])
@pytest.mark.parametrize("how", ["infinite", "mask"])
def test_an_attention_whose_scores_tell_is_left_as_it_is(how: str, dtype: DType) -> None:
    call: dict[str, Any] = {"mask": masked(dtype)} if how == "mask" else {"keep": kept(), "fill": -math.inf}
    graph = Graph.of({"y": attended(dtype, **call)})
    assert legalize(graph, CPU, lowerings=LOWERINGS).graph.outputs["y"] is graph.outputs["y"]


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("name", LOWERED)
def test_nothing_of_it_runs_on_the_host(name: str, target: str) -> None:
    graph = Graph.of({"y": LOWERED[name]})
    simulated = target_of(SimulatedDriver()) if target == "cuda" else "cpu"
    program = dovetail.compile(graph, target=simulated, cache="off")
    assert not [k.op for k in program.report.kernels if k.on_host]
    feeds = feeds_of(graph)
    got = program.run(feeds)["y"]
    assert_close(got, evaluate(graph, feeds, lift=True)["y"], LOWERED[name].dtype)
    assert not got[:, :, HIDDEN].any() and got[:, :, 4:].any()
