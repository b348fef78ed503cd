"""Which kernel serves each step of a plan, where an op has several; nothing is compiled to find out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from dovetail.declare.machine import estimate
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.spec import Job, Template
from dovetail.plan.plan import Plan, Step
from dovetail.plan.served import Served
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.build import JobBuilder, builder_of
from dovetail.targets.runtime.step_signature import step_signature


def variants(plan: Plan, sizes: Mapping[str, Size], backend: Backend) -> dict[Value, Served]:
    """By value of the run phase, what serves it at these sizes."""
    builder = builder_of(plan, backend)
    known: dict[Hashable, Served] = {}
    found: dict[Value, Served] = {}
    for step in plan.phase("run"):
        signature = step_signature(step, builder.locations)
        if signature not in known:
            known[signature] = _served(step, builder, sizes, backend)
        found[step.value] = known[signature]
    return found


def _served(step: Step, builder: JobBuilder, sizes: Mapping[str, Size], backend: Backend) -> Served:
    job, locations = builder.job(step), builder.locations
    if not isinstance(job, Job):
        return Served(None, why=locations.refused.get(step.value, "")) if job is None else Served()

    def number(size: Size) -> int:
        # An estimate below 1 is no size of a run: a window that is longer than what a symbol counts as gives one.
        return max(1, estimate(size, sizes))

    kernel = job.chosen(number, backend.machine)[1].kernel
    cost = job.cost(number, backend.machine) if job.variants else locations.costs.get(step.value)
    return Served(kernel.variant if isinstance(kernel, Template) else "", cost)


__all__ = ["variants"]
