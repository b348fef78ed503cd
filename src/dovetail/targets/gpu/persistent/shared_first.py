"""Steps that all layers read, such as a mask or the angles of rotations, before the layers.

A plan has them in the first layer, which is otherwise equal to the others.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.launch_fusion.footprints import Footprints

MANY = 3
"""Steps that read a result which layers share, at least."""


def shared_first(steps: Sequence[tuple[Step, tuple[GpuKernel, ...]]], memory: Footprints) -> list[int]:
    """The numbers of steps in an order in which those that layers share come as early as memory allows."""
    shared, order = _shared([step for step, _ in steps], memory), list[int]()
    for number, (_, kernels) in enumerate(steps):
        at = len(order)
        if number in shared and kernels:
            while at and not _must_wait(memory, steps[order[at - 1]][1], kernels):
                at -= 1
        order.insert(at, number)
    return order


def in_order(
    moved: Sequence[tuple[Step, Kernels]], order: Sequence[int], steps: Sequence[Step]
) -> list[tuple[Step, Kernels]]:
    """The kernels of steps that were put in another order, by the steps of the plan: the kernels of one that comes
    earlier now are the first of the step that it comes before."""
    by_step: list[Kernels] = [None] * len(steps)
    at = len(steps)
    for number, (_, kernels) in zip(reversed(order), reversed(moved), strict=True):
        if kernels is not None:
            at = min(at, number)
            by_step[at] = (*kernels, *(by_step[at] or ()))
    return [*zip(steps, by_step, strict=True)]


def _shared(steps: Sequence[Step], memory: Footprints) -> set[int]:
    """The steps whose results many steps read, or these steps alone, and that need inputs and each other alone."""
    shared: set[int] = set()
    for number in reversed(range(len(steps))):
        readers = {n for result in steps[number].results for n in memory.reading.get(result, ())}
        if len(readers) >= MANY or (readers and readers <= shared):
            shared.add(number)
    producers = {result: number for number, step in enumerate(steps) for result in step.results}
    for number, step in enumerate(steps):
        roots = [memory.locations(v).root for v in step.operands]
        if any(root in producers and producers[root] not in shared for root in roots):
            shared.discard(number)
    return shared


def _must_wait(memory: Footprints, earlier: Sequence[GpuKernel], later: Sequence[GpuKernel]) -> bool:
    """Whether kernels come after others; steps on the host have none, and stay where they are."""
    return not earlier or any(memory.must_wait(x, y) for x in earlier for y in later)


__all__ = ["in_order", "shared_first"]
