"""Training that is killed at any moment and resumed ends with the weights of a run that was not."""

from __future__ import annotations

import os
import random
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dovetail import Builder, DovetailError, Graph, f32, ops
from dovetail.ir.literal import Array
from dovetail.train import AdamW, Trainer, cosine, dropout
from dovetail.train.data import Examples
from fuzz.forked import forked

STEPS, ROWS = 60, 16
"""Steps of a run, a checkpoint after every third."""


def model() -> Graph:
    """A network with dropout and a batch norm, so that a run has every kind of state."""
    builder = Builder("resumed", lines=False)
    x = builder.input("x", f32["n", 8]) @ builder.param("w0", f32[8, 16])
    gain, bias, mean, variance = (builder.param(n, f32[16]) for n in ("gain", "bias", "mean", "variance"))
    x = ops.relu((x - mean) * ops.rsqrt(variance + 1e-5) * gain + bias)
    builder.output("logits", dropout(x, 0.2, place="hidden") @ builder.param("w1", f32[16, 4]))
    return builder.graph()


def trainer() -> Trainer:
    return Trainer(model(), "cross_entropy", AdamW(0.01), clip_norm=1.0, schedule=cosine(STEPS), accumulate=2, seed=3)


def batches(first: int) -> Iterator[dict[str, Array]]:
    rng = np.random.default_rng(0)
    x = rng.normal(size=(200, 8)).astype(np.float32)
    data = Examples({"x": x, "labels": np.argmax(x[:, :4], -1)}, 200)
    return data.batches(ROWS, seed=1, first=first, steps=STEPS)


def training(count: int, folder: Path) -> list[str]:
    """A run is killed while it trains and writes checkpoints, and resumed until it has ended."""
    r, broken = random.Random(4), list[str]()
    one, path, start = trainer(), folder / "run.safetensors", folder / "start.safetensors"
    one.save(start)
    one.fit(batches(0))
    wanted = {n: a.tobytes() for n, a in one.params.items()}
    kills, number = 0, 0

    def go_on() -> None:
        one.load(path if path.exists() else start)
        one.fit(batches(one.steps), checkpoint=path, every=3)

    while kills < count:
        number += 1
        path.unlink(missing_ok=True)
        ended = False
        while not ended and kills < count:
            ended = forked(go_on, kill_after=0.002 + r.random() * 0.06) is not None
            kills += not ended
        try:
            go_on()
        except DovetailError as error:
            broken.append(f"run {number}: the last checkpoint is broken: {error}")
            continue
        apart = [n for n, a in one.params.items() if a.tobytes() != wanted[n]]
        if apart or one.steps != STEPS:
            broken.append(f"run {number}: after {kills} kills {', '.join(apart)} is another, at step {one.steps}")
    left = [name for name in os.listdir(folder) if name.endswith(".part")]
    return broken if len(left) <= count else [*broken, f"{len(left)} parts of checkpoints were left"]


__all__ = ["training"]
