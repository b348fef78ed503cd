"""How much the convolutions of a network may round, together: which of Winograd's schemes serve them.

A layer adds the rounding of its sums to the errors of the layers before it. Relative to plain sums, the error of a
network is the root mean square over its layers. F(4×4, 3×3) and F(2×2, 5×5) round three times as much as plain sums,
the smaller schemes less than twice as much: a network stays below twice the error if larger schemes serve at most a
third of its layers.
"""

from __future__ import annotations

from collections.abc import Collection
from math import prod

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.kernels.problems.convolution import Convolution
from dovetail.kernels.spec import TensorLocations
from dovetail.targets.cpu.conv.policy import LIMITS
from dovetail.targets.cpu.conv.winograd.scheme import FIVE_FOUR, FIVE_TWO, FOUR, TWO, TWO_FOUR, Scheme

SMALL = (TWO_FOUR, TWO)
"""Schemes that may serve every layer of a network, the preferred first."""
LARGE = (FOUR, TWO, FIVE_TWO)
"""Schemes that may serve a part of the layers."""
OF_16_BITS = (FOUR, TWO, FIVE_FOUR, FIVE_TWO)
"""Schemes of results that are rounded to 16 bits."""


@dataclass(frozen=True, slots=True)
class Layers:
    """The f32 convolutions of a network whose sums are long, and how many of them suit a larger scheme."""

    count: int = 0
    large: int = 0

    @staticmethod
    def of(locations: TensorLocations) -> Layers:
        """Those of the steps of a run."""
        layers = [one for value in locations.steps if (one := Convolution.of(value)) is not None]
        long = [one for one in layers if one.result.dtype is f32 and _products(one) >= LIMITS.long_sums]
        return Layers(len(long), sum(map(_is_large, long)))

    @property
    def are_mostly_plain(self) -> bool:
        """Whether few enough layers suit a larger scheme that it may serve all of these."""
        return self.large <= LIMITS.large_schemes * self.count

    def __str__(self) -> str:
        return f"{self.large} of {self.count} layers"


def schemes_for(conv: Convolution, locations: TensorLocations) -> Collection[Scheme]:
    """The schemes that may serve a layer, the preferred first."""
    if conv.is_rounded_to_16_bits:
        return OF_16_BITS
    return LARGE if locations.is_fast or locations.once(Layers.of).are_mostly_plain else SMALL


def _products(one: Convolution) -> int:
    """Products of a result."""
    return prod(size for size in one.w.shape[1:] if isinstance(size, int))


def _is_large(one: Convolution) -> bool:
    """Whether a larger scheme suits a layer; where sizes are found at run time, it may."""
    filters, channels, *window = one.w.shape
    scheme = next((s for s in (FOUR, FIVE_TWO) if window == [s.taps, s.taps]), None)
    if scheme is None or (tuple(one.attrs["strides"]), one.attrs["groups"]) != ((1, 1), 1):
        return False
    limits = LIMITS.winograd_4 if scheme is FOUR else LIMITS.winograd_5x5_2
    if not isinstance(filters, int) or not isinstance(channels, int):
        return False
    match one.result.shape[2:]:
        case (int(height), int(width)):
            enough = scheme.count(height, width, one.attrs["dilations"]) >= limits.patches.start
        case _:
            enough = True
    return enough and channels >= limits.channels and filters >= limits.filters


__all__ = ["LARGE", "OF_16_BITS", "SMALL", "Layers", "schemes_for"]
