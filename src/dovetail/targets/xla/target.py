"""XLA as a target, through JAX's public interface."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from dovetail.errors import OptionError
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.plan.emitted import Emitted
from dovetail.plan.plan import Plan
from dovetail.plan.served import Served
from dovetail.settings import Settings
from dovetail.targets.runtime.building.store import store_of
from dovetail.targets.target import Executable, Target
from dovetail.targets.xla.claims import HOST, claims
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.presets import AUTO, PRESETS

if TYPE_CHECKING:
    from dovetail.targets.xla.run import XlaGraph


def _compiled(plan: Plan, settings: Settings) -> Executable:
    from dovetail.targets.xla.run import XlaGraph  # JAX is imported with it

    return XlaGraph(plan, None, store_of(settings))


def _variants(plan: Plan, sizes: Mapping[str, Size]) -> Mapping[Value, Served]:
    """The steps that XLA calls back for."""
    return {s.value: Served(None, why="NumPy computes it") for s in plan.phase("run") if s.value.op.name in HOST}


def _emitted(plan: Plan, settings: Settings) -> Sequence[Emitted]:
    from dovetail.targets.xla.run import XlaGraph

    return XlaGraph(plan, None, store_of(settings)).emitted()


TARGET = Target("xla", claims, _compiled, variants=_variants, emitted=_emitted)
"""One device: the first that JAX finds."""


def target(*, mesh: Mapping[str, int], place: Mapping[str, str] | None = None, preset: str | None = None) -> Target:
    """XLA on a mesh of devices: `mesh={"dp": 2, "tp": 4}, place={"layers.*.wq": "- tp"}`.

    A preset places the tensors of dovetail's own models: data, tensor or sequence. `preset="auto"` chooses the cheapest
    placement for each program that is compiled; `dovetail.mesh.choose_placement` gives one to keep.
    """
    if preset == AUTO and place:
        raise OptionError(f'preset="{AUTO}" with rules', hint="it chooses all of them")
    fixed = placement_of(mesh, place, None if preset == AUTO else preset)

    def compiled(plan: Plan, settings: Settings) -> XlaGraph:
        from dovetail.targets.xla.run import XlaGraph

        placement = fixed
        if preset == AUTO:
            from dovetail.targets.xla.explain.auto import choose

            placement = choose(plan.graph, mesh).best.explained.placement
        placement.check(plan.graph)
        return XlaGraph(plan, placement, store_of(settings))

    def emitted(plan: Plan, settings: Settings) -> Sequence[Emitted]:
        return compiled(plan, settings).emitted()

    return replace(TARGET, compile=compiled, emitted=emitted)


def placement_of(mesh: Mapping[str, int], place: Mapping[str, str] | None, preset: str | None) -> Placement:
    """The rules of a user before those of a preset."""
    if preset is not None and preset not in PRESETS:
        raise OptionError(f"there is no preset {preset!r}", hint=f"presets are {', '.join((*PRESETS, AUTO))}")
    return Placement.of(mesh, place, None if preset is None else PRESETS[preset])


__all__ = ["TARGET", "placement_of", "target"]
