"""Which operands of a kernel come to shared memory before they are needed: constants that are small, such as gains."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace

from dovetail.ir.dim import product
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Alloc
from dovetail.kernels.loops.launch_fusion.composed import COPY_BYTES
from dovetail.kernels.loops.launch_fusion.constants_ahead import takes_constants_ahead, with_constants_ahead
from dovetail.kernels.spec import TensorLocations
from dovetail.plan.alias import is_dense
from dovetail.targets.gpu.kernel import GpuKernel, Kernels

AHEAD_BYTES = 16 << 10
"""Bytes of such a constant, at most."""


def rooms_of_constants(bindings: Mapping[str, Value], locations: TensorLocations) -> dict[str, Alloc]:
    """Shared memory for each of some operands that is constant and small."""
    rooms: dict[str, Alloc] = {}
    for name, value in bindings.items():
        at, count = locations(value), product(value.shape)
        if not locations.is_constant(value) or not isinstance(count, int):
            continue
        nbytes = count * value.dtype.itemsize
        fits = 0 < nbytes <= AHEAD_BYTES and nbytes % COPY_BYTES == 0 and is_dense(value.tensor, at.strides)
        if fits and locations.alignment({name: value})[name] % COPY_BYTES == 0:
            rooms[name] = Alloc(f"ahead_{name}", value.dtype, count, "shared")
    return rooms


def constants_ahead(kernels: Kernels, locations: TensorLocations, most: int, kept: Callable[..., GpuKernel]) -> Kernels:
    """The kernel of a step with its constants in shared memory before the kernels before it have ended; `most` is the
    grid up to which that pays, and `kept` makes one kernel for equal layers."""
    if kernels is None or len(kernels) != 1 or not takes_constants_ahead(kernels[0].kernel):
        return kernels
    (kernel,) = kernels
    launch, rooms = kernel.kernel.launch, rooms_of_constants(kernel.bindings, locations)
    if not rooms or launch is None or not isinstance(launch.grid, int) or launch.grid > most:
        return kernels
    key = "constants_ahead", kernel.kernel.identity
    ahead = kept(
        key, kernel.bindings, lambda: with_constants_ahead(kernel.kernel, rooms), kernel.workspace, kernel.packed
    )
    return (replace(ahead, checks=kernel.checks, workspace_bytes=kernel.workspace_bytes),)


__all__ = ["constants_ahead", "rooms_of_constants"]
