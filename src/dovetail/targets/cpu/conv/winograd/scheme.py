"""Winograd's schemes F(4×4, 3×3) and F(2×2, 3×3): 36 multiplications for 4×4 results instead of 144, or 16 for 2×2
instead of 36."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dovetail.codegen.llvm.handles import Vec
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.ir.literal import Array

NEAR, FAR = 0.75, 1.5
"""Points of the wider scheme, each with both signs: with these it loses least in f32."""

Transform: TypeAlias = Callable[[VectorBuilder, Sequence[Vec]], list[Vec]]
"""A transform of vectors along one axis."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Results of a patch along an axis: four or two."""

    out: int

    @property
    def points(self) -> tuple[float, ...]:
        """The interpolation points, infinity left out."""
        return (0.0, NEAR, -NEAR, FAR, -FAR) if self.out == 4 else (0.0, 1.0, -1.0)

    @property
    def into(self) -> Transform:
        """How pixels are transformed."""
        return _four_into if self.out == 4 else _two_into

    @property
    def back(self) -> Transform:
        """How sums are transformed."""
        return _four_back if self.out == 4 else _two_back

    @property
    def patch(self) -> int:
        """Pixels along an axis that the results of a patch see."""
        return self.out + 2

    @property
    def spots(self) -> int:
        """Elements of a transformed patch."""
        return self.patch**2

    def weights(self, w: Array) -> Array:
        """[m, c, 3, 3] as [m, c, spots]."""
        rows = [[p**j / np.prod([p - q for q in self.points if q != p]) for j in range(3)] for p in self.points]
        g = np.array([*rows, [0.0, 0.0, 1.0]])
        # One product along both axes: NumPy has a fast one of matrices, and none of three tensors.
        return w.reshape((*w.shape[:2], 9)).astype(np.float64) @ np.kron(g, g).T


def along_both(t: VectorBuilder, transform: Transform, values: Sequence[Vec]) -> list[Vec]:
    """A transform of a square along one axis, then along the other; row by row."""
    side = int(len(values) ** 0.5)
    columns = [transform(t, values[j::side]) for j in range(side)]
    return [x for row in zip(*columns, strict=True) for x in transform(t, row)]


def _four_into(t: VectorBuilder, d: Sequence[Vec]) -> list[Vec]:
    near, far = NEAR**2, FAR**2
    whole, middle = t.constant(near * far), t.constant(-near - far)
    found = [t.fma(whole, d[0], t.fma(middle, d[2], d[4]))]
    for point, other in ((NEAR, far), (FAR, near)):
        even = t.fma(t.constant(-other), d[2], d[4])
        odd = t.fma(t.constant(-other), d[1], d[3])
        found += [t.fma(t.constant(point), odd, even), t.fma(t.constant(-point), odd, even)]
    return [*found, t.fma(whole, d[1], t.fma(middle, d[3], d[5]))]


def _four_back(t: VectorBuilder, m: Sequence[Vec]) -> list[Vec]:
    even = [t.fadd(m[1], m[2]), t.fadd(m[3], m[4])]
    odd = [t.fsub(m[1], m[2]), t.fsub(m[3], m[4])]
    found = [t.fadd(m[0], t.fadd(even[0], even[1]))]
    for power in (1, 2, 3):
        near, far = odd if power % 2 else even
        found.append(t.fma(t.constant(NEAR**power), near, t.fmul(t.constant(FAR**power), far)))
    return [*found[:3], t.fadd(found[3], m[5])]


def _two_into(t: VectorBuilder, d: Sequence[Vec]) -> list[Vec]:
    return [t.fsub(d[2], d[0]), t.fadd(d[1], d[2]), t.fsub(d[2], d[1]), t.fsub(d[3], d[1])]


def _two_back(t: VectorBuilder, m: Sequence[Vec]) -> list[Vec]:
    return [t.fadd(m[0], t.fadd(m[1], m[2])), t.fadd(t.fsub(m[1], m[2]), m[3])]


FOUR, TWO = Scheme(4), Scheme(2)
