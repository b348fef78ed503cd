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
    found: dict[str, Alloc] = {}
    for name, value in bindings.items():
        at, count = locations(value), product(value.shape)
        if not locations.is_constant(value) or not isinstance(count, int):
            continue
        nbytes = count * value.dtype.itemsize
        fits = 0 < nbytes <= AHEAD_BYTES and nbytes % COPY_BYTES == 0 and is_dense(value.tensor, at.strides)
        if fits and locations.alignment({name: value})[name] % COPY_BYTES == 0:
            found[name] = Alloc(f"ahead_{name}", value.dtype, count, "shared")
    return found


def constants_ahead(kernels: Kernels, locations: TensorLocations, most: int, kept: Callable[..., GpuKernel]) -> Kernels:
    """The kernel of a step with its constants in shared memory before the kernels before it have ended; `most` is the
    grid up to which that pays, and `kept` makes one kernel for equal layers."""
    if kernels is None or len(kernels) != 1 or not takes_constants_ahead(kernels[0].kernel):
        return kernels
    (made,) = kernels
    launch, rooms = made.kernel.launch, rooms_of_constants(made.bindings, locations)
    if not rooms or launch is None or not isinstance(launch.grid, int) or launch.grid > most:
        return kernels
    key = "constants_ahead", made.kernel.identity
    found = kept(key, made.bindings, lambda: with_constants_ahead(made.kernel, rooms), made.workspace, made.packed)
    return (replace(found, checks=made.checks, workspace_bytes=made.workspace_bytes),)


__all__ = ["constants_ahead", "rooms_of_constants"]
