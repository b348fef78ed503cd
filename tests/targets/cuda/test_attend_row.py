"""Attention of one query in f32 on a GPU: float64 judges it, at lengths that warps do not share evenly."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import library, ops
from dovetail.ir.dtype import DType, bool_, f16, f32
from tests.targets.cuda.simulated import SimulatedDriver, target_of


def _run(
    keys: int, heads: int, shared: int, how: str, kind: DType = f32, **device: Any
) -> tuple[Any, Any, SimulatedDriver]:
    builder, rng = dovetail.Builder("attention"), np.random.default_rng(2)
    q = builder.input("q", f32[2, heads, 1, 32])
    k, v = builder.input("k", kind[1, shared, "t", 32]), builder.input("v", kind[1, shared, "t", 64])
    given: dict[str, Any] = {"q": rng.normal(size=(2, heads, 1, 32)).astype(np.float32) * 3}
    given |= {n: rng.normal(size=(1, shared, keys, d)).astype(kind.numpy) for n, d in (("k", 32), ("v", 64))}
    k, v = (x if kind is f32 else ops.cast(x, dtype=f32) for x in (k, v))
    more: dict[str, Any] = {}
    if how in ("keep", "none"):
        more["fill"] = -np.inf
        more["keep"], given["keep"] = builder.input("keep", bool_[2, 1, 1, "t"]), rng.random((2, 1, 1, keys)) < 0.5
        given["keep"][..., 0] = True
        given["keep"][0] &= how == "keep"
    if how == "mask":
        more["mask"] = builder.input("mask", f32[2, 1, 1, "t"])
        given["mask"] = rng.normal(size=(2, 1, 1, keys)).astype(np.float32)
    groups = heads // shared if heads > shared else None
    builder.output("y", library.attention(q, k, v, scale=0.25, groups=groups, **more))
    driver = SimulatedDriver()
    driver.description = replace(driver.description, **device)
    found = dovetail.compile(builder.graph(), target=target_of(driver), cache="off").run(given)["y"]
    wide = {n: x.astype(np.float64) if x.dtype != bool else x for n, x in given.items()}
    k64, v64 = (np.repeat(wide[n], heads // shared, axis=1) for n in "kv")
    scores = wide["q"] @ np.swapaxes(k64, -1, -2) * 0.25
    scores = scores + wide["mask"] if how == "mask" else scores
    scores = np.where(wide["keep"], scores, -np.inf) if "keep" in wide else scores
    weights = np.exp(scores - scores.max(-1, keepdims=True))
    return found, weights @ v64 / weights.sum(-1, keepdims=True), driver


@pytest.mark.slow
@pytest.mark.parametrize(
    ("keys", "heads", "shared", "how"), [(1, 1, 1, ""), (70, 2, 1, "keep"), (65, 2, 2, "mask"), (33, 2, 1, "")]
)
def test_one_query_is_near_float64(keys: int, heads: int, shared: int, how: str) -> None:
    found, wanted, device = _run(keys, heads, shared, how)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)
    assert "launch attend_row" in device.log


@pytest.mark.slow
@pytest.mark.parametrize(("keys", "heads", "shared", "how"), [(70, 2, 1, "keep"), (33, 2, 2, "")])
def test_keys_and_values_of_f16_are_read_as_they_are(keys: int, heads: int, shared: int, how: str) -> None:
    """No kernel widens them before."""
    found, wanted, device = _run(keys, heads, shared, how, f16)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)
    assert [line for line in device.log if line.startswith("launch")] == ["launch attend_row"]


@pytest.mark.slow
def test_one_block_takes_all_keys_of_a_head_where_heads_are_many() -> None:
    """More keys than its warps have at a time."""
    found, wanted, device = _run(70, 2, 1, "keep", multiprocessors=1)
    np.testing.assert_allclose(found, wanted, rtol=2e-6, atol=2e-6)
    assert "launch attend_row" in device.log


@pytest.mark.slow
def test_a_query_that_sees_no_key_has_no_number() -> None:
    with np.errstate(invalid="ignore"):
        found, _, _ = _run(3, 1, 1, "none")
    assert np.isnan(found[0]).all() and not np.isnan(found[1]).any()
