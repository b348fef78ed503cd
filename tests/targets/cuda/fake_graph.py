"""What the fake driver captures and runs: launches with their arguments, on the machine in NumPy."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from dovetail.ir.dim import Dim, Size
from dovetail.ir.literal import Array
from dovetail.kernels.loops.ir import Kernel
from tests.targets.cuda.lockstep import Machine


class SizedMachine(Machine):
    """A machine that is given sizes as a launch gives them: by argument."""

    def __init__(
        self,
        kernel: Kernel,
        buffers: dict[str, tuple[Array, int]],
        grid: int,
        numbers: dict[Dim, int],
        maps: Sequence[tuple[int, ...]] = (),
    ) -> None:
        self.numbers = dict(numbers)
        for one, (_, *sizes) in zip(kernel.maps, maps, strict=True):
            given = zip((*one.sizes, *one.strides), sizes, strict=False)
            self.numbers |= {size: n for size, n in given if isinstance(size, Dim)}
        self.launched = grid
        super().__init__(kernel, buffers, {})

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
    maps: tuple[tuple[int, ...], ...] = ()
    """Address, sizes and strides of each matrix."""
    event: int = 0


@dataclass(slots=True)
class Graph:
    nodes: dict[int, Node] = field(default_factory=dict[int, Node])
    disabled: set[int] = field(default_factory=set[int])


__all__ = ["Graph", "Node", "SizedMachine"]
