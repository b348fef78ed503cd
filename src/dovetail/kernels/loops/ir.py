"""The loop language: what one kernel does, before any target prints it.

A kernel reads and writes tensors at indices. Sizes and strides are integers where they are known, and arguments of
the kernel where they are not, so that one code serves every size. Arithmetic is named after the primitives and is done
in the dtype that is given with it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import DType, i64
from dovetail.kernels.device import LANES
from dovetail.kernels.loops.exchange import AtomicUpdate, Ballot, ClusterBarrier, Exchange, FromLane
from dovetail.kernels.loops.expr import Call, Expr, Extent, Load, LoopKind, Name, Number, Space, Tensor, ThreadIndex
from dovetail.kernels.loops.matrix import (
    AwaitCopies,
    AwaitProducts,
    CommitCopies,
    CopyAsync,
    FenceShared,
    LoadMatrices,
    Matrix,
    MultiplyMatrices,
    MultiplyShared,
    NarrowMatrices,
    Prefetch,
    ScaleMatrices,
)
from dovetail.kernels.loops.pipeline import (
    AllocBarriers,
    Arrive,
    AwaitPhase,
    CopyBox,
    CopyBulk,
    ExpectBytes,
    Pipeline,
    TensorMap,
    Traversal,
    WarpBarrier,
)
from dovetail.kernels.loops.words import Amend, Cycles, Receipt, Receive


@dataclass(frozen=True, slots=True)
class Store:
    """Write an element."""

    tensor: Tensor
    at: tuple[Expr, ...]
    value: Expr


@dataclass(frozen=True, slots=True)
class Set:
    """Keep a scalar under a name; setting it again changes it."""

    name: str
    value: Expr


@dataclass(frozen=True, slots=True)
class Loop:
    """A body for every integer from 0 to below an extent."""

    variable: str
    extent: Expr
    body: tuple[Statement, ...]
    reassociate: bool = False
    """Whether sums of floats inside may be reordered to fit vectors; the order is one and the same in every run."""
    lanes: int = 0
    """Iterations that go together in a vector; 0 where LLVM decides, which it does for loops of many iterations."""
    kind: LoopKind = "serial"
    rolled: bool = False
    """Whether its code is not repeated: a long body that is run often enough takes long to compile."""


@dataclass(frozen=True, slots=True)
class When:
    """A body that runs where a condition holds."""

    condition: Expr
    body: tuple[Statement, ...]


@dataclass(frozen=True, slots=True)
class Roles:
    """Two bodies at the same time: the first `warps` warps of a block run `body`, the others run `other`."""

    warps: int
    body: tuple[Statement, ...]
    other: tuple[Statement, ...]
    registers: tuple[int, int] | None = None
    """Registers of a thread in each role, where both are warpgroups; None where all have the same."""


@dataclass(frozen=True, slots=True)
class SubGrid:
    """Some blocks of a grid, and the first threads of each, run a body as if they were a launch of their own."""

    blocks: int
    threads: int
    first: int
    """The block of the grid that has index 0. The next one has index 1, and the first one follows the last."""
    body: tuple[Statement, ...]
    is_rare: bool = False  # Few passes run it: what follows from its indices is not kept in registers in the others.


@dataclass(frozen=True, slots=True)
class GridBarrier:
    """No thread of a grid goes on before all blocks have come here; what they stored in memory is seen by all."""

    number: int | None
    """How many blocks have come here in a pass, over the blocks of the grid: 1 at its first barrier. None where blocks
    do not wait for each other, since they receive all that they need: a block waits for its own threads."""
    meanwhile: tuple[Statement, ...] = ()
    """What a block does after it has come here, and before it waits: it reads constants alone."""


@dataclass(frozen=True, slots=True)
class Alloc:
    """Memory of a block or of a thread, under the name of a pointer, for as long as the kernel runs."""

    pointer: str
    dtype: DType
    count: int
    """Elements."""
    space: Space
    offset: int | None = None
    """Bytes from the start of shared memory where others may have been before; None after the last allocation."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """No thread of a block goes on before all have come here; what they stored in shared memory is seen by all."""


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Combine the scalar that each lane of a group keeps under a name; every lane of it then keeps the same."""

    name: str
    op: str
    dtype: DType
    group: int | None = None
    """Neighbouring lanes that combine, a power of two; None for all of a warp."""


