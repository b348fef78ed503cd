"""Constants of a kernel, such as the gains of a norm, that come to shared memory before the kernels before it have
ended."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.composed import Renaming, copied_whole
from dovetail.kernels.loops.ir import (
    Alloc,
    AllReduce,
    AwaitCopies,
    Barrier,
    CommitCopies,
    Kernel,
    Loop,
    Set,
    Store,
    When,
    sizes_in,
)

_TAKING = (Set, Loop, When, Store, Alloc, AllReduce, Barrier)
"""The statements of a kernel whose constants may be elsewhere."""


def takes_constants_ahead(kernel: Kernel) -> bool:
    """Whether a kernel that starts early would wait for constants after it has reduced rows."""
    launch = kernel.launch
    if launch is None or not launch.dependent or kernel.early or kernel.maps or launch.shared_bytes:
        return False
    body = list(everything(kernel.body))
    return any([isinstance(s, AllReduce) for s in body]) and all([isinstance(s, _TAKING) for s in body])


def with_constants_ahead(kernel: Kernel, ahead: Mapping[str, Alloc]) -> Kernel:
    """A kernel that copies constants to shared memory early; `ahead` has the room for each pointer."""
    rooms = tuple(ahead.values())
    names = {name: name for name in kernel.pointers} | {name: room.pointer for name, room in ahead.items()}
    moved = Renaming(lambda n: n, names, frozenset([room.pointer for room in rooms])).body(kernel.body)
    copies = [s for name, room in ahead.items() for s in copied_whole(name, room)]
    # They are one group with other copies.
    others = [s for s in kernel.early if not isinstance(s, CommitCopies)]
    early = (*rooms, *others, *copies, CommitCopies())
    body = (*rooms, AwaitCopies(0), Barrier(), *moved)
    return replace(kernel, body=body, early=early, sizes=sizes_in((*early, *body)))


__all__ = ["takes_constants_ahead", "with_constants_ahead"]
