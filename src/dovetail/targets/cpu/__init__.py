"""The CPU: kernels that are compiled on the spot, and NumPy where there is none yet."""

from __future__ import annotations

from dovetail.plan.plan import Plan
from dovetail.settings import Settings
from dovetail.targets.cpu.claims import claims
from dovetail.targets.cpu.native import NativeGraph
from dovetail.targets.target import Executable, Target


def _compile(plan: Plan, settings: Settings) -> Executable:
    return NativeGraph(plan, threads=settings.threads or None)


TARGET = Target("cpu", claims, _compile, any_size=True)

__all__ = ["TARGET"]
