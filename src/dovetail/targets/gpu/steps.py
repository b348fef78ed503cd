"""The kernels of a whole plan: those of each step, with launches joined where that pays."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, TypeAlias

from dovetail.ir.value import Value
from dovetail.kernels.loops.split_reduce import SplitLimits
from dovetail.kernels.spec import TensorLocations
from dovetail.passes.specialize import fresh_symbols
from dovetail.plan.plan import Plan, Step, with_launches
from dovetail.targets.gpu.kernel import GpuKernel, Kernels
from dovetail.targets.runtime.building.packed_weights import steps_for
from dovetail.targets.runtime.building.step_signature import moved_bindings, step_signature, stored_as

if TYPE_CHECKING:
    from dovetail.targets.gpu.launch_fusion.fused_launches import LaunchFusion
    from dovetail.targets.gpu.select import Selection
    from dovetail.targets.target import Considered

Fused: TypeAlias = "tuple[tuple[tuple[Step, Kernels], ...], LaunchFusion | None]"


def locations_of(plan: Plan) -> TensorLocations:
    """Where the tensors of a plan are."""
    from dovetail.targets.gpu.loops import LOOPS

    bound = {result for step in plan.phase("bind") for result in step.results}
    steps = tuple([step.value for step in plan.phase("run")])
    return TensorLocations(plan.locate, bound, bool(plan.options.get("strict")), target=LOOPS, steps=steps)


def kernels_by_step(plan: Plan, selection: Selection, rows: SplitLimits | None = None) -> Fused:
    """The kernels of each step of the run phase, in its order, and what joined their launches, if that is there: none
    where the step runs on the host, and None where another step has the one that it shares. `rows` says when long rows
    are split over blocks.

    Layers repeat: steps with equal signatures share their kernels.
    """
    # A program from the store has its kernels: it does without code generation.
    from dovetail.kernels.gpu.blocks.units import units_of
    from dovetail.targets.gpu.launch_fusion.fused_launches import LaunchFusion
    from dovetail.targets.gpu.select import make_kernels

    locations, request = selection.locations, replace(selection.request, rows=rows)
    known: dict[Hashable, tuple[Step, tuple[GpuKernel, ...]]] = {}
    steps: list[tuple[Step, tuple[GpuKernel, ...]]] = []
    for step in plan.phase("run"):
        # The first layer often reads a view of what the others read as it is.
        units = units_of(step.value, locations)
        stored = [stored_as(v, any_format=units is not None) for v in step.operands]
        signature = step_signature(step, locations, sees_views=False), units, *stored
        was = known.get(signature)
        kernels = None if was is None else _rebound(was[1], was[0], step, any_format=units is not None)
        if kernels is None:
            kernels = make_kernels(step, selection, request)
            known[signature] = step, kernels
        steps.append((step, kernels))
    if not selection.device.cluster or has_late_sizes(plan):
        return tuple(steps), None
    fusion = LaunchFusion(plan, selection)
    fused = fusion.fused(steps)
    if _placed(plan, [kernels for _, kernels in fused]) is None:
        return tuple(steps), None
    return fused, fusion


def placed(plan: Plan, kernels: Sequence[Kernels]) -> Plan:
    """The plan with its memory planned for the kernels of its steps, of which some share launches."""
    return _placed(plan, kernels) or plan


def _placed(plan: Plan, kernels: Sequence[Kernels]) -> Plan | None:
    """The same; None where launches cannot be shared, because the arena has no room for a step in place."""
    if has_late_sizes(plan):
        return plan
    launched: list[set[Value]] = []
    is_joined = False
    for step, some in zip(plan.phase("run"), kernels, strict=True):
        used = {v for kernel in some or () for v in kernel.bindings.values()}
        # Other kernels may take the place of those that a step has alone.
        launched.append(used if some is None or is_joined else used | {*step.operands, *step.results})
        is_joined = some is None
    return with_launches(plan, launched)


def considered(steps: Sequence[tuple[Step, Kernels]], fusion: LaunchFusion | None) -> Sequence[Sequence[Considered]]:
    """For each step the variants without a launch of its own, and whether layers are passes of one kernel."""
    residency = fusion and fusion.residency
    if fusion is None:
        return [() for _ in steps]
    is_persistent = residency is not None and residency.refused is None
    rows = () if residency is None else residency.rows
    in_passes = {*(() if residency is None else residency.steps)}
    return [
        (*(() if is_persistent and at in in_passes else fusion.choices.of(step)), *(rows if at in in_passes else ()))
        for at, (step, _) in enumerate(steps)
    ]


def has_late_sizes(plan: Plan) -> bool:
    """Whether a run finds sizes while it runs."""
    return any(True for step in plan.phase("run") for _ in fresh_symbols(step.value))


def _rebound(kernels: tuple[GpuKernel, ...], was: Step, now: Step, *, any_format: bool) -> tuple[GpuKernel, ...] | None:
    """The kernels of a step for one with an equal signature; None where they bind what it does not have."""
    rebound: list[GpuKernel] = []
    for kernel in kernels:
        bindings = moved_bindings(kernel.bindings, was, now, any_format=any_format)
        packed = moved_bindings(kernel.packed, was, now, any_format=any_format)
        if bindings is None or packed is None:
            return None
        rebound.append(replace(kernel, bindings=bindings, packed=packed))
    return tuple(rebound)


def needed_steps(plan: Plan, kernels: Sequence[Kernels]) -> Sequence[Step]:
    """The steps of the bind phase that something reads. Weights that kernels read in blocks are never spelled out."""
    if has_late_sizes(plan):
        return plan.phase("bind")
    needed = {plan.root_of(v) for v in plan.graph.outputs.values()}
    for step, some in zip(plan.phase("run"), kernels, strict=True):
        on_host = step.operands if some is not None and not some else ()
        bound = [v for kernel in some or () for v in kernel.bindings.values()]
        packed = [v for kernel in some or () for one in kernel.packed.values() for v in (one.value, *one.beside)]
        needed |= {plan.root_of(v) for v in (*on_host, *bound, *packed)}
    return steps_for(plan, needed)


__all__ = ["considered", "has_late_sizes", "kernels_by_step", "locations_of", "needed_steps", "placed"]
