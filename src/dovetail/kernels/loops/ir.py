"""The loop language: what one kernel does, before any target prints it.

A kernel reads and writes tensors at indices. Sizes and strides are integers where they are known, and arguments of
the kernel where they are not, so that one code serves every size. Arithmetic is named after the primitives and is done
in the dtype that is given with it.

Each class names the role of each of its fields, once, where it is defined: bodies, expressions and records; names that
it sets and reads; tensors that it reads and writes, and where; barriers. Walks, rewrites and data flow follow from
that: no pass lists statements by their kinds to look into them, so that a new statement is its class alone.

In this order: roles of fields; expressions; statements of any machine; what the threads of a GPU exchange; copies and
products of matrices; pipelines between warps; messages between blocks; kernels; arithmetic of indices and strides;
walks, data flow and rewrites.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, field, fields
from enum import StrEnum
from itertools import count
from operator import attrgetter, is_
from typing import Any, Literal, TypeAlias, TypeVar, cast

import numpy as np

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import DType, i64, u8, u16, u32
from dovetail.kernels.matrix_instruction import LANES, LINE_BYTES, MatrixInstruction


@dataclass(frozen=True, slots=True)
class FieldRole:
    """What a field is."""

    kind: Literal["data", "size", "body", "part", "tensor", "name", "pointer", "barrier"]
    is_read: bool = False
    is_written: bool = False
    at: str = ""
    """The field that has the index of a tensor."""


Metadata = Mapping[str, FieldRole]


def _metadata(role: FieldRole) -> Metadata:
    return {"role": role}


DATA = _metadata(FieldRole("data"))
"""A number, a dtype or a choice: nothing that another part defines."""
SIZE = _metadata(FieldRole("size"))
"""Sizes, which may be known at run time alone."""
BODY = _metadata(FieldRole("body"))
"""Statements that run inside."""
PART = _metadata(FieldRole("part"))
"""An expression, several, or records of them."""
SETS = _metadata(FieldRole("name", is_written=True))
"""The name of a scalar that is set."""
NAMES = _metadata(FieldRole("name", is_read=True))
"""The name of a scalar that is read."""
CHANGES = _metadata(FieldRole("name", is_read=True, is_written=True))
"""The name of a scalar that is read and set."""
POINTER = _metadata(FieldRole("pointer"))
"""The name of memory."""
BARRIER = _metadata(FieldRole("barrier"))
"""The name of barriers in shared memory, which it arrives at or whose bytes it counts."""
AWAITS = _metadata(FieldRole("barrier", is_read=True))
"""The name of barriers that it waits for."""
MAKES = _metadata(FieldRole("barrier", is_written=True))
"""The name of barriers that it makes."""
MEANT = _metadata(FieldRole("tensor"))
"""A tensor that is meant, and neither read nor written here."""


def reading(at: str = "") -> Metadata:
    """A tensor that is read, and the field that has the index."""
    return _metadata(FieldRole("tensor", is_read=True, at=at))


def writing(at: str = "") -> Metadata:
    """A tensor that is written, and the field that has the index."""
    return _metadata(FieldRole("tensor", is_written=True, at=at))


def updating(at: str = "") -> Metadata:
    """A tensor that is read and written, and the field that has the index."""
    return _metadata(FieldRole("tensor", is_read=True, is_written=True, at=at))


LoopKind: TypeAlias = Literal["serial", "parallel", "vector", "unrolled", "block", "warp", "thread", "lane"]
"""How the iterations of a loop run.

`serial`: one after the other. `parallel`: in any order, and what they sum up may be reassociated; a scheduler says how.
`vector`: together in a vector. `unrolled`: one after the other, each with code of its own. The rest is for GPUs:
iteration i goes to block i, or to warp, thread or lane i of the block, modulo how many of them there are.
"""
Space: TypeAlias = Literal["global", "shared", "private", "stamped"]
"""Where memory is: of the device, of a block, of one thread, or of the device in words with the number of a launch."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Elements in memory: which pointer of the kernel, their dtype, and their strides in bytes."""

    pointer: str = field(metadata=POINTER)
    dtype: DType
    strides: tuple[Size, ...] = field(metadata=SIZE)
    offset: Size = field(default=0, metadata=SIZE)
    """Bytes from the pointer to the first element."""
    space: Space = "global"


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: complex
    dtype: DType

    @property
    def rounded(self) -> float:
        """The real number that the dtype has for it."""
        return float(np.asarray(self.value.real).astype(self.dtype.numpy))

    @property
    def reciprocal(self) -> float | None:
        """What to multiply by instead of a division by it; None where that may leave the range of f32."""
        return 1 / self.rounded if 1e-30 < abs(self.value) < 1e30 else None


@dataclass(frozen=True, slots=True)
class Extent:
    """A size as an i64."""

    size: Size = field(metadata=SIZE)

    @property
    def dtype(self) -> DType:
        return i64


