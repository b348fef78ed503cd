"""Winograd's schemes for a window of 3 by 3: 36 multiplications for 4 by 4 results instead of 144, or 16 for 2 by 2
instead of 36."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.cpu.conv.patch import BlockText

NEAR, FAR = 0.75, 1.5
"""Points of the wider scheme, each with both signs: with these it loses least in f32."""

Transform: TypeAlias = Callable[[BlockText, Sequence[str]], list[str]]
"""Numbers along an axis to other numbers along it."""


@dataclass(frozen=True, slots=True)
class Scheme:
    """Results of a patch along an axis: four or two."""

    out: int

    @property
    def points(self) -> tuple[float, ...]:
        """Where the polynomials behind it are taken, beside infinity."""
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
        """Numbers that a patch becomes."""
        return self.patch**2

    def weights(self, w: Array) -> Array:
        """[m, c, 3, 3] as [m, c, spots]."""
        rows = [[p**j / np.prod([p - q for q in self.points if q != p]) for j in range(3)] for p in self.points]
        g = np.array([*rows, [0.0, 0.0, 1.0]])
        # One product along both axes: NumPy has a fast one of matrices, and none of three tensors.
        return w.reshape((*w.shape[:2], 9)).astype(np.float64) @ np.kron(g, g).T


def along_both(t: BlockText, transform: Transform, values: Sequence[str]) -> list[str]:
    """A transform of a square along one axis, then along the other; row by row."""
    side = int(len(values) ** 0.5)
    columns = [transform(t, values[j::side]) for j in range(side)]
    return [x for row in zip(*columns, strict=True) for x in transform(t, row)]


def _four_into(t: BlockText, d: Sequence[str]) -> list[str]:
    near, far = NEAR**2, FAR**2
    whole, middle = t.number(near * far), t.number(-near - far)
    found = [t.fma(whole, d[0], t.fma(middle, d[2], d[4]))]
    for point, other in ((NEAR, far), (FAR, near)):
        even = t.fma(t.number(-other), d[2], d[4])
        odd = t.fma(t.number(-other), d[1], d[3])
        found += [t.fma(t.number(point), odd, even), t.fma(t.number(-point), odd, even)]
    return [*found, t.fma(whole, d[1], t.fma(middle, d[3], d[5]))]


def _four_back(t: BlockText, m: Sequence[str]) -> list[str]:
    even = [t.add(m[1], m[2]), t.add(m[3], m[4])]
    odd = [t.sub(m[1], m[2]), t.sub(m[3], m[4])]
    found = [t.add(m[0], t.add(even[0], even[1]))]
    for power in (1, 2, 3):
        near, far = odd if power % 2 else even
        found.append(t.fma(t.number(NEAR**power), near, t.mul(t.number(FAR**power), far)))
    return [*found[:3], t.add(found[3], m[5])]


def _two_into(t: BlockText, d: Sequence[str]) -> list[str]:
    return [t.sub(d[2], d[0]), t.add(d[1], d[2]), t.sub(d[2], d[1]), t.sub(d[3], d[1])]


def _two_back(t: BlockText, m: Sequence[str]) -> list[str]:
    return [t.add(m[0], t.add(m[1], m[2])), t.add(t.sub(m[1], m[2]), m[3])]


FOUR, TWO = Scheme(4), Scheme(2)
