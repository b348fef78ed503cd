"""An MLP and a small transformer twice: as graphs, and in NumPy float64 with a backward pass written by hand."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

import dovetail
from dovetail import library, ops
from dovetail.dtypes import f32, i64
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value

Array = NDArray[Any]
EPS = 1e-5
MLP = {"w0": (6, 16), "b0": (16,), "w1": (16, 5), "b1": (5,)}
WIDTH, WORDS, LENGTH = 16, 11, 6
TRANSFORMER = {
    "words": (WORDS, WIDTH),
    "places": (LENGTH, WIDTH),
    **{f"w{name}": (WIDTH, WIDTH) for name in "qkvo"},
    "gain1": (WIDTH,),
    "bias1": (WIDTH,),
    "gain2": (WIDTH,),
    "bias2": (WIDTH,),
    "up": (WIDTH, 32),
    "down": (32, WIDTH),
    "head": (WIDTH, WORDS),
}


def drawn(shapes: Mapping[str, tuple[int, ...]]) -> dict[str, Array]:
    rng = np.random.default_rng(5)
    return {
        name: np.ones(shape) if name.startswith("gain") else rng.normal(size=shape) * 0.3
        for name, shape in shapes.items()
    }


def cross_entropy(logits: Value, labels: Value) -> Value:
    """The mean of minus the log probability of each label."""
    picked = ops.gather_elements(library.log_softmax(logits), ops.unsqueeze(labels, axes=(-1,)), axis=-1)
    axes = tuple(range(-picked.rank, 0))
    return ops.squeeze(-ops.reduce_mean(picked, axes=axes), axes=axes)


def sgd_step(name: str, rate: float) -> Graph:
    """One step of SGD: the loss, and every weight written into the memory of its input."""
    builder = dovetail.Builder(name, lines=False)
    shapes = MLP if name == "mlp" else TRANSFORMER
    weights = {n: builder.input(n, f32[shape]) for n, shape in shapes.items()}
    with builder.recording():
        builder.output("loss", _mlp(builder, weights) if name == "mlp" else _transformer(builder, weights))
    both = dovetail.graphs.value_and_grad(builder.graph(), list(shapes))
    outputs = {"loss": both.outputs["loss"]}
    outputs |= {f"new.{n}": w - both.outputs[f"d.{n}"] * rate for n, w in weights.items()}
    return Graph.of(outputs, name=name, inputs=both.inputs).donate({f"new.{n}": n for n in shapes})


def _mlp(builder: dovetail.Builder, w: Mapping[str, Value]) -> Value:
    x, labels = builder.input("x", f32["n", 6]), builder.input("labels", i64["n"])
    hidden = ops.relu(x @ w["w0"] + w["b0"])
    return cross_entropy(hidden @ w["w1"] + w["b1"], labels)


def _transformer(builder: dovetail.Builder, w: Mapping[str, Value]) -> Value:
    x, labels = builder.input("x", i64["n", LENGTH]), builder.input("labels", i64["n", LENGTH])
    h = ops.gather(w["words"], x, axis=0) + w["places"]
    normal = library.layer_norm(h, w["gain1"], w["bias1"], eps=EPS)
    q, k, v = (normal @ w[f"w{name}"] for name in "qkv")
    seen = library.attention(q, k, v, scale=WIDTH**-0.5, causal=True, fill=float("-inf"))
    h = h + seen @ w["wo"]
    normal = library.layer_norm(h, w["gain2"], w["bias2"], eps=EPS)
    h = h + library.silu(normal @ w["up"]) @ w["down"]
    return cross_entropy(h @ w["head"], labels)


def mlp_by_hand(w: Mapping[str, Array], x: Array, labels: Array) -> tuple[float, dict[str, Array]]:
    before = x @ w["w0"] + w["b0"]
    hidden = np.maximum(before, 0)
    loss, lost = _cross_entropy(hidden @ w["w1"] + w["b1"], labels)
    back = (lost @ w["w1"].T) * (before > 0)
    return loss, {"w0": x.T @ back, "b0": back.sum(0), "w1": hidden.T @ lost, "b1": lost.sum(0)}


def transformer_by_hand(w: Mapping[str, Array], x: Array, labels: Array) -> tuple[float, dict[str, Array]]:
    d: dict[str, Array] = {}
    embedded = w["words"][x] + w["places"]
    first, unit1, root1 = _layer_norm(embedded, w["gain1"], w["bias1"])
    q, k, v = (first @ w[f"w{name}"] for name in "qkv")
    scores = q @ k.swapaxes(1, 2) * WIDTH**-0.5
    scores = np.where(np.tril(np.ones((LENGTH, LENGTH), bool)), scores, -np.inf)
    chances = np.exp(scores - scores.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    seen = chances @ v
    middle = embedded + seen @ w["wo"]
    second, unit2, root2 = _layer_norm(middle, w["gain2"], w["bias2"])
    raised = second @ w["up"]
    gate = 1 / (1 + np.exp(-raised))
    last = middle + (raised * gate) @ w["down"]
    loss, lost = _cross_entropy(last @ w["head"], labels)
    d["head"] = _rows(last).T @ _rows(lost)
    by_last = lost @ w["head"].T
    d["down"] = _rows(raised * gate).T @ _rows(by_last)
    by_raised = (by_last @ w["down"].T) * (gate + raised * gate * (1 - gate))
    d["up"] = _rows(second).T @ _rows(by_raised)
    by_middle, d["gain2"], d["bias2"] = _layer_norm_back(by_raised @ w["up"].T, unit2, root2, w["gain2"])
    by_middle = by_middle + by_last
    d["wo"] = _rows(seen).T @ _rows(by_middle)
    by_seen = by_middle @ w["wo"].T
    by_chances = by_seen @ v.swapaxes(1, 2)
    by_scores = chances * (by_chances - (by_chances * chances).sum(-1, keepdims=True)) * WIDTH**-0.5
    parts = {"q": by_scores @ k, "k": by_scores.swapaxes(1, 2) @ q, "v": chances.swapaxes(1, 2) @ by_seen}
    by_first = np.zeros_like(first)
    for name, part in parts.items():
        d[f"w{name}"] = _rows(first).T @ _rows(part)
        by_first = by_first + part @ w[f"w{name}"].T
    by_embedded, d["gain1"], d["bias1"] = _layer_norm_back(by_first, unit1, root1, w["gain1"])
    by_embedded = by_embedded + by_middle
    d["places"] = by_embedded.sum(0)
    d["words"] = np.zeros_like(w["words"])
    np.add.at(d["words"], x, by_embedded)
    return loss, d


def _rows(x: Array) -> Array:
    return x.reshape(-1, x.shape[-1])


def _layer_norm(x: Array, gain: Array, bias: Array) -> tuple[Array, Array, Array]:
    centred = x - x.mean(-1, keepdims=True)
    root = 1 / np.sqrt((centred**2).mean(-1, keepdims=True) + EPS)
    return centred * root * gain + bias, centred * root, root


def _layer_norm_back(g: Array, unit: Array, root: Array, gain: Array) -> tuple[Array, Array, Array]:
    by_unit = g * gain
    mean, along = by_unit.mean(-1, keepdims=True), (by_unit * unit).mean(-1, keepdims=True)
    return (by_unit - mean - unit * along) * root, _rows(g * unit).sum(0), _rows(g).sum(0)


def _cross_entropy(logits: Array, labels: Array) -> tuple[float, Array]:
    chances = np.exp(logits - logits.max(-1, keepdims=True))
    chances /= chances.sum(-1, keepdims=True)
    picked = np.take_along_axis(chances, labels[..., None], -1)
    lost = chances.copy()
    np.put_along_axis(lost, labels[..., None], picked - 1, -1)
    return float(-np.log(picked).mean()), lost / labels.size
