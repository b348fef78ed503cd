"""A job: the kernel for one step of a plan, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from dovetail.ir.dim import Dim, Size
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops import Kernel
from dovetail.plan.alias import Alias

Places: TypeAlias = Callable[[Value], Alias]
"""Where a tensor lies: the root that holds it, the offset and the strides in bytes."""


@dataclass(frozen=True, slots=True)
class Template:
    """A kernel that is written in a target's own text.

    `text` defines `name` and whatever it calls that is its own; `uses` are functions of `kernels.maths` and declarations.
    Arguments are words: pointers in their order, then sizes in theirs.
    """

    name: str
    text: str
    uses: tuple[str, ...]
    pointers: tuple[str, ...]
    sizes: tuple[Size, ...]
    scratch: Size = 0
    """Bytes that a worker needs for itself."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor that is known when parameters are bound, in another layout; `layout` names it, `pack` makes it."""

    value: Value
    layout: str
    pack: Callable[[Array], Array]


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel of a plan: its code, what its pointers point to, and how its work is cut."""

    kernel: Kernel | Template
    points: Mapping[str, Value | Packed]
    tiles: Size
    """Pieces that do not depend on each other."""
    work: Size
    """Elements or multiplications that one tile takes, to decide how many tiles make a chunk worth handing out."""

    @property
    def sizes(self) -> tuple[Size, ...]:
        return self.kernel.sizes

    @property
    def scratch(self) -> Size:
        return self.kernel.scratch


__all__ = ["Dim", "Job", "Packed", "Places", "Template"]
