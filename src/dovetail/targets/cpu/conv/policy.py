"""Numbers of convolution kernels that were measured, not derived: when each variant pays, and how its work is cut.

Thresholds were measured on machines with AVX-512, AVX2 and NEON. Cache sizes come from the device.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class WinogradLimits:
    """When Winograd's transforms pay: fewer products, more weights to read."""

    channels: int
    """Channels below which the transforms cost more than the products save; the same for filters."""
    filters: int
    patches: range
    """Patches below which reading more weights costs more; with many the wider scheme is better."""


@dataclass(frozen=True, slots=True)
class DepthwiseLimits:
    """Which windows the depthwise kernel unrolls."""

    most_taps: int = 81
    farthest: int = 4
    """Rows from one pixel's window, or from one of its taps, to the next: each has an address of its own."""
    most_points: int = 256
    """Pixels of a channel that is multiplied by one number: more are not worth packing."""


@dataclass(frozen=True, slots=True)
class FewChannelsLimits:
    """When filters in lanes pay for few channels."""

    sums: range = range(100, 257)
    """Products of a result. Below, transposing costs more than full lanes save; above, a block of filters leaves L1."""
    fewest_pixels: int = 800


@dataclass(frozen=True, slots=True)
class PackedLimits:
    """When packing pixels pays for a 1×1 window."""

    fewest_channels: int = 128
    """Channels below which transposing results costs more than full lanes save."""
    most_pixels: int = 200
    """Pixels up to which another kernel reads them where they are. With more, vectors along them waste little, and it
    takes many channels (`deep`) or many filters to do better."""
    deep: int = 512
    waste: float = 1.12
    """Products with and without those of empty lanes, at most."""
    few_panels: int = 4
    """Panels below which packing few strided pixels does not pay."""
    any_pixels: int = 10_000
    """Pixels where their number is not known."""


@dataclass(frozen=True, slots=True)
class FewPixelsKxkLimits:
    """When packing what pixels see pays."""

    most_pixels: int = 400
    fewest_sums: int = 2000


@dataclass(frozen=True, slots=True)
class FewPixelsLimits:
    """When filters in lanes pay for few pixels."""

    most: int = 800
    """Pixels above which vectors along them waste little, and need no transpose."""
    most_points: int = 200
    """The same for a 1×1 window, where a filter uses each activation once."""
    points: int = 64
    """Pixels up to which lanes of pixels waste too much in any case."""
    deep: int = 200
    """With more pixels, fewer channels make sums too short to be transposed, where pixels are contiguous."""
    fewest_sums: int = 128


@dataclass(frozen=True, slots=True)
class PointwiseLimits:
    """When results of contiguous pixels are written to many rows in turn."""

    fewest_vectors: int = 5
    """Vectors of pixels below which the last one, which is not full, wastes too much."""
    fewest: int = 48
    """Channels below which results are produced too fast to be written to many rows."""
    far: int = 1024
    """Pixels above which each row is in a page of its own: then it takes `fewest_far` channels."""
    fewest_far: int = 128
    fewest_residual: int = 32
    """With a residual, which is read from as many rows anyhow."""


@dataclass(frozen=True, slots=True)
class ConvLimits:
    """When each variant pays."""

    lanes_waste: float = 1.1
    """Lanes to filters, at most, where filters are in lanes."""
    depthwise: DepthwiseLimits = DepthwiseLimits()
    few_channels: FewChannelsLimits = FewChannelsLimits()
    packed: PackedLimits = PackedLimits()
    few_pixels_kxk: FewPixelsKxkLimits = FewPixelsKxkLimits()
    few_pixels: FewPixelsLimits = FewPixelsLimits()
    pointwise: PointwiseLimits = PointwiseLimits()
    winograd_4: WinogradLimits = WinogradLimits(32, 32, range(28, 1 << 62))
    winograd_2: WinogradLimits = WinogradLimits(64, 48, range(20, 111))


LIMITS = ConvLimits()


@dataclass(frozen=True, slots=True)
class Issue:
    """What a core needs to issue FMAs at its peak, as estimates of register tiles count it."""

    accumulators: int = 8
    """Independent sums: two FMAs a cycle with a latency of four."""
    fmas_per_load: float = 1.0
    """FMAs for each load: a core loads as often as it multiplies."""
    fmas: int = 2
    """FMAs a cycle."""
    l2_bytes: int = 32
    """Bytes a cycle from L2, where kernels stream weights."""


ISSUE = Issue()

__all__ = ["ISSUE", "LIMITS", "ConvLimits", "Issue", "WinogradLimits"]
