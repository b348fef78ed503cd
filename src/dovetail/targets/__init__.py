"""Targets: what each claims, how it compiles and runs, and what a target of your own is made of."""

from __future__ import annotations

from dovetail.declare.cost import Machine, Peak, Reach
from dovetail.errors import UnsupportedError
from dovetail.passes.claims import Claims, Condition
from dovetail.passes.memory_rules import (
    ELEMENTWISE,
    ELEMENTWISE_REGION,
    PRODUCT_EPILOGUE,
    UPDATE,
    InPlace,
    MemoryRules,
)
from dovetail.plan.plan import Plan, Step
from dovetail.targets.cpu.target import TARGET as CPU
from dovetail.targets.cuda.target import TARGET as CUDA
from dovetail.targets.reference.interpreter import evaluate_values
from dovetail.targets.reference.target import TARGET as REFERENCE
from dovetail.targets.target import CodeView, Executable, Notation, Runner, Target

ALL: tuple[Target, ...] = (REFERENCE, CPU, CUDA)
"""Every target."""


def target_named(name: str | Target) -> Target:
    """The target of a name; one of the user's own stands for itself."""
    if isinstance(name, Target):
        return name
    for target in ALL:
        if target.name == name:
            return target
    raise UnsupportedError(f"there is no target {name!r}", hint=f"the targets are {', '.join(t.name for t in ALL)}")


__all__ = [
    "ALL",
    "ELEMENTWISE",
    "ELEMENTWISE_REGION",
    "PRODUCT_EPILOGUE",
    "UPDATE",
    "Claims",
    "CodeView",
    "Condition",
    "Executable",
    "InPlace",
    "Machine",
    "MemoryRules",
    "Notation",
    "Peak",
    "Plan",
    "Reach",
    "Runner",
    "Step",
    "Target",
    "evaluate_values",
    "target_named",
]
