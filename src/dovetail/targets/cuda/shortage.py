"""What a run needs of a device's memory, and which sizes would fit where it is too much."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.errors import OutOfMemoryError
from dovetail.ir.dim import Size, evaluate
from dovetail.plan.plan import Plan


def needed_bytes(plan: Plan, workspaces: list[Size], sizes: Mapping[str, int]) -> int:
    """The bytes of the device that a run takes in addition to its parameters."""
    outputs = [v.tensor.bytes for v in plan.graph.outputs.values()]
    parts = [plan.arena_size, *[v.tensor.bytes for v in plan.graph.inputs], *outputs]
    return sum(evaluate(p, sizes) for p in parts) + max([evaluate(w, sizes) for w in workspaces], default=0)


def shortage(plan: Plan, workspaces: list[Size], sizes: Mapping[str, int], free: int, where: str) -> OutOfMemoryError:
    """The error of a run that does not fit: what it needs, what is free, and which sizes would fit."""
    needed = needed_bytes(plan, workspaces, sizes)
    fitting = [_fitting(plan, workspaces, sizes, name, free) for name in sorted(sizes)]
    fits = [f"{name} = {most}" for name, most in zip(sorted(sizes), fitting, strict=True) if most]
    hint = f"it would fit with {' or with '.join(fits)}" if fits else "no smaller size would fit: free device arrays"
    said = ", ".join(f"{name} = {size}" for name, size in sorted(sizes.items()))
    return OutOfMemoryError(
        f"a run of {plan.graph.name}{f' with {said}' if said else ''} takes {needed:,} bytes of {where}, "
        f"and {free:,} are free",
        needed=needed,
        free=free,
        hint=hint,
    )


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


__all__ = ["needed_bytes", "shortage"]
