# pyright: basic
"""The step in jax, jitted as a whole, with weights and moments donated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

from train_steps.networks import logits
from train_steps.works import BETAS, DECAY, EPS, RATE, Work, batch, weights


def prepare(work: Work, threads: int) -> Callable[[], float]:
    """A function that makes one step and gives its loss; jax has as many threads as the process has cores."""
    x, labels = (jnp.asarray(array) for array in batch(work))
    layers = JaxLayers()

    def lost(own: Any) -> Any:
        chances = jax.nn.log_softmax(logits(work, layers, own, x))
        return -jnp.take_along_axis(chances, labels[..., None], -1).mean()

    def update(state: Any) -> Any:
        own, means, squares, count = state
        loss, gradients = jax.value_and_grad(lost)(own)
        count, (first, second) = count + 1, BETAS
        means = jax.tree.map(lambda m, g: first * m + (1 - first) * g, means, gradients)
        squares = jax.tree.map(lambda v, g: second * v + (1 - second) * g * g, squares, gradients)
        by, root = 1 - first**count, 1 - second**count

        def moved(w: Any, m: Any, v: Any) -> Any:
            return w * (1 - RATE * DECAY) - RATE * (m / by) / (jnp.sqrt(v / root) + EPS)

        return (jax.tree.map(moved, own, means, squares), means, squares, count), loss

    made = jax.jit(update, donate_argnums=0)
    own = {name: jnp.asarray(array) for name, array in weights(work).items()}
    state = [(own, jax.tree.map(jnp.zeros_like, own), jax.tree.map(jnp.zeros_like, own), jnp.float32(0))]

    def step() -> float:
        state[0], loss = made(state[0])
        return float(loss.block_until_ready())

    return step


class JaxLayers:
    """Layers of jax."""

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return x @ weight if bias is None else x @ weight + bias

    def relu(self, x: Any) -> Any:
        return jax.nn.relu(x)

    def gelu(self, x: Any) -> Any:
        return jax.nn.gelu(x, approximate=False)

    def norm(self, x: Any, gain: Any, bias: Any) -> Any:
        return _standardised(x, (-1,)) * gain + bias

    def embed(self, words: Any, places: Any, ids: Any, tokens: int) -> Any:
        return words[ids] + places[:tokens]

    def attend(self, qkv: Any, heads: int, causal: bool) -> Any:
        b, t, d = *qkv.shape[:2], qkv.shape[2] // 3
        q, k, v = (y.reshape(b, t, heads, d // heads).transpose(0, 2, 1, 3) for y in jnp.split(qkv, 3, -1))
        scores = (q @ k.swapaxes(-1, -2)) * (d // heads) ** -0.5
        if causal:
            scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
        return (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, d)

    def unembed(self, x: Any, words: Any) -> Any:
        return x @ words.T

    def convolve(self, x: Any, filters: Any, stride: int, padding: int) -> Any:
        return jax.lax.conv_general_dilated(x, filters, (stride, stride), [(padding, padding)] * 2)

    def batch_norm(self, x: Any, gain: Any, bias: Any) -> Any:
        return _standardised(x, (0, 2, 3)) * gain[:, None, None] + bias[:, None, None]

    def pool(self, x: Any) -> Any:
        return x.mean((2, 3))


def _standardised(x: Any, axes: tuple[int, ...]) -> Any:
    centred = x - x.mean(axes, keepdims=True)
    return centred * jax.lax.rsqrt((centred * centred).mean(axes, keepdims=True) + 1e-5)
