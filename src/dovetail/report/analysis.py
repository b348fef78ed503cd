"""Two graphs side by side: what a pass, or a hand, has changed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir.graph import Graph
from dovetail.ops.region import region


@dataclass(frozen=True, slots=True)
class Analysis:
    """How many values of each op there were and are, and which of the new ones are fused."""

    nodes_before: int
    nodes_after: int
    ops_before: Mapping[str, int]
    ops_after: Mapping[str, int]
    fused: Mapping[str, int]
    """Fused values that are new, by op."""

    @property
    def changed(self) -> Mapping[str, int]:
        """Ops whose number changed, and by how much."""
        names = sorted({*self.ops_before, *self.ops_after})
        apart = {name: self.ops_after.get(name, 0) - self.ops_before.get(name, 0) for name in names}
        return {name: count for name, count in apart.items() if count}

    def __str__(self) -> str:
        changed = ", ".join(f"{name} {count:+d}" for name, count in self.changed.items())
        return f"{self.nodes_before} → {self.nodes_after} nodes: {changed or 'nothing changed'}"


def analyze(before: Graph, after: Graph) -> Analysis:
    """What stands in one graph and not in the other."""
    old, new = Counter(v.op.name for v in before.values), Counter(v.op.name for v in after.values)
    fused = {v.op.name for v in after.values if isinstance(v.op, FusedOp) or v.op is region}
    return Analysis(
        nodes_before=before.count(),
        nodes_after=after.count(),
        ops_before=dict(sorted(old.items())),
        ops_after=dict(sorted(new.items())),
        fused={name: new[name] - old[name] for name in sorted(fused) if new[name] > old[name]},
    )
