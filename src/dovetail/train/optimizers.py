"""Optimizers: what becomes of a weight and its state in one step, as values, so that a step is one graph."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol, TypeAlias

from dovetail import ops
from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.value import Value
from dovetail.renamed import old_fields

Shape: TypeAlias = tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Updated:
    """A weight and its state after a step."""

    weight: Value
    state: Mapping[str, Value]


class Optimizer(Protocol):
    """How weights follow gradients."""

    @property
    def lr(self) -> float:
        """The learning rate, which a schedule multiplies."""
        ...

    @property
    def weight_decay(self) -> float:
        """The weight decay of weights that decay."""
        ...

    def state(self, shape: Shape) -> Mapping[str, Shape]:
        """Return the arrays that steps keep for a weight of this shape, zeros at first: their names and shapes."""
        ...

    def numbers(self, step: int) -> dict[str, float]:
        """Numbers of a step, counted from 1, which the graph reads as inputs."""
        ...

    def update(self, w: Value, g: Value, state: Mapping[str, Value], numbers: Mapping[str, Value]) -> Updated:
        """Update a weight by the gradient g; among the numbers are `rate`, which is `lr` as scheduled, and `decay`."""
        ...


@old_fields(rate="lr", decay="weight_decay")
@dataclass(frozen=True, slots=True)
class SGD:
    """Stochastic gradient descent, with momentum and Nesterov's look ahead. Decay is part of the gradient."""

    lr: float = 0.01
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_shares(momentum=self.momentum)
        if self.nesterov and not self.momentum:
            raise OptionError("Nesterov's look ahead without momentum", hint="pass momentum=0.9")

    def state(self, shape: Shape) -> Mapping[str, Shape]:
        return {"momentum": shape} if self.momentum else {}

    def numbers(self, step: int) -> dict[str, float]:
        return {}

    def update(self, w: Value, g: Value, state: Mapping[str, Value], numbers: Mapping[str, Value]) -> Updated:
        g = g + w * numbers["decay"]
        if not self.momentum:
            return Updated(w - g * numbers["rate"], {})
        kept = state["momentum"] * self.momentum + g
        ahead = g + kept * self.momentum if self.nesterov else kept
        return Updated(w - ahead * numbers["rate"], {"momentum": kept})


@old_fields(rate="lr", decay="weight_decay")
@dataclass(frozen=True, slots=True)
class Adam:
    """Adam: running means of the gradient and of its square. Decay is part of the gradient."""

    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_shares(beta1=self.betas[0], beta2=self.betas[1])

    def state(self, shape: Shape) -> Mapping[str, Shape]:
        return {"mean": shape, "square": shape}

    def numbers(self, step: int) -> dict[str, float]:
        """Return the corrections for means that began at 0, computed in float64."""
        first, second = self.betas
        return {"correction": 1 / (1 - first**step), "root": (1 - second**step) ** -0.5}

    def update(self, w: Value, g: Value, state: Mapping[str, Value], numbers: Mapping[str, Value]) -> Updated:
        return self._moved(w, g + w * numbers["decay"], state, numbers)

    def _moved(self, w: Value, g: Value, state: Mapping[str, Value], numbers: Mapping[str, Value]) -> Updated:
        first, second = self.betas
        mean = state["mean"] * first + g * (1 - first)
        # Not g * g: where that is read twice, by a norm too, it is written to memory.
        square = state["square"] * second + g * (g * (1 - second))
        step = mean * (numbers["rate"] * numbers["correction"]) / (ops.sqrt(square) * numbers["root"] + self.eps)
        return Updated(w - step, {"mean": mean, "square": square})


@old_fields(rate="lr", decay="weight_decay")
@dataclass(frozen=True, slots=True)
class AdamW(Adam):
    """Adam with decay apart from the gradient."""

    weight_decay: float = 0.01

    def update(self, w: Value, g: Value, state: Mapping[str, Value], numbers: Mapping[str, Value]) -> Updated:
        kept = w - w * (numbers["rate"] * numbers["decay"])
        return self._moved(kept, g, state, numbers)


@old_fields(rate="lr", decay="weight_decay")
@dataclass(frozen=True, slots=True)
class Lion:
    """Lion: steps of one size, by the sign of a running mean."""

    lr: float = 1e-4
    betas: tuple[float, float] = (0.9, 0.99)
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_rate(self.lr)
        check_shares(beta1=self.betas[0], beta2=self.betas[1])

    def state(self, shape: Shape) -> Mapping[str, Shape]:
        return {"mean": shape}

    def numbers(self, step: int) -> dict[str, float]:
        return {}

    def update(self, w: Value, g: Value, state: Mapping[str, Value], numbers: Mapping[str, Value]) -> Updated:
        first, second = self.betas
        ahead = ops.sign(state["mean"] * first + g * (1 - first))
        kept = w - w * (numbers["rate"] * numbers["decay"])
        return Updated(kept - ahead * numbers["rate"], {"mean": state["mean"] * second + g * (1 - second)})


def check_rate(rate: float) -> None:
    """Refuse a learning rate that cannot be."""
    if not 0 <= rate < float("inf"):
        raise OptionError(f"a learning rate of {rate}", hint="pass a finite number of at least 0")


def check_shares(**shares: float) -> None:
    """Refuse shares that are not from 0 to below 1."""
    for name, share in shares.items():
        if not 0 <= share < 1:
            raise OptionError(f"{name} of {share}", hint="pass a number from 0 to below 1")


__all__ = ["SGD", "Adam", "AdamW", "Lion", "Optimizer", "Shape", "Updated", "check_rate", "check_shares"]
