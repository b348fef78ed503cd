"""NVIDIA GPUs as a target."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.plan.plan import Plan, Step
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


TARGET = Target("cuda", claims, _compile, any_size=True, considered=_considered)

__all__ = ["TARGET"]
