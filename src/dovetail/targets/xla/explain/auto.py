"""`--place auto`: the placement with the lowest price among the presets, and changes of single rules that gain more."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.graph import Graph
from dovetail.targets.xla.explain.explained import Explained
from dovetail.targets.xla.placement import Placement
from dovetail.targets.xla.presets import PRESETS

FLOPS = 1e13
"""Operations a second that a device is taken for."""
MOST_CHANGES = 4
WHOLE = "whole"


@dataclass(frozen=True, slots=True)
class PricedPlacement:
    """A placement that was tried."""

    name: str
    explained: Explained

    @property
    def computing(self) -> float:
        return self.explained.flops / FLOPS

    @property
    def seconds(self) -> float:
        """Of the products of a device and of what moves."""
        return self.computing + self.explained.seconds

    def __str__(self) -> str:
        mine = self.explained.weights[1]
        return (
            f"{self.name}: {self.seconds * 1e6:.0f} µs ({self.computing * 1e6:.0f} computing, "
            f"{self.explained.seconds * 1e6:.0f} moving), weights {mine / 1e6:.2f} MB on a device"
        )


@dataclass(frozen=True, slots=True)
class Chosen:
    """The cheapest placement, and all that were tried, the cheapest first."""

    best: PricedPlacement
    tried: tuple[PricedPlacement, ...]

    @property
    def rules(self) -> dict[str, str]:
        """What to write into a file, and to give as `place`."""
        return self.best.explained.rules

    def json(self) -> dict[str, Any]:
        """For other programs."""
        tried = [
            {
                "name": one.name,
                "computing": one.computing,
                "moving": one.explained.seconds,
                "weights": one.explained.weights[1],
            }
            for one in self.tried
        ]
        return {"chosen": self.best.name, "rules": self.rules, "tried": tried}

    def text(self) -> str:
        """The choice and its price, those of the others, and the rules."""
        others = [one for one in self.tried if one is not self.best]
        lines = [f"CHOSE {self.best}", *(f"not   {one}" for one in others)]
        return "\n".join([*lines, *(f"      {pattern}: {words}" for pattern, words in self.rules.items())])


def choose(graph: Graph, mesh: Mapping[str, int]) -> Chosen:
    """Try the presets, then changes of the best one's rules while they gain."""
    tried = [PricedPlacement(WHOLE, Explained(graph, Placement.of(mesh)))]
    for name, preset in PRESETS.items():
        placement = Placement.of(mesh, None, preset)
        same = any(_splits(one.explained.placement, graph) == _splits(placement, graph) for one in tried)
        if not same and _fits(placement, graph):
            tried.append(PricedPlacement(name, Explained(graph, placement)))
    best = min(tried, key=_price)
    for _ in range(MOST_CHANGES):
        changes = [_changed(best, remedy.pattern, remedy.placed) for remedy in best.explained.remedies]
        better = min(changes, key=_price, default=best)
        if better.seconds >= best.seconds:
            break
        best = better
        tried.append(best)
    return Chosen(best, tuple(sorted(tried, key=_price)))


def _price(one: PricedPlacement) -> tuple[float, int]:
    return one.seconds, one.explained.weights[1]


def _splits(placement: Placement, graph: Graph) -> list[tuple[int, str]]:
    """Which axis of which tensor is split over what."""
    names = [str(v.attrs["name"]) for v in (*graph.parameters, *graph.inputs)]
    return [(at, f"{name} {over}") for name in names for at, over in enumerate(placement.axes(name)) if over]


def _fits(placement: Placement, graph: Graph) -> bool:
    try:
        placement.check(graph)
    except OptionError:
        return False
    return True


def _changed(one: PricedPlacement, pattern: str, words: str) -> PricedPlacement:
    placement = one.explained.placement
    (rule,) = Placement.of(placement.sizes, {pattern: words}).rules
    changed = Placement(placement.mesh, (rule, *placement.rules))
    return PricedPlacement(
        f'{one.name}, {pattern} "{words}"', Explained(one.explained.graph, changed, one.explained.links)
    )


__all__ = ["Chosen", "PricedPlacement", "choose"]
