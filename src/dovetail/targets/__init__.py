"""Targets: what each keeps, and how it compiles and runs."""

from __future__ import annotations

from dovetail.errors import OptionError
from dovetail.targets import cpu, cuda, reference
from dovetail.targets.target import Target

ALL: tuple[Target, ...] = (reference.TARGET, cpu.TARGET, cuda.TARGET)
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
