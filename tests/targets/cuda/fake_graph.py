"""What the fake driver captures and runs: launches with their arguments, on the machine in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.ir.dim import Dim, Size
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Kernel, TensorMap
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
        # Kernels of equal text share loops, which have the maps of one of them: each launch brings its own.
        self.encoded = dict(zip(kernel.maps, maps, strict=True))

    def size(self, size: Size) -> int:
        assert self.kernel.launch is not None
        if size is self.kernel.launch.grid:
            return self.launched
        return size if isinstance(size, int) else self.numbers[size]


@dataclass(frozen=True, slots=True)
class Node:
    """A launch with its arguments, or an event that is recorded."""

    kernel: Kernel | None
    grid: int = 0
    arguments: tuple[int, ...] = ()
    maps: tuple[TensorMap, ...] = ()
    """As they were encoded: all sizes are numbers."""
    event: int = 0


@dataclass(slots=True)
class Graph:
    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    disabled: set[int] = field(default_factory=set[int])


__all__ = ["Graph", "Node", "SizedMachine"]
