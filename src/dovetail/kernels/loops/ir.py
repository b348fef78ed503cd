"""The loop language: what one kernel does, before any target prints it.

A kernel reads and writes tensors at indices. Sizes and strides are whole numbers where they are known, and arguments of
the kernel where they are not, so that one code serves every size. Arithmetic is named after the primitives and is done
in the dtype that stands beside it.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import DType, i64

LoopKind: TypeAlias = Literal["serial", "parallel", "vector", "unrolled", "block", "warp", "thread", "lane"]
"""How the iterations of a loop run.

`serial`: one after the other. `parallel`: in any order, and what they sum up may be reassociated; a scheduler says how.
`vector`: together in a vector. `unrolled`: one after the other, each with code of its own. The rest is for GPUs:
iteration i goes to block i, or to warp, thread or lane i of the block, modulo how many of them there are.
"""
Space: TypeAlias = Literal["global", "shared", "private"]
"""Where memory is: of the device, of a block, or of one thread."""


@dataclass(frozen=True, slots=True)
class Tensor:
    """Elements in memory: which pointer of the kernel, their dtype, and how far apart they lie, in bytes."""

    pointer: str
    dtype: DType
    strides: tuple[Size, ...]
    offset: Size = 0
    """Bytes from the pointer to the first element."""
    space: Space = "global"


@dataclass(frozen=True, slots=True)
class Number:
    """A literal."""

    value: complex
    dtype: DType


@dataclass(frozen=True, slots=True)
class Extent:
    """A size as an i64."""

    size: Size

    @property
    def dtype(self) -> DType:
        return i64


@dataclass(frozen=True, slots=True)
class Name:
    """A loop's variable, or a scalar that `Set` keeps."""

    name: str
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

    tensor: Tensor
    at: tuple[Expr, ...]

    @property
    def dtype(self) -> DType:
        return self.tensor.dtype


@dataclass(frozen=True, slots=True)
class Call:
    """A primitive of scalars. Comparisons take operands of one dtype and give bool; `cast` gives its own dtype."""

    op: str
    operands: tuple[Expr, ...]
    dtype: DType


Expr: TypeAlias = Number | Extent | Name | ThreadIndex | Load | Call


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
    """A body for every whole number from 0 to below an extent."""

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
class Alloc:
    """Memory of a block or of a thread, under the name of a pointer, for as long as the kernel runs."""

    pointer: str
    dtype: DType
    count: int
    """Elements."""
    space: Space


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


@dataclass(frozen=True, slots=True)
class CopyAsync:
    """Start a copy of 16 bytes from memory of the device to shared memory; zeros where a condition does not hold."""

    target: Tensor
    target_at: tuple[Expr, ...]
    source: Tensor
    source_at: tuple[Expr, ...]
    inside: Expr


@dataclass(frozen=True, slots=True)
class CommitCopies:
    """The copies that this thread has started since the last group are a group."""


@dataclass(frozen=True, slots=True)
class AwaitCopies:
    """Wait until at most `pending` groups of this thread's copies are left."""

    pending: int


@dataclass(frozen=True, slots=True)
class LoadMatrices:
    """Load four 8×8 matrices of 16-bit elements from shared memory into the registers of a warp.

    Lane 8·m + r gives the address of row r of matrix m, whose 8 elements are dense. Lane 4·r + c receives elements 2·c
    and 2·c + 1 of row r of each matrix, or of column r where they are transposed: eight elements of a private tensor.
    """

    target: Tensor
    target_at: tuple[Expr, ...]
    source: Tensor
    source_at: tuple[Expr, ...]
    transposed: bool = False


@dataclass(frozen=True, slots=True)
class MultiplyMatrices:
    """Add the product of a 16×16 and a 16×8 matrix of 16-bit floats to 16×8 sums in f32, by the lanes of a warp.

    Each lane has 8 elements of the left matrix, 4 of the right one and 4 sums in private tensors. With r = lane / 4 and
    c = 2 · (lane mod 4), element e of the sums is at row r + 8 · (e / 2) and column c + e mod 2; element e of the left
    matrix at row r + 8 · (e / 2 mod 2) and column c + e mod 2 + 8 · (e / 4); element e of the right one at row
    c + e mod 2 + 8 · (e / 2) and column r.
    """

    sums: Tensor
    sums_at: tuple[Expr, ...]
    left: Tensor
    left_at: tuple[Expr, ...]
    right: Tensor
    right_at: tuple[Expr, ...]


