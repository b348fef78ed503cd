"""Statements of the loop language for pipelines between warps: some copy to shared memory, others compute on it.

The tensor memory accelerator (TMA) copies boxes of a matrix, or pixels of images. Barriers in shared memory (mbarriers)
count arrivals and the bytes of copies: a phase of a barrier ends when both have come. Phases alternate between 0 and 1.
"""

from __future__ import annotations

from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.kernels.loops.expr import Expr, Tensor
from dovetail.kernels.matrix_instruction import LINE_BYTES

MAP_BYTES = 128
"""Bytes of a tensor map, which is an argument of a kernel by value."""
BOX = 64
"""Elements of 16 bits along a line of a box."""


@dataclass(frozen=True, slots=True)
class Traversal:
    """Which pixels of images a copy goes through (im2col): bounds and strides of each spatial axis, innermost first."""

    lower: tuple[int, ...]
    """The first pixel that a window's first tap sees; below 0 in the padding."""
    upper: tuple[int, ...]
    """The last one, counted from the last pixel of the axis."""
    strides: tuple[int, ...]
    """Pixels from one to the next."""


@dataclass(frozen=True, slots=True)
class TensorMap:
    """A tensor in memory of the device, as the TMA is told of it when a kernel is launched."""

    pointer: str
    offset: Size
    """Bytes from the pointer to the first element."""
    sizes: tuple[Size, ...]
    """Of the axes, innermost first, which is dense: elements and lines of a matrix; channels, pixels and images."""
    strides: tuple[Size, ...]
    """Bytes from one to the next along all axes but the first: multiples of 16."""
    box_lines: int
    """Lines of one copy, at most 256; it has 128 bytes of each."""
    traversal: Traversal | None = None
    """How a copy goes from pixel to pixel, row to row and image to image; None where it is a box of a matrix."""
    itemsize: int = LINE_BYTES // BOX
    """Bytes of an element: 1, 2 or 4."""


@dataclass(frozen=True, slots=True)
class AllocBarriers:
    """Barriers in shared memory, each in its phase 0, before any thread of the block goes on."""

    name: str
    count: int
    arrivals: int
    """Arrivals that end a phase."""
    is_new: bool = True
    """False where what runs before made them: the name alone is new."""
    offset: int | None = None
    """Bytes from the start of shared memory; None where they follow what was allocated before."""


@dataclass(frozen=True, slots=True)
class CopyBox:
    """Start a copy of a box to shared memory, swizzled there; zeros outside of the tensor. One thread does it."""

    target: Tensor
    target_at: tuple[Expr, ...]
    """A place at a multiple of 1,024 bytes."""
    source: TensorMap
    at: tuple[Expr, ...]
    """Where it starts along each axis, innermost first."""
    barrier: str
    """It counts the bytes."""
    slot: Expr
    taps: tuple[Expr, ...] = ()
    """How far from each pixel of a traversal it reads along each spatial axis, innermost first."""
    blocks: int = 1
    """Blocks of the cluster: all of them get the box (multicast), at the same place, and their barriers count it."""

    @property
    def nbytes(self) -> int:
        return self.source.box_lines * LINE_BYTES


@dataclass(frozen=True, slots=True)
class CopyBulk:
    """Start a copy of neighbouring bytes to shared memory. Each thread that comes here starts one."""

    target: Tensor
    target_at: tuple[Expr, ...]
    source: Tensor
    source_at: tuple[Expr, ...]
    """Both are multiples of 16 bytes."""
    nbytes: int
    """A multiple of 16."""
    barrier: str
    """It counts the bytes."""
    slot: Expr
    evict_first: bool = False
    """Whether L2 drops these bytes before others: they are read once."""


@dataclass(frozen=True, slots=True)
class ExpectBytes:
    """Arrive at a barrier, whose phase then also counts the bytes of copies."""

    barrier: str
    slot: Expr
    count: int


@dataclass(frozen=True, slots=True)
class Arrive:
    """Each thread that comes here arrives at a barrier."""

    barrier: str
    slot: Expr
    blocks: int = 1
    """Blocks of the cluster, where lane i, of as many lanes, arrives at the barrier of block i."""


@dataclass(frozen=True, slots=True)
class AwaitPhase:
    """Wait until a barrier has left a phase; one that is new has left phase 1."""

    barrier: str
    slot: Expr
    phase: Expr
    turns: int = 1
    """Phases that each barrier has in a run of the kernel."""


@dataclass(frozen=True, slots=True)
class WarpBarrier:
    """No lane of a warp goes on before all have come here; what they stored in shared memory is seen by all."""

    warps: int = 1
    """4 where those of a warpgroup wait for each other."""


Pipeline: TypeAlias = AllocBarriers | CopyBox | CopyBulk | ExpectBytes | Arrive | AwaitPhase | WarpBarrier

__all__ = [
    "BOX", "MAP_BYTES", "AllocBarriers", "Arrive", "AwaitPhase", "CopyBox", "CopyBulk", "ExpectBytes", "Pipeline",
    "TensorMap", "Traversal", "WarpBarrier",
]  # fmt: skip