Copied: TypeAlias = Matrix | Pipeline | Receive | Amend
Threaded: TypeAlias = Roles | SubGrid | GridBarrier | Alloc | Barrier | AllReduce | Exchange | Copied
"""What threads of a GPU do."""
Statement: TypeAlias = Store | Set | Loop | When | Threaded


@dataclass(frozen=True, slots=True)
class Launch:
    """The launch shape of a kernel on a GPU."""

    grid: Size
    """Blocks."""
    block: int
    """Threads of a block."""
    shared_bytes: int = 0
    """Shared memory of a block beyond what the kernel allocates itself."""
    resident: int = 1
    """Blocks that one multiprocessor should hold at once: it limits the registers of a thread."""
    dependent: bool = False
    """Whether it starts while the kernel before it still runs; it waits for that one between `early` and `body`."""
    cluster: int = 1
    """Blocks of a cluster: they run at the same time, and may wait for each other."""
    cooperative: bool = False
    """Whether all blocks run at the same time, so that they may wait for each other."""
    cycles: float = 0.0
    """An estimate of what it takes after its start; 0 where there is none."""
    warp: int = LANES
    """Threads of a warp, as the device has them."""


@dataclass(frozen=True, slots=True)
class Kernel:
    """One kernel: `body` for each tile, whose number is in `tile`. Tiles do not depend on each other."""

    name: str
    pointers: tuple[str, ...]
    """In the order of the arguments; what is written comes last."""
    written: tuple[str, ...]
    tile: str
    body: tuple[Statement, ...]
    shared: tuple[str, ...] = ()
    """Pointers that may alias another one."""
    scratch: Size = 0
    """Bytes that a worker needs for itself."""
    sizes: tuple[Dim, ...] = ()
    """The sizes that the code reads, in the order of the arguments."""
    launch: Launch | None = None
    """How a GPU launches it; None before it is scheduled, and on CPUs."""
    early: tuple[Statement, ...] = ()
    """What each block does before `body`, while kernels before it may still run: it reads constants alone."""
    opening: tuple[Statement, ...] = ()
    """What each block of a resident kernel does before it waits for others, and then runs `body`."""
    constants: tuple[str, ...] = ()
    """Pointers to what no kernel of a run writes: parameters and what the bind phase computes."""
    stream: tuple[Statement, ...] = ()
    """What a warp of each block does in each pass, while others run `body`: it follows them."""
    passes: int = 1  # How often `body` runs; the number of a pass is in `pass`.
    tabled: tuple[str, ...] = ()
    """Pointers of the body that each pass has its own of: in pass 3, `w` is the pointer `w.3`, and `next.w` is `w.4`.
    In `early`, `next.w` is `w.0`."""
    counter: str = ""
    """The pointer to what counts blocks at barriers of the grid, and only ever grows. Stamped memory follows it."""
    exchanged: tuple[str, ...] = ()
    """Pointers to a workspace that blocks of a cluster write whole before one of its barriers, and read after it."""
    maps: tuple[TensorMap, ...] = ()
    """Tensors that the tensor memory accelerator copies from, in the order of the arguments, after the sizes."""
    evict_last: bool = False  # Whether L2 drops what blocks send to each other after all else.
    cycles: tuple[Cycles, ...] = ()
    """Numbers of cycles that a resident kernel waits, in the order of the arguments, after the sizes."""

    @property
    def table(self) -> range:
        """Which pointers are those of passes: the last ones, pass by pass."""
        return range(len(self.pointers) - len(self.tabled) * self.passes, len(self.pointers))


