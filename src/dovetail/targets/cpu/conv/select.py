"""The rows of convolutions in the selection table: which problems each kernel takes.

What depends on sizes is checked when they are known, if need be as a run is prepared.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import replace
from functools import partial
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.kernels.choice import Answer, Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.spec import Number, Priced, Tiling
from dovetail.targets.cpu.conv.broadcast_tile import broadcast_tile_of
from dovetail.targets.cpu.conv.candidate import Candidate, ConvTiler
from dovetail.targets.cpu.conv.conv1d import offer_conv1d
from dovetail.targets.cpu.conv.depthwise import Bands, Depthwise, depthwise, rows_of
from dovetail.targets.cpu.conv.direct.variant import direct
from dovetail.targets.cpu.conv.estimate import conv_cost
from dovetail.targets.cpu.conv.few_channels.variant import FewChannels, few_channels
from dovetail.targets.cpu.conv.few_pixels import kernel as few_pixels_kernel
from dovetail.targets.cpu.conv.few_pixels.variant import FewPixels, few_pixels
from dovetail.targets.cpu.conv.few_pixels_kxk.variant import FewPixelsKxk, few_pixels_kxk
from dovetail.targets.cpu.conv.of_a_run import offer_direct, offer_few_results
from dovetail.targets.cpu.conv.pointwise.variant import Pointwise, pointwise
from dovetail.targets.cpu.conv.pointwise_packed import micro_kernel
from dovetail.targets.cpu.conv.pointwise_packed.variant import PointwisePacked, pointwise_packed
from dovetail.targets.cpu.conv.policy import BLOCKS, LIMITS, WinogradLimits, tiles_of
from dovetail.targets.cpu.conv.reading import with_bound_weights
from dovetail.targets.cpu.conv.register_tile import RegisterTile
from dovetail.targets.cpu.conv.rounding import schemes_for
from dovetail.targets.cpu.conv.transposed import offer_transposed
from dovetail.targets.cpu.conv.winograd.scheme import FIVE_FOUR, FIVE_TWO, FOUR, TWO, TWO_FOUR, Scheme
from dovetail.targets.cpu.conv.winograd.variant import Winograd, winograd
from dovetail.targets.runtime.selection import Row

Found: TypeAlias = list[Candidate] | Refused
"""The kernels of a row, or the condition that refuses the convolution."""

LEVEL = Refused("operands_of_the_epilogue_have_the_layout_of_the_result", "other strides")
FILLED = "filters_fill_lanes"
WINOGRAD: dict[Scheme, WinogradLimits] = {
    FOUR: LIMITS.winograd_4,
    TWO_FOUR: LIMITS.winograd_2x4,
    TWO: LIMITS.winograd_2,
    FIVE_FOUR: LIMITS.winograd_5x5_4,
    FIVE_TWO: LIMITS.winograd_5x5_2,
}


def _filled(filters: int, tile: RegisterTile) -> int:
    """Filters with those of lanes that stay empty."""
    return -(-filters // tile.block) * tile.block


def _is_filled(filters: int, tile: RegisterTile) -> bool:
    return _filled(filters, tile) <= LIMITS.lanes_waste * filters


def _not_filled(filters: int, tile: RegisterTile) -> Refused:
    most = f"at most {LIMITS.lanes_waste} times as many"
    return Refused(FILLED, f"{_filled(filters, tile)} lanes for {filters} filters", most)


def _between(condition: str, found: int, least: int, most: int | None = None) -> Refused | None:
    """Whether a number is within limits."""
    if found >= least and (most is None or found <= most):
        return None
    return Refused(condition, str(found), f"at least {least}" if most is None else f"{least} to {most}")


# What is known when a program is compiled.


def _winograd(schemes: Collection[Scheme], found: Convolution, problem: ConvProblem, device: CpuDevice) -> Found:
    of = problem.geometry
    if (of.strides, problem.groups) != ((1, 1), 1) or found.x.rank != 4 or of.window not in ((3, 3), (5, 5)):
        found_window = f"{of.window}, strides {of.strides}, {problem.groups} groups"
        return Refused("window_is_3x3_or_5x5_without_strides", found_window)
    if not problem.is_level:
        return LEVEL
    of_window = [s for s in schemes if of.window == (s.taps, s.taps)]
    if not of_window:
        most = f"at most {LIMITS.large_schemes:.0%} of the layers by this scheme"
        return Refused("few_layers_take_large_patches", f"window {of.window}", most)
    fitting = [
        s for s in of_window if problem.channels >= WINOGRAD[s].channels and problem.filters >= WINOGRAD[s].filters
    ]
    if not fitting:
        least = WINOGRAD[of_window[0]]
        sizes = f"{problem.channels} channels and {problem.filters} filters"
        return Refused("channels_and_filters_pay_for_transforms", sizes, f"{least.channels} and {least.filters}")
    return [winograd(found, problem, device, scheme) for scheme in fitting]


def _depthwise(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Found:
    limits = LIMITS.depthwise
    if (problem.channels, problem.filters) != (1, 1):
        return Refused("groups_have_one_channel_and_filter", f"{problem.channels} and {problem.filters}")
    if not problem.is_level:
        return LEVEL
    # A channel times one number is one long row.
    problem = replace(problem, geometry=problem.geometry.flat())
    of = problem.geometry
    if of.taps > limits.most_taps:
        return Refused("window_can_be_unrolled", f"{of.taps} taps", f"at most {limits.most_taps}")
    if max(of.strides[0], *of.dilations) > limits.farthest or of.strides[1] > 2 or of.steps[1] != 4:
        return Refused("taps_are_near", f"strides {of.strides}, dilations {of.dilations}", f"{limits.farthest} rows")
    if rows_of(device, of.window[0], of.strides[0]) < 2:
        return Refused("registers_hold_the_window", f"{of.window[0]} rows")
    return [depthwise(found, problem, device)]


def _few_channels(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Found:
    tile = broadcast_tile_of(device, problem.filters, found.epilogue, equidistant=False)
    limits = LIMITS.few_channels
    fewest = limits.fewest_sums * device.lanes
    if (other := _between("sums_stay_in_l1", problem.sums, fewest, limits.most_sums)) is not None:
        return other
    if problem.groups != 1 or problem.geometry.taps == 1:
        return Refused("one_group_and_several_taps", f"{problem.groups} groups, {problem.geometry.taps} taps")
    if not _is_filled(problem.filters, tile):
        return _not_filled(problem.filters, tile)
    return [few_channels(found, problem, tile)] if problem.is_level else LEVEL


def _pointwise_packed(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Found:
    of, limits = problem.geometry, LIMITS.packed
    if of.window != (1, 1) or any(found.attrs["padding"]):
        return Refused("window_is_1x1_without_padding", str(of.window))
    if (few := _between("channels_pay_for_transposes", problem.channels, limits.fewest_channels)) is not None:
        return few
    if not problem.is_level:
        return LEVEL
    pixels = known(of.out[0]) * known(of.out[1]) if of.is_known else limits.any_pixels
    tiles = [RegisterTile(device, *form, found.epilogue, True) for form in micro_kernel.forms_of(device)]
    best = min(tiles, key=lambda tile: _products(problem.filters, pixels, tile), default=None)
    if best is None:
        return Refused("device_has_embedded_broadcast", "no FMA that broadcasts a memory operand")
    if _products(problem.filters, pixels, best) > limits.waste * problem.filters * pixels:
        return Refused("filters_and_pixels_fill_lanes", f"{problem.filters} filters and {pixels} pixels")
    return [pointwise_packed(found, problem, best, pixels)]


def _products(filters: int, pixels: int, tile: RegisterTile) -> int:
    """Products of a filter and a pixel, those of lanes that are empty included."""
    return _filled(filters, tile) * -(-pixels // tile.pixels) * tile.pixels


def _few_pixels_kxk(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Found:
    tile = broadcast_tile_of(device, problem.filters, found.epilogue, equidistant=True)
    limits = LIMITS.few_pixels_kxk
    if problem.geometry.is_point:
        return Refused("pixels_are_strided_or_see_several", "one, its own")
    point = problem.geometry.taps == 1
    fewest = limits.fewest_channels if point else limits.fewest_sums
    short = _between("sums_pay_for_packing", problem.sums, fewest)
    if point and short is None:
        short = _between("filters_pay_for_packing", problem.filters, limits.fewest_filters * device.lanes)
    if short is not None:
        return short
    if not _is_filled(problem.filters, tile):
        return _not_filled(problem.filters, tile)
    return [few_pixels_kxk(found, problem, tile)] if problem.is_level else LEVEL


def _few_pixels(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Found:
    if (short := _between("sums_pay_for_transposes", problem.sums, LIMITS.few_pixels.fewest_sums)) is not None:
        return short
    if not problem.is_level:
        return LEVEL
    if any(not isinstance(size, int) for size in found.attrs["padding"]):
        return Refused("padding_is_known", str(found.attrs["padding"]))
    point = problem.geometry.taps == 1
    tiles = [RegisterTile(device, *form, found.epilogue, point) for form in few_pixels_kernel.forms_of(device)]
    filled = [tile for tile in tiles if _is_filled(problem.filters, tile)]
    return [few_pixels(found, problem, tile) for tile in filled] or _not_filled(problem.filters, tiles[0])


def _pointwise(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Found:
    flat = replace(problem, geometry=problem.geometry.flat())
    of = flat.geometry
    if not of.is_point or of.sizes[0] != 1 or of.steps[1] != 4:
        return Refused("pixels_of_a_1x1_window_are_contiguous", f"window {of.window}, strides {of.strides}")
    return [pointwise(found, flat, device)] if problem.is_level else LEVEL


def _direct(found: Convolution, problem: ConvProblem, device: CpuDevice) -> Found:
    return [direct(found, problem, device)]


# What is known when sizes are.


def declined(of: ConvProblem, tiler: ConvTiler) -> Refused | None:
    """The condition that refuses sizes that are known; None where all hold."""
    height, width = known(of.geometry.out[0]), known(of.geometry.out[1])
    pixels = height * width
    match tiler:
        case Winograd():
            return _winograd_declines(of, height, width, tiler.scheme)
        case Depthwise():
            return _depthwise_declines(of, tiler)
        case FewChannels():
            if width < tiler.tile.pixels:
                return Refused("rows_fill_a_register_tile", f"{width} pixels", f"at least {tiler.tile.pixels}")
            return _between("pixels_are_many", pixels, LIMITS.few_channels.fewest_pixels)
        case PointwisePacked():
            return _packed_declines(of, pixels, tiler)
        case FewPixelsKxk():
            limits = LIMITS.few_pixels_kxk
            return _between(
                "pixels_are_few", pixels, 1, limits.most_points if of.geometry.taps == 1 else limits.most_pixels
            )
        case FewPixels():
            return _few_pixels_declines(of, pixels, tiler.tile)
        case Pointwise():
            limits, vectors = LIMITS.pointwise, -(-width // tiler.tile.device.lanes)
            few = _between("vectors_of_pixels_are_many", vectors, limits.fewest_vectors)
            fewest = _pointwise_fewest(of, width) * tiler.tile.device.lanes
            return few or _between("channels_pay_for_rows", of.channels, fewest)
        case _:
            return None


def _winograd_declines(of: ConvProblem, height: int, width: int, scheme: Scheme) -> Refused | None:
    limits, dilations = WINOGRAD[scheme].patches, of.geometry.dilations
    count = scheme.count(height, width, dilations)
    if dilations == (1, 1):
        return _between("patches_pay_for_weights", count, limits.start, min(limits.stop - 1, 1 << 30))
    smaller = Scheme.of(2, 2, scheme.taps)
    most = LIMITS.winograd_waste * smaller.count(height, width, dilations) * smaller.spots
    if scheme != smaller and count * scheme.spots > most:
        return Refused("dilated_window_fills_patches", f"{count} patches of {scheme.spots}", f"{most:.0f} products")
    return _between("patches_pay_for_weights", count, limits.start)


def _depthwise_declines(of: ConvProblem, tiler: Depthwise) -> Refused | None:
    geometry, device, most = of.geometry, tiler.tile.device, LIMITS.depthwise.most_points
    if 0 in (*geometry.out, *geometry.sizes):
        return Refused("image_has_pixels", "0")
    if geometry.taps == 1 and (geometry.out[0] != 1 or known(geometry.out[1]) > most):
        return Refused("pixels_times_one_number_are_few", f"{geometry.out[1]}", f"at most {most}")
    plane, room = Bands.of(geometry, device).plane(geometry), device.caches.l2_room // 4
    return Refused("band_stays_in_l2", f"{plane} bytes", f"at most {room}") if plane > room else None


def _packed_declines(of: ConvProblem, pixels: int, tiler: PointwisePacked) -> Refused | None:
    panels, limits = -(-of.filters // tiler.tile.block), LIMITS.packed
    if pixels == 0 or _products(of.filters, pixels, tiler.tile) > limits.waste * of.filters * pixels:
        return Refused("filters_and_pixels_fill_lanes", f"{of.filters} filters and {pixels} pixels")
    is_few = pixels <= limits.most_pixels
    if of.geometry.is_point:
        pays = is_few or (panels > 1 and of.channels >= limits.deep) or panels >= BLOCKS.packed.many_panels
    else:
        pays = not is_few or panels >= limits.few_panels
    if not pays:
        return Refused("panels_pay_for_packing", f"{panels} panels of {pixels} pixels and {of.channels} channels")
    # Every thread packs by itself.
    single = of.images * of.groups * tiler.pixel_parts(of) == 1 and panels < BLOCKS.packed.many_panels
    return (
        Refused("threads_share_packed_pixels", f"{panels} panels", f"at least {BLOCKS.packed.many_panels}")
        if single
        else None
    )


def _few_pixels_declines(of: ConvProblem, pixels: int, tile: RegisterTile) -> Refused | None:
    limits, lanes = LIMITS.few_pixels, tile.device.lanes
    most = limits.most_vectors * lanes if tile.point else tiles_of(tile.device).most_pixels
    if (many := _between("pixels_are_few", pixels, 1, most)) is not None:
        return many
    deep = limits.deep * lanes
    if of.geometry.is_point and pixels > limits.point_vectors * lanes and of.channels < deep:
        return Refused("sums_pay_for_transposes", f"{of.channels} channels", f"at least {deep}")
    best = few_pixels_kernel.least_waste(tile.device, pixels)[1]
    return None if tile.pixels == best else Refused("register_tile_wastes_least", f"{tile.pixels} pixels", str(best))


def _pointwise_fewest(of: ConvProblem, pixels: int) -> int:
    """How many channels there must be for each lane."""
    limits = LIMITS.pointwise
    if of.residual:
        return limits.fewest_residual
    near = pixels <= limits.far or of.filters < of.channels
    return limits.fewest if near else limits.fewest_far


@dataclass(frozen=True, slots=True)
class Suited:
    """A tiler that declines sizes which a condition refuses, and tells the cost of others."""

    tiler: ConvTiler

    @property
    def problem(self) -> ConvProblem:
        return self.tiler.problem

    def __call__(self, number: Number) -> Tiling | None:
        return self.tiling(self.problem.known(number))

    def tiling(self, of: ConvProblem) -> Tiling | None:
        return None if declined(of, self.tiler) is not None else self.tiler.tiling(of)

    def priced(self, number: Number) -> Priced | None:
        """The cost at sizes that suit."""
        of = self.problem.known(number)
        if declined(of, self.tiler) is not None:
            return None
        return Priced(conv_cost(of, self.tiler), lambda: self.tiler.tiling(of))


# The rows.


def _row(name: str, find: Callable[[Convolution, ConvProblem, CpuDevice], Found]) -> Row[CpuDevice]:
    return Row(name, partial(_answer, find))


def _answer(find: Callable[[Convolution, ConvProblem, CpuDevice], Found], of: StepProblem[CpuDevice]) -> Answer:
    read = of.once(with_bound_weights)
    if isinstance(read, Refused):
        return read
    found, problem = read
    made = find(found.convolution, problem, of.device)
    if isinstance(made, Refused):
        return made
    given = [replace(one, shared=found.shared) for one in made]
    refusals = [declined(one.tiler.problem, one.tiler) if one.is_known else None for one in given]
    offers = [_offer(one) for one, refusal in zip(given, refusals, strict=True) if refusal is None]
    return offers or next(refusal for refusal in refusals if refusal is not None)


def _answer_winograd(of: StepProblem[CpuDevice]) -> Answer:
    read = of.once(with_bound_weights)
    if isinstance(read, Refused):
        return read
    if of.locations.strict:
        return Refused("sums_keep_their_order", "transforms")
    return _answer(partial(_winograd, schemes_for(read[0].convolution, of.locations)), of)


def _offer(one: Candidate) -> Offer:
    if one.is_known:
        return one.offer(lambda: conv_cost(one.tiler.problem, one.tiler))
    return replace(one.offer(), variant=replace(one, tiler=Suited(one.tiler)).variant)


ROWS: Sequence[Row[CpuDevice]] = (
    Row("conv1d", offer_conv1d),
    Row("winograd", _answer_winograd),
    _row("depthwise", _depthwise),
    _row("few_channels", _few_channels),
    _row("pointwise_packed", _pointwise_packed),
    _row("few_pixels_kxk", _few_pixels_kxk),
    _row("few_pixels", _few_pixels),
    _row("pointwise", _pointwise),
    _row("direct", _direct),
    Row("few_results", offer_few_results),
    Row("direct_of_a_run", offer_direct),
)
"""The kernels of convolutions, in the order of preference."""

TRANSPOSED_ROWS: Sequence[Row[CpuDevice]] = (Row("direct", offer_transposed),)
"""The kernels of transposed convolutions."""

__all__ = ["ROWS", "TRANSPOSED_ROWS", "Suited", "declined"]
