"""XLA as a target, through JAX's public interface."""

from __future__ import annotations

from dovetail.plan.plan import Plan
from dovetail.settings import Settings
from dovetail.targets.target import Executable, Target
from dovetail.targets.xla.claims import claims


def _compiled(plan: Plan, settings: Settings) -> Executable:
    from dovetail.targets.xla.run import XlaGraph  # JAX is imported with it

    return XlaGraph(plan)


TARGET = Target("xla", claims, _compiled)

__all__ = ["TARGET"]
