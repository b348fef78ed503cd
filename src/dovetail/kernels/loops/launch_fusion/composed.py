"""Several scheduled kernels as one launch.

Small kernels become stages that the blocks of one cluster run one after the other, with a barrier of the cluster where
a stage needs what another one wrote. A small kernel whose result only one other reads becomes a prologue of that one:
every block computes it again, into shared memory of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.analysis import everything, pointers_in, shared_bytes
from dovetail.kernels.loops.ir import (
    Alloc,
    AllocBarriers,
    AwaitCopies,
    Barrier,
    Call,
    ClusterBarrier,
    CommitCopies,
    CopyAsync,
    Done,
    Expr,
    Extent,
    FieldRole,
    Kernel,
    Launch,
    Loop,
    Name,
    Number,
    Rewriting,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    expand,
    mul,
    needs,
    sizes_in,
)
from dovetail.kernels.loops.launch_fusion.shared_copies import without_shared_copies

COPY_BYTES = 16
"""Bytes of one asynchronous copy."""
_ROOM = "prologue"
"""The shared memory that holds what a prologue computes."""
_KEPT = "kept."
"""Before the name of a pointer of a prologue: where others read its results."""
_TAKING = frozenset(
    ["threads", "lanes", "atomics", "barriers", "copies", "prefetches", "matrices", "bulk_copies", "amends"]
)
"""What is in a kernel that takes a prologue."""
_STAGED = frozenset(["threads", "lanes", "atomics", "barriers"])
"""What is in a stage."""


@dataclass(frozen=True, slots=True)
class Stage:
    """A small kernel of a cluster."""

    kernel: Kernel
    """Scheduled, with a known number of blocks."""
    pointers: Mapping[str, str]
    """The names that its pointers have in the whole kernel."""
    level: int
    """Stages of one level do not depend on each other; all of a level end before the next begins."""
    after: frozenset[int] | None = None
    """The numbers of the stages that it waits for, where these are known."""


def as_stages(name: str, stages: Sequence[Stage], blocks: int) -> Kernel:
    """The kernel that runs stages in the blocks of one cluster."""
    ordered = sorted(enumerate(stages), key=lambda pair: pair[1].level)
    body: list[Statement] = []
    first, level = 0, 0
    for number, stage in ordered:
        if stage.level != level:
            body.append(ClusterBarrier())
            first, level = 0, stage.level
        launch = _launch(stage.kernel)
        assert isinstance(launch.grid, int), "a stage has a known number of blocks"
        naming = Renaming(lambda n, number=number: f"{n}_{number}", stage.pointers)
        body += [s for part in naming.body(stage.kernel.body) for s in _shared_out(part, first, blocks, number)]
        # Stages of one level start with different blocks, which then run them at the same time.
        first = (first + launch.grid) % blocks
    written = dict.fromkeys(s.pointers[n] for s in stages for n in s.kernel.written)
    read = dict.fromkeys(s.pointers[n] for s in stages for n in s.kernel.pointers)
    pointers = (*(n for n in read if n not in written), *written)
    threads = _launch(stages[0].kernel).block
    launch = Launch(blocks, threads, cluster=blocks)
    return Kernel(name, pointers, tuple(written), "tile", tuple(body), sizes=sizes_in(tuple(body)), launch=launch)


def is_stage(kernel: Kernel, threads: int, most: int) -> bool:
    """Whether a scheduled kernel can be a stage: few blocks of the given size, without dynamic shared memory."""
    launch = kernel.launch
    if launch is None or not isinstance(launch.grid, int) or not 0 < launch.grid <= most:
        return False
    return (
        needs(kernel.body) <= _STAGED
        and launch.block == threads
        and not launch.shared_bytes
        and not kernel.early
        and not kernel.maps
    )


def _shared_out(statement: Statement, first: int, blocks: int, number: int) -> list[Statement]:
    """A loop over blocks as the blocks of a cluster share it, from block `first` on."""
    if not isinstance(statement, Loop) or statement.kind != "block":
        return [statement]
    assert isinstance(statement.extent, Extent) and isinstance(statement.extent.size, int)
    count = statement.extent.size
    own: Expr = ThreadIndex("block")
    if first:
        own = Call("rem", (add(own, Extent(blocks - first)), Extent(blocks)), i64)
    turns = -(-count // blocks)
    variable, turn = statement.variable, f"turn_of_{number}"
    if turns > 1:
        own = add(own, mul(Name(turn), Extent(blocks)))
    body = statement.body
    if count % blocks:
        body = (When(Call("less", (Name(variable), Extent(count)), bool_), body),)
    each = (Set(variable, own), *body)
    return [*each] if turns == 1 else [Loop(turn, Extent(turns), each)]


def with_prologue(
    kernel: Kernel,
    prologue: Kernel,
    read: str,
    pointers: Mapping[str, str],
    counts: Mapping[str, int],
    *,
    result: str,
    keep: bool,
    ahead: Mapping[str, Alloc],
) -> Kernel:
    """A kernel whose blocks each compute, before they begin, what it reads through the pointer `read`.

    `prologue` writes that as its `result`, and is scheduled for one block. All that it writes is dense, with `counts`
    elements, and in shared memory here. The first block also writes other results where others read them, and `result`
    if `keep`. `pointers` says what the prologue's pointers are called in the whole kernel. `ahead` has shared memory
    for the constants that are copied before kernels before this one have ended.
    """
    stores = [s.tensor for s in everything(prologue.body) if isinstance(s, Store)]
    dtypes = {tensor.pointer: tensor.dtype for tensor in stores}
    places = {n: _ROOM if n == result else f"{_ROOM}_{n}" for n in prologue.written}
    rooms = [Alloc(places[n], dtypes[n], counts[n], "shared") for n in prologue.written]
    kept = [n for n in prologue.written if keep or n != result]
    room = frozenset([*places.values(), *(alloc.pointer for alloc in ahead.values())])
    names = {**pointers, **places, **{_KEPT + n: pointers[n] for n in kept}}
    names |= {name: alloc.pointer for name, alloc in ahead.items()}
    before = Renaming(lambda n: f"{n}_before", names, room).body(_twice(prologue.body, kept))
    serial = [replace(s, kind="serial") if isinstance(s, Loop) and s.kind == "block" else s for s in before]
    same = {name: name for name in kernel.pointers}
    body = Renaming(lambda n: n, {**same, read: _ROOM}, room).body(kernel.body)
    sizes = {s.pointer: s.count for s in body if isinstance(s, Alloc) and s.space == "shared"}
    body, instead = without_shared_copies(body, sizes, {_ROOM: counts[result]})
    body = tuple([s for s in body if not isinstance(s, Alloc) or s.pointer not in instead])
    body = Renaming(lambda n: n, instead).body(body)
    # Copies that start early find their memory where the first allocations are.
    allocations: list[Statement] = [s for s in body if isinstance(s, (Alloc, AllocBarriers))]
    rest = [s for s in body if not isinstance(s, (Alloc, AllocBarriers))]
    early = tuple([s for s in kernel.early if not isinstance(s, Alloc) or s.pointer not in instead])
    if ahead:
        # They are the first copies, so that no weights need be there when these are.
        tiles = [s for s in early if isinstance(s, (Alloc, AllocBarriers))]
        copies = [s for name, alloc in ahead.items() for s in copied_whole(pointers[name], alloc)]
        later = [s for s in early if not isinstance(s, (Alloc, AllocBarriers))]
        early = (*tiles, *ahead.values(), *copies, CommitCopies(), *later)
        groups = sum(isinstance(s, CommitCopies) for s in everything(tuple(later)))
        allocations += ahead.values()
        serial = [AwaitCopies(groups), Barrier(), *serial]
    whole = (*allocations, *rooms, *serial, Barrier(), *rest)
    launch = _launch(kernel)
    if launch.shared_bytes:
        launch = replace(launch, shared_bytes=shared_bytes(whole))
    others = [n for n in kernel.pointers if n != read and n not in kernel.written]
    written = (*(pointers[n] for n in kept), *kernel.written)
    read_too = [pointers[n] for n in prologue.pointers if n not in prologue.written]
    every = (*dict.fromkeys([*others, *read_too]), *written)
    sizes = sizes_in((*early, *whole))
    return replace(kernel, pointers=every, written=written, body=whole, early=early, sizes=sizes, launch=launch)


def copied_whole(pointer: str, alloc: Alloc) -> list[Statement]:
    """A constant in shared memory, 16 bytes for each thread in turn, or fewer where there are not as many."""
    item = alloc.dtype.itemsize
    size = next(size for size in (COPY_BYTES, 8, 4) if alloc.count * item % size == 0)
    source = Tensor(pointer, alloc.dtype, (size, item))
    target = Tensor(alloc.pointer, alloc.dtype, (size, item), space="shared")
    at = (Name("chunk"), Extent(0))
    copy = CopyAsync(target, at, source, at, Number(True, bool_), size)
    return [Loop("chunk", Extent(alloc.count * item // size), (copy,), kind="thread")]


def _twice(body: tuple[Statement, ...], results: Sequence[str]) -> tuple[Statement, ...]:
    """A body that stores results in shared memory, and the first block also where they were."""
    is_first = Call("equal", (ThreadIndex("block"), Extent(0)), bool_)

    def twice(s: Statement) -> list[Statement] | None:
        if not isinstance(s, Store) or s.tensor.pointer not in results:
            return None
        outside = replace(s, tensor=replace(s.tensor, pointer=_KEPT + s.tensor.pointer))
        return [s, When(is_first, (outside,))]

    return expand(body, twice)


def takes_prologue(kernel: Kernel, read: str) -> bool:
    """Whether a kernel only loads single elements through a pointer, so that these may be in shared memory."""
    if kernel.maps or read in kernel.written or read in pointers_in(kernel.early):
        return False
    body = list(everything(kernel.body))
    copied = any(isinstance(s, CopyAsync) and s.source.pointer == read for s in body)
    return not copied and needs(body) <= _TAKING


@dataclass(frozen=True, slots=True)
class Renaming(Rewriting):
    """New names for the scalars and pointers of a body."""

    renames = True
    local: Callable[[str], str]
    pointers: Mapping[str, str]
    in_shared: frozenset[str] = frozenset()
    """Pointers, by their new names, to what is in shared memory from now on."""
    sliced: Mapping[str, int] = field(default_factory=dict[str, int])
    """How many of the first axes of a tensor are gone: by its new name, shared memory has one slice along them."""
    done: Done = field(default_factory=dict[int, tuple[Any, Any]])

    def changed(self, part: Any) -> Any:
        if isinstance(part, Tensor):
            pointer = self.pointer(part.pointer)
            gone = self.sliced.get(pointer, 0)
            space = "shared" if pointer in self.in_shared else part.space
            return replace(part, pointer=pointer, space=space, strides=(0,) * gone + part.strides[gone:])
        return self.inside(part)

    def named(self, role: FieldRole, name: str) -> str:
        if role.kind != "name":
            return self.pointer(name)
        return self.local(name) if name else name

    def pointer(self, name: str) -> str:
        """Memory of the body's own is named like its scalars."""
        return self.pointers[name] if name in self.pointers else self.local(name)


def _launch(kernel: Kernel) -> Launch:
    assert kernel.launch is not None, "it was scheduled"
    return kernel.launch


__all__ = [
    "COPY_BYTES", "Renaming", "Stage", "as_stages", "copied_whole", "is_stage",
    "takes_prologue", "with_prologue",
]  # fmt: skip
