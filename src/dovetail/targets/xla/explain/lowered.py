"""A graph with placements as StableHLO, which needs no devices, and as XLA compiled it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.ir.graph import Graph
from dovetail.targets.xla.package import jax, wide_types
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.run import device_mesh
from dovetail.targets.xla.trace import Tracer


def module_of(graph: Graph, placement: Placement) -> str:
    """The text of the module, with the places of the model in it."""
    mesh = jax.sharding.AbstractMesh(tuple(n for _, n in placement.mesh), tuple(a for a, _ in placement.mesh))
    with wide_types():
        function, arguments = _function(graph, placement, mesh, inline=True)
        return function.trace(arguments).lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


def compiled_text(graph: Graph, placement: Placement) -> str:
    """The program of one device as XLA compiled it, for devices of this process."""
    with wide_types():
        function, arguments = _function(graph, placement, device_mesh(placement))
        return function.lower(arguments).compile().as_text()


def _function(graph: Graph, placement: Placement, mesh: Any, *, inline: bool = False) -> tuple[Any, list[Any]]:
    leaves = [*graph.parameters, *graph.inputs]

    def where(name: str) -> Any:
        spec = jax.sharding.PartitionSpec(*(a or None for a in placement.axes(name)))
        return jax.sharding.NamedSharding(mesh, spec)

    arguments = [jax.ShapeDtypeStruct(v.shape, v.dtype.numpy, sharding=where(str(v.attrs["name"]))) for v in leaves]

    def computed(arrays: Sequence[Any]) -> list[Any]:
        tracer = Tracer(graph.where, inline=inline)
        return tracer.values(list(graph.outputs.values()), dict(zip(leaves, arrays, strict=True)))

    # A donated input is overwritten where it is.
    donated = [graph.donated.get(name) for name in graph.outputs]
    places = None if not any(donated) else [None if name is None else where(name) for name in donated]
    return jax.jit(computed, keep_unused=True, out_shardings=places), arguments


__all__ = ["compiled_text", "module_of"]
