# pyright: basic
"""The step in torch: eager, or compiled; AdamW is torch's fused one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch  # pyright: ignore[reportMissingImports]
from torch.nn import functional as F  # pyright: ignore[reportMissingImports]

from train_steps.works import BETAS, DECAY, EPS, RATE, Mlp, Resnet, Transformer, Work, batch, convolutions, weights


def prepare(work: Work, threads: int, *, compiled: bool = False) -> Callable[[], float]:
    """A function that makes one step and gives its loss."""
    torch.set_num_threads(threads)
    own = {name: torch.from_numpy(_stored(name, array)).requires_grad_() for name, array in weights(work).items()}
    optimizer = torch.optim.AdamW(own.values(), lr=RATE, betas=BETAS, eps=EPS, weight_decay=DECAY, fused=True)
    x, labels = (torch.from_numpy(array) for array in batch(work))
    network = {Mlp: _mlp, Transformer: _transformer, Resnet: _resnet}[type(work)]

    def lost(own: Any, x: Any, labels: Any) -> Any:
        logits = network(work, own, x)
        return F.cross_entropy(logits.reshape(-1, logits.shape[-1]), labels.reshape(-1))

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


def _linear(own: Any, name: str, x: Any) -> Any:
    return F.linear(x, own[f"{name}.weight"], own.get(f"{name}.bias"))


def _mlp(work: Mlp, own: Any, x: Any) -> Any:
    for i in range(len(work.sizes) - 1):
        x = _linear(own, str(i), x)
        x = F.relu(x) if i + 2 < len(work.sizes) else x
    return x


def _transformer(work: Transformer, own: Any, ids: Any) -> Any:
    def norm(name: str, x: Any) -> Any:
        return F.layer_norm(x, (work.width,), own[f"{name}.gain"], own[f"{name}.bias"], 1e-5)

    def attend(name: str, x: Any) -> Any:
        b, t, d = x.shape
        split = (b, t, work.heads, d // work.heads)
        q, k, v = (y.view(split).transpose(1, 2) for y in _linear(own, f"{name}.qkv", x).split(d, dim=2))
        y = F.scaled_dot_product_attention(q, k, v, is_causal=work.causal)
        return _linear(own, f"{name}.out", y.transpose(1, 2).reshape(b, t, d))

    def feed(name: str, x: Any) -> Any:
        return _linear(own, f"{name}.down", F.gelu(_linear(own, f"{name}.up", x)))

    x = F.embedding(ids, own["words"]) + own["places"][: work.tokens]
    x = x if work.causal else norm("norm", x)
    for i in range(work.layers):
        if work.causal:
            x = x + attend(str(i), norm(f"{i}.norm1", x))
            x = x + feed(str(i), norm(f"{i}.norm2", x))
        else:
            x = norm(f"{i}.norm1", x + attend(str(i), x))
            x = norm(f"{i}.norm2", x + feed(str(i), x))
    return F.linear(norm("norm", x), own["words"]) if work.causal else _linear(own, "head", x)


def _resnet(work: Resnet, own: Any, x: Any) -> Any:
    listed = {name: (window, stride) for name, _, _, window, stride in convolutions(work)}

    def convolve(name: str, x: Any) -> Any:
        window, stride = listed[name]
        y = F.conv2d(x, own[f"{name}.filter"], stride=stride, padding=window // 2)
        return F.batch_norm(y, None, None, own[f"{name}.gain"], own[f"{name}.bias"], training=True, eps=1e-5)

    x = F.relu(convolve("stem", x))
    for stage in range(len(work.stages)):
        for block in range(work.blocks):
            name = f"{stage}.{block}"
            y = convolve(f"{name}.2", F.relu(convolve(f"{name}.1", x)))
            x = F.relu(y + (convolve(f"{name}.short", x) if f"{name}.short" in listed else x))
    return _linear(own, "head", x.mean((2, 3)))