@dataclass(frozen=True, slots=True)
class Name:
    """A loop's variable, or a scalar that `Set` keeps."""

    name: str = field(metadata=NAMES)
    dtype: DType = i64


@dataclass(frozen=True, slots=True)
class ThreadIndex:
    """Which block runs this, or which warp, thread or lane of its block."""

    kind: LoopKind

    @property
    def dtype(self) -> DType:
        return i64


@dataclass(frozen=True, slots=True)
class Load:
    """An element of a tensor."""

    tensor: Tensor = field(metadata=reading("at"))
    at: tuple[Expr, ...] = field(metadata=PART)

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """A primitive of scalars. Comparisons take operands of one dtype and give bool; `cast` gives its own dtype."""

    op: str = field(metadata=DATA)
    operands: tuple[Expr, ...] = field(metadata=PART)
    dtype: DType


Expr: TypeAlias = Number | Extent | Name | ThreadIndex | Load | Call


Feature: TypeAlias = Literal[
    "threads", "lanes", "atomics", "barriers", "warp_barriers", "clusters", "copies", "prefetches", "matrices",
    "bulk_copies", "tensor_maps", "warpgroups", "amends", "grid",
]  # fmt: skip
"""What a machine has, and a pass understands, for a statement to run. The statements of a kernel have features.

`threads`: each thread does it on its own. `lanes`: those of a warp exchange scalars. `atomics`: threads update memory.
`barriers`, `warp_barriers`, `clusters`: threads of a block, of a warp, or of a cluster of blocks wait for each other.
`copies`: to shared memory, in flight. `matrices`: products by the lanes of a warp. `bulk_copies`: barriers in shared
memory count them. `tensor_maps`: copies of boxes, also to several blocks. `warpgroups`: products out of shared memory
and warps with roles. `amends`: what `Amend` stands for. `grid`: parts of a persistent kernel.
"""


@dataclass(frozen=True, slots=True)
class Store:
    """Write an element."""

    feature = "threads"

    tensor: Tensor = field(metadata=writing("at"))
    at: tuple[Expr, ...] = field(metadata=PART)
    value: Expr = field(metadata=PART)


@dataclass(frozen=True, slots=True)
class Set:
    """Keep a scalar under a name; setting it again changes it."""

    feature = "threads"

    name: str = field(metadata=SETS)
    value: Expr = field(metadata=PART)


@dataclass(frozen=True, slots=True)
class Elements:
    """Elements that are numbered through, and cut into tiles of one size; the last one may be short."""

    first: Name = field(metadata=PART)
    """The number of the first element of a tile: that of the tile times their size, set before the loop."""
    size: int
    """Elements of a tile."""
    count: Size = field(metadata=DATA)
    """Elements of all tiles."""


@dataclass(frozen=True, slots=True)
class Loop:
    """A body for every integer from 0 to below an extent."""

    feature = "threads"

    variable: str = field(metadata=SETS)
    extent: Expr = field(metadata=PART)
    body: tuple[Statement, ...] = field(metadata=BODY)
    reassociate: bool = False
    """Whether sums of floats inside may be reordered to fit vectors; the order is one and the same in every run."""
    lanes: int = 0
    """Iterations that go together in a vector; 0 where LLVM decides, which it does for loops of many iterations."""
    kind: LoopKind = "serial"
    rolled: bool = False
    """Whether its code is not repeated: a long body that is run often enough takes long to compile."""
    elements: Elements | None = field(default=None, metadata=PART)
    """Where it goes through those of a tile, one in each iteration, in any order."""


@dataclass(frozen=True, slots=True)
class When:
    """A body that runs where a condition holds."""

    feature = "threads"

    condition: Expr = field(metadata=PART)
    body: tuple[Statement, ...] = field(metadata=BODY)


@dataclass(frozen=True, slots=True)
class Roles:
    """Two bodies at the same time: the first `warps` warps of a block run `body`, the others run `other`."""

    feature = "warpgroups"

    warps: int
    body: tuple[Statement, ...] = field(metadata=BODY)
    other: tuple[Statement, ...] = field(metadata=BODY)
    registers: tuple[int, int] | None = None
    """Registers of a thread in each role, where both are warpgroups; None where all have the same."""


@dataclass(frozen=True, slots=True)
class SubGrid:
    """Some blocks of a grid, and the first threads of each, run a body as if they were a launch of their own."""

    feature = "grid"

    blocks: int
    threads: int
    first: int
    """The block of the grid that has index 0. The next one has index 1, and the first one follows the last."""
    body: tuple[Statement, ...] = field(metadata=BODY)
    is_rare: bool = False  # Few passes run it: what follows from its indices is not kept in registers in the others.


@dataclass(frozen=True, slots=True)
class GridBarrier:
    """No thread of a grid goes on before all blocks have come here; what they stored in memory is seen by all."""

    feature = "grid"

    number: int | None
    """How many blocks have come here in a pass, over the blocks of the grid: 1 at its first barrier. None where blocks
    do not wait for each other, since they receive all that they need: a block waits for its own threads."""
    meanwhile: tuple[Statement, ...] = field(default=(), metadata=BODY)
    """What a block does after it has come here, and before it waits: it reads constants alone."""


