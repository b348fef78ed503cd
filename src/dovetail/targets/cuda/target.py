"""NVIDIA GPUs: described, legalised and planned for; nothing runs there yet."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from dovetail.errors import UnsupportedError
from dovetail.ir.literal import Array
from dovetail.plan.plan import Plan
from dovetail.targets.cuda.claims import claims
from dovetail.targets.target import Runner, Target


@dataclass(frozen=True, slots=True)
class PlannedOnly:
    """A plan that can be read and reported, and not run."""

    plan: Plan

    def bind(self, params: Mapping[str, Array]) -> Runner:
        raise UnsupportedError(
            f"{self.plan.graph.name} is planned for cuda, and there are no cuda kernels yet",
            hint='compile it with target="cpu" or target="reference" to run it',
        )


TARGET = Target("cuda", claims, lambda plan, settings: PlannedOnly(plan))

__all__ = ["TARGET"]
