# pyright: basic
"""The step in jax, jitted as a whole, with weights and moments donated."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax  # pyright: ignore[reportMissingImports]
import jax.numpy as jnp  # pyright: ignore[reportMissingImports]

from train_steps.works import BETAS, DECAY, EPS, RATE, Mlp, Resnet, Transformer, Work, batch, convolutions, weights


def prepare(work: Work, threads: int) -> Callable[[], float]:
    """A function that makes one step and gives its loss; jax has as many threads as the process has cores."""
    x, labels = (jnp.asarray(array) for array in batch(work))
    network = {Mlp: _mlp, Transformer: _transformer, Resnet: _resnet}[type(work)]

    def lost(own: Any) -> Any:
        chances = jax.nn.log_softmax(network(work, own, x))
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


def _linear(own: Any, name: str, x: Any) -> Any:
    return x @ own[f"{name}.weight"] + own[f"{name}.bias"]


def _mlp(work: Mlp, own: Any, x: Any) -> Any:
    for i in range(len(work.sizes) - 1):
        x = _linear(own, str(i), x)
        x = jax.nn.relu(x) if i + 2 < len(work.sizes) else x
    return x


def _transformer(work: Transformer, own: Any, ids: Any) -> Any:
    def norm(name: str, x: Any) -> Any:
        centred = x - x.mean(-1, keepdims=True)
        shrunk = centred * jax.lax.rsqrt((centred * centred).mean(-1, keepdims=True) + 1e-5)
        return shrunk * own[f"{name}.gain"] + own[f"{name}.bias"]

    def attend(name: str, x: Any) -> Any:
        b, t, d = x.shape
        split = (b, t, work.heads, d // work.heads)
        q, k, v = (y.reshape(split).transpose(0, 2, 1, 3) for y in jnp.split(_linear(own, f"{name}.qkv", x), 3, -1))
        scores = (q @ k.swapaxes(-1, -2)) * split[-1] ** -0.5
        if work.causal:
            scores = jnp.where(jnp.tril(jnp.ones((t, t), bool)), scores, -jnp.inf)
        return _linear(own, f"{name}.out", (jax.nn.softmax(scores) @ v).transpose(0, 2, 1, 3).reshape(b, t, d))

    def feed(name: str, x: Any) -> Any:
        return _linear(own, f"{name}.down", jax.nn.gelu(_linear(own, f"{name}.up", x), approximate=False))

    x = own["words"][ids] + own["places"][: work.tokens]
    x = x if work.causal else norm("norm", x)
    for i in range(work.layers):
        if work.causal:
            x = x + attend(str(i), norm(f"{i}.norm1", x))
            x = x + feed(str(i), norm(f"{i}.norm2", x))
        else:
            x = norm(f"{i}.norm1", x + attend(str(i), x))
            x = norm(f"{i}.norm2", x + feed(str(i), x))
    return norm("norm", x) @ own["words"].T if work.causal else x @ own["head.weight"]


def _resnet(work: Resnet, own: Any, x: Any) -> Any:
    listed = {name: (window, stride) for name, _, _, window, stride in convolutions(work)}

    def convolve(name: str, x: Any) -> Any:
        window, stride = listed[name]
        y = jax.lax.conv_general_dilated(x, own[f"{name}.filter"], (stride, stride), [(window // 2, window // 2)] * 2)
        centred = y - y.mean((0, 2, 3), keepdims=True)
        shrunk = centred * jax.lax.rsqrt((centred * centred).mean((0, 2, 3), keepdims=True) + 1e-5)
        return shrunk * own[f"{name}.gain"][:, None, None] + own[f"{name}.bias"][:, None, None]

    x = jax.nn.relu(convolve("stem", x))
    for stage in range(len(work.stages)):
        for block in range(work.blocks):
            name = f"{stage}.{block}"
            y = convolve(f"{name}.2", jax.nn.relu(convolve(f"{name}.1", x)))
            x = jax.nn.relu(y + (convolve(f"{name}.short", x) if f"{name}.short" in listed else x))
    return _linear(own, "head", x.mean((2, 3)))
