"""The collectives of a graph on a mesh of devices, without devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.errors import OptionError
from dovetail.runtime.compile import compilation, make_request
from dovetail.runtime.source import graph_of
from dovetail.targets.xla.target import placement_of

if TYPE_CHECKING:
    from dovetail.targets.xla.explain.auto import Chosen
    from dovetail.targets.xla.explain.explained import Explained


def explain_placement(
    graph: Any,
    *,
    mesh: Mapping[str, int] | None = None,
    place: Mapping[str, str] | None = None,
    preset: str | None = None,
) -> Explained:
    """Every collective of a graph on a mesh: what moves, its reason, place and price, and what would change it.

    `graph` is what `compile` takes: a graph, a file, a function that JAX lowered, a program that torch exported.
    `place` names mesh axes by patterns, as in {"layers.*.wq": "- tp"}; a preset (data, tensor, sequence) places the
    tensors of dovetail's own models. A function of JAX that was lowered with `in_shardings` brings its mesh and its
    placements; `place` goes before them. Needs JAX, and neither devices nor a compilation.
    """
    if hasattr(graph, "in_tree"):
        from dovetail.frontends.jax.calling import placement_in  # JAX is there, where its function is

        of_function, there = placement_in(graph)
        mesh, place = mesh or of_function, {**there, **(place or {})}
    if not mesh:
        raise OptionError("no mesh to place a graph on", hint='pass mesh={"tp": 2}')
    placement = placement_of(mesh, place, preset)
    made = compilation(graph_of(graph), make_request(target="xla"))
    from dovetail.targets.xla.explain.explained import Explained  # JAX is imported with it

    return Explained(made.plan.graph, placement)


def choose_placement(graph: Any, *, mesh: Mapping[str, int]) -> Chosen:
    """The cheapest of the presets and of changes of their rules, with the prices of all that were tried."""
    made = compilation(graph_of(graph), make_request(target="xla"))
    from dovetail.targets.xla.explain.auto import choose  # JAX is imported with it

    return choose(made.plan.graph, mesh)


__all__ = ["choose_placement", "explain_placement"]
