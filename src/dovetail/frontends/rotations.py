"""Rope scaling: what the rates of rotation are divided by, for contexts longer than a model was first trained with."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from dovetail.errors import LoadError
from dovetail.models.decoder_shape import Rope


def divided(rope: Rope, factors: Sequence[float] | np.ndarray, scale: float = 1.0) -> Rope:
    """The rotation with its rates divided by factors, and the cosines and sines scaled."""
    found = np.asarray(factors, np.float64)
    if not np.isfinite(found).all() or (found <= 0).any() or not 0 < scale < math.inf:
        raise LoadError("rates of rotation that are divided by 0, or by what is not finite", hint="fetch it again")
    slowed = () if (found == 1.0).all() else tuple(found.tolist())
    return Rope(rope.theta, slowed, scale)


def linear(rope: Rope, pairs: int, factor: float) -> Rope:
    """All rates divided by one factor."""
    return divided(rope, np.full(pairs, factor))


def llama3(rope: Rope, pairs: int, factor: float, low: float, high: float, original: int) -> Rope:
    """Slow rates divided by the factor, fast ones kept, those between blended by their wavelength."""
    wavelengths = 2 * math.pi / _rates(rope, pairs)
    smooth = np.clip((original / wavelengths - low) / (high - low), 0.0, 1.0) if high != low else np.ones(pairs)
    return divided(rope, 1.0 / ((1 - smooth) / factor + smooth))


def yarn(
    rope: Rope,
    pairs: int,
    factor: float,
    original: int,
    *,
    fast: float = 32.0,
    slow: float = 1.0,
    scale: float | None = None,
    truncate: bool = True,
) -> Rope:
    """Rates blended by how often a pair turns within the original context."""

    if rope.theta <= 1:
        raise LoadError(f"yarn of rates to the base {rope.theta}", hint="a base above 1 is expected")

    def pair_that_turns(count: float) -> float:
        return 2 * pairs * math.log(original / (count * 2 * math.pi)) / (2 * math.log(rope.theta))

    low, high = pair_that_turns(fast), pair_that_turns(slow)
    if truncate:
        low, high = math.floor(low), math.ceil(high)
    low, high = max(low, 0), min(high, 2 * pairs - 1)
    ramp = np.clip((np.arange(pairs) - low) / (high - low if high != low else 0.001), 0.0, 1.0)
    by_context = 1.0 if factor <= 1 else 0.1 * math.log(factor) + 1.0
    return divided(rope, 1.0 / (ramp / factor + 1 - ramp), by_context if scale is None else scale)


def long_scale(context: int, original: int) -> float:
    """What longrope multiplies cosines and sines by."""
    ratio = context / original
    return math.sqrt(1 + math.log(ratio) / math.log(original)) if ratio > 1 and original > 1 else 1.0


def _rates(rope: Rope, pairs: int) -> np.ndarray:
    return rope.theta ** -(np.arange(pairs) / pairs)


__all__ = ["divided", "linear", "llama3", "long_scale", "yarn"]
