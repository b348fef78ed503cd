"""NVIDIA GPUs as a target."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.plan.plan import Plan, Step
from dovetail.plan.served import Served
from dovetail.settings import Settings
from dovetail.targets.cuda.claims import CLAIMS, claims
from dovetail.targets.target import Considered, Executable, Target


def _compile(plan: Plan, settings: Settings) -> Executable:
    """Code generation for GPUs is imported when a program is compiled for one."""
    from dovetail.targets.cuda.run import CudaGraph

    return CudaGraph(plan)


def _considered(plan: Plan, step: Step) -> Sequence[Considered]:
    from dovetail.targets.cuda.run import locations_of
    from dovetail.targets.cuda.select import TABLE

    return TABLE.considered(step, locations_of(plan), None, CLAIMS.machine)


def _variants(plan: Plan, sizes: Mapping[str, Size]) -> Mapping[Value, Served]:
    """The steps that run on the host, with the reason where a family raised."""
    from dovetail.targets.cuda.run import locations_of
    from dovetail.targets.cuda.select import TABLE

    locations = locations_of(plan)
    steps = [s for s in plan.phase("run") if TABLE.select(s, locations, None, CLAIMS.machine) is None]
    return {step.value: Served(None, why=locations.refused.get(step.value, "")) for step in steps}


TARGET = Target("cuda", claims, _compile, any_size=True, variants=_variants, considered=_considered)

__all__ = ["TARGET"]