@dataclass(frozen=True, slots=True)
class Alloc:
    """Memory of a block or of a thread, under the name of a pointer, for as long as the kernel runs."""

    feature = "threads"

    pointer: str = field(metadata=POINTER)
    dtype: DType
    count: int
    """Elements."""
    space: Space
    offset: int | None = None
    """Bytes from the start of shared memory where others may have been before; None after the last allocation."""


@dataclass(frozen=True, slots=True)
class Barrier:
    """No thread of a block goes on before all have come here; what they stored in shared memory is seen by all."""

    feature = "barriers"


@dataclass(frozen=True, slots=True)
class AllReduce:
    """Combine the scalar that each lane of a group keeps under a name; every lane of it then keeps the same."""

    feature = "lanes"

    name: str = field(metadata=CHANGES)
    op: str = field(metadata=DATA)
    dtype: DType
    group: int | None = None
    """Neighbouring lanes that combine, a power of two; None for all of a warp."""


@dataclass(frozen=True, slots=True)
class FromLane:
    """Keep under a name the scalar that another lane of the warp keeps under `source`; all lanes take part."""

    feature = "lanes"

    name: str = field(metadata=SETS)
    source: str = field(metadata=NAMES)
    lane: Expr = field(metadata=PART)
    """From 0 to the last lane of the warp."""
    dtype: DType


@dataclass(frozen=True, slots=True)
class Ballot:
    """Keep under a name, as bits of an integer, the bools that all lanes of the warp keep under `source`."""

    feature = "lanes"

    name: str = field(metadata=SETS)
    source: str = field(metadata=NAMES)
    dtype: DType = u32
    """With a bit for each lane at least."""


@dataclass(frozen=True, slots=True)
class AtomicUpdate:
    """Combine an element of global memory, an integer of 32 or 64 bits, with a value.

    Updates of one element by several threads all count, in any order.
    """

    feature = "atomics"

    tensor: Tensor = field(metadata=updating("at"))
    at: tuple[Expr, ...] = field(metadata=PART)
    op: Literal["add", "maximum", "minimum"]
    value: Expr = field(metadata=PART)


@dataclass(frozen=True, slots=True)
class ClusterBarrier:
    """No thread of a cluster of blocks goes on before all have come here; what they stored in memory is seen by all."""

    feature = "clusters"

    ordered: bool = True
    """False where only barriers in shared memory are seen, which are then new."""


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """Start a copy of 16 bytes or fewer from memory of the device to shared memory; zeros where a condition does not
    hold."""

    feature = "copies"

    target: Tensor = field(metadata=writing("target_at"))
    target_at: tuple[Expr, ...] = field(metadata=PART)
    source: Tensor = field(metadata=reading("source_at"))
    source_at: tuple[Expr, ...] = field(metadata=PART)
    inside: Expr = field(metadata=PART)
    nbytes: int = 16
    """16, or fewer: 4 or 8."""


@dataclass(frozen=True, slots=True)
class Prefetch:
    """Bring bytes of memory to the cache of the device. Others may still write them: that is where they write to."""

    feature = "prefetches"

    source: Tensor = field(metadata=reading("source_at"))
    source_at: tuple[Expr, ...] = field(metadata=PART)
    nbytes: Expr = field(metadata=PART)
    """A multiple of 16."""


@dataclass(frozen=True, slots=True)
class CommitCopies:
    """The copies that this thread has started since the last group are a group."""

    feature = "copies"


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """Wait until at most `pending` groups of this thread's copies are left."""

    feature = "copies"

    pending: int


@dataclass(frozen=True, slots=True)
class LoadMatrices:
    """Load four matrices of 8 lines of 16 bytes from shared memory into the registers of a warp.

    Lane 8·m + r gives the address of line r of matrix m. Lane 4·r + c receives word c, of four bytes, of line r of each
    matrix: as many elements of a private tensor. Where they are transposed they are matrices of 8×8 elements of 16
    bits, and the lane receives elements 2·c and 2·c + 1 of column r.
    """

    feature = "matrices"

    target: Tensor = field(metadata=writing("target_at"))
    target_at: tuple[Expr, ...] = field(metadata=PART)
    source: Tensor = field(metadata=reading("source_at"))
    source_at: tuple[Expr, ...] = field(metadata=PART)
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class MultiplyMatrices:
    """Add the product of two matrices to accumulators by the lanes of a warp.

    Each lane has some elements of both matrices and some accumulators in private tensors: those that the layouts of the
    instruction say.
    """

    feature = "matrices"

    sums: Tensor = field(metadata=updating("sums_at"))
    sums_at: tuple[Expr, ...] = field(metadata=PART)
    left: Tensor = field(metadata=reading("left_at"))
    left_at: tuple[Expr, ...] = field(metadata=PART)
    right: Tensor = field(metadata=reading("right_at"))
    right_at: tuple[Expr, ...] = field(metadata=PART)
    by: MatrixInstruction = field(metadata=DATA)


