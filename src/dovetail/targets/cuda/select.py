"""Which kernel a step becomes on an NVIDIA GPU."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from dovetail.codegen.llvm import ptx
from dovetail.ir.value import Value
from dovetail.kernels.families.fill import make_fill
from dovetail.kernels.families.map import make_map
from dovetail.kernels.families.move import make_move
from dovetail.kernels.families.reduce import make_reduce
from dovetail.kernels.families.rows import make_rows
from dovetail.kernels.families.view_fusion import make_weave
from dovetail.kernels.loops.gpu_schedule import schedule
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.cuda.loops import SHAPE

FAMILIES: tuple[Callable[[Step, TensorLocations], Job | None], ...] = (
    make_map,
    make_rows,
    make_reduce,
    make_move,
    make_weave,
    make_fill,
)


@dataclass(frozen=True, slots=True)
class GpuKernel:
    """The kernel of a step: its loops with a launch shape, its LLVM text, and what its pointers point to."""

    kernel: Kernel
    text: str
    bindings: Mapping[str, Value]


def make_kernel(step: Step, locations: TensorLocations) -> GpuKernel | None:
    """The kernel of a step; None where no family takes it."""
    for family in FAMILIES:
        job = family(step, locations)
        if job is not None:
            return _scheduled(job, step, locations)
    return None


def _scheduled(job: Job, step: Step, locations: TensorLocations) -> GpuKernel | None:
    kernel = job.kernel
    bindings = {name: v for name, v in job.bindings.items() if isinstance(v, Value)}
    if not isinstance(kernel, Kernel) or len(bindings) != len(job.bindings):
        return None
    made = schedule(kernel, job.tiled.tiles, SHAPE)
    if step.over is not None:
        # The result takes the memory of an operand, which must then not be read through the read-only cache.
        beneath = {name for name, v in bindings.items() if locations(v).root in (step.over, step.value)}
        made = replace(made, shared=tuple(sorted(beneath)))
    return GpuKernel(made, ptx.module(made, locations.alignment(bindings)), bindings)


__all__ = ["FAMILIES", "GpuKernel", "make_kernel"]
