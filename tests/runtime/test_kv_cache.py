"""A KV cache that is an input with symbolic length: updated in place, compiled once, the same from token to token."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import dovetail
from dovetail import Builder, Graph, Value, library, ops
from dovetail.declare.cost import estimate
from dovetail.dtypes import bool_, f32, i64
from dovetail.ir.dim import symbols

Array = NDArray[Any]
HEADS, WIDE, ROOM, TOKENS, LAYERS, BLOCK = 4, 16, 96, 8, 2, 4
WIDTH = HEADS * WIDE
WEIGHTS = [f"{name}{layer}" for layer in range(LAYERS) for name in ("wq", "wk", "wv")]
CACHES = [f"{name}{layer}" for layer in range(LAYERS) for name in ("keys", "values")]


def updated(cache: Value, at: Value, row: Value, by: str) -> Value:
    """The cache with one row per head at a position."""
    if by == "scatter_elements":
        index = ops.expand(ops.expand(ops.unsqueeze(at, axes=(-1, -3)), axis=-1, size=WIDE), axis=-3, size=HEADS)
        return ops.scatter_elements(cache, index, row, axis=-2)
    heads = ops.unsqueeze(ops.iota(size=HEADS), axes=(-1,))
    index = ops.concat(heads, ops.expand(ops.unsqueeze(at, axes=(-1,)), axis=-2, size=HEADS), axis=-1)
    return ops.scatter_nd(cache, index, ops.merge(row, axis=-2, count=2))


def step(by: str) -> Graph:
    """One token of a small decoder. The mask has one element for each position that it may read, padded to a block."""
    b = Builder("step")
    x, at, mask = b.input("x", f32[1, WIDTH]), b.input("at", i64[1]), b.input("mask", bool_["t"])
    for layer in range(LAYERS):
        caches = [b.input(f"{kind}{layer}", f32[HEADS, "room", WIDE]) for kind in ("keys", "values")]
        projected = [x @ b.param(f"{n}{layer}", f32[WIDTH, WIDTH]) for n in ("wq", "wk", "wv")]
        q, k, v = (ops.permute(ops.split(p, axis=-1, size=WIDE), order=(-2, -3, -1)) for p in projected)
        new = [updated(cache, at, row, by) for cache, row in zip(caches, (k, v), strict=True)]
        keys, values = (ops.slice_(cache, axis=-2, start=0, stop=mask.shape[0]) for cache in new)
        scores = ops.where(mask, (q @ ops.permute(keys, order=(-1, -2))) * (WIDE**-0.5), -1e30)
        found = library.softmax.body(scores, axis=-1) @ values
        x = x + ops.merge(ops.permute(found, order=(-2, -3, -1)), axis=-1)
        for kind, cache in zip(("keys", "values"), new, strict=True):
            b.output(f"new_{kind}{layer}", cache, into=f"{kind}{layer}")
    b.output("y", x)
    return b.graph()


def by_concatenation(tokens: Array, weights: dict[str, Array]) -> Array:
    """The same in float64 with caches that grow by one row a token."""
    wide = {name: w.astype(np.float64) for name, w in weights.items()}
    past = {name: np.zeros((HEADS, 0, WIDE)) for name in CACHES}
    found: list[Array] = []
    for token in tokens.astype(np.float64):
        x = token[None]
        for layer in range(LAYERS):
            q, k, v = ((x @ wide[f"{n}{layer}"]).reshape(1, HEADS, WIDE).transpose(1, 0, 2) for n in ("wq", "wk", "wv"))
            for kind, row in (("keys", k), ("values", v)):
                past[f"{kind}{layer}"] = np.concatenate([past[f"{kind}{layer}"], row], 1)
            scores = q @ past[f"keys{layer}"].transpose(0, 2, 1) / np.sqrt(WIDE)
            share = np.exp(scores - scores.max(-1, keepdims=True))
            share /= share.sum(-1, keepdims=True)
            x = x + (share @ past[f"values{layer}"]).transpose(1, 0, 2).reshape(1, WIDTH)
        found.append(x)
    return np.concatenate(found)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("by", ["scatter_elements", "scatter_nd"])
def test_tokens_are_those_of_caches_that_grow(by: str, target: str) -> None:
    rng = np.random.default_rng(0)
    weights = {name: rng.normal(size=(WIDTH, WIDTH)).astype(np.float32) / 8 for name in WEIGHTS}
    tokens = rng.normal(size=(TOKENS, WIDTH)).astype(np.float32)
    expected = by_concatenation(tokens, weights)
    program = dovetail.compile(step(by), target=target, params=weights)
    caches = {name: np.full((HEADS, ROOM, WIDE), np.nan, np.float32) for name in CACHES}
    for cache in caches.values():
        cache[:, : 2 * BLOCK] = 0
    for at in range(TOKENS):
        read = -(-(at + 1) // BLOCK) * BLOCK
        inputs = {"x": tokens[at : at + 1], "at": np.array([at]), "mask": np.arange(read) <= at}
        found = program.run({**inputs, **caches})
        assert all(found[f"new_{name}"] is cache for name, cache in caches.items())
        np.testing.assert_allclose(found["y"], expected[at : at + 1], rtol=2e-4, atol=2e-5)
    assert all(np.isnan(cache[:, TOKENS:]).all() for cache in caches.values()), "nothing else was written"


@pytest.mark.slow
@pytest.mark.parametrize("by", ["scatter_elements", "scatter_nd"])
def test_no_cache_is_copied_or_held_twice(by: str) -> None:
    """By the plan and by the report: bytes of a run do not grow with the room of the caches."""
    program = dovetail.compile(step(by))
    plan = program.plan
    assert [d.copied for d in plan.donations] == [0] * len(CACHES)
    assert "room" not in symbols(plan.arena_size)
    assert estimate(plan.arena_size, {"t": 64}) < HEADS * ROOM * WIDE * 4
    inside = [s for s in plan.steps if any(plan.slots[r].pool == "donated" for r in s.results)]
    assert [s.value.op.name for s in inside] == [by] * len(CACHES)
    assert all(s.over is not None for s in inside)
    updates = [k for k in program.report.kernels if k.op == by]
    assert sum(k.bytes for k in updates) < len(CACHES) * 8 * HEADS * WIDE * 4
    assert all(d.copied_bytes == 0 for d in program.report.donated)


@pytest.mark.slow
def test_nothing_is_compiled_or_prepared_again_within_a_block() -> None:
    program = dovetail.compile(
        step("scatter_elements"), params={n: np.zeros((WIDTH, WIDTH), np.float32) for n in WEIGHTS}
    )
    caches = {name: np.zeros((HEADS, ROOM, WIDE), np.float32) for name in CACHES}

    def run(at: int, read: int) -> Any:
        x, mask = np.ones((1, WIDTH), np.float32), np.arange(read) <= at
        program.run({"x": x, "at": np.array([at]), "mask": mask, **caches})
        runner: Any = program._binding.runner  # pyright: ignore[reportPrivateUsage]
        (space,) = runner.calls.workspaces
        return runner, dict(space.calls)

    runner, calls = run(0, 32)
    for at in range(1, 32):
        assert run(at, 32) == (runner, calls)
    again, more = run(32, 64)
    assert again is runner and len(more) == len(calls) + 1
