"""Which kernel serves a convolution: one table of kernels with their conditions, the first that suits is taken.

What depends on sizes is decided when they are known, if need be as a run is prepared. The thresholds were measured on
machines with AVX-512, AVX2 and NEON; `considered` tells them with the machine model's estimates.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypeAlias

from dovetail.errors import GraphError
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.spec import Job, Number, TensorLocations, Tiling
from dovetail.plan.plan import Step
from dovetail.targets.cpu.conv.broadcast_tile import broadcast_tile_of
from dovetail.targets.cpu.conv.candidate import Candidate, ConvTiler, first_of
from dovetail.targets.cpu.conv.depthwise.variant import Bands, Depthwise, depthwise, rows_of
from dovetail.targets.cpu.conv.direct.variant import direct
from dovetail.targets.cpu.conv.few_channels.variant import FewChannels, few_channels
from dovetail.targets.cpu.conv.few_pixels import kernel as few_pixels_kernel
from dovetail.targets.cpu.conv.few_pixels.variant import FewPixels, few_pixels
from dovetail.targets.cpu.conv.few_pixels_kxk.variant import FewPixelsKxk, few_pixels_kxk
from dovetail.targets.cpu.conv.pointwise.variant import Pointwise, pointwise
from dovetail.targets.cpu.conv.pointwise_packed import micro_kernel
from dovetail.targets.cpu.conv.pointwise_packed.variant import MANY_PANELS, PointwisePacked, pointwise_packed
from dovetail.targets.cpu.conv.register_tile import RegisterTile
from dovetail.targets.cpu.conv.rows import with_rows
from dovetail.targets.cpu.conv.winograd.scheme import FOUR, TWO
from dovetail.targets.cpu.conv.winograd.variant import Winograd, winograd

Offer: TypeAlias = list[Candidate] | str
"""The candidates of a kernel, or why it has none."""

NOT_LEVEL = "the residual, or an operand of the epilogue, is laid out in another way than the result"

WINOGRAD_FEWEST = {FOUR: (32, 32), TWO: (64, 48)}
"""Channels, and filters, below which the transforms cost more than the products save."""
WINOGRAD_PATCHES = {FOUR: range(28, 1 << 62), TWO: range(20, 111)}
"""Patches below which reading more weights costs more than the products save; with many the wider scheme is better."""

DEPTHWISE_MOST_TAPS = 81
"""Taps of a window that may be unrolled."""
DEPTHWISE_FARTHEST = 4
"""Rows from one pixel's window, or from one of its taps, to the next, at most: each has an address of its own."""
DEPTHWISE_MOST_POINTS = 256
"""Pixels of a channel that is multiplied by one number: more are not worth packing."""

FILTER_LANES_WASTE = 1.1
"""Lanes to filters, at most, where filters are in lanes: lanes without a filter are as bad as those without a pixel."""

FEW_CHANNELS_SUMS = range(100, 257)
"""Products of a result below which transposing it costs more than full lanes save, and above which the weights of a
block of filters do not stay in L1."""
FEW_CHANNELS_FEWEST_PIXELS = 800
"""Pixels below which other kernels are better."""

PACKED_FEWEST_CHANNELS = 128
"""Channels below which transposing results costs more than full lanes save."""
PACKED_MOST_PIXELS, PACKED_DEEP = 200, 512
"""Pixels up to which another kernel reads them where they are, contiguous or strided. With more, vectors along them
waste little, and it takes many channels or many filters to do better."""
PACKED_WASTE = 1.12
"""Products with and without those of lanes and pixels that are not there, at most."""
PACKED_FEW_PANELS = 4
"""Panels below which packing few strided pixels does not pay."""
ANY_PIXELS = 10_000
"""Pixels where their number is not known."""

KXK_MOST_PIXELS, KXK_FEWEST_SUMS = 400, 2000
"""Pixels above which, and products of a sum below which, packing what pixels see costs more than it saves."""

FEW_PIXELS_MOST, FEW_PIXELS_MOST_POINTS = 800, 200
"""Pixels above which vectors along them waste little, and need no transpose; and the same for a 1×1 window, where each
activation is used but once for a filter."""
FEW_PIXELS_POINTS, FEW_PIXELS_DEEP = 64, 200
"""Pixels up to which lanes of pixels waste too much in any case; with more, fewer channels than `FEW_PIXELS_DEEP` make
sums too short to be transposed, where pixels are contiguous."""
FEW_PIXELS_FEWEST_SUMS = 128
"""Products in a sum below which transposing results costs more than full lanes save."""

POINTWISE_FEWEST_VECTORS = 5
"""Vectors of pixels below which the last one, which is not full, wastes too much."""
POINTWISE_FEWEST, POINTWISE_FAR, POINTWISE_FEWEST_FAR, POINTWISE_FEWEST_RESIDUAL = 48, 1024, 128, 32
"""Channels below which results are produced too fast to be written to many rows in turn. Where a row has more than
`POINTWISE_FAR` pixels, so that each row is in a page of its own, it takes more, unless filters are fewer; and with a
residual, which is read from as many rows anyhow, less."""


