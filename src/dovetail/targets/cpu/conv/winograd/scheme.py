"""Winograd's schemes F(m×n, r×r): (m+r-1)·(n+r-1) multiplications for m×n results of an r×r window.

F(4×4, 3×3) takes 36 instead of 144, F(2×4, 3×3) 24 instead of 72, F(2×2, 3×3) 16 instead of 36, F(2×2, 5×5) 36 instead
of 100 and F(4×4, 5×5) 64 instead of 400. Fewer multiplications round more: transforms enlarge what a sum loses.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeAlias

import numpy as np

from dovetail.codegen.llvm.handles import Vec
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.literal import Array

PAIRS: dict[int, tuple[float, ...]] = {4: (1.0,), 6: (0.6875, 1.5), 8: (0.5, 1.0, 2.0)}
"""By pixels of a patch along an axis: interpolation points, each with both signs. They are exact in f32, and lose least
or nearly so where pixels are independent as where neighbours are alike."""

Transform: TypeAlias = Callable[[VectorBuilder, Sequence[Vec]], list[Vec]]
"""A transform of vectors along one axis."""


@dataclass(frozen=True, slots=True)
class Axis:
    """Results of a patch and taps of the window along one axis."""

    out: int
    taps: int = 3

    @property
    def pairs(self) -> tuple[float, ...]:
        """The interpolation points above 0; their negatives, 0 and infinity are the others."""
        return PAIRS[self.patch]

    @property
    def points(self) -> tuple[float, ...]:
        """The interpolation points, infinity left out."""
        return (0.0, *[x for p in self.pairs for x in (p, -p)])

    @property
    def patch(self) -> int:
        """Pixels that the results of a patch see."""
        return self.out + self.taps - 1

    @property
    def of_weights(self) -> Array:
        """The transform of weights, [patch, taps]."""
        taps = range(self.taps)
        rows = [[p**j / np.prod([p - q for q in self.points if q != p]) for j in taps] for p in self.points]
        return np.array([*rows, [0.0] * (self.taps - 1) + [1.0]])

    def patches(self, size: int, dilation: int) -> int:
        """Patches of a line: each takes every `dilation`-th pixel, and `dilation` of them interleave."""
        full, rest = divmod(size, self.out * dilation)
        return full * dilation + min(dilation, rest)

    def into(self, t: VectorBuilder, d: Sequence[Vec]) -> list[Vec]:
        """Transform pixels: rows are the coefficients of products of (x - point)."""
        every = _coefficients(self.pairs)
        transformed = [_sum(t, every, d[0::2])]
        for point in self.pairs:
            others = _coefficients([p for p in self.pairs if p != point])
            even, odd = _sum(t, others, d[2::2]), _sum(t, others, d[1:-1:2])
            transformed += [_add(t, point, odd, even), _add(t, -point, odd, even)]
        return [*transformed, _sum(t, every, d[1::2])]

    def back(self, t: VectorBuilder, m: Sequence[Vec]) -> list[Vec]:
        """Transform sums: powers of the points."""
        both = list(zip(m[1:-1:2], m[2:-1:2], strict=True))
        even, odd = [t.fadd(x, y) for x, y in both], [t.fsub(x, y) for x, y in both]
        results = [t.fadd(m[0], _sum(t, [1.0] * len(even), even))]
        for power in range(1, self.out):
            results.append(_sum(t, [p**power for p in self.pairs], odd if power % 2 else even))
        return [*results[:-1], t.fadd(results[-1], m[-1])]


@dataclass(frozen=True, slots=True)
class Scheme:
    """The patches of an image, down its rows and across its columns."""

    down: Axis
    across: Axis

    @staticmethod
    def of(rows: int, columns: int, taps: int = 3) -> Scheme:
        """The scheme of `rows` × `columns` results."""
        return Scheme(Axis(rows, taps), Axis(columns, taps))

    @property
    def taps(self) -> int:
        """Of a window, along each axis."""
        return self.across.taps

    @property
    def results(self) -> int:
        """Pixels of the result that a patch gives."""
        return self.down.out * self.across.out

    @property
    def name(self) -> str:
        return f"{self.down.out}×{self.across.out}"

    @property
    def spots(self) -> int:
        """Elements of a transformed patch."""
        return self.down.patch * self.across.patch

    def count(self, height: int, width: int, dilations: tuple[int, int]) -> int:
        """Patches of an image."""
        return self.down.patches(height, dilations[0]) * self.across.patches(width, dilations[1])

    def weights(self, w: Array) -> Array:
        """[m, c, r, r] as [m, c, spots]."""
        # One product along both axes: NumPy has a fast one of matrices, and none of three tensors.
        both = np.kron(self.down.of_weights, self.across.of_weights)
        return w.reshape((*w.shape[:2], self.taps**2)).astype(np.float64) @ both.T

    def into(self, t: VectorBuilder, pixels: Sequence[Vec]) -> list[Vec]:
        """Transform the pixels of a patch, row by row."""
        return _along_both(t, self.down.into, self.across.into, pixels, self.across.patch)

    def back(self, t: VectorBuilder, sums: Sequence[Vec]) -> list[Vec]:
        """Transform the sums of a patch to its results, row by row."""
        return _along_both(t, self.down.back, self.across.back, sums, self.across.patch)


def _along_both(t: VectorBuilder, down: Transform, across: Transform, values: Sequence[Vec], columns: int) -> list[Vec]:
    """Transform a rectangle along its columns, then along its rows."""
    by_column = [down(t, values[j::columns]) for j in range(columns)]
    return [x for row in zip(*by_column, strict=True) for x in across(t, row)]


def _coefficients(points: Sequence[float]) -> list[float]:
    """Of the product of x² - p² over points p, by ascending powers of x²."""
    coefficients = [1.0]
    for p in points:
        coefficients = [a - p * p * b for a, b in zip([0.0, *coefficients], [*coefficients, 0.0], strict=True)]
    return coefficients


def _sum(t: VectorBuilder, factors: Sequence[float], values: Sequence[Vec]) -> Vec:
    """Values by factors, added up from the last to the first."""
    last = values[-1] if factors[-1] == 1 else t.fmul(t.constant(factors[-1]), values[-1])
    for factor, x in zip(factors[-2::-1], values[-2::-1], strict=True):
        last = _add(t, factor, x, last)
    return last


def _add(t: VectorBuilder, factor: float, x: Vec, y: Vec) -> Vec:
    """factor · x + y."""
    if abs(factor) == 1:
        return t.fadd(x, y) if factor == 1 else t.fsub(y, x)
    return t.fma(t.constant(factor), x, y)


FOUR, TWO_FOUR, TWO = Scheme.of(4, 4), Scheme.of(2, 4), Scheme.of(2, 2)
FIVE_FOUR, FIVE_TWO = Scheme.of(4, 4, 5), Scheme.of(2, 2, 5)
