"""Which kernel serves a convolution: the first that suits its sizes, which may be known only when a run is prepared."""

from __future__ import annotations

from dovetail.errors import GraphError
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cpu.conv.depthwise.variant import depth
from dovetail.targets.cpu.conv.direct.variant import Convolution, direct, first_of
from dovetail.targets.cpu.conv.few_channels.variant import row
from dovetail.targets.cpu.conv.few_pixels.variant import small
from dovetail.targets.cpu.conv.few_pixels_kxk.variant import window
from dovetail.targets.cpu.conv.pointwise.variant import point
from dovetail.targets.cpu.conv.pointwise_packed.variant import panel
from dovetail.targets.cpu.conv.winograd.variant import winograd


def make_conv(step: Step, locations: TensorLocations, vectors: CpuDevice) -> Job | None:
    """The job of a convolution with weights that are known when parameters are bound."""
    found = Convolution.of(step.value)
    if found is None or not found.is_served(locations):
        return None
    try:
        expanse = found.expanse(locations)
        # Winograd's sums are in another order: not where that matters.
        others = [] if locations.strict else winograd(found, expanse, vectors)
        others += [*depth(found, expanse, vectors), *row(found, expanse, vectors), *panel(found, expanse, vectors)]
        others += [*window(found, expanse, vectors), *small(found, expanse, vectors), *point(found, expanse, vectors)]
        return first_of([*others, direct(found, expanse, vectors)])
    except GraphError:
        # Sizes that are too long to be written down.
        return None
