"""Transposed convolution: a convolution over zero-stuffed pixels, by weights whose taps are reversed."""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.ir.literal import Array
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem, known
from dovetail.kernels.problems.geometry import ConvGeometry
from dovetail.kernels.spec import Packed
from dovetail.ops.convolution import conv_transpose
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.direct import Direct, direct_code
from dovetail.targets.cpu.conv.epilogue import with_epilogue
from dovetail.targets.cpu.conv.packing import Packing, bindings
from dovetail.targets.cpu.conv.pixels_in_lanes import PixelTile


def offer_transposed(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a transposed convolution with weights that are known when parameters are bound."""
    value, locations, device = of.value, of.locations, of.device
    plain = Convolution.of(value, (conv_transpose,))
    if plain is None or plain.x.rank > 4 or plain.call.dtype is not f32:
        return Refused("one_or_two_spatial_axes_of_f32", str(value.type))
    x, w = plain.x, plain.w
    if 0 in w.shape or not locations.is_bound(w):
        return Refused("weights_are_bound", "weights of a run, or none")
    attrs, groups = plain.attrs, int(plain.attrs["groups"])
    filters, channels = known(w.shape[1]), known(w.shape[0]) // groups
    window = [known(size) for size in w.shape[2:]]
    before = [(n - 1) * d - p for n, d, p in zip(window, attrs["dilations"], attrs["padding"], strict=False)]
    ones = (1,) * len(window)
    steps = locations(x).strides
    geometry = ConvGeometry.of(x.shape[2:], steps[2:], plain.result.shape[2:], window, ones, attrs["dilations"], before)
    extended = with_epilogue(plain, of)
    if isinstance(extended, Refused):
        return extended
    conv = extended.convolution
    tile = PixelTile.of(device, filters, conv.epilogue, geometry.taps == 1, True)
    weights = Packed(w, f"conv transpose {groups} {tile.filters}", TransposedPacking(groups, tile.filters))
    bound = bindings(conv, weights, tile.filters)
    apart = (*(1,) * (2 - len(window)), *attrs["strides"])
    strides = () if conv.row_steps is None else tuple(conv.row_steps.strides.items())
    problem = ConvProblem(x.shape[0], groups, filters, channels, geometry, (steps[0], steps[1]), strides=strides)
    tiler = Direct(problem, tile, apart)
    return Candidate(bound, tiler, lambda: direct_code(tile), "direct", extended.shared).offer()


@dataclass(frozen=True, slots=True)
class TransposedPacking:
    """Weights [c, m / groups, *window] as those of a convolution, [m, c / groups, *window], and packed as those."""

    groups: int
    rows: int

    def __call__(self, w: Array) -> Array:
        split = w.reshape((self.groups, w.shape[0] // self.groups, *w.shape[1:])).swapaxes(1, 2)
        filters = split.reshape((self.groups * w.shape[1], w.shape[0] // self.groups, *w.shape[2:]))
        reversed_taps = (slice(None), slice(None), *(slice(None, None, -1) for _ in w.shape[2:]))
        return Packing(self.groups, self.rows)(filters[reversed_taps])
