"""Loss curves beside torch's: the same weights, batches and optimizer, step by step.

`python -m tests.train.curves [NAME …] [--steps N]` needs torch. Digits are read where
`make train-demo` has fetched them.
"""

# torch is optional, and has no types here.
# pyright: basic, reportMissingImports=false

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional as F

from dovetail.frontends.torch.load import import_module
from dovetail.train import SGD, AdamW, Trainer, cross_entropy

BOUND = 1e-3
"""How far two losses of one step may be apart."""
IGNORED = -100
DIGITS = Path(__file__).resolve().parents[2] / "build" / "models" / "digits" / "digits.csv.gz"

Batches = Iterator[dict[str, Any]]


class Mlp(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


class Layer(nn.Module):
    """A layer of a transformer: norms first and causal, or last and not."""

    def __init__(self, width: int, heads: int, causal: bool) -> None:
        super().__init__()
        self.heads, self.causal = heads, causal
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)

    def attend(self, x: Any) -> Any:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(1, 2) for t in self.qkv(x).chunk(3, -1))
        seen = F.scaled_dot_product_attention(q, k, v, is_causal=self.causal)
        return self.out(seen.transpose(1, 2).flatten(-2))

    def forward(self, h: Any) -> Any:
        if self.causal:
            h = h + self.attend(self.norm1(h))
            return h + self.down(F.gelu(self.up(self.norm2(h))))
        h = self.norm1(h + self.attend(h))
        return self.norm2(h + self.down(F.gelu(self.up(h))))


class Transformer(nn.Module):
    """Token ids in, logits out, with the table that reads them."""

    def __init__(self, words: int, length: int, width: int, heads: int, layers: int, causal: bool) -> None:
        super().__init__()
        self.table, self.places = nn.Embedding(words, width), nn.Parameter(0.02 * torch.randn(length, width))
        self.layers = nn.ModuleList([Layer(width, heads, causal) for _ in range(layers)])
        self.norm = nn.LayerNorm(width)
        nn.init.normal_(self.table.weight, std=0.02)

    def forward(self, x: Any) -> Any:
        h = self.table(x) + self.places
        for layer in self.layers:
            h = layer(h)
        return self.norm(h) @ self.table.weight.T


class Block(nn.Module):
    def __init__(self, into: int, out: int, stride: int) -> None:
        super().__init__()
        self.conv1, self.norm1 = nn.Conv2d(into, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.conv2, self.norm2 = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.short = (
            nn.Sequential(nn.Conv2d(into, out, 1, stride, bias=False), nn.BatchNorm2d(out)) if into != out else None
        )

    def forward(self, x: Any) -> Any:
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(self.norm2(self.conv2(y)) + (x if self.short is None else self.short(x)))


class Resnet(nn.Module):
    """ResNet-20 of He et al.: three stages of `blocks` blocks."""

    def __init__(self, blocks: int) -> None:
        super().__init__()
        self.stem, self.norm = nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16)
        made: list[Any] = []
        into = 16
        for stage, width in enumerate((16, 32, 64)):
            for index in range(blocks):
                made.append(Block(into, width, 2 if stage and not index else 1))
                into = width
        self.blocks, self.head = nn.Sequential(*made), nn.Linear(64, 10)

    def forward(self, x: Any) -> Any:
        return self.head(self.blocks(F.relu(self.norm(self.stem(x)))).mean((2, 3)))


def digits(steps: int, rows: int = 64) -> Batches:
    """Handwritten digits, or numbers of ten classes where they are not there."""
    rng = np.random.default_rng(1)
    if DIGITS.is_file():
        table = np.loadtxt(DIGITS, delimiter=",")
        x, y = (table[:, :64] / 16).astype(np.float32), table[:, 64].astype(np.int64)
    else:
        y = rng.integers(0, 10, 1000)
        x = (0.3 * rng.normal(size=(10, 64))[y] + 0.3 * rng.normal(size=(1000, 64))).astype(np.float32)
    for _ in range(steps):
        chosen = rng.integers(0, len(x), rows)
        yield {"x": x[chosen], "labels": y[chosen]}


