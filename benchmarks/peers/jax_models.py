# pyright: basic
"""The workloads as people write them in jax, with the weights of the ONNX models; pictures have their channels last."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]
import numpy as np

from dovetail.bench.convnets import GROUPS, Resnet, UnetBlock
from dovetail.bench.transformers import Decoder, Encoder
from dovetail.bench.workloads import Shape
from dovetail.ir.literal import Array

Weights = Mapping[str, Any]
Attention = Literal["xla", "cudnn"] | None
"""How jax computes attention; None is as it chooses."""


def function(shape: Shape, attention: Attention = None) -> Callable[..., Any]:
    """The network of these sizes: it takes its weights, and the inputs of the ONNX model in their order."""
    match shape:
        case Encoder():
            return partial(_encoder, shape, attention)
        case Decoder():
            return partial(_decoder, shape, attention)
        case Resnet():
            return partial(_resnet, shape)
        case UnetBlock():
            return _unet_block


def arranged(weights: Mapping[str, Array]) -> dict[str, Any]:
    """The weights on the device: of a convolution with its inputs and outputs last."""
    return {n: jnp.asarray(a.transpose(2, 3, 1, 0) if a.ndim == 4 and n.endswith(".weight") else a)
            for n, a in weights.items() if np.issubdtype(a.dtype, np.floating)}  # fmt: skip


def _linear(w: Weights, name: str, x: Any) -> Any:
    y = x @ w[f"{name}.weight"]
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def _norm(w: Weights, name: str, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    scaled = (wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + 1e-12)
    return scaled.astype(x.dtype) * w[f"{name}.weight"] + w[f"{name}.bias"]


def _rms(w: Weights, name: str, x: Any) -> Any:
    wide = x.astype(jnp.float32)
    scaled = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + 1e-5)
    return scaled.astype(x.dtype) * w[f"{name}.weight"]


def _encoder(of: Encoder, attention: Attention, w: Weights, input_ids: Any, attention_mask: Any) -> Any:
    batch, seq = input_ids.shape
    x = _norm(w, "norm", w["words"][input_ids] + w["places"][:seq])
    mask = attention_mask[:, None, None, :].astype(bool)
    for i in range(of.layers):
        at = f"layers.{i}"
        q, k, v = (
            _linear(w, f"{at}.{part}", x).reshape(batch, seq, of.heads, -1) for part in ("query", "key", "value")
        )
        mixed = jax.nn.dot_product_attention(q, k, v, mask=mask, implementation=attention)
        x = _norm(w, f"{at}.norm1", _linear(w, f"{at}.dense", mixed.reshape(batch, seq, of.hidden)) + x)
        inner = jax.nn.gelu(_linear(w, f"{at}.up", x), approximate=False)
        x = _norm(w, f"{at}.norm2", _linear(w, f"{at}.down", inner) + x)
    return x


def _turned(x: Any, cos: Any, sin: Any) -> Any:
    low, high = jnp.split(x, 2, axis=-1)
    return x * cos + jnp.concatenate((-high, low), axis=-1) * sin


def _decoder(of: Decoder, attention: Attention, w: Weights, input_ids: Any, *past: Any) -> Any:
    seq, cached = input_ids.shape[1], past[0].shape[2] if past else 0
    angles = np.outer(np.arange(cached, cached + seq), 10000.0 ** (-np.arange(0, of.size, 2) / of.size))
    doubled = np.concatenate((angles, angles), axis=-1).astype(np.float32)[:, None, :]
    cos, sin = (part.astype(w["words"].dtype) for part in (np.cos(doubled), np.sin(doubled)))
    x = w["words"][input_ids]
    for i in range(of.layers):
        at = f"layers.{i}"
        h = _rms(w, f"{at}.norm1", x)
        q, k, v = (_linear(w, f"{at}.{part}", h).reshape(1, seq, -1, of.size) for part in ("query", "key", "value"))
        q, k = _turned(q, cos, sin), _turned(k, cos, sin)
        if past:
            keys, values = (p.transpose(0, 2, 1, 3) for p in past[2 * i : 2 * i + 2])
            k, v = jnp.concatenate((keys, k), axis=1), jnp.concatenate((values, v), axis=1)
        mixed = jax.nn.dot_product_attention(q, k, v, is_causal=seq > 1, implementation=attention)
        x = x + _linear(w, f"{at}.dense", mixed.reshape(1, seq, -1))
        h = _rms(w, f"{at}.norm2", x)
        x = x + _linear(w, f"{at}.down", jax.nn.silu(_linear(w, f"{at}.gate", h)) * _linear(w, f"{at}.up", h))
    return _linear(w, "head", _rms(w, "norm", x))


def _conv(w: Weights, name: str, x: Any, stride: int = 1) -> Any:
    kernel = w[f"{name}.weight"]
    pad = kernel.shape[0] // 2
    y = jax.lax.conv_general_dilated(
        x, kernel, (stride, stride), ((pad, pad), (pad, pad)), dimension_numbers=("NHWC", "HWIO", "NHWC")
    )
    return y + w[f"{name}.bias"]


def _resnet(of: Resnet, w: Weights, image: Any) -> Any:
    x = jax.nn.relu(_conv(w, "stem", image.transpose(0, 2, 3, 1), 2))
    around = ((0, 0), (1, 1), (1, 1), (0, 0))
    x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1), around)
    for stage, blocks in enumerate(of.blocks):
        for block in range(blocks):
            at, stride = f"stages.{stage}.{block}", 2 if stage and not block else 1
            y = jax.nn.relu(_conv(w, f"{at}.conv1", x))
            y = jax.nn.relu(_conv(w, f"{at}.conv2", y, stride))
            short = x if block else _conv(w, f"{at}.short", x, stride)
            x = jax.nn.relu(_conv(w, f"{at}.conv3", y) + short)
    return _linear(w, "head", x.mean((1, 2)))


def _group_norm(w: Weights, name: str, x: Any) -> Any:
    grouped = x.reshape(*x.shape[:3], GROUPS, -1)
    mean, spread = grouped.mean((1, 2, 4), keepdims=True), grouped.var((1, 2, 4), keepdims=True)
    scaled = ((grouped - mean) * jax.lax.rsqrt(spread + 1e-5)).reshape(x.shape)
    return scaled * w[f"{name}.weight"] + w[f"{name}.bias"]


def _unet_block(w: Weights, x: Any) -> Any:
    x = x.transpose(0, 2, 3, 1)
    for block in range(2):
        y = x
        for layer in range(2):
            at = f"blocks.{block}.{layer}"
            y = _conv(w, f"{at}.conv", jax.nn.silu(_group_norm(w, f"{at}.norm", y)))
        x = x + y
    return x.transpose(0, 3, 1, 2)
