"""Constants of a kernel, such as the gains of a norm, that come to shared memory before the kernels before it have
ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.kernels.loops.analysis import everything, with_rooms
from dovetail.kernels.loops.ir import (
    Alloc,
    AllReduce,
    AwaitCopies,
    Barrier,
    CommitCopies,
    Kernel,
    Loop,
    Statement,
    needs,
    reads,
    sizes_in,
)
from dovetail.kernels.loops.launch_fusion.composed import Renaming, copied_whole

_TAKING = frozenset(["threads", "lanes", "barriers"])
"""What is in a kernel whose constants may be elsewhere."""


def takes_constants_ahead(kernel: Kernel) -> bool:
    """Whether a kernel that starts early would wait for constants after it has reduced rows."""
    launch = kernel.launch
    if launch is None or not launch.dependent or kernel.early or kernel.maps or launch.shared_bytes:
        return False
    body = list(everything(kernel.body))
    return any([isinstance(s, AllReduce) for s in body]) and needs(body) <= _TAKING


def with_constants_ahead(kernel: Kernel, ahead: Mapping[str, Alloc]) -> Kernel:
    """A kernel that copies constants to shared memory early, with its other copies; `ahead` has the room for each
    pointer."""
    moved, copies = _moved(kernel, ahead)
    # They are one group with other copies.
    others = [s for s in kernel.early if not isinstance(s, CommitCopies)]
    early = (*ahead.values(), *others, *copies, CommitCopies())
    return _launched(kernel, early, (*ahead.values(), AwaitCopies(0), Barrier(), *moved))


def with_constants_first(kernel: Kernel, ahead: Mapping[str, Alloc]) -> Kernel | None:
    """The same with constants before its other copies: the tile of a block waits for them where it first reads one, and
    for no weights; None where blocks do anything but a tile."""
    moved, copies = _moved(kernel, ahead)
    *allocations, loop = moved
    if not isinstance(loop, Loop) or loop.kind != "block":
        return None
    rooms = {room.pointer for room in ahead.values()}
    first = next((i for i, s in enumerate(loop.body) if rooms & {tensor.pointer for tensor, _ in reads((s,))}), 0)
    before, after = loop.body[:first], loop.body[first:]
    if not any([isinstance(s, AwaitCopies) and s.pending == 0 for s in before]):
        groups = len([s for s in everything((*kernel.early, *before)) if isinstance(s, CommitCopies)])
        before = (*before, AwaitCopies(groups), Barrier())
    early = (*ahead.values(), *copies, CommitCopies(), *kernel.early)
    whole = (*ahead.values(), *allocations, replace(loop, body=(*before, *after)))
    return replace(_launched(kernel, early, whole), schedule=None)


def _moved(kernel: Kernel, ahead: Mapping[str, Alloc]) -> tuple[tuple[Statement, ...], list[Statement]]:
    """The body of a kernel that finds constants in shared memory, and the copies of these."""
    names = {name: name for name in kernel.pointers} | {name: room.pointer for name, room in ahead.items()}
    moved = Renaming(lambda n: n, names, frozenset([room.pointer for room in ahead.values()])).body(kernel.body)
    return moved, [s for name, room in ahead.items() for s in copied_whole(name, room)]


def _launched(kernel: Kernel, early: tuple[Statement, ...], body: tuple[Statement, ...]) -> Kernel:
    launch = kernel.launch and with_rooms(kernel.launch, body)
    return replace(kernel, body=body, early=early, sizes=sizes_in((*early, *body)), launch=launch)


__all__ = ["takes_constants_ahead", "with_constants_ahead", "with_constants_first"]
