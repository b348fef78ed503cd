"""Peers of the benchmarks on GPUs: their flags, those that fail, and networks in JAX, which compute the same."""

from __future__ import annotations

import argparse
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from dovetail.bench.peers import definitions
from dovetail.targets.reference.interpreter import evaluate
from tests.bench.small import SMALL
from tests.targets.cuda.benchmark import benchmark
from tests.targets.cuda.test_resident_encoders import ENCODERS, TINY

PEERS = benchmark("peers")
DECODE = benchmark("decode")
SIZES = {"layers": 1, "hidden": 32, "heads": 4, "inner": 48, "vocabulary": 64}
SHAPES = {
    "qwen3": replace(DECODE.SHAPES["qwen3_0.6b"], kv_heads=2, head_width=16, **SIZES),
    "gpt2": replace(DECODE.SHAPES["gpt2"], positions=32, **SIZES),
}


def _wanted(*flags: str) -> Any:
    parser = argparse.ArgumentParser()
    PEERS.add_flags(parser)
    return PEERS.wanted(parser.parse_args(flags), PEERS.MODES)


def test_peers_that_take_long_are_asked_for_by_name() -> None:
    assert set(_wanted().modes) == {"default", "reduce-overhead"} and not _wanted().attentions
    assert _wanted("--max-autotune").modes["max-autotune"] == 100
    assert _wanted("--max-autotune", "7.5").modes["max-autotune"] == 7.5
    assert list(_wanted("--jax").attentions) == ["xla"]
    assert list(_wanted("--jax", "xla", "cudnn").attentions) == ["xla", "cudnn"]


def test_a_peer_that_is_late_or_fails_is_left_out_and_named() -> None:
    peers = PEERS.Peers({"ours": lambda: None})

    def late() -> Callable[[], object]:
        time.sleep(5)
        return lambda: None

    def failing() -> Callable[[], object]:
        raise ValueError("no such\nkernel")

    peers.add("late", late, 0.05)
    peers.add("failing", failing)
    peers.add("fine", lambda: lambda: None)
    assert set(peers.steps) == {"ours", "fine"}
    assert "late=failed(TimeoutError: not ready within 0.05 s)" in peers.told
    assert "failing=failed(ValueError: no such kernel)" in peers.told


def test_jax_without_the_device_is_left_out(monkeypatch: pytest.MonkeyPatch) -> None:
    class Jax:
        @staticmethod
        def default_backend() -> str:
            return "cpu"

    def imported(name: str) -> type[Jax]:
        return Jax

    monkeypatch.setattr(PEERS.importlib, "import_module", imported)
    monkeypatch.setenv("XLA_PYTHON_CLIENT_PREALLOCATE", "false")

    def never(jax: Any, attention: str) -> Callable[[], Any]:
        raise AssertionError("it is not made")

    peers = PEERS.Peers()
    assert not peers.add_jax(["xla", "cudnn"], never)
    assert "jax=failed(RuntimeError: JAX has no gpu, but cpu)" in peers.told and "jax_cudnn=failed" in peers.told


def _error(got: Any, wanted: Any) -> float:
    return float(np.linalg.norm(np.asarray(got).astype(np.float64) - wanted) / np.linalg.norm(wanted))


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("name", "cached", "tokens"), [("qwen3", 12, 1), ("gpt2", 0, 5)], ids=["token", "prompt"])
def test_a_step_in_jax_is_near_the_reference(name: str, cached: int, tokens: int) -> None:
    jax: Any = pytest.importorskip("jax")
    of = SHAPES[name]
    graph = DECODE.step_graph(of, tokens)
    weights, feeds = DECODE.weights_of(graph), DECODE.feeds_of(of, cached, tokens)
    wanted = evaluate(graph, feeds, params=weights, lift=True)["logits"]
    call = benchmark("jax_decode").step_of(jax, of, weights, feeds, "xla")
    first = np.asarray(call())
    assert _error(first, wanted) < 2e-2
    np.testing.assert_array_equal(np.asarray(call()), first, "caches that come back have the same rows")


@pytest.mark.exhaustive
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("name", ["vit", "whisper"])
def test_an_encoder_in_jax_is_near_the_reference(name: str) -> None:
    """In f32: attention of f16 by JAX needs a GPU."""
    jax: Any = pytest.importorskip("jax")
    shape = replace(TINY[name], of=replace(TINY[name].of, layers=1))
    graph = ENCODERS.graph_of(shape)
    weights = {key: content.astype(np.float32) for key, content in ENCODERS.weights_of(graph).items()}
    x = ENCODERS.feed_of(shape)["x"].astype(np.float32)
    wanted = evaluate(graph, ENCODERS.feed_of(shape), params=ENCODERS.weights_of(graph), lift=True)["y"]
    call = benchmark("jax_encoder").step_of(jax, shape, weights, x, "xla")
    assert _error(call(), wanted) < 1e-4


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("workload", ["encoder", "one token"])
def test_networks_in_jax_stay_in_16_bits(workload: str) -> None:
    """Shapes alone: attention of f16 by JAX needs a GPU. `tests/bench/test_peers.py` computes them in f32."""
    jax: Any = pytest.importorskip("jax")
    models, made = benchmark("models"), SMALL[workload]
    model = models.converted(made.build(), "f16")
    weights = models.weights_of(model)
    function = definitions("jax_models").function(made.shape, "xla")
    held = {name: w for name, w in weights.items() if w.dtype == np.float16}
    found = jax.eval_shape(function, held, *models.feeds_for(model).values())
    assert str(found.dtype) == "float16"
