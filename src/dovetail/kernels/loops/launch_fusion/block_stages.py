"""Small kernels that every block of a larger one runs before it begins.

Each block computes all of their results again, most of them into shared memory of its own. So no block waits for
another one, and what was a launch of few blocks is a part of the kernel after it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from dovetail.ir.dtype import bool_, i64
from dovetail.kernels.loops.analysis import everything, shared_bytes
from dovetail.kernels.loops.ir import (
    Alloc,
    AllocBarriers,
    AtomicUpdate,
    Barrier,
    Call,
    CopyAsync,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Statement,
    Store,
    Tensor,
    When,
    add,
    expand,
    needs,
    sizes_in,
)
from dovetail.kernels.loops.launch_fusion.amend import opened
from dovetail.kernels.loops.launch_fusion.composed import Renaming, Stage
from dovetail.kernels.loops.launch_fusion.stage_narrowing import Body, Index
from dovetail.kernels.loops.launch_fusion.stage_slices import indices_of, sliced
from dovetail.kernels.loops.launch_fusion.stage_warps import StageBody, by_warps

_TAKING = frozenset(
    ["threads", "lanes", "atomics", "barriers", "warp_barriers", "clusters", "copies", "prefetches", "matrices",
     "bulk_copies", "amends"]
)  # fmt: skip
"""What is in a kernel that takes stages."""


def takes_stages(kernel: Kernel) -> bool:
    """Whether blocks of a kernel can run stages first: it copies nothing before kernels before it have ended."""
    plain = needs(kernel.body) <= _TAKING and not any([isinstance(s, AllocBarriers) for s in everything(kernel.body)])
    early = needs(kernel.early) <= {"threads", "prefetches"}
    return plain and early and not kernel.maps and not kernel.counter


def is_repeatable(kernel: Kernel) -> bool:
    """Whether running a kernel several times at once gives what one run gives: nothing is added up in memory."""
    return not any(isinstance(s, AtomicUpdate) for s in everything(kernel.body))


def with_stages(
    kernel: Kernel,
    pointers: Mapping[str, str],
    stages: Sequence[Stage],
    inner: Mapping[str, Alloc],
    same: Mapping[str, str],
) -> Kernel:
    """A kernel whose blocks each run stages before they begin.

    Stages are scheduled for blocks of as many threads as the kernel has. `pointers` says what the kernel's own pointers
    are called in the whole; `inner` has shared memory for those that point to what the stages and the kernel alone use,
    and `same` the pointers of the kernel to what stages write under another name.
    """
    shared = frozenset({alloc.pointer for alloc in inner.values()})
    rooms = {name: alloc.pointer for name, alloc in inner.items()}
    own = {name: rooms.get(to, to) for name, to in pointers.items()}
    body = Renaming(lambda n: n, own, shared).body(kernel.body)
    ordered = sorted(enumerate(stages), key=lambda pair: pair[1].level)
    bodies: list[tuple[Statement, ...]] = []
    for number, stage in ordered:
        names = {own: rooms.get(name, name) for own, name in stage.pointers.items()}
        naming = Renaming(lambda n, number=number: f"{n}_{number}", names, shared)
        bodies.append(naming.body(stage.kernel.body))
    launch = kernel.launch
    assert launch is not None and isinstance(launch.grid, int), "it was scheduled, with a known number of blocks"
    indices = indices_of(bodies, body, launch.grid, same)
    narrow = [_in_turn(each) for each in sliced(bodies, indices)]
    first = Renaming(lambda n: n, own, shared).body(kernel.opening)
    parts = opened(replace(kernel, opening=first, body=body), narrow, same, launch.grid)
    body = parts.body
    before = _by_warps(ordered, bodies, indices, launch) or _by_levels(ordered, narrow)
    allocations = [s for s in body if isinstance(s, (Alloc, AllocBarriers))]
    rest = without_copies_from_shared(tuple([s for s in body if not isinstance(s, (Alloc, AllocBarriers))]))
    whole = (*allocations, *inner.values(), *before, Barrier(), *rest)
    if launch.shared_bytes:
        launch = replace(launch, shared_bytes=shared_bytes(whole))
    every = [*((s.kernel, s.pointers) for s in stages), (kernel, pointers)]
    written = dict.fromkeys([to[n] for one, to in every for n in one.written if to[n] not in inner])
    read = dict.fromkeys([to[n] for one, to in every for n in one.pointers if to[n] not in inner])
    every_pointer = (*(n for n in read if n not in written), *written)
    early = Renaming(lambda n: n, own, shared).body(kernel.early)
    exchanged = tuple([pointers[name] for name in kernel.exchanged])
    return replace(
        kernel,
        pointers=every_pointer,
        written=tuple(written),
        body=whole,
        opening=parts.opening,
        early=early,
        sizes=sizes_in((*early, *parts.opening, *whole)),
        launch=launch,
        exchanged=exchanged,
    )


def _by_levels(stages: Sequence[tuple[int, Stage]], bodies: Sequence[Body]) -> Body:
    """Stages whose threads wait for each other from level to level."""
    statements: list[Statement] = []
    level = 0
    for (_, stage), body in zip(stages, bodies, strict=True):
        if stage.level != level:
            statements.append(Barrier())
            level = stage.level
        statements += body
    return tuple(statements)


def _by_warps(
    stages: Sequence[tuple[int, Stage]], bodies: Sequence[Body], indices: Sequence[Index | None], launch: Launch
) -> Body | None:
    """Stages whose rows are each for one warp; None where a warp would have to wait for others."""
    places = {number: place for place, (number, _) in enumerate(stages)}
    own: list[StageBody] = []
    for (_, stage), body, index in zip(stages, bodies, indices, strict=True):
        if stage.after is None:
            return None
        after = frozenset([places[number] for number in stage.after])
        own.append(StageBody(body, index, after, stage.kernel.schedule))
    joined = by_warps(own, launch.block, launch.warp)
    return None if joined is None else _in_turn(joined)


def _in_turn(stage: Body) -> Body:
    """A stage whose tiles one block goes through."""
    statements: list[Statement] = []
    for s in stage:
        if isinstance(s, When):
            s = replace(s, body=_in_turn(s.body))
        statements.append(replace(s, kind="serial") if isinstance(s, Loop) and s.kind == "block" else s)
    return tuple(statements)


def without_copies_from_shared(body: tuple[Statement, ...]) -> tuple[Statement, ...]:
    """Copies whose source is in shared memory as loads and stores of its elements."""
    return expand(body, lambda s: _elements(s) if isinstance(s, CopyAsync) and s.source.space == "shared" else None)


def _elements(copy: CopyAsync) -> list[Statement]:
    dtype, outside = copy.target.dtype, Call("bit_not", (copy.inside,), bool_)
    if copy.nbytes == dtype.itemsize:
        there = Store(copy.target, copy.target_at, Load(copy.source, copy.source_at))
        zero = Store(copy.target, copy.target_at, Number(0, dtype))
        return [When(copy.inside, (there,)), When(outside, (zero,))]
    source, target = _moved(copy.source, copy.source_at), _moved(copy.target, copy.target_at)
    there = Store(copy.target, target, Load(copy.source, source))
    zero = Store(copy.target, target, Number(0, dtype))
    count = Extent(copy.nbytes // dtype.itemsize)
    return [
        When(copy.inside, (Loop("of_copy", count, (there,), kind="unrolled"),)),
        When(outside, (Loop("of_copy", count, (zero,), kind="unrolled"),)),
    ]


def _moved(tensor: Tensor, at: tuple[Expr, ...]) -> tuple[Expr, ...]:
    """The place of an element of a copy: elements follow each other along an axis without gaps."""
    axis = tensor.strides.index(tensor.dtype.itemsize)
    return (*at[:axis], add(at[axis], Name("of_copy", i64)), *at[axis + 1 :])


__all__ = ["is_repeatable", "takes_stages", "with_stages", "without_copies_from_shared"]