def characters(steps: int, length: int, rows: int, *, masked: bool = False) -> Batches:
    """The text of this file, one character after the other; or with some of them to guess."""
    rng = np.random.default_rng(2)
    text = np.frombuffer(Path(__file__).read_bytes(), np.uint8).astype(np.int64) % 128
    for _ in range(steps):
        at = rng.integers(0, len(text) - length - 1, rows)[:, None] + np.arange(length)
        if not masked:
            yield {"x": text[at], "labels": text[at + 1]}
            continue
        hidden = rng.random(at.shape) < 0.15
        yield {"x": np.where(hidden, 0, text[at]), "labels": np.where(hidden, text[at], IGNORED)}


def images(steps: int, rows: int, size: int) -> Batches:
    """Ten patterns in noise."""
    rng = np.random.default_rng(3)
    patterns = rng.normal(size=(10, 3, size, size))
    for _ in range(steps):
        y = rng.integers(0, 10, rows)
        yield {"x": (patterns[y] + rng.normal(size=(rows, 3, size, size))).astype(np.float32), "labels": y}


@dataclass(frozen=True, slots=True)
class Case:
    """A module, its batches, and the optimizers of both sides."""

    module: Callable[[], Any]
    batches: Callable[[int], Batches]
    rate: float
    momentum: float | None = None
    """Of SGD; None for AdamW."""
    wide: bool = False
    """In float64, where float32 and float64 lose each other in torch, too. Rates are then exact in float32."""


CASES = {
    "digits": Case(Mlp, digits, 3e-3),
    "gpt": Case(lambda: Transformer(128, 64, 128, 4, 4, True), lambda n: characters(n, 64, 12), 1e-3),
    "bert": Case(lambda: Transformer(128, 32, 96, 4, 3, False), lambda n: characters(n, 32, 8, masked=True), 5e-4),
    "resnet20": Case(lambda: Resnet(3), lambda n: images(n, 8, 16), 2**-6, 0.875, wide=True),
}
SMALL = {
    "gpt": Case(lambda: Transformer(128, 16, 32, 2, 1, True), lambda n: characters(n, 16, 4), 1e-3),
    "resnet": Case(lambda: Resnet(1), lambda n: images(n, 4, 8), 0.02, 0.9),
}
"""The same in small, for a test."""


def curves(case: Case, steps: int, **options: Any) -> tuple[list[float], list[float], Trainer, Any]:
    """The losses of dovetail and of torch, the trainer, and torch's module after the steps."""
    torch.manual_seed(0)
    module = case.module().double() if case.wide else case.module()

    def batches(count: int) -> Batches:
        for batch in case.batches(count):
            yield {**batch, "x": batch["x"].astype(np.float64)} if case.wide else batch

    first = next(batches(1))
    graph = import_module(module.eval(), (torch.from_numpy(first["x"]),)).graph
    loss = partial(cross_entropy, ignore_index=IGNORED)
    if case.momentum is None:
        trainer = Trainer(graph, loss, AdamW(case.rate), **options)
        theirs: Any = torch.optim.AdamW(module.parameters(), lr=case.rate)
    else:
        trainer = Trainer(graph, loss, SGD(case.rate, momentum=case.momentum), **options)
        theirs = torch.optim.SGD(module.parameters(), lr=case.rate, momentum=case.momentum)
    (name,) = [str(v.attrs["name"]) for v in graph.inputs]
    module.train()
    found: list[float] = []
    wanted: list[float] = []
    for batch in batches(steps):
        found.append(trainer.step({name: batch["x"], "labels": batch["labels"]}).loss)
        logits = module(torch.from_numpy(batch["x"]))
        lost = F.cross_entropy(logits.flatten(0, -2), torch.from_numpy(batch["labels"]).flatten(), ignore_index=IGNORED)
        theirs.zero_grad()
        lost.backward()
        theirs.step()
        wanted.append(lost.item())
    return found, wanted, trainer, module


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[[], *CASES], help="which; without any, all")
    parser.add_argument("--steps", type=int, default=150)
    options = parser.parse_args(argv)
    torch.set_num_threads(2)
    worst = 0.0
    for name in options.names or CASES:
        found, wanted, _, _ = curves(CASES[name], options.steps)
        apart = np.abs(np.subtract(found, wanted))
        print(
            f"{name:10} {options.steps} steps, loss {wanted[0]:.4f} to {np.mean(found[-10:]):.4f} "
            f"(torch {np.mean(wanted[-10:]):.4f}), largest difference {apart.max():.2e} at step {apart.argmax() + 1}",
            flush=True,
        )
        worst = max(worst, float(apart.max()))
    return int(not worst <= BOUND)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
