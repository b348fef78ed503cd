"""Which template serves a convolution: the first that takes it."""

from __future__ import annotations

from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cpu.conv.conv1d.variant import make_line
from dovetail.targets.cpu.conv.select import make_conv
from dovetail.targets.cpu.conv.transposed import make_conv_transpose


def make_convolution(step: Step, locations: TensorLocations, device: CpuDevice) -> Job | None:
    """The job of a convolution, or None where no template takes it."""
    for template in (make_line, make_conv, make_conv_transpose):
        job = template(step, locations, device)
        if job is not None:
            return job
    return None
