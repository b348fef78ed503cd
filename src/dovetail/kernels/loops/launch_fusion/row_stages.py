"""Several kernels as one launch in which each block has the same part of all of them, such as the rows of one token.

What a stage leaves for a later one stays in shared memory of its block: blocks never wait for each other.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size, product
from dovetail.ir.dtype import bool_
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AwaitCopies,
    Barrier,
    CommitCopies,
    CopyAsync,
    Done,
    Extent,
    Kernel,
    KernelKind,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Rewriting,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    indices,
    sizes_in,
)
from dovetail.kernels.loops.launch_fusion.composed import COPY_BYTES, Renaming

_UNROLLED = 4
"""Turns of a stage up to which its loads need not wait for those of the turn before."""
_RESIDENT = 4
"""Blocks of a multiprocessor at once: stages wait for memory one after the other, and blocks hide that of others."""


@dataclass(frozen=True, slots=True)
class RowStage:
    """A kernel of one part, scheduled for one block, or one that has a block for each part already."""

    kernel: Kernel
    pointers: Mapping[str, str]
    """The names that its pointers have in the whole kernel."""
    steps: Mapping[str, Size]
    """Bytes from part to part, by the kernel's own names: those that it does not count itself."""
    level: int
    """Stages of one level need nothing of each other."""


@dataclass(frozen=True, slots=True)
class Copied:
    """What stages read of memory, in shared memory before the first of them: they wait for it once."""

    room: Alloc
    source: Tensor
    """Lines of dense elements, and an axis for the elements of a line."""
    lines: tuple[Size, ...]
    nbytes: int
    """Of a line: a multiple of those of one copy."""
    counts_parts: bool
    """Whether the first axis of the source is that of the blocks."""

    @property
    def statements(self) -> tuple[Statement, ...]:
        chunks, item = self.nbytes // COPY_BYTES, self.room.dtype.itemsize
        strides = (*self.source.strides[:-1], COPY_BYTES, item)
        target = Tensor(self.room.pointer, self.room.dtype, (COPY_BYTES, item), space="shared")
        at = indices((*self.lines, chunks), Name("chunk"))
        first = (ThreadIndex("block"),) if self.counts_parts else ()
        from_ = replace(self.source, strides=strides)
        copy = CopyAsync(target, (Name("chunk"), ZERO), from_, (*first, *at, ZERO), Number(True, bool_), COPY_BYTES)
        return (Loop("chunk", Extent(product((*self.lines, chunks))), (copy,), kind="thread"),)


def as_row_stages(
    name: str, stages: Sequence[RowStage], rooms: Sequence[Alloc], copied: Sequence[Copied], blocks: int, threads: int
) -> Kernel:
    """The kernel whose blocks each run all stages for one part; `rooms` hold what only later stages read."""
    inside = frozenset([*(room.pointer for room in rooms), *(one.room.pointer for one in copied)])
    body: list[Statement] = [*rooms, *(one.room for one in copied)]
    if copied:
        body += [s for one in copied for s in one.statements]
        body += [CommitCopies(), AwaitCopies(0), Barrier()]
    level = 0
    # Of one level, those whose threads do not wait for each other come first: they have their loads on the way then.
    for number, stage in sorted(enumerate(stages), key=lambda pair: (pair[1].level, _waits(pair[1].kernel))):
        if stage.level != level:
            body.append(Barrier())
            level = stage.level
        moved = _Moved(stage.steps).body(stage.kernel.body)
        naming = Renaming(lambda n, number=number: f"{n}_{number}", stage.pointers, inside)
        body += [s for part in naming.body(moved) for s in _in_turn(part)]
    read = [*(one.source.pointer for one in copied), *(x for s in stages for x in s.pointers.values())]
    outside = [n for n in dict.fromkeys(read) if n not in inside]
    written = dict.fromkeys(s.pointers[n] for s in stages for n in s.kernel.written if s.pointers[n] not in inside)
    pointers = (*(n for n in outside if n not in written), *written)
    whole = tuple(body)
    launch, kind = Launch(blocks, threads, resident=_RESIDENT), KernelKind.ROW_STAGES
    return Kernel(name, pointers, tuple(written), "tile", whole, sizes=sizes_in(whole), launch=launch, kind=kind)


def _waits(kernel: Kernel) -> bool:
    return any(isinstance(s, Barrier) for s in everything(kernel.body))


def _in_turn(statement: Statement) -> tuple[Statement, ...]:
    """A loop over blocks as one block runs it."""
    if not isinstance(statement, Loop) or statement.kind != "block":
        return (statement,)
    assert isinstance(statement.extent, Extent) and isinstance(statement.extent.size, int), "it was checked"
    if statement.extent.size == 1:
        return (Set(statement.variable, ZERO), *statement.body)
    return (replace(statement, kind="unrolled" if statement.extent.size <= _UNROLLED else "serial"),)


@dataclass(frozen=True, slots=True)
class _Moved(Rewriting):
    """A body whose loads and stores are those of the block's own part."""

    steps: Mapping[str, Size]
    done: Done = field(default_factory=dict[int, tuple[Any, Any]])

    def changed(self, part: Any) -> Any:
        inner = self.inside(part)
        if isinstance(inner, (Load, Store)) and (step := self.steps.get(inner.tensor.pointer)) is not None:
            tensor = replace(inner.tensor, strides=(step, *inner.tensor.strides))
            return replace(inner, tensor=tensor, at=(ThreadIndex("block"), *inner.at))
        return inner


__all__ = ["Copied", "RowStage", "as_row_stages"]