def add(x: Expr, y: Expr) -> Expr:
    """x + y of integers, folded where it is known."""
    if isinstance(x, Extent) and isinstance(y, Extent):
        return Extent(x.size + y.size)
    if x == ZERO:
        return y
    return x if y == ZERO else Call("add", (x, y), i64)


def mul(x: Expr, y: Expr) -> Expr:
    """x * y of integers, folded where it is known."""
    if isinstance(x, Extent) and isinstance(y, Extent):
        return Extent(x.size * y.size)
    if ZERO in (x, y):
        return ZERO
    if x == ONE:
        return y
    return x if y == ONE else Call("mul", (x, y), i64)


def minimum(x: Expr, y: Expr) -> Expr:
    """The smaller of two integers."""
    return Call("minimum", (x, y), i64)


def in_block(block: int, size: Size, start: Expr) -> Expr:
    """How many of the indices from `start` on are in a block; a number where blocks divide the size.

    Kernels for sizes that blocks divide then have one text, which is compiled once.
    """
    if isinstance(size, int) and size % block == 0:
        return Extent(block)
    return minimum(Extent(block), Call("sub", (Extent(size), start), i64))


ZERO, ONE = Extent(0), Extent(1)


def indices(shape: tuple[Size, ...], flat: Expr) -> tuple[Expr, ...]:
    """The index along each axis of the element with a number, counted through the axes, the last one fastest."""
    found: list[Expr] = []
    for size in reversed(shape[1:]):
        found.append(Call("rem", (flat, Extent(size)), i64) if size != 1 else ZERO)
        flat = Call("div", (flat, Extent(size)), i64) if size != 1 else flat
    return (*([flat] if shape else []), *reversed(found))


def collapsed(
    shape: tuple[Size, ...], strides: Sequence[tuple[Size, ...]]
) -> tuple[tuple[Size, ...], list[tuple[Size, ...]]]:
    """The same elements with as few axes as possible: those that are dense in every tensor become one."""
    axes: list[tuple[Size, tuple[Size, ...]]] = []
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        steps = tuple(s[axis] for s in strides)
        if axes and all(before == after * size for before, after in zip(axes[-1][1], steps, strict=True)):
            axes[-1] = (axes[-1][0] * size, steps)
        else:
            axes.append((size, steps))
    return tuple(size for size, _ in axes), [tuple(steps[i] for _, steps in axes) for i in range(len(strides))]


def in_memory_order(
    shape: tuple[Size, ...], strides: Sequence[tuple[Size, ...]]
) -> tuple[tuple[Size, ...], list[tuple[Size, ...]]]:
    """The same elements with axes in the order in which the first tensor has them in memory, where that is known."""
    order = list(range(len(shape)))
    first = [s for s in strides[0] if isinstance(s, int)]
    if len(first) == len(order):
        order.sort(key=lambda axis: -first[axis])
    return tuple([shape[a] for a in order]), [tuple([s[a] for a in order]) for s in strides]


def stretched(strides: tuple[Size, ...], shape: Sequence[Size], to: Sequence[Size]) -> tuple[Size, ...]:
    """The strides of a tensor that is broadcast to a shape: 0 where it is repeated."""
    lead = (0,) * (len(to) - len(shape))
    return (*lead, *(0 if size == 1 else stride for stride, size in zip(strides, shape, strict=True)))


def sizes_in(body: tuple[Statement, ...]) -> tuple[Dim, ...]:
    """The sizes that are not known when the code is written, each once, in the order in which they are met."""
    found: dict[Dim, None] = {}
    for size in _sizes(body):
        if isinstance(size, Dim):
            found[size] = None
    return tuple(found)


