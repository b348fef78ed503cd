"""A small classifier, and batches that have something to learn."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from dovetail import Builder, Graph, ops
from dovetail.dtypes import f32


def classifier() -> Graph:
    builder = Builder("classifier", lines=False)
    x = builder.input("x", f32["n", 8])
    hidden = ops.relu(x @ builder.param("w0", f32[8, 16]) + builder.param("b0", f32[16]))
    builder.output("logits", hidden @ builder.param("w1", f32[16, 4]) + builder.param("b1", f32[4]))
    return builder.graph()


def batches(count: int, rows: int = 32) -> Iterator[dict[str, Any]]:
    rng = np.random.default_rng(2)
    for _ in range(count):
        x = rng.normal(size=(rows, 8)).astype(np.float32)
        yield {"x": x, "labels": np.argmax(x[:, :4] - x[:, 4:], -1)}


__all__ = ["batches", "classifier"]
