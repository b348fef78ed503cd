"""Which kernel serves each step of a plan, where an op has several; nothing is compiled to find out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from dovetail.declare.machine import estimate
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.spec import Job, Template
from dovetail.plan.plan import Plan
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.build import builder_of
from dovetail.targets.runtime.control.plan import Control
from dovetail.targets.runtime.step_signature import step_signature


def variants(plan: Plan, sizes: Mapping[str, Size], backend: Backend) -> dict[Value, str | None]:
    """By value of the run phase, the kernel variant at these sizes: None on the host, "" where there is one kernel."""
    builder = builder_of(plan, backend)
    known: dict[Hashable, str | None] = {}
    found: dict[Value, str | None] = {}
    for step in plan.phase("run"):
        signature = step_signature(step, builder.locations)
        if signature not in known:
            known[signature] = _variant(builder.job(step), sizes, backend)
        found[step.value] = known[signature]
    return found


def _variant(job: Job | Control | None, sizes: Mapping[str, Size], backend: Backend) -> str | None:
    if not isinstance(job, Job):
        return None if job is None else ""
    # An estimate below 1 is no size of a run: a window that is longer than what a symbol counts as gives one.
    kernel = job.chosen(lambda size: max(1, estimate(size, sizes)), backend.machine)[1].kernel
    return kernel.variant if isinstance(kernel, Template) else ""


__all__ = ["variants"]
