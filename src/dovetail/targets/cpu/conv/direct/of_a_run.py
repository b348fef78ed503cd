"""Direct convolution by filters that only a run knows, those of a training step: each thread packs them for itself."""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.dim import product
from dovetail.ir.value import Value
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution, ConvProblem
from dovetail.kernels.spec import TensorLocations
from dovetail.targets.cpu.conv.candidate import Candidate
from dovetail.targets.cpu.conv.direct.kernel import direct_code
from dovetail.targets.cpu.conv.direct.tile import DirectTile
from dovetail.targets.cpu.conv.direct.variant import Direct
from dovetail.targets.cpu.conv.packing import pointers
from dovetail.targets.cpu.conv.policy import LIMITS


def direct_of_a_run(
    found: Convolution, problem: ConvProblem, device: CpuDevice, locations: TensorLocations
) -> Candidate | Refused:
    """The kernel, where taps of a filter are equally far apart, and pixels that it packs are read often."""
    if problem.filters < LIMITS.of_a_run.fewest_filters:
        fewest = f"at least {LIMITS.of_a_run.fewest_filters}"
        return Refused("filters_pay_for_packed_pixels", f"{problem.filters} filters of a group", fewest)
    out, taps = product(problem.geometry.out), problem.geometry.taps
    if isinstance(out, int) and out < taps:
        return Refused("results_fill_lanes", f"{out} results, {taps} taps", "as many results as taps")
    strides = _strides(found, locations)
    if isinstance(strides, Refused):
        return strides
    if problem.is_level:
        problem = replace(problem, geometry=problem.geometry.flat())
    plain = DirectTile.of(device, problem.filters, found.epilogue, problem.geometry.taps == 1)
    tile = replace(plain, packs=True)
    return Candidate(
        pointers(found, found.w, found.b), Direct(problem, tile, (), strides), lambda: direct_code(tile), "direct"
    )


def _strides(found: Convolution, locations: TensorLocations) -> tuple[tuple[str, int], ...] | Refused:
    """Strides of the filters and of the bias in bytes, by the names of the kernel's arguments."""
    apart = _known_strides(found.w, locations)
    window = found.w.shape[2:]
    if apart is None or (len(window) == 2 and window[0] != 1 and apart[2] != apart[3] * window[1]):
        return Refused("taps_are_equidistant", f"strides {locations(found.w).strides}")
    named = {"w_filter": apart[0], "w_channel": apart[1], "w_tap": apart[-1]}
    if found.b is not None:
        of_bias = _known_strides(found.b, locations)
        if of_bias is None:
            return Refused("bias_has_known_strides", f"strides {locations(found.b).strides}")
        # A bias is [filters], with as many axes of size 1 after it as the image has.
        named["b_filter"] = of_bias[0]
    return tuple(named.items())


def _known_strides(value: Value, locations: TensorLocations) -> tuple[int, ...] | None:
    strides = locations(value).strides
    known = tuple([step for step in strides if isinstance(step, int)])
    return known if len(known) == len(strides) and value.tensor.is_static else None


__all__ = ["direct_of_a_run"]
