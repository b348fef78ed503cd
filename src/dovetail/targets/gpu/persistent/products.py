"""Products of layers that repeat, as parts of a resident kernel can multiply them."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace

from dovetail.ir.value import Value
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.row import attends
from dovetail.kernels.loops.analysis import uses_tensor_cores
from dovetail.kernels.loops.persistent.bodies import STATEMENTS, TENSOR_MAPS, TURNS, has_rows, refused_part
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.plan import Step
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.gpu.persistent.repetition import Repetition, key_of
from dovetail.targets.gpu.select import make_kernels


def by_warps(
    found: list[tuple[Step, Kernels]], again: Repetition, locations: TensorLocations, device: GpuDevice
) -> None:
    """Give layers kernels whose blocks can take turns, without tensor maps: the maps of all passes would not fit the
    arguments of a launch, and copies before a kernel starts are those of its first turn."""
    by_warp = tuple([one for one in device.matrix_instructions if not one.by_warpgroup])
    warps = replace(device, matrix_instructions=by_warp, dependent_launches=False, as_parts=True)
    known: dict[Hashable, tuple[GpuKernel, ...]] = {}
    for index in range(again.first, again.first + again.covered):
        step, kernels = found[index]
        if kernels is None or not any([_is_replaced(made, device.multiprocessors) for made in kernels]):
            continue
        key = key_of(kernels)
        # Packed weights are those of one layer.
        if key not in known or any([made.packed for made in known[key]]):
            known[key] = _no_faster(make_kernels(step, locations, None, warps), kernels)
        others = known[key]
        if [made.values.keys() for made in others] == [made.values.keys() for made in kernels]:
            pairs = zip(others, kernels, strict=True)
            found[index] = step, tuple([_bound(one, made.values) for one, made in pairs])


def device_of_parts(
    found: Sequence[tuple[Step, Kernels]], again: Repetition, locations: TensorLocations, device: GpuDevice
) -> GpuDevice:
    """The device of an attention among layers. Where products of these use tensor cores, the clock is the lower one
    whatever an attention does."""
    others = [found[at] for at in again.steps if not attends(found[at][0].value, locations)]
    is_lower = any([uses_tensor_cores(made.kernel) for _, kernels in others for made in kernels or ()])
    hertz = 0.0 if is_lower else device.tensor_hertz
    return replace(device, as_parts=True, dependent_launches=False, tensor_hertz=hertz)


def _bound(made: GpuKernel, values: Mapping[str, Value]) -> GpuKernel:
    return replace(made, bindings={name: values[name] for name in made.bindings})


def _is_replaced(made: GpuKernel, blocks: int) -> bool:
    refused = refused_part(made.kernel, blocks)
    return refused is not None and refused.condition in (TENSOR_MAPS, TURNS, STATEMENTS)


def _no_faster(others: Sequence[GpuKernel], kernels: Sequence[GpuKernel]) -> tuple[GpuKernel, ...]:
    """Kernels in place of others, with estimates that are no lower: those of the two kinds are not comparable."""
    cycles = sum([_cycles(made) for made in kernels]) / max(1, len(others))
    found: list[GpuKernel] = []
    for made in others:
        if has_rows(made.kernel):
            found.append(made)
            continue
        launch = made.kernel.launch
        assert launch is not None, "it was scheduled"
        kernel = replace(made.kernel, launch=replace(launch, cycles=max(cycles, launch.cycles)))
        found.append(replace(made, kernel=kernel))
    return tuple(found)


def _cycles(made: GpuKernel) -> float:
    return 0.0 if made.kernel.launch is None else made.kernel.launch.cycles


__all__ = ["by_warps", "device_of_parts"]
