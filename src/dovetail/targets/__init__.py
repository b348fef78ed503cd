"""Targets: what each keeps, and how it compiles and runs."""

from __future__ import annotations

from dovetail.errors import OptionError
from dovetail.targets.cpu.target import TARGET as CPU
from dovetail.targets.cuda.target import TARGET as CUDA
from dovetail.targets.reference.target import TARGET as REFERENCE
from dovetail.targets.target import Target

ALL: tuple[Target, ...] = (REFERENCE, CPU, CUDA)
"""Every target."""


def target_named(name: str | Target) -> Target:
    """The target of a name; one of the user's own stands for itself."""
    if isinstance(name, Target):
        return name
    for target in ALL:
        if target.name == name:
            return target
    raise OptionError(f"there is no target {name!r}", hint=f"the targets are {', '.join(t.name for t in ALL)}")


__all__ = ["ALL", "Target", "target_named"]
