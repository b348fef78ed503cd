"""Horizontal batching: independent regions of one form run as one kernel."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.dataclass import dataclass
from dovetail.derive.edit import Log
from dovetail.derive.fuse import Fused
from dovetail.derive.missed import Applied
from dovetail.ir import leaf
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.rewrite import Replacement, replace_roots
from dovetail.ir.value import Value
from dovetail.ops.movement import again
from dovetail.ops.region import anchor_of, region


def batch_regions(graph: Graph, log: Log | None = None) -> Fused:
    """Join regions with the same body that stand at the same depth, so that none depends on another.

    What is computed again runs late, and never together with what it repeats.
    """
    depth: dict[Value, int] = {}
    late: set[Value] = set()
    alike: dict[tuple[Subgraph, int, bool], list[Value]] = {}
    for value in graph.values:
        if value.op is again or not late.isdisjoint(value.operands):
            late.add(value)
        depth[value] = 1 + max((depth[v] for v in value.operands), default=-1)
        if value.op is region and value.attrs["lanes"] == 1 and anchor_of(value.attrs["body"]) is None:
            alike.setdefault((value.attrs["body"], depth[value], value in late), []).append(value)
    replacements: dict[Value, Replacement] = {}
    built: dict[Value, Value] = {}
    batches = [(body, lanes) for (body, *_), lanes in alike.items() if len(lanes) > 1]
    if log is not None:
        log.begin("roots")
    for body, lanes in batches:
        needs = tuple(v for lane in lanes for v in lane.operands)
        for index, lane in enumerate(lanes):
            replacements[lane] = Replacement(needs, _Build(body, needs, index, len(lanes), lane, built), (lane,))
        if log is not None:
            together = region(body, needs, lanes=len(lanes))
            made = [leaf.item(together, index) for index in range(len(lanes))]
            log.replace("batched_region", f"{len(lanes)} lanes", "exact", lanes, made, needs, lanes)
    new = replace_roots(graph, replacements)
    applied = [
        Applied("batched_region", f"{len(lanes)} lanes", lanes[0], tuple(lanes), built[lanes[0]])
        for _, lanes in batches
    ]
    return Fused(new, tuple(applied), ())


@dataclass(frozen=True, slots=True)
class _Build:
    body: Subgraph
    needs: tuple[Value, ...]
    index: int
    lanes: int
    lane: Value
    built: dict[Value, Value]

    def __call__(self, new: Callable[[Value], Value]) -> Value:
        together = region(self.body, [new(v) for v in self.needs], lanes=self.lanes)
        self.built[self.lane] = together
        return leaf.item(together, self.index)