@dataclass(frozen=True, slots=True)
class ScaleMatrices:
    """Multiply eight 16-bit floats of a private tensor, such as a loaded matrix has, by eight others; each product is
    rounded once."""

    feature = "matrices"

    target: Tensor = field(metadata=updating("target_at"))
    target_at: tuple[Expr, ...] = field(metadata=PART)
    source: Tensor = field(metadata=reading("source_at"))
    source_at: tuple[Expr, ...] = field(metadata=PART)


@dataclass(frozen=True, slots=True)
class NarrowMatrices:
    """Round eight f32 of a private tensor to eight 16-bit floats of another, two in one instruction."""

    feature = "matrices"

    target: Tensor = field(metadata=writing("target_at"))
    target_at: tuple[Expr, ...] = field(metadata=PART)
    source: Tensor = field(metadata=reading("source_at"))
    source_at: tuple[Expr, ...] = field(metadata=PART)


@dataclass(frozen=True, slots=True)
class FenceShared:
    """What this thread has stored in shared memory, or copied there, is seen by `MultiplyShared` after a barrier."""

    feature = "warpgroups"


@dataclass(frozen=True, slots=True)
class MultiplyShared:
    """Start to add the product of 64 rows and some columns of 16-bit floats in shared memory, over 64 of k, to sums.

    All such products before it are then done. The four warps of a warpgroup do it together. The factors are swizzled
    tiles with lines of 128 bytes: along k, or along rows (columns of the right factor) in panels of 64. Warp w of the
    group has rows 16·w to 16·w + 15. With r = lane / 4 and c = 2 · (lane mod 4), sum 4·j + e of a lane, in f32, is at
    row r + 8 · (e / 2) of them and at column 8·j + c + e mod 2.

    A left factor in a private tensor is in the registers of the warps instead: 32 elements of a lane, 8 for each 16 of
    k, as `mma.m16n8k16` has them. They keep their values until the product is done.
    """

    feature = "warpgroups"

    sums: Tensor = field(metadata=updating())
    """Private, 4 sums for every 8 columns."""
    left: Tensor = field(metadata=reading("left_at"))
    left_at: tuple[Expr, ...] = field(metadata=PART)
    right: Tensor = field(metadata=reading("right_at"))
    right_at: tuple[Expr, ...] = field(metadata=PART)
    columns: int
    left_along_k: bool
    right_along_k: bool
    panel_bytes: int
    """From one panel of 64 to the next: of a factor with lines along rows, or of a deep one along k."""
    depth: int = 64
    """Elements of k, a multiple of 64; more than 64 where the left factor is private. A right factor along k has each
    64 of them in a panel."""


@dataclass(frozen=True, slots=True)
class AwaitProducts:
    """Wait for all products out of shared memory; no one reads their sums before."""

    feature = "warpgroups"

    sums: Tensor = field(metadata=updating())
    columns: int


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
    """A tensor in memory of the device that a TMA descriptor maps when a kernel is launched."""

    pointer: str = field(metadata=POINTER)
    offset: Size = field(metadata=DATA)
    """Bytes from the pointer to the first element."""
    sizes: tuple[Size, ...] = field(metadata=DATA)
    """Of the axes, innermost first, which is dense: elements and lines of a matrix; channels, pixels and images."""
    strides: tuple[Size, ...] = field(metadata=DATA)
    """Bytes from one to the next along all axes but the first: multiples of 16."""
    box_lines: int
    """Lines of one copy, at most 256; it has 128 bytes of each."""
    traversal: Traversal | None = field(default=None, metadata=DATA)
    """How a copy goes from pixel to pixel, row to row and image to image; None where it is a box of a matrix."""
    itemsize: int = LINE_BYTES // BOX
    """Bytes of an element: 1, 2 or 4."""

    @property
    def tensor(self) -> Tensor:
        """The elements, indexed as a copy is."""
        dtype = {1: u8, 2: u16, 4: u32}[self.itemsize]
        return Tensor(self.pointer, dtype, (self.itemsize, *self.strides), self.offset)


@dataclass(frozen=True, slots=True)
class AllocBarriers:
    """Barriers in shared memory, each in its phase 0, before any thread of the block goes on."""

    feature = "bulk_copies"

    name: str = field(metadata=MAKES)
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

    feature = "tensor_maps"

    target: Tensor = field(metadata=writing("target_at"))
    target_at: tuple[Expr, ...] = field(metadata=PART)
    """A place at a multiple of 1,024 bytes."""
    source: TensorMap = field(metadata=reading("at"))
    at: tuple[Expr, ...] = field(metadata=PART)
    """Where it starts along each axis, innermost first."""
    barrier: str = field(metadata=BARRIER)
    """It counts the bytes."""
    slot: Expr = field(metadata=PART)
    taps: tuple[Expr, ...] = field(default=(), metadata=PART)
    """How far from each pixel of a traversal it reads along each spatial axis, innermost first."""
    blocks: int = 1
    """Blocks of the cluster: all of them get the box (multicast), at the same place, and their barriers count it."""

    @property
    def nbytes(self) -> int:
        return self.source.box_lines * LINE_BYTES


