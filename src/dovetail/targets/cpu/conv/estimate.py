"""Work and traffic of each convolution kernel: the vector FMAs that it issues, empty lanes included, and what it packs.

The machine model turns them into seconds. Counts follow the register tiles; they are not fitted to single layers.
"""

from __future__ import annotations

from math import log2

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost
from dovetail.kernels.problems.convolution import ConvProblem, known
from dovetail.targets.cpu.conv.candidate import ConvTiler
from dovetail.targets.cpu.conv.depthwise import Depthwise
from dovetail.targets.cpu.conv.direct.tile import DirectTile
from dovetail.targets.cpu.conv.direct.variant import Direct
from dovetail.targets.cpu.conv.few_channels.variant import FewChannels
from dovetail.targets.cpu.conv.few_pixels.variant import FewPixels
from dovetail.targets.cpu.conv.few_pixels_kxk.variant import FewPixelsKxk
from dovetail.targets.cpu.conv.pointwise.variant import Pointwise
from dovetail.targets.cpu.conv.pointwise_packed.variant import PointwisePacked
from dovetail.targets.cpu.conv.policy import ISSUE
from dovetail.targets.cpu.conv.register_tile import RegisterTile
from dovetail.targets.cpu.conv.winograd.variant import Winograd

TRANSFORM = 12
"""Vectors copied in the time in which Winograd transforms one: two passes load, multiply by a small matrix and store,
and patches are apart in memory. Measured on layers of 64 to 320 channels: 11 to 17."""


@dataclass(frozen=True, slots=True)
class _Effort:
    """For each image and group: vector FMAs at the rate of the peak, and vectors that are packed or transposed."""

    fmas: float
    moved: float
    lanes: int


def conv_cost(of: ConvProblem, tiler: ConvTiler) -> Cost:
    """The cost of a kernel where spatial sizes are known."""
    effort = _effort(of, tiler)
    each = 2 * effort.lanes
    dense, moved = round(each * effort.fmas), round(each * effort.moved)
    taps = tiler.scheme.spots if isinstance(tiler, Winograd) else of.geometry.taps
    weights = 4 * of.groups * of.filters * of.channels * taps
    (height, width), (rows, columns) = of.geometry.sizes, of.geometry.out
    count = of.images * of.groups
    bytes = 4 * count * (height * width * of.channels + rows * columns * of.filters) + weights
    return Cost(count * (dense + moved), bytes, weights, count * dense, "conv")


def _effort(of: ConvProblem, tiler: ConvTiler) -> _Effort:
    height, width = known(of.geometry.out[0]), known(of.geometry.out[1])
    match tiler:
        case Direct() | Pointwise():
            return _pixels_in_lanes(of, tiler.tile, height, width)
        case FewPixels():
            return _filters_in_lanes(of, tiler.tile, height * width, 0.0)
        case FewChannels():
            seen = of.channels * known(of.geometry.sizes[0]) * known(of.geometry.sizes[1])
            return _filters_in_lanes(of, tiler.tile, height * width, seen / tiler.tile.device.lanes)
        case FewPixelsKxk():
            packed = height * width * of.sums
            return _filters_in_lanes(of, tiler.tile, height * width, packed / tiler.tile.device.lanes)
        case PointwisePacked():
            pixels = -(-height * width // tiler.tile.pixels) * tiler.tile.pixels
            lanes = tiler.tile.device.lanes
            return _filters_in_lanes(of, tiler.tile, pixels, _transposed(pixels * of.channels / lanes, lanes))
        case Winograd():
            return _winograd(of, tiler, height, width)
        case Depthwise():
            lanes, taps = tiler.tile.device.lanes, of.geometry.taps
            (rows, columns), vectors = of.geometry.sizes, height * -(-width // lanes)
            return _Effort(vectors * taps, known(rows) * known(columns) / lanes, lanes)
        case _:
            raise AssertionError(f"{type(tiler).__name__} has no estimate")


def _pixels_in_lanes(of: ConvProblem, tile: DirectTile, height: int, width: int) -> _Effort:
    """Each row of pixels fills vectors of its own; contiguous pixels of a 1×1 window are one row."""
    lanes = tile.device.lanes
    height, width = (1, height * width) if of.geometry.is_point else (height, width)
    vectors, rows = -(-width // lanes), -(-of.filters // tile.filters) * tile.filters
    along = min(tile.vectors, max(1, vectors))
    seen = of.channels * known(of.geometry.sizes[0]) * known(of.geometry.sizes[1]) / lanes
    return _Effort(height * vectors * rows * of.sums / _rate(tile.filters, along), seen, lanes)


def _filters_in_lanes(of: ConvProblem, tile: RegisterTile, pixels: int, packed: float) -> _Effort:
    """Each vector of filters meets each pixel; results are transposed."""
    lanes, vectors = tile.device.lanes, -(-of.filters // tile.block) * tile.filters
    together = min(tile.pixels, max(1, pixels))
    # A vector of weights that comes from L2 meets the pixels of a register tile.
    streamed = together * ISSUE.l2_bytes / (4 * lanes) / ISSUE.fmas
    fmas = vectors * pixels * of.sums / min(_rate(tile.filters, together), streamed)
    return _Effort(fmas, packed + _transposed(vectors * pixels, lanes), lanes)


def _winograd(of: ConvProblem, tiler: Winograd, height: int, width: int) -> _Effort:
    scheme, lanes = tiler.scheme, tiler.tile.device.lanes
    patches = scheme.count(height, width, of.geometry.dilations)
    filters = -(-of.filters // tiler.tile.block) * tiler.tile.filters
    transforms = TRANSFORM * patches * scheme.spots * (of.channels + of.filters) / lanes
    return _Effort(patches * of.channels * scheme.spots * filters, transforms, lanes)


def _transposed(vectors: float, lanes: int) -> float:
    """Vectors that are transposed, in units of a copied one: each takes log₂ lanes shuffles."""
    return vectors * log2(lanes)


def _rate(rows: int, columns: int) -> float:
    """The share of the FMA rate that a register tile of rows × columns reaches: enough accumulators hide the latency of
    an FMA, and each step loads a row and a column for their products."""
    accumulators = rows * columns
    return min(1.0, accumulators / ISSUE.accumulators, accumulators / (rows + columns) / ISSUE.fmas_per_load)


__all__ = ["conv_cost"]
