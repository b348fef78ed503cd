"""A job: the kernel for one step of a plan, and what it is given."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Protocol, TypeAlias

from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.policy import LoopTarget
from dovetail.plan.alias import Alias

ALIGNMENT = 16
"""Bytes: every buffer starts at a multiple of it, and no vector of one GPU thread is wider."""


@dataclass(frozen=True, slots=True)
class Places:
    """Where tensors lie, and which of them are known before a run."""

    locate: Callable[[Value], Alias]
    bound: Collection[Value]
    """Roots that the bind phase makes."""
    strict: bool = False
    """Whether sums may not be taken apart, as other schemes of convolution do."""
    target: LoopTarget = field(kw_only=True)
    """What the target's compiled code has, and the tile sizes it wants."""

    def __call__(self, value: Value) -> Alias:
        """The root that holds a tensor, the offset and the strides in bytes."""
        return self.locate(value)

    def alignment(self, points: Mapping[str, Value]) -> dict[str, int]:
        """The bytes that the address of each tensor is a multiple of, up to those of a vector."""
        offsets = {name: self.locate(v).offset for name, v in points.items()}
        return {name: gcd(at, ALIGNMENT) if isinstance(at, int) else 1 for name, at in offsets.items()}

    def is_bound(self, value: Value) -> bool:
        """Whether a tensor and where it lies are known when parameters are bound."""
        at = self.locate(value)
        known = at.root.op in (leaf.PARAM, leaf.CONST) or at.root in self.bound
        return known and value.tensor.is_static and all(isinstance(s, int) for s in (at.offset, *at.strides))


@dataclass(frozen=True, slots=True)
class Part:
    """A function that templates share: compiled once in a process."""

    name: str
    text: str
    """A whole module: declarations, the function, and what it calls."""
    optimize: bool = False
    """Whether LLVM makes vectors of it; otherwise it is compiled as it is written."""

    @property
    def declaration(self) -> str:
        """What a kernel says that calls it."""
        given = self.text.partition(f"define void @{self.name}(")[2].partition(") ")[0]
        kinds = [word.rpartition(" ")[0] for word in given.split(", ")]
        return f"declare void @{self.name}({', '.join(kinds)})"


@dataclass(frozen=True, slots=True)
class Template:
    """A kernel that is written in a target's own text.

    `text` defines `name` and whatever it calls that is its own; `uses` are functions of `kernels.maths` and
    declarations.
    Arguments are words: pointers in their order, then sizes in theirs.
    """

    name: str
    text: str
    uses: tuple[str, ...]
    pointers: tuple[str, ...]
    sizes: tuple[Size, ...]
    scratch: Size = 0
    """Bytes that a worker needs for itself."""
    ready: tuple[Part, ...] = ()
    """Functions that it shares with others of the process; `uses` declares them."""
    is_final: bool = False
    """Whether the text is as it should be already, so that LLVM's optimiser would only take its time."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor that is known when parameters are bound, in another layout; `layout` names it, `pack` makes it."""

    value: Value
    layout: str
    pack: Callable[..., Array]
    """From the tensor and those beside it, as arrays, to what the kernel reads."""
    beside: tuple[Value, ...] = ()
    """Further tensors that the layout holds."""

    @property
    def key(self) -> tuple[Value | str, ...]:
        """Equal for equal contents."""
        return (self.layout, self.value, *self.beside)


@dataclass(frozen=True, slots=True)
class Status:
    """A word of a run that is 0; a kernel that meets what its meaning refuses stores 1 there and goes on anyhow.

    The step is then run by its meaning, which raises.
    """


Number: TypeAlias = Callable[[Size], int]
"""What a size is in one run."""


@dataclass(frozen=True, slots=True)
class Cut:
    """How work is cut: the sizes and the scratch that a kernel is given, and what a job says of tiles."""

    sizes: tuple[Size, ...]
    scratch: Size
    tiles: Size
    work: Size


class Cutting(Protocol):
    """Decides how work is cut once sizes are known, a dataclass so that it can be kept."""

    def __call__(self, number: Number) -> Cut | None:
        """The cut; None where another kernel is the better one for these sizes."""
        ...


@dataclass(frozen=True, slots=True)
class Form:
    """Another kernel for a step, which takes it where its sizes suit: they are known when a run is prepared."""

    kernel: Template
    points: Mapping[str, Value | Packed | Status]
    cut: Cutting

    def job(self, number: Number) -> Job | None:
        """The job for these sizes, if it is one for this kernel."""
        cut = self.cut(number)
        if cut is None:
            return None
        return Job(replace(self.kernel, sizes=cut.sizes, scratch=cut.scratch), self.points, cut.tiles, cut.work)


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel of a plan: its code, what its pointers point to, and how its work is cut."""

    kernel: Kernel | Template
    points: Mapping[str, Value | Packed | Status]
    tiles: Size
    """Pieces that do not depend on each other."""
    work: Size
    """Elements or multiplications that one tile takes, to decide how many tiles make a chunk worth handing out."""
    keeps: bool = False
    """Whether a call goes on with what it laid out for the tile before, so that a thread's tiles are best one call."""
    forms: tuple[Form, ...] = ()
    """Kernels that are asked first when sizes are known, in this order."""

    def chosen(self, number: Number) -> tuple[int, Job]:
        """The job for these sizes, and whose it is: 0 for its own kernel, then the forms."""
        for index, form in enumerate(self.forms, 1):
            job = form.job(number)
            if job is not None:
                return index, job
        return 0, self

    @property
    def sizes(self) -> tuple[Size, ...]:
        return self.kernel.sizes

    @property
    def scratch(self) -> Size:
        return self.kernel.scratch

    @property
    def is_checked(self) -> bool:
        """Whether it may refuse what it reads."""
        return any(isinstance(point, Status) for point in self.points.values())


__all__ = ["Cut", "Cutting", "Dim", "Form", "Job", "Number", "Packed", "Part", "Places", "Status", "Template"]