@dataclass(frozen=True, slots=True)
class CopyBulk:
    """Start a copy of neighbouring bytes to shared memory. Each thread that comes here starts one."""

    feature = "bulk_copies"

    target: Tensor = field(metadata=writing("target_at"))
    target_at: tuple[Expr, ...] = field(metadata=PART)
    source: Tensor = field(metadata=reading("source_at"))
    source_at: tuple[Expr, ...] = field(metadata=PART)
    """Both are multiples of 16 bytes."""
    nbytes: int
    """A multiple of 16."""
    barrier: str = field(metadata=BARRIER)
    """It counts the bytes."""
    slot: Expr = field(metadata=PART)
    evict_first: bool = False
    """Whether L2 drops these bytes before others: they are read once."""


@dataclass(frozen=True, slots=True)
class ExpectBytes:
    """Arrive at a barrier, whose phase then also counts the bytes of copies."""

    feature = "bulk_copies"

    barrier: str = field(metadata=BARRIER)
    slot: Expr = field(metadata=PART)
    count: int


@dataclass(frozen=True, slots=True)
class Arrive:
    """Each thread that comes here arrives at a barrier."""

    feature = "tensor_maps"

    barrier: str = field(metadata=BARRIER)
    slot: Expr = field(metadata=PART)
    blocks: int = 1
    """Blocks of the cluster, where lane i, of as many lanes, arrives at the barrier of block i."""


@dataclass(frozen=True, slots=True)
class AwaitPhase:
    """Wait until a barrier has left a phase; one that is new has left phase 1."""

    feature = "bulk_copies"

    barrier: str = field(metadata=AWAITS)
    slot: Expr = field(metadata=PART)
    phase: Expr = field(metadata=PART)
    turns: int = 1
    """Phases that each barrier has in a run of the kernel."""


@dataclass(frozen=True, slots=True)
class WarpBarrier:
    """No lane of a warp goes on before all have come here; what they stored in shared memory is seen by all."""

    feature = "warp_barriers"

    warps: int = 1
    """4 where those of a warpgroup wait for each other."""


@dataclass(frozen=True, slots=True)
class Receipt:
    """Elements that follow each other in stamped memory, and where they go in shared memory."""

    source: Tensor = field(metadata=reading("source_at"))
    source_at: tuple[Expr, ...] = field(metadata=PART)
    """Where the first element is."""
    target: Tensor = field(metadata=writing())
    count: int


@dataclass(frozen=True, slots=True)
class Receive:
    """The threads of a block wait for elements that blocks of this launch write, and copy them to shared memory."""

    feature = "grid"

    receipts: tuple[Receipt, ...] = field(metadata=PART)
    pause: int = 0
    """Cycles after the barrier before it, of the whole block, in which no thread looks for them."""


@dataclass(frozen=True, slots=True)
class Amend:
    """Where a warp copied rows of a tensor to: rows that stages of its block write meanwhile are stored there again.

    `amend.py` makes statements of it; no kernel that runs has one.
    """

    feature = "amends"

    source: Tensor = field(metadata=MEANT)
    lead: tuple[Expr, ...] = field(metadata=PART)
    """The index along the axes before rows and columns."""
    first: Expr = field(metadata=PART)
    """The first row."""
    rows: int
    columns: int
    target: Tensor = field(metadata=writing("target_at"))
    target_at: tuple[Expr, ...] = field(metadata=PART)
    """Where an element is: `line` is its row from the first on, and a lane has 8 columns, of which `element` is one."""


PipelineStatement: TypeAlias = AllocBarriers | CopyBox | CopyBulk | ExpectBytes | Arrive | AwaitPhase | WarpBarrier
Matrix: TypeAlias = (
    CopyAsync
    | CommitCopies
    | AwaitCopies
    | LoadMatrices
    | MultiplyMatrices
    | ScaleMatrices
    | NarrowMatrices
    | FenceShared
    | MultiplyShared
    | AwaitProducts
    | Prefetch
)
ThreadExchange: TypeAlias = AllReduce | FromLane | Ballot | AtomicUpdate | ClusterBarrier
Threaded: TypeAlias = (
    Roles | SubGrid | GridBarrier | Alloc | Barrier | ThreadExchange | Matrix | PipelineStatement | Receive | Amend
)
"""What threads of a GPU do."""
Statement: TypeAlias = Store | Set | Loop | When | Threaded


