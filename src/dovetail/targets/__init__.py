"""Targets: what each claims, how it compiles and runs, and the parts of a target of your own."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from dovetail.declare.cost import Machine, Peak, Reach
from dovetail.errors import UnsupportedError
from dovetail.nearest import suggestion
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
from dovetail.targets.reference.interpreter import evaluate_values
from dovetail.targets.target import CodeView, Executable, Notation, Runner, Target

NAMES = ("reference", "cpu", "cuda", "xla")
"""Every target, by name; dovetail.targets.NAME.target has it, and is imported on first use."""


def target_named(name: str | Target) -> Target:
    """The target of a name; one of the user's own stands for itself."""
    if isinstance(name, Target):
        return name
    if name not in NAMES:
        listed = f"the targets are {', '.join(NAMES)}"
        raise UnsupportedError(f"there is no target {name!r}", hint=suggestion(name, NAMES, listed))
    return import_module(f"dovetail.targets.{name}.target").TARGET


def shipping_of(name: str, *, writing: bool) -> Any:
    """What writes, or reads, the parts of saved programs of a target."""
    if name != "cpu":
        raise UnsupportedError(f"programs for {name} cannot be saved", hint='compile with target="cpu"')
    return import_module(f"dovetail.targets.{name}.{'shipping' if writing else 'shipped'}")


def every_target() -> tuple[Target, ...]:
    """Every target."""
    return tuple(map(target_named, NAMES))


__all__ = [
    "ELEMENTWISE",
    "ELEMENTWISE_REGION",
    "NAMES",
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
    "every_target",
    "shipping_of",
    "target_named",
]
