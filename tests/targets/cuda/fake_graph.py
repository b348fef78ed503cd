"""What the fake driver captures and runs: launches with their arguments, on the machine in NumPy."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

from dovetail.ir.dim import Dim, Size
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Extent, Kernel, Loop, TensorMap
from tests.targets.cuda.lockstep import Machine


class SizedMachine(Machine):
    """A machine that is given sizes as a launch gives them: by argument."""

    def __init__(
        self,
        kernel: Kernel,
        buffers: dict[str, tuple[Array, int]],
        grid: int,
        numbers: dict[Dim, int],
        maps: Sequence[TensorMap] = (),
    ) -> None:
        self.numbers = dict(numbers)
        for one, now in zip(kernel.maps, maps, strict=True):
            given = zip((*one.sizes, *one.strides), (*now.sizes, *now.strides), strict=True)
            self.numbers |= {size: n for size, n in given if isinstance(size, Dim) and isinstance(n, int)}
        self.launched = grid
        super().__init__(kernel, buffers, {})
        self.grid = grid
        # Kernels of equal text share loops, which have the maps of one of them: each launch brings its own.
        self.encoded = dict(zip(kernel.maps, maps, strict=True))

    def size(self, size: Size) -> int:
        if isinstance(size, int):
            return size
        assert self.kernel.launch is not None
        return self.launched if size is self.kernel.launch.grid else self.numbers[size]

    def loop(self, statement: Loop, mask: Array) -> None:
        """Kernels of equal text may have other numbers of blocks: a loop over all of them is as long as the launch."""
        assert self.kernel.launch is not None
        if statement.kind == "block" and statement.extent == Extent(self.kernel.launch.grid):
            statement = replace(statement, extent=Extent(self.launched))
        super().loop(statement, mask)


@dataclass(frozen=True, slots=True)
class Node:
    """A launch with its arguments, a kernel of a library, or an event that is recorded."""

    kernel: Kernel | None
    grid: int = 0
    arguments: tuple[int, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    """As they were encoded: all sizes are numbers."""
    event: int = 0
    work: Callable[[], None] | None = None
    """What a library does in a kernel of its own."""


@dataclass(slots=True)
class Graph:
    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    disabled: set[int] = field(default_factory=set[int])


__all__ = ["Graph", "Node", "SizedMachine"]