@dataclass(frozen=True, slots=True)
class Schedule:
    """Which threads have which tiles of a scheduled kernel: passes read it here, and not off its loops."""

    by: Literal["block", "warp", "thread"]
    """What has a tile of its own."""
    tiles: Size
    each: int = 1
    """Tiles that a block has at a time. Its n-th warp or thread has tile n of them; one after the last does nothing."""


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


class KernelKind(StrEnum):
    """What a kernel is to code that joins, replaces or prices it. Its name is for people."""

    OTHER = "other"
    ROWS = "rows"
    """Rows that reductions go along, such as a norm."""
    ROW_STAGES = "row_stages"
    """Several steps for the same rows, one after the other in each block."""
    GEMM = "gemm"
    SPLIT_K = "split_k"
    """A GEMM whose blocks have slices of k, and leave partial sums."""
    STREAM_K = "stream_k"
    """A GEMM whose blocks share the K steps of all tiles equally."""
    SUM_OF_PARTS = "sum_of_parts"
    """Adds up the partial sums of split-K and stream-K."""
    PERSISTENT = "persistent"
    """All passes of layers that repeat."""


_identities = count()


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
    schedule: Schedule | None = None
    """Which threads have which tiles; None where blocks have other work too, or tiles that are not recorded."""
    early: tuple[Statement, ...] = ()
    """The prologue of each block, while kernels before it may still run: it reads constants alone."""
    opening: tuple[Statement, ...] = ()
    """The prologue of each block of a persistent kernel, before it waits for others and runs `body`."""
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
    kind: KernelKind = KernelKind.OTHER
    identity: int = field(default_factory=_identities.__next__, init=False, compare=False, repr=False)
    """A number that no other kernel of this process has: memos of a kernel are keyed by it."""

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
    innermost_first: list[Expr] = []
    for size in reversed(shape[1:]):
        innermost_first.append(Call("rem", (flat, Extent(size)), i64) if size != 1 else ZERO)
        flat = Call("div", (flat, Extent(size)), i64) if size != 1 else flat
    return (*([flat] if shape else []), *reversed(innermost_first))


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


T = TypeVar("T")
Access: TypeAlias = tuple[Tensor, tuple[Expr, ...]]
"""A tensor and an index. The index is empty where all of a tensor is meant, such as accumulators in registers."""


class FieldRoles:
    """The fields of a class by their roles."""

    __slots__ = ("bodies", "children", "names", "places", "roles", "sizes", "strings", "values", "within")

    def __init__(self, kind: type[Any]) -> None:
        self.roles = {f.name: _role(kind, f) for f in fields(kind)}
        self.names = tuple(self.roles)
        self.values = _getter(self.names)
        """The values of all fields of an object."""
        self.bodies = self._of("body")
        self.within = self._of("part")[::-1]
        """Expressions and records, the last ones first: a stack has the first ones on top."""
        self.places = tuple([(name, role) for name, role in self.roles.items() if role.kind == "tensor"])
        self.sizes = self._of("size")[::-1]
        numbered = [*enumerate(self.roles.values())]
        self.strings = tuple([(i, role) for i, role in numbered if role.kind in ("name", "pointer", "barrier")])
        """The numbers of the fields that are names."""
        self.children = tuple([i for i, role in numbered if role.kind in ("body", "part", "tensor")])
        """The numbers of the fields that have parts."""

    def _of(self, kind: str) -> tuple[str, ...]:
        return tuple([name for name, role in self.roles.items() if role.kind == kind])


def _getter(names: Sequence[str]) -> Callable[[Any], tuple[Any, ...]]:
    if len(names) > 1:
        return attrgetter(*names)
    return lambda part: tuple([getattr(part, name) for name in names])


_PLAIN = frozenset(["int", "bool", "float", "complex", "None", "tuple", "DType", "LoopKind", "Space"])
"""Types of what is data without saying so."""


def _role(kind: type[Any], field: Field[Any]) -> FieldRole:
    """What a field is; one that is not a plain number, dtype or choice must say it."""
    if "role" in field.metadata:
        return field.metadata["role"]
    written = re.sub(r"Literal\[[^]]*\]", "", str(field.type))
    if unknown := {*re.findall(r"\w+", written)} - _PLAIN:
        what = ", ".join(sorted(unknown))
        raise TypeError(f"{kind.__name__}.{field.name} does not say what it is, and may be {what}")
    return FieldRole("data")


class _Layouts(dict[type[Any], FieldRoles]):
    def __missing__(self, kind: type[Any]) -> FieldRoles:
        layout = self[kind] = FieldRoles(kind)
        return layout


_LAYOUTS = _Layouts()


def bodies(statement: Statement) -> list[tuple[Statement, ...]]:
    """The bodies of a statement; none where it has no statements inside."""
    return [getattr(statement, name) for name in _LAYOUTS[type(statement)].bodies]


def everything(body: Sequence[Statement]) -> Iterator[Statement]:
    """Each statement, with those in its bodies."""
    for statement in body:
        yield statement
        for name in _LAYOUTS[type(statement)].bodies:
            yield from everything(getattr(statement, name))


