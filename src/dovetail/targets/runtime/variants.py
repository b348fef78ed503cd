"""Which kernel serves each step of a plan, where an op has several; nothing is compiled to find out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from dovetail.declare.machine import estimate
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.spec import Job, Template
from dovetail.plan.no_kernel import NoKernel
from dovetail.plan.plan import Plan
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.build import builder_of
from dovetail.targets.runtime.control.plan import Control
from dovetail.targets.runtime.step_signature import step_signature


def variants(plan: Plan, sizes: Mapping[str, Size], backend: Backend) -> dict[Value, str | None]:
    """By value of the run phase, its kernel variant at these sizes: None or `NoKernel` on the host, "" for the only."""
    builder = builder_of(plan, backend)
    known: dict[Hashable, str | None] = {}
    found: dict[Value, str | None] = {}
    for step in plan.phase("run"):
        signature = step_signature(step, builder.locations)
        if signature not in known:
            form = _variant(builder.job(step), sizes, backend)
            why = builder.locations.refused.get(step.value)
            known[signature] = NoKernel(why) if form is None and why else form
        found[step.value] = known[signature]
    return found


def _variant(job: Job | Control | None, sizes: Mapping[str, Size], backend: Backend) -> str | None:
    if not isinstance(job, Job):
        return None if job is None else ""
    # An estimate below 1 is no size of a run: a window that is longer than what a symbol counts as gives one.
    kernel = job.chosen(lambda size: max(1, estimate(size, sizes)), backend.machine)[1].kernel
    return kernel.variant if isinstance(kernel, Template) else ""


__all__ = ["variants"]
