"""A random graph while it is written: every value with bounds on what it holds and on its rounding error."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any, TypeVar

import numpy as np
from hypothesis import strategies as st
from hypothesis.strategies import DrawFn, SearchStrategy
from numpy.typing import NDArray

from dovetail.ir import leaf
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.dtype import DType, bool_
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from tests.tolerances import TABLE, roundoff

_T = TypeVar("_T")

WIDEST = 64.0
"""Floats stay below this, so that no graph overflows in any dtype."""
WIDEST_WHOLE = 2.0**15
GRAIN = 32
"""Leaves hold multiples of 1/32 up to 2: every float type has them exactly."""


@dataclass(frozen=True, slots=True)
class Held:
    """A value, the interval of its elements, and their rounding error in units of roundoff. 0 is exact."""

    value: Value
    low: float
    high: float
    error: float = 0.0

    @property
    def reach(self) -> float:
        return max(abs(self.low), abs(self.high))

    @property
    def shape(self) -> tuple[Size, ...]:
        return self.value.shape

    @property
    def dtype(self) -> DType:
        return self.value.dtype

    @property
    def rank(self) -> int:
        return self.value.rank


class Draft:
    """The values so far, the arrays for the leaves, and the choices that hypothesis makes."""

    def __init__(
        self, draw: DrawFn, dtype: DType, sizes: Sequence[Size], binding: Mapping[str, int], seed: int
    ) -> None:
        self.draw = draw
        self.dtype = dtype
        self.sizes = tuple(sizes)
        self.binding = binding
        self.arrays: dict[Value, NDArray[Any]] = {}
        self.held: dict[Value, Held] = {}
        self.read: set[Value] = set()
        self._random = np.random.default_rng(seed)
        self._error_limit = TABLE[dtype].atol / roundoff(dtype)

    def one_of(self, choices: Sequence[_T]) -> _T:
        return self.draw(st.sampled_from(choices))

    def chance(self) -> bool:
        return self.draw(st.booleans())

    def whole(self, low: int, high: int) -> int:
        return self.draw(st.integers(low, high))

    def shape(self, ranks: SearchStrategy[int]) -> tuple[Size, ...]:
        return tuple(self.one_of(self.sizes) for _ in range(self.draw(ranks)))

    def concrete(self, size: Size) -> int:
        """The number that a size has in this draft's arrays."""
        return evaluate(size, self.binding)

    @property
    def bound_sizes(self) -> list[Size]:
        """The sizes whose number follows from the shape of some leaf."""
        met = {s for v in self.held if v in self.arrays for s in v.shape}
        return [s for s in self.sizes if isinstance(s, int) or s in met]

    def leaf(self, shape: tuple[Size, ...], dtype: DType, low: float = -2.0, high: float = 2.0) -> Held:
        """A new input, parameter or constant with elements in this interval."""
        array = self._array(tuple(map(self.concrete, shape)), dtype, low, high)
        kinds = ["input", "param"] * 2
        if all(isinstance(s, int) for s in shape):
            kinds.append("constant")
        type, count = TensorType(dtype, shape), len(self.held)
        match self.one_of(kinds):
            case "input":
                value = leaf.input(f"x{count}", type)
                self.arrays[value] = array
            case "param":
                value = leaf.param(f"w{count}", type)
                self.arrays[value] = array
            case _:
                value = leaf.constant(array, dtype)
        if dtype is bool_:
            low, high = 0.0, 1.0
        return self.held.setdefault(value, Held(value, low, high))

    def _array(self, shape: tuple[int, ...], dtype: DType, low: float, high: float) -> NDArray[Any]:
        if dtype is bool_:
            return self._random.integers(0, 2, shape).astype(np.bool_)
        grain = GRAIN if dtype.is_float else 1
        steps = self._random.integers(int(low * grain), int(high * grain) + 1, shape)
        return np.asarray(steps / grain).astype(dtype.numpy)

    def pick(self, accept: Callable[[Held], bool]) -> Held | None:
        """One of the values that fit; one that nobody reads yet is preferred two times of three."""
        fitting = [h for h in self.held.values() if accept(h)]
        if not fitting:
            return None
        unread = [h for h in fitting if h.value not in self.read]
        return self.one_of(unread if unread and self.whole(0, 2) < 2 else fitting)

    def attempt(self, move: Callable[[Draft], Held | None]) -> None:
        """Take a move's value in, unless its numbers could leave the range in which dtypes can be compared."""
        before = len(self.held)
        held = move(self)
        if held is None or not self._tame(held):
            for value in list(self.held)[before:]:
                del self.held[value]  # leaves that were made for nothing
            return
        for operand in held.value.operands:
            if operand not in self.held:
                self._adopt(operand)
        self.held.setdefault(held.value, held)
        self.read.update(held.value.operands)

    def _tame(self, held: Held) -> bool:
        widest = WIDEST if held.dtype.is_float else WIDEST_WHOLE
        return isfinite(held.reach) and held.reach <= widest and held.error <= self._error_limit

    def _adopt(self, number: Value) -> None:
        """Numbers written into an op are constants of the graph like any other."""
        found = leaf.scalar_of(number)
        if isinstance(found, int | float):
            self.held[number] = Held(number, float(found), float(found))

    @property
    def unread(self) -> list[Value]:
        return [v for v in self.held if v not in self.read]
