"""Optimizers that treat a weight as a matrix: Adafactor and Muon."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import field

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.ir import leaf
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.renamed import old_fields
from dovetail.train.losses import total
from dovetail.train.optimizers import AdamW, Optimizer, Shape, Updated, check_rate, check_shares

_SERIES = (3.4445, -4.7750, 2.0315)
"""The odd polynomial of degree five whose iteration brings singular values near 1."""


@old_fields(rate="lr", decay="weight_decay")
@dataclass(frozen=True, slots=True)
class Adafactor:
    """Adafactor: of the squares of a matrix's gradient, the means of rows and columns alone are kept."""

    lr: float = 0.01
    fading: float = -0.8
    """The power of the step that the weight of a new square is."""
    eps: tuple[float, float] = (2.0**-23, 1e-3)
    """The smallest square, and the smallest size that a weight counts with."""
    most: float = 1.0
    """The root mean square of an update before the rate, at most."""
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.lr)

    def state(self, shape: Shape) -> Mapping[str, Shape]:
        if len(shape) < 2:
            return {"square": shape}
        return {"rows": (*shape[:-1], 1), "columns": (*shape[:-2], 1, shape[-1])}

    def numbers(self, step: int) -> dict[str, float]:
        return {"fresh": step**self.fading, "slower": step**-0.5}

    def update(self, w: Value, g: Value, state: Mapping[str, Value], numbers: Mapping[str, Value]) -> Updated:
        squares = g * g
        if w.rank < 2:
            kept = {"square": _toward(state["square"], squares, numbers["fresh"])}
            estimate = kept["square"]
        else:
            means = {"rows": ops.reduce_mean(squares, axes=(-1,)), "columns": ops.reduce_mean(squares, axes=(-2,))}
            kept = {slot: _toward(state[slot], mean, numbers["fresh"]) for slot, mean in means.items()}
            middle = ops.reduce_mean(kept["rows"], axes=(-2,))
            estimate = kept["rows"] * kept["columns"] / ops.maximum(middle, leaf.scalar(self.eps[0], w.dtype))
        step = g * ops.rsqrt(ops.maximum(estimate, leaf.scalar(self.eps[0] ** 2, w.dtype)))
        share = 1.0 / ops.maximum(_root_mean_square(step) * (1.0 / self.most), leaf.scalar(1.0, w.dtype))
        size = ops.maximum(_root_mean_square(w), leaf.scalar(self.eps[1], w.dtype))
        pace = ops.minimum(numbers["rate"], numbers["slower"]) * size * share
        return Updated(w - w * (numbers["rate"] * numbers["decay"]) - step * pace, kept)


@old_fields(rate="lr", decay="weight_decay")
@dataclass(frozen=True, slots=True)
class Muon:
    """Muon: momentum whose singular values are brought near 1, for matrices; another optimizer moves the rest."""

    lr: float = 1e-3
    momentum: float = 0.95
    nesterov: bool = True
    weight_decay: float = 0.1
    iterations: int = 5
    others: Optimizer = field(default_factory=AdamW)
    """For weights that are no matrices; its rate follows the schedule too."""

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_shares(momentum=self.momentum)

    def state(self, shape: Shape) -> Mapping[str, Shape]:
        return {"momentum": shape} if len(shape) == 2 else self.others.state(shape)

    def numbers(self, step: int) -> dict[str, float]:
        return self.others.numbers(step)

    def update(self, w: Value, g: Value, state: Mapping[str, Value], numbers: Mapping[str, Value]) -> Updated:
        if w.rank != 2:
            ratio = self.others.lr / self.lr if self.lr else 0.0
            decay = leaf.scalar(self.others.weight_decay, w.dtype)
            return self.others.update(w, g, state, {**numbers, "rate": numbers["rate"] * ratio, "decay": decay})
        kept = state["momentum"] * self.momentum + g * (1 - self.momentum)
        ahead = g * (1 - self.momentum) + kept * self.momentum if self.nesterov else kept
        rows, columns = (int(str(size)) for size in w.shape)
        scale = math.sqrt(max(1.0, rows / columns))
        step = self._orthogonal(ahead, tall=rows > columns) * (numbers["rate"] * scale)
        return Updated(w - w * (numbers["rate"] * numbers["decay"]) - step, {"momentum": kept})

    def _orthogonal(self, x: Value, *, tall: bool) -> Value:
        """Return the matrix with its singular values near 1, by the iteration of Newton and Schulz."""
        first, second, third = _SERIES
        x = ops.permute(x, order=(-1, -2)) if tall else x
        x = x / ops.maximum(ops.sqrt(total(x * x)), leaf.scalar(1e-7, x.dtype))
        for _ in range(self.iterations):
            gram = x @ ops.permute(x, order=(-1, -2))
            x = x * first + (gram * second + (gram @ gram) * third) @ x
        return ops.permute(x, order=(-1, -2)) if tall else x


def _toward(old: Value, new: Value, share: Value) -> Value:
    return old + (new - old) * share


def _root_mean_square(x: Value) -> Value:
    count = math.prod(int(str(size)) for size in x.shape)
    wide = x if x.dtype is f32 else ops.cast(x, dtype=f32)
    return ops.cast(ops.sqrt(total(wide * wide) * (1.0 / count)), dtype=x.dtype)


__all__ = ["Adafactor", "Muon"]