def within(parts: Iterable[Any], met: set[int] | None = None) -> Iterator[Any]:
    """Statements or expressions, and all expressions and records in them but those of their bodies, each once."""
    pending = [*parts]
    met = set() if met is None else met
    while pending:  # a chain may be longer than Python's stack
        part = pending.pop()
        if id(part) in met:
            continue
        met.add(id(part))
        yield part
        for name in _LAYOUTS[type(part)].within:
            value = getattr(part, name)
            if type(value) is tuple:
                pending += value
            elif value is not None:
                pending.append(value)


def walk(parts: Sequence[Statement | Expr]) -> Iterator[Any]:
    """Each statement of a body, with the expressions, records and bodies in it, or each part of some expressions; what
    is used twice comes once."""
    met = set[int]()
    for part in everything(cast(Sequence[Statement], parts)):
        yield from within((part,), met)


def accesses(parts: Iterable[Any]) -> Iterator[tuple[FieldRole, Tensor, tuple[Expr, ...]]]:
    """The tensors of parts, without those of parts in them: how each is accessed, and where."""
    for part in parts:
        for name, role in _LAYOUTS[type(part)].places:
            value = getattr(part, name)
            yield role, getattr(value, "tensor", value), getattr(part, role.at) if role.at else ()


def reads(body: Sequence[Statement | Expr]) -> list[Access]:
    """Every tensor that a body reads, and where."""
    return [(tensor, at) for role, tensor, at in accesses(walk(body)) if role.is_read]


def writes(body: Sequence[Statement]) -> list[Access]:
    """Every tensor that a body writes, and where."""
    return [(tensor, at) for role, tensor, at in accesses(walk(body)) if role.is_written]


def pointers_in(body: Sequence[Statement | Expr]) -> set[str]:
    """The pointers through which a body reads or writes, its own memory included."""
    return {tensor.pointer for _, tensor, _ in accesses(walk(body))}


def sizes(part: Any) -> Iterator[Size]:
    """The sizes of an expression or a statement, of its tensors first, without those of parts in it."""
    own = _LAYOUTS[type(part)]
    for name, _ in own.places:
        yield from sizes(getattr(part, name))
    for name in own.sizes:
        value = getattr(part, name)
        if type(value) is tuple:
            yield from value
        else:
            yield value


def defs(body: Sequence[Statement]) -> set[str]:
    """The names of scalars that a body sets."""
    return _names(everything(body), lambda role: role.is_written)


def uses(parts: Sequence[Statement | Expr]) -> set[str]:
    """The names of scalars that a body or expressions read."""
    return _names(walk(parts), lambda role: role.is_read)


def _names(parts: Iterable[Any], holds: Callable[[FieldRole], bool]) -> set[str]:
    names = {name for part in parts for role, name in _strings(part) if role.kind == "name" and holds(role)}
    return names - {""}


def barriers(body: Sequence[Statement]) -> list[tuple[FieldRole, str]]:
    """The barriers in shared memory that statements make, arrive at or wait for, by their names."""
    return [(role, name) for s in everything(body) for role, name in _strings(s) if role.kind == "barrier"]


def _strings(part: Any) -> list[tuple[FieldRole, str]]:
    own = _LAYOUTS[type(part)]
    return [(role, getattr(part, own.names[index])) for index, role in own.strings]


def needs(body: Sequence[Statement]) -> set[str]:
    """What a machine must have for a body to run."""
    return {s.feature for s in everything(body)}


def with_bodies(statement: T, change: Callable[[tuple[Statement, ...]], Sequence[Statement]]) -> T:
    """A statement with other bodies; itself where none changes."""
    names = _LAYOUTS[type(statement)].bodies
    if not names:
        return statement
    bodies = {name: getattr(statement, name) for name in names}
    changed = {name: tuple(change(body)) for name, body in bodies.items()}
    if all([_is_same(changed[name], bodies[name]) for name in names]):
        return statement
    return with_fields(statement, changed)


def _is_same(one: Sequence[Any], other: Sequence[Any]) -> bool:
    return len(one) == len(other) and all(map(is_, one, other))


def with_fields(part: T, changed: Mapping[str, Any]) -> T:
    """A part with other values of some fields: `replace` for what has many of them."""
    kind = cast(Callable[..., T], type(part))
    return kind(*[changed[n] if n in changed else getattr(part, n) for n in _LAYOUTS[type(part)].names])


def expand(
    body: Sequence[Statement], change: Callable[[Statement], Sequence[Statement] | None]
) -> tuple[Statement, ...]:
    """A body with other statements in place of some; None keeps a statement, and looks into its bodies."""

    def inside(inner: Sequence[Statement]) -> tuple[Statement, ...]:
        statements: list[Statement] = []
        for statement in inner:
            instead = change(statement)
            if instead is None:
                statements.append(with_bodies(statement, inside))
            else:
                statements += instead
        return tuple(statements)

    return inside(body)