@dataclass(frozen=True, slots=True)
class FenceShared:
    """What this thread has stored in shared memory, or copied there, is seen by `MultiplyShared` after a barrier."""


@dataclass(frozen=True, slots=True)
class MultiplyShared:
    """Start to add the product of 64 rows and some columns of 16-bit floats in shared memory, over 64 of k, to sums.

    All such products before it are then done. The four warps of a warpgroup do it together. The factors are swizzled
    tiles with lines of 128 bytes: along k, or along rows (columns of the right factor) in panels of 64. Warp w of the
    group has rows 16·w to 16·w + 15. With r = lane / 4 and c = 2 · (lane mod 4), sum 4·j + e of a lane, in f32, is at
    row r + 8 · (e / 2) of them and at column 8·j + c + e mod 2.
    """

    sums: Tensor
    """Private, 4 sums for every 8 columns."""
    left: Tensor
    left_at: tuple[Expr, ...]
    right: Tensor
    right_at: tuple[Expr, ...]
    columns: int
    left_along_k: bool
    right_along_k: bool
    panel_bytes: int
    """From one panel of 64 to the next, of a factor with lines along rows."""


@dataclass(frozen=True, slots=True)
class AwaitProducts:
    """Wait for all products out of shared memory; no one reads their sums before."""

    sums: Tensor
    columns: int


Matrix: TypeAlias = (
    CopyAsync
    | CommitCopies
    | AwaitCopies
    | LoadMatrices
    | MultiplyMatrices
    | FenceShared
    | MultiplyShared
    | AwaitProducts
)
"""What tensor cores need: copies that overlap with products, and matrices that the lanes of a warp hold together."""
Statement: TypeAlias = Store | Set | Loop | When | Alloc | Barrier | AllReduce | Matrix


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
    """Pointers that may lie in the memory of another one."""
    scratch: Size = 0
    """Bytes that a worker needs for itself."""
    sizes: tuple[Dim, ...] = field(default=())
    """The sizes that the code asks for, in the order of the arguments."""
    launch: Launch | None = None
    """How a GPU launches it; None before it is scheduled, and on CPUs."""


def add(x: Expr, y: Expr) -> Expr:
    """x + y of whole numbers, folded where it is known."""
    if isinstance(x, Extent) and isinstance(y, Extent):
        return Extent(x.size + y.size)
    if x == ZERO:
        return y
    return x if y == ZERO else Call("add", (x, y), i64)


def mul(x: Expr, y: Expr) -> Expr:
    """x * y of whole numbers, folded where it is known."""
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
    """The same elements with as few axes as possible: those that lie densely in every tensor become one."""
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
            case Call():
                pending += part.operands
            case Extent():
                yield part.size
            case CopyAsync():
                yield from _of_tensors(part.target, part.source)
                pending += [part.inside, *part.target_at, *part.source_at]
            case LoadMatrices():
                yield from _of_tensors(part.target, part.source)
                pending += [*part.target_at, *part.source_at]
            case MultiplyMatrices():
                yield from _of_tensors(part.sums, part.left, part.right)
                pending += [*part.sums_at, *part.left_at, *part.right_at]
            case MultiplyShared():
                yield from _of_tensors(part.sums, part.left, part.right)
                pending += [*part.left_at, *part.right_at]
            case Number() | Name() | ThreadIndex() | Alloc() | Barrier() | AllReduce():
                pass
            case CommitCopies() | AwaitCopies() | FenceShared() | AwaitProducts():
                pass


def _of_tensors(*tensors: Tensor) -> Iterator[Size]:
    for tensor in tensors:
        yield from (tensor.offset, *tensor.strides)
