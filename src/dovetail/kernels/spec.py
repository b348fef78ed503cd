"""The kernel of one step of a plan: its code, its tensor bindings and its launch shape."""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Mapping
from dataclasses import field, replace
from math import gcd
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

from dovetail.dataclass import dataclass
from dovetail.declare.machine import Cost, Machine, preferred
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.loops.policy import LoopTarget
from dovetail.plan.alias import Alias

T = TypeVar("T")

ALIGNMENT = 16
"""Bytes: every buffer starts at a multiple of it, and no vector of one GPU thread is wider."""


@dataclass(frozen=True, slots=True)
class TensorLocations:
    """Where tensors are stored, and which of them are known before a run."""

    locate: Callable[[Value], Alias]
    bound: Collection[Value]
    """Roots that the bind phase computes."""
    strict: bool = False
    """Whether sums keep their order, which rules out convolution by transforms (Winograd)."""
    is_fast: bool = field(default=False, kw_only=True)
    """Whether products with weights in blocks may round activations to bytes, and convolutions three times as much."""
    in_bf16: bool = field(default=False, kw_only=True)
    """Whether products with weights round both factors to bf16."""
    target: LoopTarget = field(kw_only=True)
    """What the target's compiled code has, and its tile sizes."""
    steps: tuple[Value, ...] = field(default=(), kw_only=True)
    """What the steps of a run compute, where a kernel depends on the others."""
    refused: dict[Value, str] = field(default_factory=dict[Value, str], compare=False, kw_only=True)
    """What a template raised that has no kernel for a step therefore."""
    costs: dict[Value, Cost] = field(default_factory=dict[Value, Cost], compare=False, kw_only=True)
    """Work and traffic of the kernel that was selected for a step, where the variant decides them."""
    known: dict[Hashable, Any] = field(default_factory=dict[Hashable, Any], compare=False, kw_only=True)
    """What `once` has computed."""

    def __call__(self, value: Value) -> Alias:
        """The root that holds a tensor, its offset in the root and its strides, in bytes."""
        return self.locate(value)

    def once(self, read: Callable[[TensorLocations], T]) -> T:
        """What a function reads of all steps; the function runs once."""
        if read not in self.known:
            self.known[read] = read(self)
        return self.known[read]

    def alignment(self, bindings: Mapping[str, Value]) -> dict[str, int]:
        """The bytes that the address of each tensor is a multiple of, up to those of a vector."""
        offsets = {name: self.locate(v).offset for name, v in bindings.items()}
        return {name: gcd(at, ALIGNMENT) if isinstance(at, int) else 1 for name, at in offsets.items()}

    def is_bound(self, value: Value) -> bool:
        """Whether the content and the location of a tensor are known at bind time."""
        at = self.locate(value)
        known = at.root.op in (leaf.PARAM, leaf.CONST) or at.root in self.bound
        return known and value.tensor.is_static and all(isinstance(s, int) for s in (at.offset, *at.strides))

    def is_constant(self, binding: Binding) -> bool:
        """Whether no kernel of a run writes what a pointer points to."""
        return isinstance(binding, Packed) or (isinstance(binding, Value) and self.is_bound(binding))


@dataclass(frozen=True, slots=True)
class SharedFunction:
    """A function that several kernels call: compiled once in a process."""

    name: str
    text: str
    """A complete module: declarations, the function, and its callees."""
    optimize: bool = False
    """Whether LLVM optimises and vectorises it; otherwise it is compiled as written."""

    @property
    def declaration(self) -> str:
        """The declaration for a kernel that calls it."""
        parameters = self.text.partition(f"define void @{self.name}(")[2].partition(") ")[0]
        kinds = [word.rpartition(" ")[0] for word in parameters.split(", ")]
        return f"declare void @{self.name}({', '.join(kinds)})"


@dataclass(frozen=True, slots=True)
class Template:
    """A kernel in the target's own text.

    `text` defines `name` and its private callees; `uses` are functions of the maths library and declarations.
    Arguments are 64-bit launch arguments: the pointers in their order, then the sizes in theirs.
    """

    name: str
    text: str
    uses: tuple[str, ...]
    pointers: tuple[str, ...]
    sizes: tuple[Size, ...]
    scratch: Size = 0
    """Bytes of workspace that each thread needs."""
    shared: tuple[SharedFunction, ...] = ()
    """Functions that it shares with other kernels; `uses` declares them."""
    is_final: bool = False
    """Whether the text is compiled as written, without LLVM's optimiser."""
    variant: str = ""
    """The name that reports show where an op has several kernels, such as "pointwise"; "" where it has one."""
    is_vectorised: bool = False
    """Whether LLVM leaves loops as they are: they are written with vectors, or have few iterations."""
    rounding: str = ""
    """The operands that it rounds before it multiplies, as reports say it; "" where products are those of f32."""


@dataclass(frozen=True, slots=True)
class Packed:
    """A tensor that is known at bind time, packed for a kernel; `layout` names the layout, `pack` makes it."""

    value: Value
    layout: str
    pack: Callable[..., Array]
    """From the tensor and those in `beside`, as arrays, to the array that the kernel reads."""
    beside: tuple[Value, ...] = ()
    """Further tensors that the packed array holds."""

    @property
    def key(self) -> tuple[Value | str, ...]:
        """Equal for equal contents."""
        return (self.layout, self.value, *self.beside)


