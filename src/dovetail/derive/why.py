"""Why a value fused or did not: every rule tried at it, and how far each got."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

from dovetail.dataclass import dataclass
from dovetail.declare.cost import Machine
from dovetail.declare.fused import FusedOp
from dovetail.derive.fuse import ANY_MACHINE, fuse, strata
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.match import Bound, match


@dataclass(frozen=True, slots=True)
class Attempt:
    """One rule tried with its root at one value: the attempt that got furthest."""

    rule: str
    variant: str
    outcome: Literal["fused", "refused", "mismatched"]
    matched: int
    size: int
    """How many ops of the pattern were found, of how many."""
    reason: str
    message: str
    hint: str

    def __str__(self) -> str:
        reason = f" {self.reason}: {self.message}" if self.message else ""
        return f"{self.outcome:<10} {self.rule} [{self.variant}] {self.matched}/{self.size}{reason}"


@dataclass(frozen=True, slots=True)
class Why:
    """What was tried at a value, in the order of the strata, and where the value ended up."""

    attempts: tuple[Attempt, ...]
    chain: tuple[str, ...]
    """The rules that swallowed the value, in order."""
    value: Value


def why(
    graph: Graph,
    value: Value,
    ops: Sequence[FusedOp[...]],
    *,
    machine: Machine = ANY_MACHINE,
    sizes: Mapping[str, Size] | None = None,
) -> Why:
    """Follow a value through the strata of fusing and note what each rule made of it."""
    attempts: list[Attempt] = []
    chain: list[str] = []
    for stratum in strata(ops):
        fused = fuse(graph.settled(), stratum, machine=machine, sizes=sizes)
        swallowed = {a.rule for a in fused.applied if value in a.covers}
        refused = {m.rule: (m.reason, m.message, "") for m in fused.missed if value in m.covers}
        for op in stratum:
            attempt = _furthest(op, value, op.name in swallowed, refused.get(op.name))
            if attempt is not None:
                attempts.append(attempt)
        chain += [a.rule for a in fused.applied if value in a.covers]
        value = fused.graph.moved.get(value, value)
        graph = fused.graph
    return Why(tuple(attempts), tuple(chain), value)


def _furthest(op: FusedOp[...], value: Value, swallowed: bool, refused: tuple[str, str, str] | None) -> Attempt | None:
    """Return the attempt that matched most of its pattern; patterns that start with another op are not tried."""
    best: Attempt | None = None
    for variant in op.patterns:
        bound = match(variant.pattern, value)
        if isinstance(bound, Bound):
            outcome: Literal["fused", "refused"] = "fused" if swallowed else "refused"
            reason, message, hint = refused or ("", "", "")
            return Attempt(op.name, variant.label, outcome, variant.size, variant.size, reason, message, hint)
        if bound.matched and (best is None or bound.matched > best.matched):
            best = Attempt(op.name, variant.label, "mismatched", bound.matched, variant.size, "pattern", str(bound), "")
    if best is None and (swallowed or refused is not None):
        reason, message, hint = refused or ("", "as an inner value", "")
        return Attempt(op.name, "", "fused" if swallowed else "refused", 0, 0, reason, message, hint)
    return best
