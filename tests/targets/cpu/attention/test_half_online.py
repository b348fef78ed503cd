"""Attention for many queries in f16, which fast mode has: against float64, and where it stays f32."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import bool_, f32
from dovetail.ir.leaf import input
from dovetail.ir.literal import Array
from dovetail.settings import Precision
from dovetail.targets.cpu.isa import host_device

HEADS, SHARED = 4, 2
KEYS, QUERIES = symbol("n"), symbol("s")
needs_f16 = pytest.mark.skipif(
    not host_device().emits("f16_arithmetic") or host_device().lanes != 4, reason="this machine computes in no f16"
)


def graph(d: int, dv: int, **how: Any) -> Graph:
    q = input("q", f32[1, HEADS, QUERIES, d])
    k, v = input("k", f32[1, SHARED, KEYS, d]), input("v", f32[1, SHARED, KEYS, dv])
    if how.pop("kept", False):
        how["keep"] = input("keep", bool_[QUERIES, KEYS])
    return Graph.of({"y": library.attention(q, k, v, scale=d**-0.5, groups=HEADS // SHARED, **how)})


def feeds(d: int, dv: int, queries: int, keys: int) -> dict[str, Array]:
    rng = np.random.default_rng(queries + keys)
    sizes = {"q": (HEADS, queries, d), "k": (SHARED, keys, d), "v": (SHARED, keys, dv)}
    return {name: rng.normal(size=(1, *size)).astype(np.float32) for name, size in sizes.items()}


def wanted(given: dict[str, Array], keep: Array | None = None) -> Array:
    q, k, v = (given[name].astype(np.float64) for name in "qkv")
    k, v = (np.repeat(x, HEADS // SHARED, axis=1) for x in (k, v))
    scores = q @ k.swapaxes(-1, -2) * q.shape[-1] ** -0.5
    if keep is not None:
        scores = np.where(keep, scores, -np.inf)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True) @ v


def mean_error(graph: Graph, given: dict[str, Array], truth: Array, precision: Precision = "fast") -> float:
    found = dovetail.compile(graph, threads=1, precision=precision).run(given)["y"]
    return float(np.sqrt(np.mean(np.square(found - truth)) / np.mean(np.square(truth))))


@needs_f16
@pytest.mark.parametrize(
    ("d", "dv", "queries", "keys"),
    [(128, 128, 128, 512), (64, 64, 37, 100), (32, 24, 5, 7), (32, 8, 16, 64), (128, 128, 20, 2500)],
)
@pytest.mark.parametrize("kept", ["none", "all", "causal", "every third"])
def test_results_are_near(d: int, dv: int, queries: int, keys: int, kept: str) -> None:
    """Whole blocks of keys are seen, or hidden, or parts of them; of the last shape not all keys are packed."""
    given, row, key = feeds(d, dv, queries, keys), np.arange(queries)[:, None], np.arange(keys)
    seen = {"all": key + row >= 0, "causal": key <= row + keys - queries, "every third": (key + row) % 3 == 0}
    keep = seen.get(kept)
    how = {} if keep is None else {"kept": True, "fill": -np.inf}
    if keep is not None:
        given["keep"] = keep
    assert 1e-5 < mean_error(graph(d, dv, **how), given, wanted(given, keep)) < 2e-3


@needs_f16
def test_sums_of_large_values_do_not_overflow() -> None:
    """Equal weights of 512 keys: f16 ends at 65504. Terms that are equal round alike, so that errors add up."""
    given = feeds(32, 16, 16, 512)
    given["q"] *= 0.0
    given["v"] = 30000.0 + given["v"]
    assert mean_error(graph(32, 16), given, wanted(given)) < 1e-2


def alone(d: int) -> tuple[Graph, dict[str, Array], Array]:
    """One block of queries whose keys no other heads share, its operands and results."""
    rng, size = np.random.default_rng(0), (1, 2, 9, d)
    given = {name: rng.normal(size=size).astype(np.float32) for name in "qkv"}
    found = library.attention(*[input(name, f32[size]) for name in "qkv"], scale=d**-0.5)
    scores = given["q"].astype(np.float64) @ given["k"].swapaxes(-1, -2) * d**-0.5
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    return Graph.of({"y": found}), given, weights / weights.sum(axis=-1, keepdims=True) @ given["v"]


@needs_f16
def test_one_block_of_queries_whose_keys_no_others_share() -> None:
    assert 1e-5 < mean_error(*alone(32)) < 2e-3


@needs_f16
def test_exact_mode_and_few_queries_stay_f32() -> None:
    given = feeds(64, 64, 40, 200)
    assert mean_error(graph(64, 64), given, wanted(given), "exact") < 1e-6
    few = {**given, "q": given["q"][:, :, :4]}
    assert mean_error(graph(64, 64), few, wanted(few)) < 1e-6
