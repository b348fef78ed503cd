"""Where tensors are on a mesh of devices: mesh axes by name patterns, as users write them.

    Placement.of({"dp": 2, "tp": 4}, {"input_ids": "dp", "layers.*.wq": "- tp", "layers.*.wo": "tp"})

A placement names a mesh axis for each axis of a tensor: `-` leaves one whole, `dp+tp` splits it over both, and axes
that are not named are whole. The first pattern that fits a name counts; what none fits is whole on every device.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from glob import escape
from typing import cast

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.ir.graph import Graph
from dovetail.ir.value import Value
from dovetail.nearest import nearest

WHOLE = "-"
MeshAxes = tuple[tuple[str, ...], ...]
"""For each axis of a tensor the mesh axes that it is split over."""


@dataclass(frozen=True, slots=True)
class Rule:
    """Tensors whose names fit a pattern, and how they are split."""

    pattern: str
    placed: str
    axes: MeshAxes
    preset: bool = False
    """Whether it is one of a preset, which may fit nothing."""

    def fits(self, name: str) -> bool:
        return fnmatchcase(name, self.pattern)


@dataclass(frozen=True, slots=True)
class Placement:
    """A mesh, and which of its axes split which tensors."""

    mesh: tuple[tuple[str, int], ...]
    rules: tuple[Rule, ...] = ()

    @staticmethod
    def of(
        mesh: Mapping[str, int], place: Mapping[str, str] | None = None, preset: Mapping[str, str] | None = None
    ) -> Placement:
        """A placement, checked: sizes of 1 or more, axes of the mesh alone, none used twice for a tensor.

        Rules of the user come before those of the preset.
        """
        for name, size in mesh.items():
            if not name.isidentifier() or not isinstance(cast(object, size), int) or size is True or size < 1:
                raise OptionError(f"a mesh axis {name!r} of size {size!r}", hint='name sizes: {"dp": 2, "tp": 4}')
        sizes = tuple(mesh.items())
        own = [_rule(pattern, placed, mesh) for pattern, placed in (place or {}).items()]
        known = {rule.pattern for rule in own}
        more = [
            _rule(pattern, _present(placed, mesh), mesh, preset=True)
            for pattern, placed in (preset or {}).items()
            if pattern not in known
        ]
        return Placement(sizes, (*own, *more))

    @property
    def sizes(self) -> dict[str, int]:
        return dict(self.mesh)

    @property
    def devices(self) -> int:
        return math.prod(self.sizes.values())

    def rule(self, name: str) -> Rule | None:
        """The rule that counts for a name."""
        return next((rule for rule in self.rules if rule.fits(name)), None)

    def axes(self, name: str) -> MeshAxes:
        """How a tensor is split."""
        rule = self.rule(name)
        return () if rule is None else rule.axes

    def parts(self, name: str) -> int:
        """Into how many parts a tensor is split."""
        return math.prod(self.sizes[a] for axes in self.axes(name) for a in axes)

    def spelled(self, names: Sequence[str]) -> dict[str, str]:
        """The rules that fit a name, in the order in which they count: what to write into a file."""
        placed: dict[str, str] = {}
        for rule in self.rules:
            if any(map(rule.fits, names)):
                placed.setdefault(rule.pattern, rule.placed)
        return placed

    def with_state(self, graph: Graph) -> Placement:
        """The placement with rules for the state of an optimizer: it is split as its weight is.

        A tensor `layers.0.wq.m` is state of `layers.0.wq` where both have one shape and no rule names it.
        """
        leaves = {str(v.attrs["name"]): v for v in (*graph.parameters, *graph.inputs)}
        more: list[Rule] = []
        for name, value in leaves.items():
            weight = name.rpartition(".")[0]
            rule = self.rule(weight) if weight in leaves and self.rule(name) is None else None
            if rule is not None and leaves[weight].shape == value.shape:
                more.append(Rule(escape(name), rule.placed, rule.axes, preset=True))
        return Placement(self.mesh, (*more, *self.rules))

    def check(self, graph: Graph) -> None:
        """Every rule fits a parameter or an input of the graph, also one that nothing reads, and splits it evenly."""
        leaves = {str(v.attrs["name"]): v for v in (*graph.declared, *graph.parameters, *graph.inputs)}
        for rule in self.rules:
            if not rule.preset and not any(map(rule.fits, leaves)):
                raise OptionError(
                    f"no parameter or input of {graph.name} fits {rule.pattern!r}", hint=_instead(rule.pattern, leaves)
                )
        for name, value in leaves.items():
            rule = self.rule(name)
            if rule is not None:
                self._check_fits(name, value, rule)

    def _check_fits(self, name: str, value: Value, rule: Rule) -> None:
        if len(rule.axes) > value.rank:
            raise OptionError(
                f'{rule.pattern} is placed "{rule.placed}", and {name} is {value.type}',
                hint=f"name at most {value.rank} axes",
            )
        for size, over in zip(value.shape, rule.axes, strict=False):
            parts = math.prod(self.sizes[a] for a in over)
            if isinstance(size, int) and size % parts:
                raise OptionError(
                    f'{rule.pattern} is placed "{rule.placed}": an axis of {name} has {size} elements, '
                    f"and {'+'.join(over)} has {parts} devices",
                    hint=f"an axis is split evenly: {size} has the divisors {', '.join(map(str, _divisors(size)))}",
                )


def _rule(pattern: str, placed: str, mesh: Mapping[str, int], *, preset: bool = False) -> Rule:
    if not isinstance(cast(object, placed), str):
        raise OptionError(f"{pattern} is placed {placed!r}", hint='name a mesh axis for each axis: "- tp"')
    axes = tuple(() if word == WHOLE else tuple(word.split("+")) for word in placed.split())
    used = [a for over in axes for a in over]
    for axis in used:
        if axis not in mesh:
            raise OptionError(
                f'{pattern} is placed "{placed}", and the mesh has no axis {axis!r}', hint=f"it has {', '.join(mesh)}"
            )
    if len(set(used)) < len(used):
        twice = next(a for a in used if used.count(a) > 1)
        raise OptionError(f'{pattern} is placed "{placed}", which uses {twice} twice', hint="an axis splits one axis")
    return Rule(pattern, placed, axes, preset)


def _present(placed: str, mesh: Mapping[str, int]) -> str:
    """A placement of a preset on a mesh that may lack some of its axes."""
    words = ["+".join(a for a in word.split("+") if a in mesh) or WHOLE for word in placed.split()]
    return " ".join(words)


def _instead(pattern: str, names: Iterable[str]) -> str:
    known = list(names)
    near = nearest(pattern, known)
    return f"did you mean {near[0]!r}?" if near else f"names are {', '.join(known[:8])}"


def _divisors(size: int) -> list[int]:
    return [n for n in range(2, min(size, 64) + 1) if size % n == 0] or [1]


__all__ = ["MeshAxes", "Placement", "Rule"]