@dataclass(frozen=True, slots=True)
class Status:
    """The error flag of a run, 0 at first. A kernel sets it to 1 on invalid input, such as an index out of range, and
    continues; the host runs the step again, and its meaning raises the error."""


Binding: TypeAlias = Value | Packed | Status
"""What a pointer argument of a kernel points to."""

SizeFunction: TypeAlias = Callable[[Size], int]
"""Evaluates a size for one run."""


@dataclass(frozen=True, slots=True)
class Tiles:
    """A launch on a thread pool: independent tiles, which threads take in chunks."""

    tiles: Size
    work: Size
    """Elements or multiplications of one tile: decides how many tiles make a chunk."""
    keeps: bool = False
    """Whether a tile reuses the workspace of the tile before, so that a thread's tiles are best one chunk."""


@dataclass(frozen=True, slots=True)
class Grid:
    """A launch on a GPU: a grid of thread blocks."""

    grid: tuple[Size, Size, Size]
    block: tuple[Size, Size, Size]
    shared_bytes: Size = 0
    """Dynamic shared memory of a block."""


LaunchShape: TypeAlias = Tiles | Grid
"""The launch shape of a kernel. Sizes may be symbolic."""


@dataclass(frozen=True, slots=True)
class Tiling:
    """The size arguments and the workspace of a kernel, and its tiles on a thread pool."""

    sizes: tuple[Size, ...]
    scratch: Size
    tiles: Size
    work: Size

    @property
    def launch(self) -> Tiles:
        """The launch shape."""
        return Tiles(self.tiles, self.work)


class Tiler(Protocol):
    """Chooses the tiling once sizes are known; a dataclass, so that it can be stored."""

    def __call__(self, number: SizeFunction) -> Tiling | None:
        """The tiling; None where a condition of the kernel refuses these sizes."""
        ...


@dataclass(frozen=True, slots=True)
class Priced:
    """The cost of a kernel at known sizes, and its tiling, which is made for the kernel that wins."""

    cost: Cost
    tiling: Callable[[], Tiling | None]


@runtime_checkable
class PricedTiler(Tiler, Protocol):
    """A tiler whose kernel competes with others."""

    def priced(self, number: SizeFunction) -> Priced | None:
        """Work and traffic, without tiling; None where a condition of the kernel refuses these sizes."""
        ...


@dataclass(frozen=True, slots=True)
class Variant:
    """Another kernel for a step, considered when a run is prepared and sizes are known."""

    kernel: Template
    bindings: Mapping[str, Binding]
    tiler: Tiler

    def job(self, tiling: Tiling) -> Job:
        """The job for the sizes of a tiling."""
        kernel = replace(self.kernel, sizes=tiling.sizes, scratch=tiling.scratch)
        return Job(kernel, self.bindings, tiling.launch)


@dataclass(frozen=True, slots=True)
class Job:
    """One kernel of a plan: its code, what its pointers point to, and its launch shape."""

    kernel: Kernel | Template
    bindings: Mapping[str, Binding]
    launch: LaunchShape
    variants: tuple[Variant, ...] = ()
    """Kernels that are considered first when sizes are known, in the order of preference."""

    def chosen(self, number: SizeFunction, machine: Machine) -> tuple[int, Job]:
        """The job for these sizes and its index: 0 for its own kernel, then the variants.

        Of the variants whose conditions hold, the machine model takes the one with the lowest estimate.
        """
        if not self.variants:
            return 0, self
        index, tiling = 0, None
        if len(self.variants) == 1:
            tiling = self.variants[0].tiler(number)
        elif (winner := self._winner(number, machine)) is not None:
            index, tiling = winner[0], winner[1].tiling()
        return (0, self) if tiling is None else (index + 1, self.variants[index].job(tiling))

    def cost(self, number: SizeFunction, machine: Machine) -> Cost | None:
        """Work and traffic of the variant that serves these sizes; None where none has an estimate."""
        winner = self._winner(number, machine)
        return None if winner is None else winner[1].cost

    def _winner(self, number: SizeFunction, machine: Machine) -> tuple[int, Priced] | None:
        """The variant with the lowest estimate of those whose conditions hold, by index."""
        tilers = [(i, variant.tiler) for i, variant in enumerate(self.variants)]
        priced = [(i, tiler.priced(number)) for i, tiler in tilers if isinstance(tiler, PricedTiler)]
        left = [(i, one) for i, one in priced if one is not None]
        if not left:
            return None
        return left[0 if len(left) == 1 else preferred([machine.seconds(one.cost) for _, one in left])]

    @property
    def sizes(self) -> tuple[Size, ...]:
        return self.kernel.sizes

    @property
    def scratch(self) -> Size:
        return self.kernel.scratch

    @property
    def tiled(self) -> Tiles:
        """The launch of a kernel for a thread pool."""
        assert isinstance(self.launch, Tiles), "the kernel is for a thread pool"
        return self.launch

    @property
    def is_checked(self) -> bool:
        """Whether it may set the error flag."""
        return any(isinstance(binding, Status) for binding in self.bindings.values())


__all__ = [
    "ALIGNMENT",
    "Binding",
    "Grid",
    "Job",
    "LaunchShape",
    "Packed",
    "Priced",
    "PricedTiler",
    "SharedFunction",
    "SizeFunction",
    "Status",
    "Template",
    "TensorLocations",
    "Tiler",
    "Tiles",
    "Tiling",
    "Variant",
]
