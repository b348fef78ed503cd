# pyright: basic
"""The step in torch: eager, or compiled; AdamW is torch's fused one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

from train_steps.networks import logits
from train_steps.works import BETAS, DECAY, EPS, RATE, Work, batch, weights


def prepare(work: Work, threads: int, *, compiled: bool = False) -> Callable[[], float]:
    """A function that makes one step and gives its loss."""
    torch.set_num_threads(threads)
    own = {name: torch.from_numpy(_stored(name, array)).requires_grad_() for name, array in weights(work).items()}
    optimizer = torch.optim.AdamW(own.values(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
    x, labels = (torch.from_numpy(array) for array in batch(work))
    layers = TorchLayers()

    def lost(own: Any, x: Any, labels: Any) -> Any:
        found = logits(work, layers, own, x)
        return F.cross_entropy(found.reshape(-1, found.shape[-1]), labels.reshape(-1))

    loss_of = torch.compile(lost, fullgraph=True, dynamic=False) if compiled else lost

    def step() -> float:
        optimizer.zero_grad(set_to_none=True)
        loss = loss_of(own, x, labels)
        loss.backward()
        optimizer.step()
        return loss.item()

    return step


def _stored(name: str, array: Any) -> Any:
    """torch multiplies by weights of [columns, rows]."""
    return array.T.copy() if name.endswith(".weight") else array.copy()


class TorchLayers:
    """Layers of torch."""

    def linear(self, x: Any, weight: Any, bias: Any) -> Any:
        return F.linear(x, weight, bias)

    def relu(self, x: Any) -> Any:
        return F.relu(x)

    def gelu(self, x: Any) -> Any:
        return F.gelu(x)

    def norm(self, x: Any, gain: Any, bias: Any) -> Any:
        return F.layer_norm(x, gain.shape, gain, bias, 1e-5)

    def embed(self, words: Any, places: Any, ids: Any, tokens: int) -> Any:
        return F.embedding(ids, words) + places[:tokens]

    def attend(self, qkv: Any, heads: int, causal: bool) -> Any:
        b, t, d = *qkv.shape[:2], qkv.shape[2] // 3
        q, k, v = (y.view(b, t, heads, d // heads).transpose(1, 2) for y in qkv.split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=causal)
        return y.transpose(1, 2).reshape(b, t, d)

    def unembed(self, x: Any, words: Any) -> Any:
        return F.linear(x, words)

    def convolve(self, x: Any, filters: Any, stride: int, padding: int) -> Any:
        return F.conv2d(x, filters, stride=stride, padding=padding)

    def batch_norm(self, x: Any, gain: Any, bias: Any) -> Any:
        return F.batch_norm(x, None, None, gain, bias, training=True, eps=1e-5)

    def pool(self, x: Any) -> Any:
        return x.mean((2, 3))
