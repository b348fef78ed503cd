"""A kernel as a part of a resident one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Alloc, CopyAsync, CopyBulk, Kernel, Launch
from dovetail.kernels.loops.persistent.words import Received, Sent


@dataclass(frozen=True, slots=True)
class Part:
    """A scheduled kernel."""

    kernel: Kernel
    pointers: Mapping[str, str]
    """The names that its pointers have in the whole kernel."""
    after: frozenset[int]
    """The numbers of the parts before it that it waits for."""
    sent: Mapping[str, Sent] = field(default_factory=dict[str, Sent])
    """The pointers through which it writes what blocks send to each other."""
    received: Mapping[str, Received] = field(default_factory=dict[str, Received])
    """The pointers through which it reads that."""
    waits: frozenset[int] = frozenset()
    """Those of `after` that it does not receive everything from: a barrier of the grid is between them."""
    near: Mapping[str, Alloc] = field(default_factory=dict[str, Alloc])
    """Shared memory for small tensors that it reads and no part writes."""
    passes: range | None = None
    """The passes that run it; None where all do."""

    @property
    def launch(self) -> Launch:
        assert self.kernel.launch is not None, "it was scheduled"
        return self.kernel.launch

    @property
    def blocks(self) -> int:
        assert isinstance(self.launch.grid, int), "it was checked"
        return self.launch.grid

    def allocations(self) -> list[Alloc]:
        """The memory of its blocks and threads."""
        every = [s for s in (*everything(self.kernel.early), *everything(self.kernel.body)) if isinstance(s, Alloc)]
        return [*{a.pointer: a for a in every}.values()]

    def copied_to(self) -> set[str]:
        """The allocations that its early copies fill."""
        return {s.target.pointer for s in everything(self.kernel.early) if isinstance(s, (CopyAsync, CopyBulk))}


__all__ = ["Part"]
