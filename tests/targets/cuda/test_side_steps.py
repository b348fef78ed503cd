"""Small steps that share an earlier launch, which has a block more."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import inf
from typing import Any

import numpy as np
import pytest

import dovetail
from dovetail import Graph, library, ops
from dovetail.errors import DovetailError
from dovetail.ir.dtype import f16, i64
from dovetail.ir.leaf import input, param
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cuda.driver.architectures import H200
from dovetail.targets.reference.interpreter import evaluate
from tests.targets.cuda.simulated import SimulatedDriver, kernels_on, target_of

EARLY = replace(H200, cluster=8, dependent_intensity=inf, cooperative="off")
TOKENS, HEADS, SIZE, WORDS = 16, 17, 16, 10


def _embedded(width: int = HEADS * SIZE) -> Graph:
    """Embeddings, and two attentions with a mask that both read."""
    heads = width // SIZE
    ids, seen = input("ids", i64[1, TOKENS]), input("seen", i64[1, TOKENS])
    x = ops.gather(param("words", f16[WORDS, width]), ids, axis=0)
    bias = ops.reshape((ops.cast(seen, dtype=f16) - 1.0) * 100.0, shape=(1, 1, 1, TOKENS))
    y = ops.permute(ops.split(x, axis=-1, size=SIZE), order=(-4, -2, -3, -1))
    assert y.shape[1] == heads
    for _ in range(2):
        y = library.attention(y, y, y, bias, scale=0.25)
    return Graph.of({"y": y})


def _kernels(graph: Graph, device: GpuDevice = EARLY) -> Sequence[Kernel]:
    return kernels_on(graph, device)


def _feeds(ids: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    rng = np.random.default_rng(0)
    seen = (np.arange(TOKENS) < 11).astype(np.int64)[None]
    words = rng.standard_normal((WORDS, HEADS * SIZE)).astype(np.float16)
    return {"ids": ids, "seen": seen}, {"words": words}


@pytest.mark.slow
def test_a_mask_is_a_block_more_of_the_launch_before() -> None:
    first, *rest = _kernels(_embedded())
    assert first.name == "gather_and_map" and first.launch is not None and first.launch.grid == HEADS + 1
    assert [kernel.name for kernel in rest] == ["attend", "attend"]
    apart = _kernels(_embedded(), replace(EARLY, dependent_intensity=0.0))
    assert "gather_and_map" not in [kernel.name for kernel in apart]


@pytest.mark.slow
def test_results_are_those_of_the_graph() -> None:
    graph, driver = _embedded(), SimulatedDriver()
    driver.description = EARLY
    feeds, params = _feeds(np.random.default_rng(1).integers(-WORDS, WORDS, (1, TOKENS)))
    found = dovetail.compile(graph, target=target_of(driver)).bind(params).run(feeds)["y"]
    wanted = evaluate(graph, feeds, params=params, lift=True)["y"]
    assert "launch gather_and_map" in driver.log
    assert np.linalg.norm(found.astype(np.float64) - wanted) <= 2e-3 * np.linalg.norm(wanted)


@pytest.mark.slow
def test_the_launch_still_refuses_what_it_refused() -> None:
    driver = SimulatedDriver()
    driver.description = EARLY
    feeds, params = _feeds(np.full((1, TOKENS), WORDS))
    program = dovetail.compile(_embedded(), target=target_of(driver)).bind(params)
    with pytest.raises(DovetailError):
        program.run(feeds)


def test_a_small_launch_takes_no_other() -> None:
    """It is itself a part of a later launch as often as not, which is made again from its step alone."""
    names = [kernel.name for kernel in _kernels(_embedded(4 * SIZE))]
    assert "gather_and_map" not in names
