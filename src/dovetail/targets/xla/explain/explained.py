"""A graph on a mesh, explained without devices and without compiling: collectives, totals, remedies."""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import asdict, replace
from functools import cached_property
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import DeviceError, OptionError
from dovetail.ir.dim import Size
from dovetail.ir.graph import Graph
from dovetail.targets.xla.explain import child
from dovetail.targets.xla.explain.calibration import links_of
from dovetail.targets.xla.explain.collective import FREE, KINDS, Collective, Links, read, repeated
from dovetail.targets.xla.placement import WHOLE, Placement, Rule

WORTH = 0.02
"""A change that gains less of the time is not offered."""
MOST_HINTS = 3


@dataclass(frozen=True, slots=True)
class Remedy:
    """Another placement for the tensors of one rule, tried: what it gains, and what it costs in memory."""

    pattern: str
    placed: str
    instead_of: str
    collectives: int
    seconds: float
    """The time that it gains."""
    weights: int
    """Bytes of parameters on a device after it."""


class Explained:
    """The collectives of a graph under a placement."""

    def __init__(self, graph: Graph, placement: Placement, links: Links | None = None) -> None:
        placement.check(graph)
        unknown = sorted(
            {str(s) for v in (*graph.parameters, *graph.inputs) for s in v.shape if not isinstance(s, int)}
        )
        if unknown:
            raise OptionError(
                f"{graph.name} has sizes that are not known: {', '.join(unknown)}",
                hint=f"what moves depends on them; give each a number: --size {unknown[0]}=8",
            )
        placement = placement.with_state(graph)
        self.graph, self.placement, self.links = graph, placement, links or links_of(placement.sizes)
        leaves = [*graph.parameters, *graph.inputs]
        self.names = [str(v.attrs["name"]) for v in leaves]
        child.start()
        from dovetail.targets.xla.explain.lowered import module_of  # JAX is imported with it, while the child starts

        self.flops = 0.0
        """Operations of the products of one device; 0 where nothing is known of them."""
        self.unexplained = ""
        """Why there are no reasons: the collectives are then those of the compiled program."""
        try:
            answer = child.collectives(module_of(graph, placement), placement.sizes)
            self.all = tuple(read(one, self.names, placement) for one in answer["collectives"])
            self.flops = float(answer["flops"])
        except child.ShardyError as error:
            self.unexplained = str(error).splitlines()[0]
            self.all = self._compiled(error)

    def _compiled(self, error: child.ShardyError) -> tuple[Collective, ...]:
        from dovetail.targets.xla.explain.compiled import compiled_collectives

        try:
            return compiled_collectives(self.graph, self.placement)
        except DeviceError as missing:
            raise error from missing

    @property
    def rules(self) -> dict[str, str]:
        """The rules of the placement that fit a tensor."""
        return self.placement.spelled(self.names)

    @property
    def totals(self) -> dict[str, tuple[int, int]]:
        """By kind, how many collectives there are and their bytes."""
        kinds = sorted(self.counts)
        return {kind: (self.counts[kind], sum(c.bytes for c in self.collectives if c.kind == kind)) for kind in kinds}

    @property
    def collectives(self) -> tuple[Collective, ...]:
        """Those that move bytes."""
        return tuple(c for c in self.all if c.kind != FREE)

    @cached_property
    def seconds(self) -> float:
        return sum(c.seconds(self.links) for c in self.all)

    @property
    def counts(self) -> Counter[str]:
        return Counter(c.kind for c in self.collectives)

    @property
    def weights(self) -> tuple[int, int]:
        """Bytes of all parameters, and of those on one device."""
        sizes = [(str(v.attrs["name"]), int(v.tensor.bytes)) for v in self.graph.parameters]  # pyright: ignore
        return sum(n for _, n in sizes), sum(n // self.placement.parts(name) for name, n in sizes)

    def groups(self) -> list[tuple[Collective, int]]:
        """Collectives that are alike in all layers, and how many there are; the dearest first."""
        groups: dict[Collective, list[Collective]] = defaultdict(list)
        for one in self.collectives:
            groups[replace(one, place=repeated(one.place), origins=tuple(map(repeated, one.origins)))].append(one)
        return sorted(((c, len(all)) for c, all in groups.items()), key=lambda g: -g[0].seconds(self.links) * g[1])

    @cached_property
    def remedies(self) -> list[Remedy]:
        """Return changes of one rule each that save time, by trial; the best first."""
        placed = {repeated(name): self.placement.rule(name) for c in self.collectives for name in c.origins}
        tried = [
            self._tried(pattern, words, rule)
            for pattern, rule in placed.items()
            if rule is not None
            for words in self._others(pattern, rule)
        ]
        remedies = [r for r in tried if r is not None and r.seconds > WORTH * self.seconds]
        # Of changes to one placement that gain alike, the one that takes least memory.
        best: dict[str, Remedy] = {}
        for remedy in sorted(remedies, key=lambda r: (-round(r.seconds / self.seconds, 2), r.weights)):
            best.setdefault(remedy.pattern, remedy)
        return list(best.values())[:MOST_HINTS]

    def _others(self, pattern: str, rule: Rule) -> Iterator[str]:
        """Return the other placements of tensors over the same mesh axes: whole, or split along one of their axes."""
        leaves = [v for v in (*self.graph.parameters, *self.graph.inputs) if repeated(str(v.attrs["name"])) == pattern]
        axes = [a for over in rule.axes for a in over]
        parts = math.prod(self.placement.sizes[a] for a in axes)
        if axes:
            yield WHOLE
        for at in range(min((v.rank for v in leaves), default=0)):
            words = " ".join([WHOLE] * at + ["+".join(axes)])
            if axes and words != rule.placed and all(_divides(parts, v.shape[at]) for v in leaves):
                yield words

    def _tried(self, pattern: str, words: str, rule: Rule) -> Remedy | None:
        (changed,) = Placement.of(self.placement.sizes, {pattern: words}).rules
        placement = Placement(self.placement.mesh, (changed, *self.placement.rules))
        try:
            other = Explained(self.graph, placement, self.links)
        except child.ShardyError:
            return None
        gain = self.seconds - other.seconds
        return Remedy(pattern, words, rule.placed, len(other.collectives), gain, other.weights[1])

    def json(self) -> dict[str, Any]:
        """Everything, for other programs."""
        total, mine = self.weights
        return {
            "mesh": self.placement.sizes,
            "seconds": self.seconds,
            "calibration": self.links.source,
            "links": {axis: asdict(self.links.of((axis,))) for axis in self.placement.sizes},
            "weights": {"all": total, "device": mine},
            "unexplained": self.unexplained,
            "collectives": [
                {
                    "kind": c.kind,
                    "count": count,
                    "axes": list(c.axes),
                    "dtype": c.dtype,
                    "shape": list(c.shape),
                    "bytes": c.bytes,
                    "seconds": c.seconds(self.links),
                    "place": c.place,
                    "why": c.why,
                }
                for c, count in self.groups()
            ],
            "remedies": [
                {
                    "place": r.pattern,
                    "as": r.placed,
                    "instead_of": r.instead_of,
                    "seconds": r.seconds,
                    "weights": r.weights,
                }
                for r in self.remedies
            ],
        }

    def text(self) -> str:
        """For people: a line for each kind of collective and place, its reason below, hints last."""
        total, mine = self.weights
        mesh = ", ".join(f"{axis} {size}" for axis, size in self.placement.mesh)
        count = len(self.collectives)
        lines = [
            f"{self.graph.name} on {self.placement.devices} devices ({mesh}): {count} {_plural('collective', count)}, "
            f"predicted {self.seconds * 1e6:.0f} µs; weights {mine / 1e6:.2f} of {total / 1e6:.2f} MB on a device",
            f"calibration: {self.links.text(axis for axis, size in self.placement.mesh if size > 1)}",
        ]
        if self.unexplained:
            lines.append(f"read from the compiled program, without reasons: {self.unexplained}")
        for c, count in self.groups():
            moved = f"{c.dtype}[{', '.join(map(str, c.shape))}]"
            lines.append(
                f"{c.kind.upper():18} {count:3} × {moved:22} over {'+'.join(c.axes):6} {c.bytes * count:>12,} B "
                f"{c.seconds(self.links) * count * 1e6:8.1f} µs   at {c.place}"
            )
            lines.append(f"    {c.why}")
        for r in self.remedies:
            share = r.seconds / self.seconds
            lines.append(
                f'HINT  place {r.pattern} "{r.placed}" instead of "{r.instead_of}": {len(self.collectives)} → '
                f"{r.collectives} collectives, gains {r.seconds * 1e6:.0f} µs ({share:.0%}), "
                f"weights {mine / 1e6:.2f} → {r.weights / 1e6:.2f} MB on a device"
            )
        return "\n".join(lines)


def _divides(parts: int, size: Size) -> bool:
    return isinstance(size, int) and size % parts == 0


def _plural(word: str, count: int) -> str:
    return word if count == 1 else f"{word}s"


def shortfalls(explained: Explained, required: Sequence[str]) -> list[str]:
    """Return the gates that fail: `all-reduce=2/layer`, `all-gather=0`; a kind that is not named may be there."""
    layers = len({layer for layer in map(_layer, explained.names) if layer is not None}) or 1
    said: list[str] = []
    for text in required:
        kind, _, count = text.partition("=")
        number, _, per = count.partition("/")
        if kind not in KINDS or not number.isdigit() or per not in ("", "layer"):
            raise OptionError(f"a gate {text!r}", hint=f"write KIND=COUNT or KIND=COUNT/layer; {', '.join(KINDS)}")
        expected = int(number) * (layers if per else 1)
        if explained.counts[kind] != expected:
            said.append(f"{kind}: found {explained.counts[kind]}, expected {expected}")
    return said


def _layer(name: str) -> str | None:
    starred = repeated(name)
    if "*" not in starred:
        return None
    at = starred.index("*")
    return name[at:].split(".")[0]


__all__ = ["Explained", "Remedy", "shortfalls"]
