"""The collectives of a graph on a mesh of devices, without devices."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.ir.graph import Graph
from dovetail.runtime.compile import compilation, make_request
from dovetail.targets.xla.target import placement_of

if TYPE_CHECKING:
    from dovetail.targets.xla.explain.auto import Chosen
    from dovetail.targets.xla.explain.explained import Explained


def explain_placement(
    graph: Graph, *, mesh: Mapping[str, int], place: Mapping[str, str] | None = None, preset: str | None = None
) -> Explained:
    """Every collective of a graph on a mesh: what moves, its reason, place and price, and what would change it.

    `place` names mesh axes by patterns, as in {"layers.*.wq": "- tp"}; a preset (data, tensor, sequence) places the
    tensors of dovetail's own models. Needs JAX, and neither devices nor a compilation.
    """
    placement = placement_of(mesh, place, preset)
    made = compilation(graph, make_request(target="xla"))
    from dovetail.targets.xla.explain.explained import Explained  # JAX is imported with it

    return Explained(made.plan.graph, placement)


def choose_placement(graph: Graph, *, mesh: Mapping[str, int]) -> Chosen:
    """The cheapest of the presets and of changes of their rules, with the prices of all that were tried."""
    made = compilation(graph, make_request(target="xla"))
    from dovetail.targets.xla.explain.auto import choose  # JAX is imported with it

    return choose(made.plan.graph, mesh)


__all__ = ["choose_placement", "explain_placement"]
