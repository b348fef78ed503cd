"""Trains two models from scratch: `make train-demo` fetches their data and runs this.

    python examples/train_demo.py DIGITS SHAKESPEARE

A small network learns handwritten digits, and a transformer learns to write like Shakespeare, character by character.
The folders have digits.csv.gz and plays as *_gut.txt; without them the examples learn from numbers that are drawn.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dovetail
from dovetail import library, ops
from dovetail.dtypes import f32, i64
from dovetail.train import AdamW, Group, LiveCurve, cosine, warm_up

Array = NDArray[Any]

LAYERS, WIDTH, HEADS, LENGTH, ROWS = 2, 128, 4, 64, 12
"""Half the layers of nanoGPT's recipe for processors."""


def network() -> dovetail.Graph:
    """64 pixels, 128 hidden units, 10 classes."""
    builder = dovetail.Builder("digits")
    x = builder.input("x", f32["n", 64])
    hidden = ops.relu(x @ builder.param("w0", f32[64, 128]) + builder.param("b0", f32[128]))
    builder.output("logits", hidden @ builder.param("w1", f32[128, 10]) + builder.param("b1", f32[10]))
    return builder.graph()


def transformer(characters: int) -> dovetail.Graph:
    """A causal transformer, norms first, that writes with the table it reads with."""
    builder = dovetail.Builder("shakespeare")
    x = builder.input("x", i64["n", LENGTH])
    with builder.recording():
        table = builder.param("table", f32[characters, WIDTH])
        h = ops.gather(table, x, axis=0) + builder.param("places", f32[LENGTH, WIDTH])
        for index in range(LAYERS):
            with dovetail.graphs.scope(f"layers.{index}"):
                h = layer(builder, h, f"layers.{index}")
        h = norm(builder, h, "norm")
        builder.output("logits", h @ ops.permute(table, order=(-1, -2)))
    return builder.graph()


