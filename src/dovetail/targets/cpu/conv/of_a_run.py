"""The kernels of convolutions by filters that only a run knows, those of training steps: which problems each takes."""

from __future__ import annotations

from dataclasses import replace
from math import prod

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import f32
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.ops.convolution import conv
from dovetail.targets.cpu.conv.candidate import with_weights_of_a_run
from dovetail.targets.cpu.conv.direct import direct_of_a_run
from dovetail.targets.cpu.conv.few_results import few_results, tile_for
from dovetail.targets.cpu.conv.policy import LIMITS, tiles_of


def offer_direct(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """Direct convolution, which serves every size."""
    read = of.once(with_weights_of_a_run)
    if isinstance(read, Refused):
        return read
    conv, problem = read
    candidate = direct_of_a_run(conv.convolution, problem, of.device, of.locations)
    if isinstance(candidate, Refused):
        return candidate
    return replace(candidate, shared=conv.shared).offer()


def offer_few_results(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of results that are fewer than taps."""
    read = of.once(with_weights_of_a_run)
    if isinstance(read, Refused):
        return read
    conv, problem = read
    candidate = few_results(conv.convolution, problem, of.device, of.locations)
    if isinstance(candidate, Refused):
        return candidate
    return candidate.offer()


@dataclass(frozen=True, slots=True)
class _Apart:
    strides: tuple[int, ...]
    dilations: tuple[int, ...]


def multiplies_in_place(value: Value, device: CpuDevice) -> bool:
    """Whether one of these kernels beats products of copies (im2col) for a convolution by filters of a run."""
    x, w = value.operands[:2]
    sizes = [size for v in (x, w, value) for size in v.shape if isinstance(size, int)]
    if value.op is not conv or value.dtype is not f32 or x.rank > 4 or len(sizes) != 3 * x.rank or 0 in sizes:
        return False
    images, window, out = sizes[0], sizes[x.rank + 2 : 2 * x.rank], sizes[2 * x.rank + 2 :]
    groups, filters = int(value.attrs["groups"]), sizes[x.rank]
    if prod(out) < prod(window):
        apart = _Apart(value.attrs["strides"], value.attrs["dilations"])
        return not isinstance(tile_for(device, groups, filters // groups, out, window, apart), Refused)
    limits, size = LIMITS.of_a_run, f32.itemsize * prod(sizes[x.rank : 2 * x.rank])
    is_small = size <= limits.most_bytes and images * prod(out) >= limits.fewest_pixels
    return prod(window) > 1 and is_small and out[-1] >= tiles_of(device).run_row


__all__ = ["multiplies_in_place", "offer_direct", "offer_few_results"]
