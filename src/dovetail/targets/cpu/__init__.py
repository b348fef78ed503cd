"""The CPU: kernels that are compiled on the spot, and NumPy where there is none yet."""

from __future__ import annotations

from dovetail.passes.specialize import symbols_of
from dovetail.plan.plan import Plan
from dovetail.targets.cpu.claims import claims
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.reference.planned import PlannedGraph
from dovetail.targets.target import Executable, Target


def compile_plan(plan: Plan) -> Executable:
    """Compiled code for a plan. Where sizes are found while it runs, its steps run on the host."""
    return PlannedGraph(plan) if symbols_of(plan.graph)[1] else NativeGraph(plan)


TARGET = Target("cpu", claims, compile_plan, any_size=True)

__all__ = ["TARGET"]
