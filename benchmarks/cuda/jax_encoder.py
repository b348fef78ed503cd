# pyright: basic
"""The encoders of `encoders.py` as people write them in JAX, with q, k and v in one product."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

_AXES = {3: ("NCH", "OIH", "NCH"), 4: ("NCHW", "OIHW", "NCHW")}
"""By the rank of what a convolution takes."""


def step_of(
    jax: Any, shape: Any, weights: Mapping[str, Any], x: Any, attention: str, eps: float = 1e-5
) -> Callable[[], Any]:
    """One call with everything on the device."""
    held = {name: jax.numpy.asarray(content) for name, content in joined(shape, weights).items()}
    run, given = jax.jit(lambda w, x: encoded(jax, shape, w, x, attention, eps)), jax.numpy.asarray(x)
    return lambda: run(held, given)


def joined(shape: Any, weights: Mapping[str, Any]) -> dict[str, Any]:
    """The weights with those of q, k and v beside each other."""
    found = dict(weights)
    for index in range(shape.of.layers):
        at = f"layers.{index}"
        for end in ("", ".bias"):
            found[f"{at}.wqkv{end}"] = np.concatenate([found.pop(f"{at}.w{part}{end}") for part in "qkv"], -1)
    return found


def encoded(jax: Any, shape: Any, w: Mapping[str, Any], x: Any, attention: str, eps: float) -> Any:
    """Logits of classes, or hidden states."""
    of, jnp = shape.of, jax.numpy

    def linear(name: str, x: Any) -> Any:
        return x @ w[name] + w[f"{name}.bias"]

    def norm(name: str, x: Any) -> Any:
        wide = x.astype(jnp.float32)
        scaled = (wide - wide.mean(-1, keepdims=True)) * jax.lax.rsqrt(wide.var(-1, keepdims=True) + eps)
        return scaled.astype(x.dtype) * w[f"{name}.gain"] + w[f"{name}.shift"]

    x = _stem(jax, shape, w, x)
    batch, tokens, hidden = x.shape
    for index in range(of.layers):
        at = f"layers.{index}"
        qkv = linear(f"{at}.wqkv", norm(f"{at}.norm1", x)).reshape(batch, tokens, 3, of.heads, of.width)
        mixed = jax.nn.dot_product_attention(*(qkv[:, :, i] for i in range(3)), implementation=attention)
        x = x + linear(f"{at}.wo", mixed.reshape(batch, tokens, hidden))
        inner = jax.nn.gelu(linear(f"{at}.up", norm(f"{at}.norm2", x)), approximate=False)
        x = x + linear(f"{at}.down", inner)
    x = norm("norm", x)
    return linear("head", x[:, 0]) if "head" in w else x


def _stem(jax: Any, shape: Any, w: Mapping[str, Any], x: Any) -> Any:
    """The tokens of an input, with their places."""

    def conv(name: str, x: Any, stride: int, pad: int) -> Any:
        rank = x.ndim - 2
        y = jax.lax.conv_general_dilated(
            x, w[name], (stride,) * rank, ((pad, pad),) * rank, dimension_numbers=_AXES[x.ndim]
        )
        return y + w[f"{name}.bias"]

    if "patches" in w:
        cells = conv("patches", x, shape.patch, 0).reshape(len(x), shape.of.hidden, -1).swapaxes(1, 2)
        return jax.numpy.concatenate((w["class"], cells), 1) + w["places"]
    for name, stride in (("conv1", 1), ("conv2", 2)):
        x = jax.nn.gelu(conv(name, x, stride, 1), approximate=False)
    return x.swapaxes(1, 2) + w["places"]


__all__ = ["encoded", "joined", "step_of"]
