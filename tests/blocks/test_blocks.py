"""Blocks against plain NumPy, head by head and token by token."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from dovetail import Graph, Value, blocks
from dovetail.dtypes import f32
from dovetail.ir.leaf import input
from dovetail.passes.lower_blocks import lower_blocks
from dovetail.targets.reference.interpreter import evaluate

Numbers = NDArray[np.float64]
# Constants such as eps and the root of 2 are float32 numbers in these graphs; that is all that may differ.
RNG = np.random.default_rng(7)


def made(**shapes: tuple[int, ...]) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays = {n: RNG.normal(size=s).astype(np.float32) * np.float32(0.5) for n, s in shapes.items()}
    return {n: input(n, f32[s]) for n, s in shapes.items()}, arrays


def run(value: Value, arrays: dict[str, Any], results: int = 1) -> list[Numbers]:
    outputs = {"y0": value} if results == 1 else {f"y{i}": value[i] for i in range(results)}
    found = evaluate(lower_blocks(Graph.of(outputs)), arrays, lift=True)
    return [found[f"y{i}"] for i in range(results)]


def softmax(x: Numbers) -> Numbers:
    e = np.exp(x - x.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def layer_norm(x: Numbers, gain: Numbers, bias: Numbers, eps: float) -> Numbers:
    return (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + eps) * gain + bias


def rms_norm(x: Numbers, gain: Numbers, eps: float) -> Numbers:
    return x / np.sqrt((x * x).mean(-1, keepdims=True) + eps) * gain


def gelu(x: Numbers) -> Numbers:
    return 0.5 * x * (1 + np.vectorize(math.erf)(x / math.sqrt(2)))


def test_bert_layer() -> None:
    heads, d, n, eps = 2, 4, 12, 1e-5
    h = heads * d
    square, row = (h, h), (h,)
    shapes = {"x": (2, 5, h)}
    for at in "qkvo":
        shapes |= {f"w{at}": square, f"b{at}": row}
    shapes |= {"gain1": row, "bias1": row, "up": (h, n), "up_bias": (n,), "down": (n, h), "down_bias": row}
    shapes |= {"gain2": row, "bias2": row, "mask": (2, 1, 1, 5)}
    values, arrays = made(**shapes)
    scale = 1 / math.sqrt(d)
    (got,) = run(blocks.bert_layer(**values, heads=heads, scale=scale, eps=eps), arrays)
    a = {k: v.astype(np.float64) for k, v in arrays.items()}
    x = a["x"]
    attended = np.zeros_like(x)
    q, k, v = (x @ a[f"w{at}"] + a[f"b{at}"] for at in "qkv")
    for head in range(heads):
        part = slice(head * d, (head + 1) * d)
        scores = np.einsum("bid,bjd->bij", q[..., part], k[..., part]) * scale + a["mask"][:, 0]
        attended[..., part] = np.einsum("bij,bjd->bid", softmax(scores), v[..., part])
    middle = layer_norm(attended @ a["wo"] + a["bo"] + x, a["gain1"], a["bias1"], eps)
    inner = gelu(middle @ a["up"] + a["up_bias"])
    wanted = layer_norm(inner @ a["down"] + a["down_bias"] + middle, a["gain2"], a["bias2"], eps)
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


def rotated(x: Numbers, cos: Numbers, sin: Numbers) -> Numbers:
    half = x.shape[-1] // 2
    return x * cos + np.concatenate([-x[..., half:], x[..., :half]], -1) * sin


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize("past", [0, 3])
def test_llama_layer(normed: bool, past: int) -> None:
    heads, kv, d, n, s, eps = 4, 2, 4, 10, 5, 1e-5
    h, narrow = heads * d, kv * d
    shapes = {"x": (2, s, h), "gain1": (h,), "wq": (h, h), "wk": (h, narrow), "wv": (h, narrow), "wo": (h, h)}
    shapes |= {"gain2": (h,), "up": (h, n), "gate": (h, n), "down": (n, h), "cos": (s, d), "sin": (s, d)}
    if normed:
        shapes |= {"q_gain": (d,), "k_gain": (d,)}
    if past:
        shapes |= {"past_k": (2, kv, past, d), "past_v": (2, kv, past, d)}
    values, arrays = made(**shapes)
    scale = 1 / math.sqrt(d)
    block = blocks.llama_layer(
        **values,
        heads=heads,
        kv_heads=kv,
        groups=heads // kv,
        scale=scale,
        eps=eps,
        causal=not past,
        keep_cache=bool(past),
    )
    got = run(block, arrays, results=3 if past else 1)
    a = {k: v.astype(np.float64) for k, v in arrays.items()}
    x = a["x"]
    y = rms_norm(x, a["gain1"], eps)
    q, k, v = ((y @ a[w]).reshape(2, s, -1, d).transpose(0, 2, 1, 3) for w in ("wq", "wk", "wv"))
    if normed:
        q, k = rms_norm(q, a["q_gain"], eps), rms_norm(k, a["k_gain"], eps)
    q, k = rotated(q, a["cos"], a["sin"]), rotated(k, a["cos"], a["sin"])
    if past:
        k, v = np.concatenate([a["past_k"], k], 2), np.concatenate([a["past_v"], v], 2)
    attended = np.zeros((2, s, h))
    for head in range(heads):
        of = head // (heads // kv)
        scores = np.einsum("bid,bjd->bij", q[:, head], k[:, of]) * scale
        if not past:
            scores = np.where(np.tril(np.ones((s, s), bool)), scores, -np.inf)
        attended[..., head * d : (head + 1) * d] = softmax(scores) @ v[:, of]
    middle = x + attended @ a["wo"]
    z = rms_norm(middle, a["gain2"], eps)
    gated = z @ a["gate"] / (1 + np.exp(-(z @ a["gate"])))
    wanted = middle + (gated * (z @ a["up"])) @ a["down"]
    np.testing.assert_allclose(got[0], wanted, rtol=1e-6, atol=1e-7)
    if past:
        np.testing.assert_allclose(got[1], k, rtol=1e-9)
        np.testing.assert_allclose(got[2], v, rtol=1e-9)


def test_moe_ffn_weighs_the_chosen_experts_only() -> None:
    tokens, k, n, experts, chosen = 6, 4, 8, 5, 2
    values, arrays = made(
        x=(tokens, k), router=(k, experts), up=(experts, k, n), gate=(experts, k, n), down=(experts, n, k)
    )
    (got,) = run(blocks.moe_ffn(**values, chosen=chosen), arrays)
    a = {name: v.astype(np.float64) for name, v in arrays.items()}
    wanted = np.zeros((tokens, k))
    for t in range(tokens):
        scores = softmax(a["x"][t] @ a["router"])
        best = np.argsort(-scores)[:chosen]
        for e in best:
            gated = a["x"][t] @ a["gate"][e]
            hidden = gated / (1 + np.exp(-gated)) * (a["x"][t] @ a["up"][e])
            wanted[t] += scores[e] / scores[best].sum() * (hidden @ a["down"][e])
    np.testing.assert_allclose(got, wanted, rtol=1e-6, atol=1e-7)


def convolved(x: Numbers, w: Numbers) -> Numbers:
    """A 3 by 3 convolution with a border of zeros, place by place."""
    padded = np.pad(x, ((0, 0), (0, 0), (1, 1), (1, 1)))
    out = np.zeros((x.shape[0], w.shape[0], *x.shape[2:]))
    for i in range(x.shape[2]):
        for j in range(x.shape[3]):
            out[:, :, i, j] = np.einsum("bcij,mcij->bm", padded[:, :, i : i + 3, j : j + 3], w)
    return out


def test_convolution_blocks() -> None:
    c = 4
    one = (c, 1, 1)
    values, arrays = made(x=(2, c, 5, 5), w=(c, c, 3, 3), gain=one, bias=one, mean=one, variance=one)
    arrays["variance"] = np.abs(arrays["variance"]) + np.float32(0.5)
    a = {name: v.astype(np.float64) for name, v in arrays.items()}
    (got,) = run(blocks.conv_norm_act(**values, eps=1e-5), arrays)
    normed = (convolved(a["x"], a["w"]) - a["mean"]) / np.sqrt(a["variance"] + 1e-5) * a["gain"] + a["bias"]
    np.testing.assert_allclose(got, np.maximum(normed, 0), rtol=1e-9, atol=1e-9)

    values, arrays = made(x=(2, c, 5, 5), w1=(c, c, 3, 3), b1=one, w2=(c, c, 3, 3), b2=one)
    a = {name: v.astype(np.float64) for name, v in arrays.items()}
    (got,) = run(blocks.basic_block(**values), arrays)
    y = np.maximum(convolved(a["x"], a["w1"]) + a["b1"], 0)
    np.testing.assert_allclose(got, np.maximum(convolved(y, a["w2"]) + a["b2"] + a["x"], 0), rtol=1e-9, atol=1e-9)


def test_unet_block() -> None:
    c, groups, eps = 4, 2, 1e-5
    one = (c, 1, 1)
    shapes = {f"{part}{i}": one for i in (1, 2) for part in ("gain", "bias", "b")}
    values, arrays = made(x=(2, c, 5, 5), w1=(c, c, 3, 3), w2=(c, c, 3, 3), **shapes)
    a = {name: v.astype(np.float64) for name, v in arrays.items()}
    (got,) = run(blocks.unet_block(**values, groups=groups, eps=eps), arrays)

    def half(x: Numbers, i: int) -> Numbers:
        grouped = x.reshape(2, groups, -1)
        normed = (grouped - grouped.mean(-1, keepdims=True)) / np.sqrt(grouped.var(-1, keepdims=True) + eps)
        y = normed.reshape(x.shape) * a[f"gain{i}"] + a[f"bias{i}"]
        return convolved(y / (1 + np.exp(-y)), a[f"w{i}"]) + a[f"b{i}"]

    np.testing.assert_allclose(got, half(half(a["x"], 1), 2) + a["x"], rtol=1e-9, atol=1e-9)
