"""One token of a small decoder as a persistent kernel, again and again: what one process runs, and two at a time."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np

import dovetail
from dovetail import Graph
from dovetail.dtypes import bf16
from dovetail.models import random_weights
from dovetail.targets.cuda.driver.driver import Driver, driver
from dovetail.targets.cuda.runs.run import steps_of
from dovetail.targets.cuda.target import target_for
from tests.targets.cuda.sanitized import KEYS, LAYERS, NARROW, step_graph

TOKEN = 5
"""Its position: keys after it are not seen."""


def _step() -> Graph:
    """Logits and caches alone: a step that writes its next token and position would be another one each time."""
    full = step_graph(NARROW)
    outputs = {name: value for name, value in full.outputs.items() if name == "logits" or "cache" in name}
    return Graph.of(outputs).donate({name: into for name, into in full.donated.items() if name in outputs})


def has_persistent(device: Driver) -> bool:
    """Whether blocks of a device may wait for each other."""
    return bool(device.description.cluster) and device.description.cooperative != "off"


def replay(count: int, device: Callable[[], Driver] = driver) -> None:
    """Run a step with its caches in place so many times, to equal bits; the device keeps its description."""
    here = device()
    described = here.description
    here.description = replace(described, cooperative="on")
    try:
        graph = _step()
        program = dovetail.compile(graph, target=target_for(lambda: here), cache="off").bind(random_weights(graph))
        kernels = [made for _, some in steps_of(program.plan, device=here.description) for made in some or ()]
        assert sum([made.kernel.launch is not None and made.kernel.launch.cooperative for made in kernels]) == 1
        size = (1, NARROW.kv_heads, KEYS, NARROW.width)
        fed: dict[str, Any] = {f"{s}_cache.{i}": np.zeros(size, bf16.numpy) for s in "kv" for i in range(LAYERS)}
        fed |= {"input_ids": np.array([[3]]), "positions": np.array([TOKEN]), "keys": np.arange(KEYS)}
        there = program.to_device(fed)

        def logits() -> bytes:
            return program.run(there, outputs="device")["logits"].numpy().tobytes()

        first = logits()
        for number in range(1, count):
            assert logits() == first, f"replay {number} differs"
        written = there["k_cache.0"].numpy().astype(np.float32)
        assert written[:, :, TOKEN].any() and not written[:, :, :TOKEN].any(), "caches are in place"
    finally:
        here.description = described


__all__ = ["has_persistent", "replay"]