def _sizes(body: tuple[Statement, ...]) -> Iterator[Size]:
    pending: list[Statement | Expr] = list(reversed(body))
    met: set[int] = set()
    while pending:
        part = pending.pop()
        if id(part) in met:
            continue
        met.add(id(part))
        match part:
            case Store():
                yield from _of_tensors(part.tensor)
                pending += [part.value, *part.at]
            case Load():
                yield from _of_tensors(part.tensor)
                pending += part.at
            case Set():
                pending.append(part.value)
            case Loop():
                pending += [*reversed(part.body), part.extent]
            case When():
                pending += [*reversed(part.body), part.condition]
            case Roles():
                pending += [*reversed(part.other), *reversed(part.body)]
            case SubGrid():
                pending += reversed(part.body)
            case GridBarrier():
                pending += reversed(part.meanwhile)
            case CopyBox():
                yield from _of_tensors(part.target)
                pending += [*part.target_at, *part.at, *part.taps, part.slot]
            case Amend():
                yield from _of_tensors(part.source, part.target)
                pending += [*part.lead, part.first, *part.target_at]
            case Receive():
                yield from _of_tensors(*[x for each in part.receipts for x in (each.target, each.source)])
                pending += [x for each in part.receipts for x in each.source_at]
            case CopyBulk():
                yield from _of_tensors(part.target, part.source)
                pending += [*part.target_at, *part.source_at, part.slot]
            case AwaitPhase():
                pending += [part.slot, part.phase]
            case ExpectBytes() | Arrive():
                pending.append(part.slot)
            case Call():
                pending += part.operands
            case Extent():
                yield part.size
            case Prefetch():
                yield from _of_tensors(part.source)
                pending += [part.nbytes, *part.source_at]
            case CopyAsync():
                yield from _of_tensors(part.target, part.source)
                pending += [part.inside, *part.target_at, *part.source_at]
            case LoadMatrices() | ScaleMatrices() | NarrowMatrices():
                yield from _of_tensors(part.target, part.source)
                pending += [*part.target_at, *part.source_at]
            case MultiplyMatrices():
                yield from _of_tensors(part.sums, part.left, part.right)
                pending += [*part.sums_at, *part.left_at, *part.right_at]
            case MultiplyShared():
                yield from _of_tensors(part.sums, part.left, part.right)
                pending += [*part.left_at, *part.right_at]
            case AtomicUpdate():
                yield from _of_tensors(part.tensor)
                pending += [part.value, *part.at]
            case FromLane():
                pending.append(part.lane)
            case Number() | Name() | ThreadIndex() | Alloc() | Barrier() | AllReduce() | Ballot() | ClusterBarrier():
                pass
            case CommitCopies() | AwaitCopies() | FenceShared() | AwaitProducts() | AllocBarriers() | WarpBarrier():
                pass


def _of_tensors(*tensors: Tensor) -> Iterator[Size]:
    for tensor in tensors:
        yield from (tensor.offset, *tensor.strides)


__all__ = [
    "ONE", "ZERO", "AllReduce", "Alloc", "AllocBarriers", "Amend", "Arrive", "AtomicUpdate", "AwaitCopies",
    "AwaitPhase", "AwaitProducts", "Ballot", "Barrier", "Call", "ClusterBarrier", "CommitCopies", "CopyAsync",
    "CopyBox", "CopyBulk", "ExpectBytes", "Expr", "Extent", "FenceShared", "FromLane", "GridBarrier", "Kernel",
    "Launch", "Load", "LoadMatrices", "Loop", "LoopKind", "Matrix", "MultiplyMatrices", "MultiplyShared", "Name",
    "NarrowMatrices", "Number", "Pipeline", "Prefetch", "Receipt", "Receive", "Roles", "ScaleMatrices", "Set", "Space",
    "Statement", "Store", "SubGrid", "Tensor", "TensorMap", "ThreadIndex", "Threaded", "Traversal", "WarpBarrier",
    "When", "add", "collapsed", "in_block", "in_memory_order", "indices", "minimum", "mul", "sizes_in", "stretched",
]  # fmt: skip
