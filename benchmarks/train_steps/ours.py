"""The step in dovetail."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

import dovetail
from dovetail import library, ops
from dovetail.dtypes import f32, i64
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.library.heads import merge_heads, split_heads
from dovetail.report.measured import Measured
from dovetail.train import AdamW
from dovetail.train.losses import cross_entropy
from dovetail.train.step import RATE as RATE_INPUT
from train_steps.networks import logits
from train_steps.works import BETAS, DECAY, EPS, RATE, Work, batch, shapes, weights


def prepare(work: Work, threads: int) -> Callable[[], float]:
    """A function that makes one step and gives its loss."""
    trainer = make_trainer(work, threads)
    x, labels = batch(work)
    return lambda: trainer.step({"x": x, "labels": labels}).loss


def make_trainer(work: Work, threads: int) -> dovetail.train.Trainer:
    optimizer = AdamW(RATE, BETAS, EPS, DECAY)
    return dovetail.train.Trainer(graph(work), None, optimizer, params=weights(work), target="cpu", threads=threads)


def profiled(work: Work, threads: int) -> Measured:
    """The times of the kernels of a step."""
    trainer = make_trainer(work, threads)
    x, labels = batch(work)
    numbers = {f"train.{name}": value for name, value in trainer.optimizer.numbers(9).items()} | {RATE_INPUT: RATE}
    feeds: dict[str, Array] = {"x": x, "labels": labels}
    for value in trainer.program.graph.inputs:
        name = str(value.attrs["name"])
        if name in numbers:
            feeds[name] = np.asarray(numbers[name], np.float32)
        elif name not in feeds:
            given = weights(work).get(name)
            shape = [int(str(size)) for size in value.shape]
            feeds[name] = np.full(shape, 1e-3, np.float32) if given is None else given
    return trainer.program.profile(feeds, runs=5)


def graph(work: Work) -> dovetail.Graph:
    """The model with its loss."""
    builder = dovetail.Builder("train")
    inputs, wanted = batch(work)
    x = builder.input("x", (f32 if inputs.dtype.kind == "f" else i64)[inputs.shape])
    labels = builder.input("labels", i64[wanted.shape])
    own = {name: builder.param(name, f32[shape]) for name, (shape, _) in shapes(work).items()}
    builder.output("loss", cross_entropy(logits(work, OwnLayers(), own, x), labels))
    return builder.graph()


class OwnLayers:
    """Layers of dovetail's library and primitives."""

    def linear(self, x: Value, weight: Value, bias: Value | None) -> Value:
        return x @ weight if bias is None else x @ weight + bias

    def relu(self, x: Value) -> Value:
        return ops.relu(x)

    def gelu(self, x: Value) -> Value:
        return library.gelu(x)

    def norm(self, x: Value, gain: Value, bias: Value) -> Value:
        return library.layer_norm(x, gain, bias, eps=1e-5)

    def embed(self, words: Value, places: Value, ids: Value, tokens: int) -> Value:
        return ops.gather(words, ids, axis=0) + ops.slice_(places, axis=0, start=0, stop=tokens)

    def attend(self, qkv: Value, heads: int, causal: bool) -> Value:
        q, k, v = (split_heads(ops.part(qkv, axis=-1, index=i, parts=3), heads) for i in range(3))
        scale = int(str(q.shape[-1])) ** -0.5
        fill = float("-inf") if causal else None
        return merge_heads(library.attention(q, k, v, scale=scale, causal=causal, fill=fill))

    def unembed(self, x: Value, words: Value) -> Value:
        return x @ ops.permute(words, order=(-1, -2))

    def convolve(self, x: Value, filters: Value, stride: int, padding: int) -> Value:
        return ops.conv(x, filters, strides=stride, padding=padding)

    def batch_norm(self, x: Value, gain: Value, bias: Value) -> Value:
        centred = x - ops.reduce_mean(x, axes=(-4, -2, -1))
        variance = ops.reduce_mean(centred * centred, axes=(-4, -2, -1))
        gain, bias = (ops.unsqueeze(v, axes=(-2, -1)) for v in (gain, bias))
        return centred * ops.rsqrt(variance + 1e-5) * gain + bias

    def pool(self, x: Value) -> Value:
        return ops.squeeze(ops.reduce_mean(x, axes=(-2, -1)), axes=(-2, -1))
