"""A graph as StableHLO with placements; an abstract mesh needs no devices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.ir.graph import Graph
from dovetail.targets.xla.package import jax, wide_types
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.trace import Tracer


def module_of(graph: Graph, placement: Placement) -> str:
    """The text of the module, with the places of the model in it."""
    leaves = [*graph.parameters, *graph.inputs]
    sharding = jax.sharding
    mesh = sharding.AbstractMesh(tuple(n for _, n in placement.mesh), tuple(a for a, _ in placement.mesh))

    def where(name: str) -> Any:
        return sharding.NamedSharding(mesh, sharding.PartitionSpec(*(a or None for a in placement.axes(name))))

    given = [jax.ShapeDtypeStruct(v.shape, v.dtype.numpy, sharding=where(str(v.attrs["name"]))) for v in leaves]

    def computed(arrays: Sequence[Any]) -> list[Any]:
        return Tracer(graph.where).values(list(graph.outputs.values()), dict(zip(leaves, arrays, strict=True)))

    # A donated input is overwritten where it is.
    donated = [graph.donated.get(name) for name in graph.outputs]
    places = None if not any(donated) else [None if name is None else where(name) for name in donated]
    with wide_types():
        lowered = (
            jax.jit(computed, keep_unused=True, out_shardings=places).trace(given).lower(lowering_platforms=("cpu",))
        )
    return lowered.as_text(debug_info=True)


__all__ = ["module_of"]
