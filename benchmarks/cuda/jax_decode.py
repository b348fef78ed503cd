"""One step of a decoder in JAX, with the weights and the caches of `decode.py`.

Written as people write it in JAX: activations [batch, token, head, feature], norms in f32, caches that are donated and
come back from each call.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

import numpy as np

from dovetail.ir.dtype import bf16
from dovetail.models import LlamaShape


def _norm(jax: Any, of: Any, w: Mapping[str, Any], name: str, x: Any) -> Any:
    wide = x.astype(np.float32)
    if not isinstance(of, LlamaShape):
        wide = wide - wide.mean(-1, keepdims=True)
    scaled = wide * jax.lax.rsqrt((wide * wide).mean(-1, keepdims=True) + of.eps)
    y = scaled.astype(x.dtype) * w[f"{name}.gain"]
    return y if isinstance(of, LlamaShape) else y + w[f"{name}.shift"]


def _linear(w: Mapping[str, Any], name: str, x: Any) -> Any:
    y = x @ w[name]
    return y + w[f"{name}.bias"] if f"{name}.bias" in w else y


def _turned(jax: Any, w: Mapping[str, Any], x: Any) -> Any:
    low, high = jax.numpy.split(x, 2, axis=-1)
    return x * w["cos"] + jax.numpy.concatenate((-high, low), axis=-1) * w["sin"]


def _step(
    jax: Any,
    of: Any,
    attention: str,
    end: int,
    w: Mapping[str, Any],
    caches: Mapping[str, Any],
    ids: Any,
    positions: Any,
) -> tuple[Any, dict[str, Any]]:
    """Logits of the last token, and the caches with the rows of all; `end` rows of them are filled then."""
    llama = of if isinstance(of, LlamaShape) else None
    norm, tokens, kept = partial(_norm, jax, of, w), ids.shape[1], dict(caches)
    x = w["embedding"][ids]
    if llama is None:
        x = x + w["places"][positions]
    for index in range(of.layers):
        at = f"layers.{index}"
        y = norm(f"{at}.norm1", x)
        q, k, v = (_linear(w, f"{at}.w{part}", y).reshape(1, tokens, -1, of.width) for part in "qkv")
        if llama is not None:
            if llama.normed_heads:
                q, k = norm(f"{at}.q_norm", q), norm(f"{at}.k_norm", k)
            q, k = _turned(jax, w, q), _turned(jax, w, k)
        for side, rows in (("k", k), ("v", v)):
            old = kept[f"{side}_cache.{index}"]
            kept[f"{side}_cache.{index}"] = jax.lax.dynamic_update_slice(old, rows, (0, positions[0], 0, 0))
        keys, values = (kept[f"{side}_cache.{index}"][:, :end] for side in "kv")
        mixed = jax.nn.dot_product_attention(q, keys, values, is_causal=tokens == end > 1, implementation=attention)
        x = x + _linear(w, f"{at}.wo", mixed.reshape(1, tokens, -1))
        y = norm(f"{at}.norm2", x)
        if llama is not None:
            inner = jax.nn.silu(_linear(w, f"{at}.gate", y)) * _linear(w, f"{at}.up", y)
        else:
            inner = jax.nn.gelu(_linear(w, f"{at}.up", y), approximate=False)
        x = x + _linear(w, f"{at}.down", inner)
    return _linear(w, "head", norm("norm", x[:, -1:])), kept


def _turns(of: LlamaShape, positions: Any) -> dict[str, Any]:
    rates = of.theta ** -(np.arange(0, of.width, 2) / of.width)
    turns = np.outer(positions, np.concatenate([rates, rates]))[:, None]
    return {"cos": np.cos(turns).astype(bf16.numpy), "sin": np.sin(turns).astype(bf16.numpy)}


def step_of(
    jax: Any, of: Any, weights: Mapping[str, Any], feeds: Mapping[str, Any], attention: str
) -> Callable[[], Any]:
    """Calls run the step, each with the caches of the one before, and return logits."""
    jnp = jax.numpy
    given = {**weights, **(_turns(of, feeds["positions"]) if isinstance(of, LlamaShape) else {})}
    w = {name: jnp.asarray(content) for name, content in given.items()}
    held = {n: jnp.asarray(c.transpose(0, 2, 1, 3)) for n, c in feeds.items() if "cache" in n}
    ids, positions = (jnp.asarray(feeds[n]) for n in ("input_ids", "positions"))
    end = int(feeds["positions"][-1]) + 1
    run = jax.jit(partial(_step, jax, of, attention, end), donate_argnums=1)

    def call() -> Any:
        nonlocal held
        logits, held = run(w, held, ids, positions)
        return logits

    return call


__all__ = ["step_of"]
