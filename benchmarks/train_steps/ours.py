"""The step in dovetail."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import numpy as np

import dovetail
from dovetail import f32, i64, library, ops
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.library.heads import merge_heads, split_heads
from dovetail.report.measured import Measured
from dovetail.train import AdamW
from dovetail.train.losses import cross_entropy
from dovetail.train.step import RATE as RATE_INPUT
from train_steps.works import (
    BETAS,
    DECAY,
    EPS,
    RATE,
    Mlp,
    Resnet,
    Transformer,
    Work,
    batch,
    convolutions,
    shapes,
    weights,
)

Weights = Mapping[str, Value]


def prepare(work: Work, threads: int) -> Callable[[], float]:
    """A function that makes one step and gives its loss."""
    trainer = make_trainer(work, threads)
    x, labels = batch(work)
    return lambda: trainer.step({"x": x, "labels": labels}).loss


def make_trainer(work: Work, threads: int) -> dovetail.Trainer:
    optimizer = AdamW(RATE, BETAS, EPS, DECAY)
    return dovetail.Trainer(graph(work), None, optimizer, params=weights(work), target="cpu", threads=threads)


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
    match work:
        case Mlp():
            logits = _mlp(work, own, x)
        case Transformer():
            logits = _transformer(work, own, x)
        case Resnet():
            logits = _resnet(work, own, x)
    builder.output("loss", cross_entropy(logits, labels))
    return builder.graph()


def _linear(own: Weights, name: str, x: Value) -> Value:
    return x @ own[f"{name}.weight"] + own[f"{name}.bias"]


def _mlp(work: Mlp, own: Weights, x: Value) -> Value:
    for i in range(len(work.sizes) - 1):
        x = _linear(own, str(i), x)
        x = ops.relu(x) if i + 2 < len(work.sizes) else x
    return x


def _transformer(work: Transformer, own: Weights, ids: Value) -> Value:
    def norm(name: str, x: Value) -> Value:
        return library.layer_norm(x, own[f"{name}.gain"], own[f"{name}.bias"], eps=1e-5)

    def attend(name: str, x: Value) -> Value:
        wide = _linear(own, f"{name}.qkv", x)
        q, k, v = (split_heads(ops.part(wide, axis=-1, index=i, parts=3), work.heads) for i in range(3))
        scale = (work.width // work.heads) ** -0.5
        fill = float("-inf") if work.causal else None
        y = library.attention(q, k, v, scale=scale, causal=work.causal, fill=fill)
        return _linear(own, f"{name}.out", merge_heads(y))

    def feed(name: str, x: Value) -> Value:
        return _linear(own, f"{name}.down", library.gelu(_linear(own, f"{name}.up", x)))

    x = ops.gather(own["words"], ids, axis=0) + ops.slice_(own["places"], axis=0, start=0, stop=work.tokens)
    x = x if work.causal else norm("norm", x)
    for i in range(work.layers):
        if work.causal:
            x = x + attend(str(i), norm(f"{i}.norm1", x))
            x = x + feed(str(i), norm(f"{i}.norm2", x))
        else:
            x = norm(f"{i}.norm1", x + attend(str(i), x))
            x = norm(f"{i}.norm2", x + feed(str(i), x))
    if work.causal:
        return norm("norm", x) @ ops.permute(own["words"], order=(-1, -2))
    return x @ own["head.weight"]


def _resnet(work: Resnet, own: Weights, x: Value) -> Value:
    listed = {name: (window, stride) for name, _, _, window, stride in convolutions(work)}

    def convolve(name: str, x: Value) -> Value:
        window, stride = listed[name]
        y = ops.conv(x, own[f"{name}.filter"], strides=stride, padding=window // 2)
        centred = y - ops.reduce_mean(y, axes=(-4, -2, -1))
        variance = ops.reduce_mean(centred * centred, axes=(-4, -2, -1))
        gain, bias = (ops.unsqueeze(own[f"{name}.{part}"], axes=(-2, -1)) for part in ("gain", "bias"))
        return centred * ops.rsqrt(variance + 1e-5) * gain + bias

    x = ops.relu(convolve("stem", x))
    for stage in range(len(work.stages)):
        for block in range(work.blocks):
            name = f"{stage}.{block}"
            y = convolve(f"{name}.2", ops.relu(convolve(f"{name}.1", x)))
            x = ops.relu(y + (convolve(f"{name}.short", x) if f"{name}.short" in listed else x))
    pooled = ops.squeeze(ops.reduce_mean(x, axes=(-2, -1)), axes=(-2, -1))
    return _linear(own, "head", pooled)
