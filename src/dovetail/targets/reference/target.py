"""The reference: the plain NumPy meaning of every primitive, and the judge of everything else."""

from __future__ import annotations

from dovetail.targets.reference.claims import claims
from dovetail.targets.reference.planned import PlannedGraph
from dovetail.targets.target import Target

TARGET = Target("reference", claims, lambda plan, settings: PlannedGraph(plan))

__all__ = ["TARGET"]
