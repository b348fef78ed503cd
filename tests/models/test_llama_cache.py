"""A decoder whose KV cache is updated in place: a prompt and tokens after it share the cache, and nothing is copied."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import models
from dovetail.ir.dim import symbols
from dovetail.ir.literal import Array
from dovetail.models import LlamaShape, llama, llama_cached, random_weights
from dovetail.runtime.program import Program
from tests.targets.cuda.simulated import SimulatedDriver, target_of

SHAPE = LlamaShape(layers=2, hidden=32, heads=4, kv_heads=2, inner=48, vocabulary=50)
ROOM, PROMPT, TOKENS = 24, 5, 6
FAR = 1 << 40
"""A position that never comes."""


def caches(shape: LlamaShape, batch: int = 1) -> dict[str, Array]:
    """Empty caches; what no run has written must not be read."""
    size = (batch, shape.kv_heads, ROOM, shape.width)
    return {f"{s}_cache.{i}": np.full(size, np.nan, shape.dtype.numpy) for s in "kv" for i in range(shape.layers)}


def keys(count: int, padded: int = 0) -> Array:
    """The positions of the first rows, and of rows to which a run is padded."""
    return np.array([*range(count), *[FAR] * (max(padded, count) - count)])


def bound(graph: dovetail.Graph, **options: Any) -> Program:
    return dovetail.compile(graph, **options).bind(random_weights(graph))


def whole(shape: LlamaShape, ids: list[int]) -> Array:
    """Logits after the last token by the model without a cache, in float64."""
    graph = llama(shape)
    found = dovetail.evaluate(graph, {"input_ids": np.array([ids])}, params=random_weights(graph), lift=True)
    return found["logits"][0, -1]


@pytest.mark.exhaustive
@pytest.mark.parametrize("target", ["cpu", "reference"])
@pytest.mark.parametrize("shape", [SHAPE, replace(SHAPE, normed_heads=True, kv_heads=4)], ids=["grouped", "normed"])
def test_a_prompt_and_its_tokens_share_the_cache(shape: LlamaShape, target: str) -> None:
    prefill = bound(llama_cached(shape, seq="s"), target=target)
    step = bound(llama_cached(shape), target=target)
    state = caches(shape)
    ids = [3, 14, 15, 9, 26]
    # Rows that are not written yet are padding: their keys are hidden, their values are finite.
    for array in state.values():
        array[...] = 7.0
    found = prefill.run({"input_ids": np.array([ids]), "positions": np.arange(PROMPT), "keys": keys(PROMPT), **state})
    np.testing.assert_allclose(found["logits"][0, 0], whole(shape, ids), rtol=1e-4, atol=1e-5)
    token, position = found["next_ids"], found["next_positions"]
    for _ in range(TOKENS):
        ids.append(int(token[0, 0]))
        seen = keys(len(ids), padded=-(-len(ids) // 8) * 8)
        given = {"input_ids": token, "positions": position, "keys": seen, **state}
        found = step.run(given)
        expected = whole(shape, ids)
        np.testing.assert_allclose(found["logits"][0, 0], expected, rtol=1e-4, atol=1e-5)
        assert found["next_ids"] is token and int(token[0, 0]) == expected.argmax(), "the likeliest token"
        assert found["next_positions"] is position and int(position[0]) == len(ids)
        assert all(found[f"new_{name}"] is array for name, array in state.items())
    for array in state.values():
        assert (array[:, :, len(ids) :] == 7.0).all(), "rows after the last token are as they were"


@pytest.mark.slow
def test_a_prompt_in_parts_gives_the_same_cache() -> None:
    prefill = bound(llama_cached(SHAPE, seq="s"))
    ids = np.array([[3, 14, 15, 9, 26, 5, 35]])
    at_once, parts = caches(SHAPE), caches(SHAPE)
    one = prefill.run({"input_ids": ids, "positions": np.arange(7), "keys": keys(7), **at_once})
    many = one
    for start, stop in ((0, 3), (3, 4), (4, 7)):
        many = prefill.run(
            {"input_ids": ids[:, start:stop], "positions": np.arange(start, stop), "keys": keys(stop), **parts}
        )
    np.testing.assert_allclose(many["logits"], one["logits"], rtol=1e-5, atol=1e-6)
    for name, array in at_once.items():
        np.testing.assert_allclose(parts[name][:, :, :7], array[:, :, :7], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
def test_a_step_gives_what_the_step_with_concats_gives() -> None:
    concats, in_place = bound(models.llama_step(SHAPE)), bound(llama_cached(SHAPE))
    random = np.random.default_rng(0)
    past = {n: random.normal(size=(2, 2, 9, 8)).astype(np.float32) for n in ("k.0", "v.0", "k.1", "v.1")}
    ids = np.array([[4], [40]])
    expected = concats.run(
        {"input_ids": ids, "position": np.array([9]), **{f"past_{name}": array for name, array in past.items()}}
    )
    state = caches(SHAPE, batch=2)
    for name, array in past.items():
        state[f"{name[0]}_cache.{name[2]}"][:, :, :9] = array
    given = {"input_ids": ids.copy(), "positions": np.array([9]), "keys": keys(10), **state}
    found = in_place.run(given)
    np.testing.assert_allclose(found["logits"], expected["logits"], rtol=1e-5, atol=1e-6)
    for name in past:
        got = state[f"{name[0]}_cache.{name[2]}"][:, :, :10]
        np.testing.assert_allclose(got, expected[f"new_{name}"], rtol=1e-5, atol=1e-6)


@pytest.mark.slow
@pytest.mark.parametrize("target", ["cpu", "cuda"])
@pytest.mark.parametrize("seq", [1, "s"])
def test_no_step_copies_a_cache(seq: Any, target: str) -> None:
    """Steps that write a tensor as long as a cache do it in place; the arena does not grow with the room."""
    plan = dovetail.compile(llama_cached(SHAPE, seq=seq), target=target).plan
    assert all(donation.copied == 0 for donation in plan.donations)
    assert len(plan.donations) == 2 * SHAPE.layers + (2 if seq == 1 else 0)
    for size in (plan.arena_size, plan.scratch_size):
        assert isinstance(size, int) or "room" not in symbols(size)
    wide = [s for s in plan.phase("run") if any("room" in str(r.type) for r in s.results)]
    assert len(wide) == 2 * SHAPE.layers and all(s.over is not None for s in wide)


@pytest.mark.slow
def test_tokens_are_drawn_by_their_odds() -> None:
    shape = replace(SHAPE, layers=1, vocabulary=4)
    step = bound(llama_cached(shape, temperature=0.7))
    counts, logits = np.zeros(4), np.zeros(4)
    key = np.array([1, 2], np.uint32)
    for _ in range(600):
        state = caches(shape)
        given = {"input_ids": np.array([[1]]), "positions": np.array([0]), "keys": keys(1), "key": key, **state}
        found = step.run(given)
        counts[int(found["next_ids"][0, 0])] += 1
        logits = found["logits"][0, 0].astype(np.float64) / 0.7
    odds = np.exp(logits - logits.max())
    np.testing.assert_allclose(counts / 600, odds / odds.sum(), atol=0.08)
    assert key.tolist() == [601, 602], "each draw has a key of its own"


@pytest.mark.exhaustive
def test_a_gpu_gives_the_same_tokens_and_keeps_them() -> None:
    """On the fake device: inputs, caches and tokens are device arrays from the prompt to the last token."""
    shape = LlamaShape(layers=1, hidden=16, heads=2, kv_heads=1, inner=16, vocabulary=20)
    device = SimulatedDriver()
    target = target_of(device)
    graphs = [llama_cached(shape, seq=seq) for seq in ("s", 1)]
    prefill, step = (dovetail.compile(g, target=target, cache="off").bind(random_weights(g)) for g in graphs)
    state = prefill.to_device({name: np.zeros_like(array) for name, array in caches(shape).items()})
    ids = [3, 14]
    prompt = {"input_ids": np.array([ids]), "positions": np.arange(2), "keys": keys(2)}
    found = prefill.run({**prefill.to_device(prompt), **state}, outputs="device")
    token, position = found["next_ids"], found["next_positions"]
    seen = step.to_device({"keys": keys(8)})["keys"]
    for _ in range(2):
        ids.append(int(token.numpy()[0, 0]))
        found = step.run({"input_ids": token, "positions": position, "keys": seen, **state}, outputs="device")
        expected = whole(shape, ids)
        np.testing.assert_allclose(found["logits"].numpy()[0, 0], expected, rtol=1e-4, atol=1e-5)
        assert found["next_ids"] is token and int(token.numpy()[0, 0]) == expected.argmax()
        assert int(position.numpy()[0]) == len(ids)
    given = {"input_ids": token, "positions": position, "keys": seen, **state}
    for _ in range(2):
        device.log.clear()
        step.run(given, outputs="device")
    assert device.log == ["cuGraphLaunch"], "a token is one graph, with its cache and the choice of the next one"
    device.synchronize()
    assert [name for name in device.log if "scatter" in name] == ["launch scatter"] * 4, "one for each cache and run"
