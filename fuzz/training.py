"""Training that is killed at any moment and resumed ends with the weights of a run that was not."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from dovetail import Builder, Graph, ops
from dovetail.dtypes import f32
from dovetail.errors import DovetailError
from dovetail.ir.literal import Array
from dovetail.train import AdamW, Trainer, cosine, dropout
from dovetail.train.data import Examples
from fuzz.forked import forked

STEPS, ROWS = 60, 16
"""Steps of a run, a checkpoint after every third."""
FRESH = 50
"""Of this many resumed runs, one is in a new process."""


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
    """Runs are killed while they train and write checkpoints; resumed after each kill, they end bit for bit alike.

    The next run goes on from the killed one, so that runs are killed several times. Of every `FRESH` kills one is
    resumed in a process that compiles the step anew.
    """
    r, broken = random.Random(4), list[str]()
    one, path, start, end = trainer(), *(folder / f"{n}.safetensors" for n in ("run", "start", "end"))
    one.save(start)
    go_on(one, start, end)
    wanted = end.read_bytes()
    began = time.monotonic()
    go_on(one, start, end)
    usual = time.monotonic() - began
    if end.read_bytes() != wanted:
        broken.append("two runs that were not killed differ")
    kills = 0
    while kills < count:
        if forked(lambda: go_on(one, _last(path, start), path), kill_after=r.random() * 1.2 * usual) is not None:
            path.unlink(missing_ok=True)  # it ended before its time: the next one begins anew
            continue
        kills += 1
        end.unlink()
        try:
            if kills % FRESH == 0:
                _elsewhere(_last(path, start), end)
            else:
                go_on(one, _last(path, start), end)
        except DovetailError as error:
            broken.append(f"kill {kills}: {error}")
            path.unlink(missing_ok=True)
            continue
        finally:
            end.touch()
        if end.read_bytes() != wanted:
            broken.append(f"kill {kills}: the resumed run ended with other weights or state")
    left = [name for name in os.listdir(folder) if name.endswith(".part")]
    return broken if len(left) <= count else [*broken, f"{len(left)} parts of checkpoints were left"]


def _last(path: Path, start: Path) -> Path:
    return path if path.exists() else start


def go_on(one: Trainer, start: Path, checkpoint: Path) -> None:
    """The rest of a run from a checkpoint, with checkpoints of its own."""
    one.load(start)
    one.fit(batches(one.steps), checkpoint=checkpoint, every=3)
    one.save(checkpoint)


def _elsewhere(start: Path, end: Path) -> None:
    """The same in a new process."""
    code = "import sys, pathlib; from fuzz.training import *; go_on(trainer(), *map(pathlib.Path, sys.argv[1:]))"
    run = [sys.executable, "-c", code, str(start), str(end)]
    ended = subprocess.run(run, capture_output=True, text=True, check=False)
    if ended.returncode != 0:
        raise DovetailError((ended.stderr.strip().splitlines() or ["the new process failed"])[-1])


__all__ = ["go_on", "trainer", "training"]