Done: TypeAlias = dict[int, tuple[Any, Any]]


class Rewriting:
    """A body with other parts in place of some. What a body uses twice stays one object, and what does not change
    stays itself."""

    __slots__ = ()
    renames = False
    """Whether names change too."""
    done: Done
    """Each part and what became of it, by its identity."""

    def body(self, body: tuple[Statement, ...]) -> tuple[Statement, ...]:
        return tuple([self.of(statement) for statement in body])

    def of(self, part: T) -> T:
        done = self.done.get(id(part))
        if done is not None:
            return done[1]
        is_several = isinstance(part, tuple)
        changed: Any = self._each(part) if is_several else self.changed(part)
        # The part is kept with what becomes of it, so that no other one takes its identity.
        self.done[id(part)] = part, changed
        return changed

    def _each(self, parts: Any) -> tuple[Any, ...]:
        rewritten = tuple([self.of(x) for x in parts])
        return parts if _is_same(rewritten, parts) else rewritten

    def changed(self, part: Any) -> Any:
        """What one part becomes: an expression, a statement, a record or a tensor."""
        return self.inside(part)

    def named(self, role: FieldRole, name: str) -> str:
        """What the name of a scalar, of memory or of barriers becomes."""
        return name

    def inside(self, part: Any) -> Any:
        """A part with what becomes of those within it; itself where none changes."""
        own = _LAYOUTS[type(part)]
        values = own.values(part)
        changed_values: list[Any] | None = None
        for index in own.children:
            value = values[index]
            changed = value if value is None else self.of(value)
            if changed is not value:
                changed_values = [*values] if changed_values is None else changed_values
                changed_values[index] = changed
        if self.renames and own.strings:
            changed_values = [*values] if changed_values is None else changed_values
            for index, role in own.strings:
                changed_values[index] = self.named(role, values[index])
        return part if changed_values is None else type(part)(*changed_values)


class _Rewriting(Rewriting):
    __slots__ = ("change", "done")

    def __init__(self, change: Callable[[Any], Any]) -> None:
        self.change, self.done = change, {}

    def changed(self, part: Any) -> Any:
        instead = self.change(part)
        return self.inside(part) if instead is None else instead


def rewrite(part: T, change: Callable[[Any], Any]) -> T:
    """A body, a statement or an expression with other parts in place of some; None looks into a part."""
    return _Rewriting(change).of(part)


def sizes_in(body: tuple[Statement, ...]) -> tuple[Dim, ...]:
    """The sizes that are not known when the code is written, each once, in the order in which they are met."""
    return tuple(dict.fromkeys([size for part in walk(body) for size in sizes(part) if isinstance(size, Dim)]))


__all__ = [
    "AWAITS",
    "BARRIER",
    "BODY",
    "BOX",
    "CHANGES",
    "DATA",
    "MAKES",
    "MAP_BYTES",
    "MEANT",
    "NAMES",
    "ONE",
    "PART",
    "POINTER",
    "SETS",
    "SIZE",
    "ZERO",
    "Access",
    "AllReduce",
    "Alloc",
    "AllocBarriers",
    "Amend",
    "Arrive",
    "AtomicUpdate",
    "AwaitCopies",
    "AwaitPhase",
    "AwaitProducts",
    "Ballot",
    "Barrier",
    "Call",
    "ClusterBarrier",
    "CommitCopies",
    "CopyAsync",
    "CopyBox",
    "CopyBulk",
    "Done",
    "Elements",
    "ExpectBytes",
    "Expr",
    "Extent",
    "Feature",
    "FenceShared",
    "FieldRole",
    "FromLane",
    "GridBarrier",
    "Kernel",
    "KernelKind",
    "Launch",
    "Load",
    "LoadMatrices",
    "Loop",
    "LoopKind",
    "Matrix",
    "MultiplyMatrices",
    "MultiplyShared",
    "Name",
    "NarrowMatrices",
    "Number",
    "PipelineStatement",
    "Prefetch",
    "Receipt",
    "Receive",
    "Rewriting",
    "Roles",
    "ScaleMatrices",
    "Schedule",
    "Set",
    "Space",
    "Statement",
    "Store",
    "SubGrid",
    "Tensor",
    "TensorMap",
    "ThreadIndex",
    "Threaded",
    "Traversal",
    "WarpBarrier",
    "When",
    "accesses",
    "add",
    "barriers",
    "bodies",
    "collapsed",
    "defs",
    "everything",
    "expand",
    "in_block",
    "in_memory_order",
    "indices",
    "minimum",
    "mul",
    "needs",
    "pointers_in",
    "reading",
    "reads",
    "rewrite",
    "sizes",
    "sizes_in",
    "stretched",
    "updating",
    "uses",
    "walk",
    "with_bodies",
    "with_fields",
    "within",
    "writes",
    "writing",
]  # fmt: skip
