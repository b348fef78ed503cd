"""Replaying: what rules found in one window, carried over to every place that looks the same."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import field

from dovetail.dataclass import dataclass
from dovetail.egraph.engine import EGraph, egraph_of
from dovetail.egraph.layers import Layers, Template
from dovetail.egraph.proof import Application
from dovetail.egraph.saturate import Budget, Phase, Saturation, saturate
from dovetail.ir.value import Value
from dovetail.ir.walk import walk


@dataclass(frozen=True, slots=True)
class Solved:
    """A template and the applications that rules found for its core."""

    template: Template
    log: tuple[Application, ...]
    saturation: Saturation


@dataclass(slots=True)
class Replayed:
    """What came of a graph piece by piece."""

    solved: list[Saturation] = field(default_factory=list[Saturation])
    """Of the pieces that look different, one each."""
    pieces: int = 0


def solve(layers: Layers, phases: Sequence[Phase], budget: Budget, into: EGraph) -> Replayed:
    """Solve each window that looks different once, and apply its solution at every place that looks like it."""
    known: dict[Hashable, Solved] = {}
    done = Replayed()
    pieces = layers.pieces()
    views = [layers.seen(piece) for piece in pieces] if len(pieces) > 1 else []
    different = {seen.key: len(seen.shown) for seen in views}
    if not views or sum(different.values()) >= len(layers.values):
        # What hardly repeats is solved where it stands.
        return Replayed([saturate(into, phases, budget)], 1)
    for piece, seen in zip(pieces, views, strict=True):
        solved = known.get(seen.key)
        if solved is None:
            solved = known[seen.key] = _solved(
                layers.template(seen, len(seen.shown) - (piece.stop - piece.start)), phases, budget
            )
            done.solved.append(solved.saturation)
        done.pieces += 1
        _replay(solved, layers.actual(seen), into)
    into.rebuild()
    return done


def _solved(template: Template, phases: Sequence[Phase], budget: Budget) -> Solved:
    egraph = egraph_of(template.values, template.uses)
    saturation = saturate(egraph, phases, budget)
    core = {egraph.find(v) for v in template.values[template.core :]}
    halo = {egraph.find(v) for v in template.values[: template.core]} - core

    def is_ours(application: Application) -> bool:
        """Return whether it reaches beyond the halo; the piece before decides what is within it."""
        return any([egraph.add(v) not in halo for v in (application.root, *application.covers)])

    return Solved(template, tuple(filter(is_ours, saturation.log)), saturation)


def _replay(solved: Solved, actual: Sequence[Value], into: EGraph) -> None:
    template = solved.template
    now = dict(zip((*template.outside, *template.values), actual, strict=True))
    move = mover(now)
    for application in solved.log:
        into.apply(
            Application(
                application.rule,
                application.variant,
                application.numerics,
                move(application.root),
                move(application.result),
                tuple([move(v) for v in application.covers]),
                tuple([(move(a), move(b)) for a, b in application.taken]),
            )
        )


def mover(now: dict[Value, Value]) -> Callable[[Value], Value]:
    """Carries values over: what is built of the known ones is built of what these are now."""

    def move(value: Value) -> Value:
        known = now.get(value)
        if known is None:
            for each in walk([value], until=now):
                if each not in now:
                    now[each] = each.with_operands(tuple([now[v] for v in each.operands])) if each.operands else each
            known = now[value]
        return known

    return move