def layer(builder: dovetail.Builder, h: dovetail.Value, name: str) -> dovetail.Value:
    x = norm(builder, h, f"{name}.norm1")
    q, k, v = (split_heads(x @ builder.param(f"{name}.w{at}", f32[WIDTH, WIDTH])) for at in "qkv")
    seen = library.attention(q, k, v, scale=(WIDTH // HEADS) ** -0.5, causal=True, fill=float("-inf"))
    h = h + merge_heads(seen) @ builder.param(f"{name}.wo", f32[WIDTH, WIDTH])
    x = norm(builder, h, f"{name}.norm2")
    inner = library.gelu(x @ builder.param(f"{name}.up", f32[WIDTH, 4 * WIDTH]))
    return h + inner @ builder.param(f"{name}.down", f32[4 * WIDTH, WIDTH])


def split_heads(x: dovetail.Value) -> dovetail.Value:
    return ops.permute(ops.split(x, axis=-1, parts=HEADS), order=(-2, -3, -1))


def merge_heads(x: dovetail.Value) -> dovetail.Value:
    return ops.merge(ops.permute(x, order=(-2, -3, -1)), axis=-1)


def norm(builder: dovetail.Builder, x: dovetail.Value, name: str) -> dovetail.Value:
    gain, bias = (builder.param(f"{name}.{part}", f32[WIDTH]) for part in ("gain", "bias"))
    return library.layer_norm(x, gain, bias, eps=1e-5)


def first_weights(graph: dovetail.Graph, spread: float) -> dict[str, Array]:
    """Gains of one, biases of zero, and small random matrices."""
    rng = np.random.default_rng(0)
    found: dict[str, Array] = {}
    for value in graph.parameters:
        name, shape = str(value.attrs["name"]), tuple(int(str(size)) for size in value.shape)
        drawn = rng.normal(size=shape) * spread if len(shape) > 1 else np.full(shape, float(name.endswith("gain")))
        found[name] = drawn.astype(np.float32)
    return found


def learn_digits(x: Array, y: Array, epochs: int) -> float:
    """Train on four fifths of the images; the result is the share of the others that is read right."""
    order = np.random.default_rng(0).permutation(len(x))
    x, y = x[order], y[order]
    last = len(x) * 4 // 5
    steps = epochs * (last // 64)
    graph = network()
    schedule = warm_up(20, cosine(steps))
    trainer = dovetail.train.Trainer(
        graph, "cross_entropy", AdamW(3e-3), params=first_weights(graph, 0.1), schedule=schedule
    )
    live = LiveCurve(sys.stdout, "digits", steps)
    trainer.fit(shuffled(x[:last], y[:last], epochs), callback=live)
    live.close()
    found: Array = trainer.evaluate({"x": x[last:], "labels": y[last:]})["logits"]
    return float(np.mean(found.argmax(-1) == y[last:], dtype=np.float64))


def shuffled(x: Array, y: Array, epochs: int) -> Iterator[dict[str, Array]]:
    rng = np.random.default_rng(1)
    for _ in range(epochs):
        order = rng.permutation(len(x))
        for start in range(0, len(x) - 63, 64):
            rows = order[start : start + 64]
            yield {"x": x[rows], "labels": y[rows]}


def learn_to_write(text: str, steps: int) -> tuple[float, str]:
    """Train on nine tenths of the text; the result is the loss on the rest, and a few lines of its own."""
    alphabet = sorted(set(text))
    index = {c: i for i, c in enumerate(alphabet)}
    ids = np.array([index[c] for c in text], np.int64)
    last = len(ids) * 9 // 10
    graph = transformer(len(alphabet))
    trainer = dovetail.train.Trainer(
        graph,
        "cross_entropy",
        AdamW(4e-3, betas=(0.9, 0.99), weight_decay=0.1),
        params=first_weights(graph, 0.02),
        schedule=warm_up(20, cosine(steps, 0.1)),
        groups=[Group("*", weight_decay=0.1), Group("*norm*", weight_decay=0.0)],
        clip_norm=1.0,
    )
    live = LiveCurve(sys.stdout, "shakespeare", steps)
    trainer.fit(pieces(ids[:last], steps, 2), callback=live)
    live.close()
    losses = [float(trainer.evaluate(batch)["loss"]) for batch in pieces(ids[last:], 10, 3)]
    return float(np.mean(losses)), written(trainer, ids[:LENGTH], alphabet, count=steps // 2)


def pieces(ids: Array, steps: int, seed: int) -> Iterator[dict[str, Array]]:
    """Batches of text, and the characters that come next."""
    rng = np.random.default_rng(seed)
    for _ in range(steps):
        at = rng.integers(0, len(ids) - LENGTH, ROWS)[:, None] + np.arange(LENGTH)
        yield {"x": ids[at], "labels": ids[at + 1]}


def written(trainer: dovetail.train.Trainer, start: Array, alphabet: list[str], count: int) -> str:
    """Characters drawn one after the other from what the model gives."""
    rng, found = np.random.default_rng(4), [int(i) for i in start]
    for _ in range(count):
        window = np.array([found[-LENGTH:]], np.int64)
        logits = trainer.evaluate({"x": window, "labels": window})["logits"][0, -1].astype(np.float64)
        chances = np.exp((logits - logits.max()) / 0.8)
        found.append(int(rng.choice(len(alphabet), p=chances / chances.sum())))
    return "".join(alphabet[index] for index in found[LENGTH:])


def digits_of(folder: Path) -> tuple[Array, Array]:
    table = np.loadtxt(folder / "digits.csv.gz", delimiter=",")
    return (table[:, :64] / 16).astype(np.float32), table[:, 64].astype(np.int64)


def plays_of(folder: Path) -> str:
    return "\n".join(path.read_text(encoding="latin-1") for path in sorted(folder.glob("*_gut.txt")))


def main(folders: list[str]) -> None:
    began = time.perf_counter()
    if len(folders) == 2:
        x, y = digits_of(Path(folders[0]))
        right = learn_digits(x, y, epochs=30)
        loss, lines = learn_to_write(plays_of(Path(folders[1])), steps=500)
    else:
        rng = np.random.default_rng(0)
        y = rng.integers(0, 10, 640)
        x = (rng.normal(size=(10, 64))[y] + 0.3 * rng.normal(size=(640, 64))).astype(np.float32)
        right = learn_digits(x, y, epochs=6)
        loss, lines = learn_to_write("to be, or not to be, that is the question: " * 60, steps=6)
    print(f"digits: {100 * right:.2f} % of images that it has not seen are read right")
    print(f"shakespeare: loss {loss:.3f} on text that it has not read; it writes:")
    print("\n".join(f"    {line}" for line in lines.splitlines()))
    print(f"both took {time.perf_counter() - began:.0f} s")


if __name__ == "__main__":
    main(sys.argv[1:])