def _is_filled(filters: int, tile: RegisterTile) -> bool:
    return -(-filters // tile.block) * tile.block <= FILTER_LANES_WASTE * filters


# What is known when a program is compiled.


def _winograd(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Offer:
    of = problem.geometry
    if (of.window, of.strides, of.dilations, problem.groups) != ((3, 3), (1, 1), (1, 1), 1) or found.x.rank != 4:
        return "not a plain 3×3 window over two axes"
    if not problem.is_level:
        return NOT_LEVEL
    fitting = [
        scheme
        for scheme, (channels, filters) in WINOGRAD_FEWEST.items()
        if problem.channels >= channels and problem.filters >= filters
    ]
    return [winograd(found, problem, device, scheme) for scheme in fitting] or "too few channels or filters"


def _depthwise(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Offer:
    if (problem.channels, problem.filters) != (1, 1):
        return "groups have several channels or filters"
    if not problem.is_level:
        return NOT_LEVEL
    # A channel times one number is one long row.
    problem = replace(problem, geometry=problem.geometry.flat())
    of = problem.geometry
    far = max(of.strides[0], *of.dilations) > DEPTHWISE_FARTHEST or of.strides[1] > 2 or of.steps[1] != 4
    if of.taps > DEPTHWISE_MOST_TAPS or far:
        return "the window is too large, or its taps are too far apart"
    if rows_of(device, of.window[0], of.strides[0]) < 2:
        return "too few registers for the window"
    return [depthwise(found, problem, device)]


def _few_channels(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Offer:
    tile = broadcast_tile_of(device, problem.filters, found.epilogue, equidistant=False)
    if problem.sums not in FEW_CHANNELS_SUMS or problem.groups != 1 or problem.geometry.taps == 1:
        return "sums are too short or too long, or groups are several"
    if not _is_filled(problem.filters, tile):
        return "filters leave lanes empty"
    return [few_channels(found, problem, tile)] if problem.is_level else NOT_LEVEL


def _pointwise_packed(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Offer:
    of = problem.geometry
    if of.window != (1, 1) or any(found.attrs["padding"]):
        return "pixels see several pixels, or padding"
    if problem.channels < PACKED_FEWEST_CHANNELS:
        return "too few channels"
    if not problem.is_level:
        return NOT_LEVEL
    pixels = known(of.out[0]) * known(of.out[1]) if of.is_known else ANY_PIXELS
    tiles = [RegisterTile(device, *form, found.epilogue, True) for form in micro_kernel.forms_of(device)]
    best = min(tiles, key=lambda tile: _products(problem.filters, pixels, tile), default=None)
    if best is None:
        return "the device has no FMA with an embedded broadcast"
    if _products(problem.filters, pixels, best) > PACKED_WASTE * problem.filters * pixels:
        return "filters or pixels leave lanes empty"
    return [pointwise_packed(found, problem, best, pixels)]


def _products(filters: int, pixels: int, tile: RegisterTile) -> int:
    """Products of a filter and a pixel, those of lanes that are empty included."""
    return -(-filters // tile.block) * tile.block * -(-pixels // tile.pixels) * tile.pixels


def _few_pixels_kxk(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Offer:
    tile = broadcast_tile_of(device, problem.filters, found.epilogue, equidistant=True)
    if problem.sums < KXK_FEWEST_SUMS or problem.geometry.taps == 1:
        return "sums are too short, or the window has one tap"
    if not _is_filled(problem.filters, tile):
        return "filters leave lanes empty"
    return [few_pixels_kxk(found, problem, tile)] if problem.is_level else NOT_LEVEL


def _few_pixels(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Offer:
    if problem.sums < FEW_PIXELS_FEWEST_SUMS:
        return "sums are too short"
    if not problem.is_level:
        return NOT_LEVEL
    if any(not isinstance(size, int) for size in found.attrs["padding"]):
        return "padding is not known"
    point = problem.geometry.taps == 1
    tiles = [RegisterTile(device, *form, found.epilogue, point) for form in few_pixels_kernel.forms_of(device)]
    filled = [tile for tile in tiles if _is_filled(problem.filters, tile)]
    return [few_pixels(found, problem, tile) for tile in filled] or "filters leave lanes empty"


def _pointwise(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Offer:
    flat = replace(problem, geometry=problem.geometry.flat())
    of = flat.geometry
    if not of.is_point or of.sizes[0] != 1 or of.steps[1] != 4:
        return "pixels are not contiguous, or see several pixels"
    return [pointwise(found, flat, device)] if problem.is_level else NOT_LEVEL


VARIANTS: tuple[tuple[str, Callable[[Convolution, ConvProblem, CpuDevice], Offer]], ...] = (
    ("winograd", _winograd),
    ("depthwise", _depthwise),
    ("few_channels", _few_channels),
    ("pointwise_packed", _pointwise_packed),
    ("few_pixels_kxk", _few_pixels_kxk),
    ("few_pixels", _few_pixels),
    ("pointwise", _pointwise),
)
"""In the order of preference; the direct kernel comes last, and serves what none of them does."""


# What is known when sizes are.


def declined(of: ConvProblem, tiler: ConvTiler) -> str | None:
    """Why sizes that are known do not suit a kernel; None where they do."""
    height, width = known(of.geometry.out[0]), known(of.geometry.out[1])
    pixels = height * width
    match tiler:
        case Winograd():
            out = tiler.scheme.out
            suits = -(-height // out) * -(-width // out) in WINOGRAD_PATCHES[tiler.scheme]
            return None if suits else "too few patches, or enough for larger ones"
        case Depthwise():
            return _depthwise_declines(of, tiler)
        case FewChannels():
            return None if pixels >= FEW_CHANNELS_FEWEST_PIXELS and width >= tiler.tile.pixels else "too few pixels"
        case PointwisePacked():
            return _packed_declines(of, pixels, tiler)
        case FewPixelsKxk():
            return None if 0 < pixels <= KXK_MOST_PIXELS else "too many pixels, or none"
        case FewPixels():
            return _few_pixels_declines(of, pixels, tiler.tile)
        case Pointwise():
            if -(-width // tiler.tile.device.lanes) < POINTWISE_FEWEST_VECTORS:
                return "too few pixels"
            return None if of.channels >= _pointwise_fewest(of, width) else "too few channels"
        case _:
            return None


def _depthwise_declines(of: ConvProblem, tiler: Depthwise) -> str | None:
    geometry, device = of.geometry, tiler.tile.device
    if 0 in (*geometry.out, *geometry.sizes):
        return "no pixels"
    if geometry.taps == 1 and (geometry.out[0] != 1 or known(geometry.out[1]) > DEPTHWISE_MOST_POINTS):
        return "this many pixels times one number are not worth packing"
    # What a band sees stays in L2.
    return "rows are too long" if Bands.of(geometry, device).plane(geometry) > device.caches.l2_room // 4 else None


def _packed_declines(of: ConvProblem, pixels: int, tiler: PointwisePacked) -> str | None:
    panels = -(-of.filters // tiler.tile.block)
    if pixels == 0 or _products(of.filters, pixels, tiler.tile) > PACKED_WASTE * of.filters * pixels:
        return "filters or pixels leave lanes empty"
    if of.geometry.is_point:
        worth_it = pixels <= PACKED_MOST_PIXELS or (panels > 1 and of.channels >= PACKED_DEEP) or panels >= MANY_PANELS
    else:
        worth_it = pixels > PACKED_MOST_PIXELS or panels >= PACKED_FEW_PANELS
    if not worth_it:
        return "too few panels for what is packed once for all of them"
    # Every thread packs by itself.
    single = of.images * of.groups * tiler.pixel_parts(of) == 1 and panels < MANY_PANELS
    return "too few panels for threads to share" if single else None


def _few_pixels_declines(of: ConvProblem, pixels: int, tile: RegisterTile) -> str | None:
    if not 0 < pixels <= (FEW_PIXELS_MOST_POINTS if tile.point else FEW_PIXELS_MOST):
        return "too many pixels, or none"
    if of.geometry.is_point and pixels > FEW_PIXELS_POINTS and of.channels < FEW_PIXELS_DEEP:
        return "sums are too short to be transposed"
    best = few_pixels_kernel.least_waste(tile.device, pixels)
    return None if tile.pixels == best[1] else "another register tile wastes less"


def _pointwise_fewest(of: ConvProblem, pixels: int) -> int:
    """How many channels there must be."""
    if of.residual:
        return POINTWISE_FEWEST_RESIDUAL
    near = pixels <= POINTWISE_FAR or of.filters < of.channels
    return POINTWISE_FEWEST if near else POINTWISE_FEWEST_FAR


@dataclass(frozen=True, slots=True)
class Suited:
    """A tiler that declines sizes at which another kernel is better."""

    tiler: ConvTiler

    @property
    def problem(self) -> ConvProblem:
        return self.tiler.problem

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling | None:
        return None if declined(of, self.tiler) is not None else self.tiler.tiling(of)


# The choice.


def make_conv(step: Step, locations: TensorLocations, device: CpuDevice) -> Job | None:
    """The job of a convolution with weights that are known when parameters are bound."""
    plain = Convolution.of(step.value)
    if plain is None or not plain.is_served(locations):
        return None
    above = with_rows(plain, step, locations, device)
    if above is None:
        return None
    found, shared = above
    try:
        problem = found.problem(locations)
        given = offers(found, problem, device, locations.strict)
        candidates = [one for _, offer in given if not isinstance(offer, str) for one in offer]
        suited = [replace(one, tiler=Suited(one.tiler), shared=shared) for one in candidates]
        return first_of([*suited, replace(direct(found, problem, device), shared=shared)])
    except GraphError:
        # Sizes that are too long to be written down.
        return None


def offers(found: Convolution, problem: ConvProblem, device: CpuDevice, strict: bool) -> list[tuple[str, Offer]]:
    """What each kernel of the table offers."""
    found_offers: list[tuple[str, Offer]] = []
    for name, offer in VARIANTS:
        other_order = strict and name == "winograd"
        found_offers.append((name, "sums are in another order" if other_order else offer(found, problem, device)))
    return found_offers
