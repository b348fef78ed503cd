"""Which kernel serves a convolution: the first that suits its sizes, which may be known only when a run is prepared."""

from __future__ import annotations

from dovetail.errors import GraphError
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.problems.convolution import Convolution
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cpu.conv.candidate import first_of
from dovetail.targets.cpu.conv.depthwise.variant import depthwise
from dovetail.targets.cpu.conv.direct.variant import direct
from dovetail.targets.cpu.conv.few_channels.variant import few_channels
from dovetail.targets.cpu.conv.few_pixels.variant import few_pixels
from dovetail.targets.cpu.conv.few_pixels_kxk.variant import few_pixels_kxk
from dovetail.targets.cpu.conv.pointwise.variant import pointwise
from dovetail.targets.cpu.conv.pointwise_packed.variant import pointwise_packed
from dovetail.targets.cpu.conv.winograd.variant import winograd

VARIANTS = (winograd, depthwise, few_channels, pointwise_packed, few_pixels_kxk, few_pixels, pointwise)
"""In the order of preference; the direct kernel comes last, and serves what none of them does."""


def make_conv(step: Step, locations: TensorLocations, device: CpuDevice) -> Job | None:
    """The job of a convolution with weights that are known when parameters are bound."""
    found = Convolution.of(step.value)
    if found is None or not found.is_served(locations):
        return None
    try:
        problem = found.problem(locations)
        # Winograd's sums are in another order: not where that matters.
        variants = VARIANTS[1:] if locations.strict else VARIANTS
        candidates = [one for variant in variants for one in variant(found, problem, device)]
        return first_of([*candidates, direct(found, problem, device)])
    except GraphError:
        # Sizes that are too long to be written down.
        return None
