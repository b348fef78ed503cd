"""Graphs for other programs: StableHLO text, and files that `jax.export` reads, also for devices that are not here."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dovetail.errors import OptionError
from dovetail.ir.graph import Graph
from dovetail.targets.xla.package import jax, jax_export, wide_types
from dovetail.targets.xla.trace import Tracer

PLATFORMS = ("cpu", "cuda", "rocm", "tpu")


def stablehlo(graph: Graph) -> str:
    """The text of a function of all parameters, then all inputs; it gives the outputs. Indices are not checked."""
    function, shapes = _function(graph)
    with wide_types():
        return function.trace(shapes).lower(lowering_platforms=("cpu",)).as_text(debug_info=True)


def exported(graph: Graph, platforms: Sequence[str] = PLATFORMS) -> bytes:
    """A file for `jax.export.deserialize`: a function of one list, parameters and then inputs."""
    strange = [p for p in platforms if p not in PLATFORMS]
    if strange or not platforms:
        raise OptionError(f"a platform {', '.join(strange)!r}", hint=f"platforms are {', '.join(PLATFORMS)}")
    function, shapes = _function(graph)
    with wide_types():
        return bytes(jax_export.export(function, platforms=tuple(platforms))(shapes).serialize())


def _function(graph: Graph) -> tuple[Any, list[Any]]:
    leaves = [*graph.parameters, *graph.inputs]
    unknown = sorted({str(s) for v in leaves for s in v.shape if not isinstance(s, int)})
    if unknown:
        raise OptionError(
            f"{graph.name} has sizes that are not known: {', '.join(unknown)}",
            hint=f"give each a number: --size {unknown[0]}=8",
        )

    def computed(arrays: Sequence[Any]) -> list[Any]:
        return Tracer(graph.where).values(list(graph.outputs.values()), dict(zip(leaves, arrays, strict=True)))

    shapes = [jax.ShapeDtypeStruct(v.shape, v.dtype.numpy) for v in leaves]
    return jax.jit(computed, keep_unused=True), shapes


__all__ = ["PLATFORMS", "exported", "stablehlo"]
