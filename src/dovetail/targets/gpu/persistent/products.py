"""GEMMs of layers that repeat, as parts of a persistent kernel can multiply them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from dovetail.ir.value import Value
from dovetail.kernels.gpu.attention.row import attends
from dovetail.kernels.loops.analysis import uses_tensor_cores
from dovetail.kernels.loops.persistent.bodies import STATEMENTS, TENSOR_MAPS, TURNS, has_rows, refused_part
from dovetail.kernels.request import Request, Role
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.persistent.repetition import Repetition, key_of
from dovetail.targets.gpu.select import Selection, make_kernels


def by_warps(steps: list[tuple[Step, Kernels]], again: Repetition, selection: Selection) -> None:
    """Give layers kernels whose blocks can take turns, without tensor maps: the maps of all passes would not fit the
    arguments of a launch, and copies before a kernel starts are those of its first turn."""
    blocks = selection.device.multiprocessors
    known: dict[Hashable, tuple[GpuKernel, ...]] = {}
    for index in range(again.first, again.first + again.covered):
        step, kernels = steps[index]
        if kernels is None or not any([_is_replaced(kernel, blocks) for kernel in kernels]):
            continue
        key = key_of(kernels)
        # Packed weights are those of one layer.
        if key not in known or any([kernel.packed for kernel in known[key]]):
            known[key] = _no_faster(make_kernels(step, selection, Request(Role.PART)), kernels)
        others = known[key]
        if [kernel.values.keys() for kernel in others] == [kernel.values.keys() for kernel in kernels]:
            pairs = zip(others, kernels, strict=True)
            steps[index] = step, tuple([_bound(one, kernel.values) for one, kernel in pairs])


def request_of_parts(steps: Sequence[tuple[Step, Kernels]], again: Repetition, selection: Selection) -> Request:
    """Return the request for an attention among layers.

    Where GEMMs of these use tensor cores, the clock is the lower one whatever an attention does.
    """
    others = [steps[at] for at in again.steps if not attends(steps[at][0].value, selection.locations)]
    is_lower = any([uses_tensor_cores(kernel.kernel) for _, kernels in others for kernel in kernels or ()])
    return Request(Role.PART, clock_is_low=is_lower)


def _bound(kernel: GpuKernel, values: Mapping[str, Value]) -> GpuKernel:
    return replace(kernel, bindings={name: values[name] for name in kernel.bindings})


def _is_replaced(kernel: GpuKernel, blocks: int) -> bool:
    refused = refused_part(kernel.kernel, blocks)
    return refused is not None and refused.condition in (TENSOR_MAPS, TURNS, STATEMENTS)


def _no_faster(others: Sequence[GpuKernel], kernels: Sequence[GpuKernel]) -> tuple[GpuKernel, ...]:
    """Kernels in place of others, with estimates that are no lower: those of the two kinds are not comparable."""
    cycles = sum([_cycles(one) for one in kernels]) / max(1, len(others))
    slowed: list[GpuKernel] = []
    for other in others:
        if has_rows(other.kernel):
            slowed.append(other)
            continue
        launch = other.kernel.launch
        assert launch is not None, "it was scheduled"
        kernel = replace(other.kernel, launch=replace(launch, cycles=max(cycles, launch.cycles)))
        slowed.append(replace(other, kernel=kernel))
    return tuple(slowed)


def _cycles(kernel: GpuKernel) -> float:
    return 0.0 if kernel.kernel.launch is None else kernel.kernel.launch.cycles


__all__ = ["by_warps", "request_of_parts"]
