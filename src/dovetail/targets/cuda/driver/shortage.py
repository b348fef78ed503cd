"""What is short where a device has too little memory, and which sizes of a run would fit."""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from ctypes import c_size_t
from types import MappingProxyType
from typing import TYPE_CHECKING

from dovetail.errors import OutOfMemoryError
from dovetail.ir.dim import Size, evaluate
from dovetail.targets.cuda.driver.api import Functions

if TYPE_CHECKING:
    from dovetail.plan.plan import Plan

_TAKEN_BY: Mapping[str, str] = MappingProxyType(
    {
        "cuDevicePrimaryCtxRetain": "a context",
        "cuEventCreate": "an event",
        "cuGraphInstantiateWithFlags": "a graph of launches",
        "cuGraphLaunch": "a graph of launches",
        "cuLaunchKernel": "a launch",
        "cuLaunchKernelEx": "a launch",
        "cuLinkComplete": "the code of a kernel",
        "cuModuleLoadData": "the code of a kernel",
        "cuStreamCreate": "a stream",
    }
)
"""What functions of the driver take memory for, by themselves."""

_HINT = "free device arrays and programs that are not needed, or end other programs on the device"


def short_of(name: str, functions: Functions) -> OutOfMemoryError:
    """Return the error of a driver function that ran out of memory; the driver does not say how much it needed.

    The driver says what is free, but not without a context.
    """
    available, total = c_size_t(), c_size_t()
    functions["cuMemGetInfo_v2"](ctypes.byref(available), ctypes.byref(total))
    free, what = available.value, _TAKEN_BY.get(name, "what it makes")
    left = f": {free:,} of {total.value:,} bytes are free" if total.value else ""
    return OutOfMemoryError(f"{name} found no memory for {what}{left}", needed=0, free=free, hint=_HINT)


def needed_bytes(plan: Plan, workspaces: list[Size], sizes: Mapping[str, int]) -> int:
    """The bytes of the device that a run takes in addition to its parameters."""
    outputs = [v.tensor.bytes for v in plan.graph.outputs.values()]
    parts = [plan.arena_size, *[v.tensor.bytes for v in plan.graph.inputs], *outputs]
    return sum(evaluate(p, sizes) for p in parts) + max([evaluate(w, sizes) for w in workspaces], default=0)


def shortage(plan: Plan, workspaces: list[Size], sizes: Mapping[str, int], free: int, where: str) -> OutOfMemoryError:
    """The error of a run that does not fit: what it needs, what is free, and which sizes would fit."""
    needed = needed_bytes(plan, workspaces, sizes)
    said = ", ".join(f"{name} = {size}" for name, size in sorted(sizes.items()))
    run = f"a run of {plan.graph.name}{f' with {said}' if said else ''} takes {needed:,} bytes of {where}"
    if needed <= free:
        # The driver says no more: memory in pieces, or what it needs for the launches themselves.
        return OutOfMemoryError(
            f"{run}; {free:,} are free, but not in one piece, or the driver needs them for its launches",
            needed=needed,
            free=free,
            hint=_HINT,
        )
    fitting = [_fitting(plan, workspaces, sizes, name, free) for name in sorted(sizes)]
    fits = [f"{name} = {most}" for name, most in zip(sorted(sizes), fitting, strict=True) if most]
    hint = f"it would fit with {' or with '.join(fits)}" if fits else "no smaller size would fit: free device arrays"
    return OutOfMemoryError(f"{run}, and {free:,} are free", needed=needed, free=free, hint=hint)


def _fitting(plan: Plan, workspaces: list[Size], sizes: Mapping[str, int], name: str, free: int) -> int:
    """The largest smaller value of one symbol with which a run fits; 0 where there is none."""
    least, most = 0, sizes[name]
    while most - least > 1:
        middle = (least + most) // 2
        if needed_bytes(plan, workspaces, {**sizes, name: middle}) <= free:
            least = middle
        else:
            most = middle
    return least


__all__ = ["needed_bytes", "short_of", "shortage"]
