"""Legalisation: expand and rewrite until a target runs every value natively, or say all it cannot run."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal

from dovetail.dataclass import dataclass
from dovetail.derive.edit import Log
from dovetail.errors import UnsupportedError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value
from dovetail.passes.claims import Claims, Condition, Dispatch

Lowering = Callable[[Value, tuple[Value, ...], Claims], "Value | None"]
"""Spells a primitive in others: given a value and its new operands; None where it does not apply."""
Outcome = Literal["native", "common", "rewritten", "unsupported", "host"]


@dataclass(frozen=True, slots=True)
class DispatchRow:
    """How the values of one op are run, and why those that are not native are not."""

    op: str
    outcome: Outcome
    count: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Legal:
    """A graph of native values only, and how each op got there."""

    graph: Graph
    dispatch: tuple[DispatchRow, ...]


def legalize(
    graph: Graph,
    claims: Claims,
    *,
    policy: Mapping[str, Dispatch] | None = None,
    lowerings: Mapping[str, Lowering] | None = None,
    log: Log | None = None,
) -> Legal:
    """Expand what is not native by its body, rewrite what has a lowering; all that is left over is one error."""
    step = _Legalizer(graph, claims, policy or {}, lowerings or {}, log)
    for _ in range(_MOST_ROUNDS):
        step.changed = False
        if log is not None:
            log.begin("rewrite")
        step.graph = rebuild(step.graph, step.spell)
        if not step.changed:
            break
    step.left = _everything(step.graph)
    step.refuse_what_is_left()
    return Legal(step.graph, step.rows())


def spell_out(graph: Graph, ops: Collection[str], log: Log | None = None) -> Graph:
    """The graph with the bodies of some ops in their place."""

    def body(value: Value, operands: tuple[Value, ...]) -> Value | None:
        if value.op.name not in ops:
            return None
        spelled = value.op.expansion(operands, value.attrs)
        if spelled is not None and log is not None:
            log.rewrite(f"lower {value.op.name}", "exact", value.with_operands(operands), spelled)
        return spelled

    if log is not None:
        log.begin("rewrite")
    return rebuild(graph, body)


_MOST_ROUNDS = 64
"""Each round goes one level down; bodies are nested a handful of levels deep."""


class _Legalizer:
    def __init__(
        self,
        graph: Graph,
        claims: Claims,
        policy: Mapping[str, Dispatch],
        lowerings: Mapping[str, Lowering],
        log: Log | None,
    ) -> None:
        self.log = log
        self.graph = graph
        self.claims = claims
        self.policy = policy
        self.lowerings = lowerings
        self.changed = False
        self.spelled: Counter[tuple[str, Outcome, str]] = Counter()
        self.native: set[Value] = set()
        """Values that the target runs."""
        self.left: Sequence[Value] = ()
        """All values after the last round."""

    def spell(self, value: Value, operands: tuple[Value, ...]) -> Value | None:
        if value.op in leaf.LEAVES:
            return None
        new = value.with_operands(operands)
        wish = self.policy.get(value.op.name, self.policy.get("*", "prefer_native"))
        refusal = self.refusal(new)
        if refusal is None and wish != "force_common":
            return self._broadcast(new, operands)
        if wish == "force_native":
            return None
        why = refusal.reason if refusal is not None else "expansion was asked for"
        lowering = self.lowerings.get(value.op.name)
        lowered = lowering(new, operands, self.claims) if lowering is not None else None
        outcome: Outcome = "rewritten"
        if lowered is None:
            lowered = new.op.expansion(operands, new.attrs)
            outcome = "common"
        if lowered is None or lowered is new:
            return None
        self.spelled[(value.op.name, outcome, why)] += 1
        self.changed = True
        if self.log is not None:
            self.log.rewrite(f"lower {value.op.name}", "exact" if outcome == "common" else "reassociated", new, lowered)
        return lowered

    def refusal(self, value: Value) -> Condition | None:
        """Why the target does not run a value; each value that it runs is asked about once."""
        if value in self.native:
            return None
        found = self.claims.refusal(value)
        if found is None:
            self.native.add(value)
        return found

    def _broadcast(self, new: Value, operands: tuple[Value, ...]) -> Value | None:
        """Operands of equal shape, for targets whose elementwise kernels do not stretch."""
        spell = self.lowerings.get("broadcast") if self.claims.broadcasts == "explicit" else None
        if spell is None or not new.op.elementwise:
            return None
        stretched = spell(new, operands, self.claims)
        if stretched is not None:
            self.changed = True
            if self.log is not None:
                self.log.rewrite("lower broadcast", "exact", new, stretched)
        return stretched

    def refuse_what_is_left(self) -> None:
        """One error that lists every value that stays without a kernel."""
        lines: list[str] = []
        for value in self.left:
            refusal = None if value.op in leaf.LEAVES else self.refusal(value)
            wish = self.policy.get(value.op.name, self.policy.get("*", "prefer_native"))
            if refusal is not None and not (wish == "force_common" and self.claims.has(value.op.name)):
                where = self.graph.where(value)
                lines.append(f"  {value.op.name} {value.type}{f' at {where}' if where else ''}: {refusal.reason}")
        if lines:
            shown = lines[:50] + ([f"  … and {len(lines) - 50} more"] if len(lines) > 50 else [])
            raise UnsupportedError(
                f"{len(lines)} values have no kernel on {self.claims.target}:\n" + "\n".join(shown),
                hint="choose another target, or declare the op with a body made of ops that the target has",
            )

    def rows(self) -> tuple[DispatchRow, ...]:
        kept = Counter([v.op.name for v in self.left if v.op not in leaf.LEAVES])
        native = [DispatchRow(op, "native", count) for op, count in kept.items()]
        spelled = [DispatchRow(op, outcome, count, why) for (op, outcome, why), count in self.spelled.items()]
        return tuple(sorted([*native, *spelled], key=lambda r: (r.op, r.outcome, r.reason)))


def _everything(graph: Graph) -> list[Value]:
    """The values of a graph and of all graphs nested in it."""
    found: list[Value] = []
    pending = [graph.values]
    while pending:
        for value in pending.pop():
            found.append(value)
            # A region's kernel is made of its steps; nobody runs them one by one.
            if value.op.name != "region":
                pending += [a.values for a in value.attrs.values() if isinstance(a, Subgraph)]
    return found
