"""NVIDIA GPUs: elementwise work, rows, reductions and copies run there; the rest is described and planned for."""

from __future__ import annotations

from dovetail.plan.plan import Plan
from dovetail.settings import Settings
from dovetail.targets.cuda.claims import claims
from dovetail.targets.target import Executable, Target


def _compile(plan: Plan, settings: Settings) -> Executable:
    """Code generation for GPUs is imported when a program is compiled for one."""
    from dovetail.targets.cuda.run import CudaGraph

    return CudaGraph(plan)


TARGET = Target("cuda", claims, _compile, any_size=True)

__all__ = ["TARGET"]
