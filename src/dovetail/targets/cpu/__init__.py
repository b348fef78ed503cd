"""The CPU: described and planned for; its kernels run as NumPy steps inside the planned memory."""

from __future__ import annotations

from dovetail.targets.cpu.claims import claims
from dovetail.targets.reference.planned import PlannedGraph
from dovetail.targets.target import Target

TARGET = Target("cpu", claims, PlannedGraph)

__all__ = ["TARGET"]
