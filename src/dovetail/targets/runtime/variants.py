"""Which kernel serves each step of a plan, where an op has several; nothing is compiled to find out."""

from __future__ import annotations

from collections.abc import Hashable, Mapping

from dovetail.declare.machine import estimate
from dovetail.ir.dim import Size
from dovetail.ir.value import Value, attrs_key
from dovetail.kernels.spec import Job, Places
from dovetail.plan.plan import Plan, Step
from dovetail.targets.runtime.build import Writer
from dovetail.targets.runtime.control.plan import Control

FORMS = {
    "conv": "direct",
    "depth_conv": "depthwise",
    "conv1d": "line",
    "panel_conv": "panel",
    "point_conv": "point",
    "row_conv": "row",
    "small_conv": "small",
    "window_conv": "window",
    "winograd": "winograd 4×4",
    "winograd_2": "winograd 2×2",
}
"""What people are told of kernels that serve the same op, by what stands before the mark of their text."""


def forms(plan: Plan, sizes: Mapping[str, Size]) -> dict[Value, str | None]:
    """By value of the run phase, the form of its kernel at these sizes: None without a kernel, "" without a choice.

    Layers repeat: of steps that are alike one is asked about.
    """
    writer = Writer(plan)
    known: dict[Hashable, str | None] = {}
    found: dict[Value, str | None] = {}
    for step in plan.phase("run"):
        key = _key(step, writer.places)
        if key not in known:
            known[key] = _form(writer.job(step), sizes)
        found[step.value] = known[key]
    return found


def _form(job: Job | Control | None, sizes: Mapping[str, Size]) -> str | None:
    if not isinstance(job, Job):
        return None if job is None else ""
    _, chosen = job.chosen(lambda size: estimate(size, sizes))
    return FORMS.get(chosen.kernel.name.rpartition("_")[0], "")


def _key(step: Step, places: Places) -> Hashable:
    """All that decides which kernel takes a step."""
    value = step.value
    laid = tuple([(v.type, places(v).strides, places(v).offset, places.is_bound(v)) for v in step.operands])
    return value.op, attrs_key(value.attrs), value.type, laid, step.over is None, step.over in step.operands


__all__ = ["FORMS", "forms"]
