"""What if a missed fusion happened: the change that its hint asks for, applied, and what that would bring."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from dovetail.dataclass import dataclass
from dovetail.derive.fuse import Fused, fuse
from dovetail.derive.missed import COST, Missed
from dovetail.derive.remedy import NoRemedyError, Remedied, remedied
from dovetail.errors import DovetailError, OptionError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.models.weights import random_weights
from dovetail.passes.pipeline import with_near_misses, worthwhile
from dovetail.report.compare import Comparison
from dovetail.report.fold_names import fold_names
from dovetail.report.outline import Outline, outline_of
from dovetail.report.record import MissedEntry
from dovetail.runtime.compile import Compilation, compilation
from dovetail.runtime.request import Request


@dataclass(frozen=True, slots=True)
class Kind:
    """All misses of one rule and one reason, as the layers of a model repeat them."""

    number: int
    """Its place in the list of a model, the dearest first."""
    rule: str
    reason: str
    count: int
    seconds: float
    """What they cost, all together."""
    places: tuple[str, ...]
    message: str
    """Of the first of them."""
    hint: str


@dataclass(frozen=True, slots=True)
class WhatIf:
    """One kind of miss, remedied everywhere at once and compiled again."""

    kind: Kind
    remedied: Remedied | None
    refusal: str
    """Why nothing could be changed; empty where something was."""
    comparison: Comparison
    fires: int = 0
    """How many fusions more the rule makes; some of them may be part of larger ones."""

    @property
    def predicted_gain(self) -> float:
        """Seconds of a run, by the machine model."""
        return self.comparison.before.predicted_seconds - self.comparison.after.predicted_seconds

    @property
    def measured_gain(self) -> float | None:
        """Seconds of a run, where both were measured."""
        before, after = self.comparison.before.measured_seconds, self.comparison.after.measured_seconds
        return None if before is None or after is None else before - after


@dataclass(frozen=True, slots=True)
class Assumptions:
    """A model as it is, and what each change would bring on its own."""

    before: Outline
    what_ifs: tuple[WhatIf, ...]


def assume(graph: Graph, request: Request, wanted: Sequence[str] = ()) -> Assumptions:
    """Remedy each kind of miss that cost did not decline, or those named by number, rule or reason, one at a time."""
    made = compilation(graph, request)
    report = made.report()
    listed = _kinds((*report.missed, *report.near))
    kinds = listed if not wanted else _chosen(listed, wanted)
    before = outline_of(report)
    found = _fused(made) if kinds else None
    missed = with_near_misses(made.lowered, anew=True) if kinds else ()
    tried = tuple(_what_if(kind, before, made, found, missed, request) for kind in kinds if found is not None)
    return Assumptions(before, tried)


def _kinds(missed: Sequence[MissedEntry]) -> list[Kind]:
    """All misses but those that cost declined, and patterns that fit but for one op, by rule and reason."""
    together: dict[tuple[str, str], list[MissedEntry]] = {}
    for entry in missed:
        if entry.seconds > 0 or entry.reason != COST:
            together.setdefault((entry.rule, entry.reason), []).append(entry)
    ordered = sorted(together.values(), key=lambda entries: -sum(e.seconds for e in entries))
    return [_kind(number, entries) for number, entries in enumerate(ordered, 1)]


def _kind(number: int, entries: Sequence[MissedEntry]) -> Kind:
    first = entries[0]
    places = tuple(fold_names(e.node.where for e in entries if e.node.where))
    seconds = sum(e.seconds for e in entries)
    return Kind(number, first.rule, first.reason, len(entries), seconds, places, first.message, first.hint)


def _chosen(kinds: Sequence[Kind], wanted: Sequence[str]) -> list[Kind]:
    found: dict[Kind, None] = {}
    for word in wanted:
        meant = [k for k in kinds if word in (str(k.number), k.rule, k.reason)]
        if not meant:
            listed = ", ".join(f"{k.number} ({k.rule}: {k.reason})" for k in kinds) or "none"
            raise OptionError(f"there is no miss {word!r} to assume away", hint=f"the misses are {listed}")
        found.update(dict.fromkeys(meant))
    return list(found)


def _fused(made: Compilation) -> Fused:
    """What the declared ops alone make of the graph: every engine reports the misses that are found here."""
    setup = made.setup
    graph = made.lowered.stage("canonical").settled()
    return fuse(graph, worthwhile(setup), machine=setup.claims.machine, sizes=setup.sizes, near=True)


def _what_if(
    kind: Kind, before: Outline, made: Compilation, fused: Fused, missed: Sequence[Missed], request: Request
) -> WhatIf:
    same = Comparison(before, before, {})
    try:
        changed = _remedied(kind, made, fused, missed)
    except NoRemedyError as error:
        return WhatIf(kind, None, error.message, same)
    except DovetailError as error:
        # The change is right where it is made; what reads the new value need not take it.
        return WhatIf(kind, None, f"no automatic remedy: the rest of the model does not take it: {error.message}", same)
    after = compilation(changed.graph, request)
    more = _applied(kind.rule, after) - _applied(kind.rule, made)
    return WhatIf(kind, changed, "", Comparison(before, outline_of(after.report()), {}), more)


def _applied(rule: str, made: Compilation) -> int:
    return sum(fusion.rule == rule for fusion in made.lowered.state.applied)


def _remedied(kind: Kind, made: Compilation, fused: Fused, missed: Sequence[Missed]) -> Remedied:
    op = next((op for op in made.setup.ops if op.name == kind.rule), None)
    alike = [m for m in fused.missed if (m.rule, m.reason) == (kind.rule, kind.reason)]
    if op is None or not alike:
        raise NoRemedyError(f"no automatic remedy for {kind.reason}", hint=kind.hint)
    standing = {m.root for m in missed if (m.rule, m.reason) == (kind.rule, kind.reason)}
    found = remedied(fused, op, [m for m in alike if m.root in standing] or alike)
    if not made.written.params:
        return found
    named = {str(v.attrs["name"]) for v in found.fresh if v.op is leaf.PARAM}
    arrays = {name: array for name, array in random_weights(found.graph).items() if name in named} if named else {}
    return replace(found, graph=replace(found.graph, params={**found.graph.params, **arrays}))


__all__ = ["Assumptions", "Kind", "WhatIf", "assume"]
