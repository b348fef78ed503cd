"""What a body of the loop language does: its parallel loops, what they reduce into, what it reads again."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType
from dovetail.kernels.loops.ir import (
    Alloc,
    AllocBarriers,
    Call,
    CopyBox,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    MultiplyMatrices,
    MultiplyShared,
    Name,
    Set,
    Statement,
    Store,
    TensorMap,
    bodies,
    everything,
    pointers_in,
    within,
)

_COMBINES = frozenset({"add", "mul", "fold_maximum", "fold_minimum", "maximum", "minimum", "bit_and", "bit_or"})


@dataclass(frozen=True, slots=True)
class Reduced:
    """A scalar that the iterations of a loop reduce into."""

    name: str
    op: str
    dtype: DType


def extent(loop: Loop) -> int | None:
    """How many iterations a loop has, where that is known."""
    size = loop.extent.size if isinstance(loop.extent, Extent) else None
    return size if isinstance(size, int) else None


def elements(loop: Loop) -> int | None:
    """Iterations of a loop times those of the unrolled one in it."""
    inner = [s for s in loop.body if isinstance(s, Loop) and s.kind == "unrolled"]
    count = extent(loop)
    width = 1 if not inner else extent(inner[0])
    return None if count is None or width is None else count * width


def parallel(body: Sequence[Statement]) -> Iterator[Loop]:
    """The outermost parallel loops."""
    for statement in body:
        if isinstance(statement, Loop) and statement.kind == "parallel":
            yield statement
        else:
            for inner in bodies(statement):
                yield from parallel(inner)


def uses_tensor_cores(kernel: Kernel) -> bool:
    """Whether a kernel multiplies matrices by instructions."""
    return any([isinstance(s, (MultiplyMatrices, MultiplyShared)) for s in everything(kernel.body)])


def results(body: Sequence[Statement]) -> list[Store]:
    """Stores that other threads may read: the status of a run is no tensor, and registers belong to one thread."""
    stores = [s for s in everything(body) if isinstance(s, Store) and s.at]
    return [s for s in stores if s.tensor.space != "private"]


SHARED_ALIGNMENT = 1024
"""Bytes: where allocations of dynamic shared memory start, so that tensor cores can read swizzled tiles there."""
BARRIER_BYTES = 8
"""Bytes of a barrier in shared memory."""
STATIC_BYTES = 48 << 10
"""Shared memory that a kernel may have without a setting."""


def shared_bytes(body: Sequence[Statement]) -> int:
    """Shared memory of all allocations, each at a multiple of the alignment."""
    sizes = [s.count * s.dtype.itemsize for s in everything(body) if isinstance(s, Alloc) and s.space == "shared"]
    sizes += [s.count * BARRIER_BYTES for s in everything(body) if isinstance(s, AllocBarriers)]
    return sum([-(-size // SHARED_ALIGNMENT) * SHARED_ALIGNMENT for size in sizes])


def with_rooms(launch: Launch, body: Sequence[Statement]) -> Launch:
    """A launch that has the shared memory of a body with more allocations."""
    nbytes = shared_bytes(body)
    return replace(launch, shared_bytes=nbytes) if launch.shared_bytes or nbytes > STATIC_BYTES else launch


def reductions(body: Sequence[Statement]) -> list[Reduced]:
    """The scalars that are only ever set to themselves combined with one more element."""
    by_name: dict[str, Reduced] = {}
    others: set[str] = set()
    for statement in everything(body):
        match statement:
            case Set(name, Call(op, (Name(again), _), dtype)) if name == again and op in _COMBINES:
                by_name.setdefault(name, Reduced(name, op, dtype))
            case Set(name, _):
                others.add(name)
            case _:
                pass
    return [r for name, r in by_name.items() if name not in others]


def maps_in(body: Sequence[Statement]) -> tuple[TensorMap, ...]:
    """The tensors that a body copies boxes of, each once."""
    return tuple(dict.fromkeys([s.source for s in everything(body) if isinstance(s, CopyBox)]))


def reads_what_it_wrote(kernel: Kernel) -> bool:
    """Whether a scalar of the tile is stored in memory of the device and loaded again, outside of parallel loops.

    Threads that share a tile would not see it.
    """
    stores = [s.tensor for s in everything(kernel.body) if isinstance(s, Store)]
    written = {tensor.pointer for tensor in stores if tensor.space == "global"}
    return any(load.tensor.pointer in written for load in _loads_outside(kernel.body))


def _loads_outside(body: Sequence[Statement]) -> Iterator[Load]:
    for statement in body:
        for part in within((statement,)):
            if isinstance(part, Load):
                yield part
        if not isinstance(statement, Loop) or statement.kind != "parallel":
            for inner in bodies(statement):
                yield from _loads_outside(inner)


def loads_in(expr: Expr) -> Iterator[Load]:
    """Every load of an expression, and of the indices of loads."""
    return (part for part in within((expr,)) if isinstance(part, Load))


__all__ = [
    "SHARED_ALIGNMENT",
    "STATIC_BYTES",
    "Reduced",
    "elements",
    "everything",
    "extent",
    "loads_in",
    "maps_in",
    "parallel",
    "pointers_in",
    "reads_what_it_wrote",
    "reductions",
    "results",
    "shared_bytes",
    "uses_tensor_cores",
    "with_rooms",
]
