"""Random bodies of elementwise steps, views and reductions as one kernel, against float64."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from dovetail import Value, ops
from dovetail.dtypes import f32
from dovetail.ir.graph import Subgraph
from dovetail.ir.leaf import argument, input
from dovetail.ir.literal import Array
from dovetail.ops.region import region
from tests.kernels.native import compiled, near

ONE: tuple[Callable[[Value], Value], ...] = (
    ops.tanh,
    ops.abs_,
    ops.sigmoid,
    ops.neg,
    ops.relu,
    lambda x: ops.exp(ops.minimum(x, 2.0)),
    lambda x: x * 0.5 + 1.0,
)
TWO = (ops.add, ops.sub, ops.mul, ops.maximum, ops.minimum)
REDUCTIONS = (ops.reduce_mean, ops.reduce_max, ops.reduce_min)


class Draft:
    """A body while it is drawn: its arguments, what feeds them, and the values that a next step may read."""

    def __init__(self, seed: int) -> None:
        self.draw = random.Random(seed)
        self.numbers = np.random.default_rng(seed)
        self.rank = self.draw.choice((1, 2, 3, 4))
        self.shape = tuple(self.draw.choice((1, 2, 3, 5, 8, 17, 33, 20)) for _ in range(self.rank))
        self.axes = tuple(self.draw.sample(range(-self.rank, 0), self.draw.randint(1, self.rank)))
        self.arguments: list[Value] = []
        self.feeds: dict[str, Array] = {}
        self.values = [self.argument(self.shape), *(self.operand() for _ in range(self.draw.randint(0, 2)))]

    def argument(self, shape: tuple[int, ...]) -> Value:
        self.feeds[f"x{len(self.arguments)}"] = self.numbers.normal(size=shape).astype(np.float32)
        self.arguments.append(argument(len(self.arguments), f32[shape]))
        return self.arguments[-1]

    def operand(self) -> Value:
        """Another tensor: of fewer axes, repeated along some, or with its axes in another order."""
        kind = self.draw.choice(("shorter", "repeated", "turned"))
        if kind == "shorter":
            return self.argument(self.shape[self.draw.randrange(self.rank) :])
        if kind == "repeated":
            return self.argument(tuple(1 if self.draw.random() < 0.5 else n for n in self.shape))
        order = self.draw.sample(range(self.rank), self.rank)
        back = tuple(order.index(i) - self.rank for i in range(self.rank))
        return ops.permute(self.argument(tuple(self.shape[i] for i in order)), order=back)

    def step(self) -> Value:
        x = self.draw.choice(self.values)
        kind = self.draw.random()
        if kind < 0.35:
            return self.draw.choice(ONE)(x)
        if kind < 0.7:
            return self.draw.choice(TWO)(x, self.draw.choice(self.values))
        if x.rank != self.rank:
            return x
        if kind < 0.8 and self.rank > 1:
            axis = self.draw.randrange(1, self.rank)
            joined = ops.merge(x, axis=axis - self.rank, count=2)
            return ops.split(joined, axis=axis - self.rank, parts=x.shape[axis - 1])
        return self.draw.choice(REDUCTIONS)(x, axes=self.axes)


@pytest.mark.parametrize("seed", range(24))
def test_random_bodies(seed: int) -> None:
    draft = Draft(seed)
    for _ in range(draft.draw.randint(3, 12)):
        draft.values.append(draft.step())
    # Whatever was drawn: a reduction, and something that reads it beside what it came from.
    mean = ops.reduce_mean(draft.values[-1] + draft.values[0], axes=draft.axes)
    result = ops.mul(draft.values[-1], mean) + draft.values[0]
    body = Subgraph(tuple(a.tensor for a in draft.arguments), (result,))
    given = [input(name, a.tensor) for name, a in zip(draft.feeds, draft.arguments, strict=True)]
    near(compiled(region(body, given)), draft.feeds, scale=4.0)
