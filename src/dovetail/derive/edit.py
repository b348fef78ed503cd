"""Edits: each application of a rule as two values that can be evaluated alone, in the order they were made."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import field
from typing import Literal, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.ir.value import Value

Faithful: TypeAlias = Literal["exact", "reassociated"]
"""Every bit stays but the payload of NaN; or rounding and the sign of zero may change."""
Numerics: TypeAlias = Faithful | Literal["approximate"]
"""Or the result is another one, close enough."""
BOUNDS: Mapping[Numerics, float] = {"exact": 0.0, "reassociated": 1e-9, "approximate": 1e-3}
"""How far a rule of each class may move a value in float64, relative to the largest; verifying holds it to that."""
CONGRUENCE = "congruence"
"""The name of the rule where a value is only read through others that equal its operands."""
Manner: TypeAlias = Literal["rewrite", "roots"]
"""Operands first, each value once; or roots at once, all in terms of the graph as it was before."""


@dataclass(frozen=True, slots=True, eq=False)
class Edit:
    """One application of a rule: `after` stands in place of `before`, result by result, on the same operands."""

    rule: str
    variant: str
    numerics: Numerics
    before: tuple[Value, ...]
    after: tuple[Value, ...]
    needs: tuple[Value, ...] = ()
    """Of roots: the operands that `after` is built from."""
    covers: tuple[Value, ...] = ()
    """Of roots: the values that are swallowed."""
    final: bool = True
    """Of rewrites: whether `after` stays as it is; otherwise it is rewritten in turn."""
    proof: tuple[Edit, ...] = ()
    """The applications that lead from the one to the other, where it takes several."""

    @property
    def name(self) -> str:
        return f"{self.rule} [{self.variant}]" if self.variant else self.rule


@dataclass(slots=True)
class Sweep:
    """Edits that are made together: a pass over the graph."""

    manner: Manner
    edits: list[Edit] = field(default_factory=list[Edit])
    title: str = ""


class Log:
    """Collects edits, sweep by sweep; passes get one only where a caller wants them."""

    def __init__(self) -> None:
        self.sweeps: list[Sweep] = []

    def begin(self, manner: Manner) -> None:
        """Begin a new sweep over the graph."""
        self.sweeps.append(Sweep(manner))

    def rewrite(self, rule: str, numerics: Numerics, before: Value, after: Value, *, variant: str = "") -> None:
        """Note a rewrite whose result stays."""
        self.add(Edit(rule, variant, numerics, (before,), (after,)))

    def replace(
        self,
        rule: str,
        variant: str,
        numerics: Numerics,
        before: Sequence[Value],
        after: Sequence[Value],
        needs: Sequence[Value],
        covers: Sequence[Value],
    ) -> None:
        """Note that roots are replaced."""
        self.add(Edit(rule, variant, numerics, tuple(before), tuple(after), tuple(needs), tuple(covers)))

    def add(self, edit: Edit) -> None:
        self.sweeps[-1].edits.append(edit)

    def entitle(self, title: str) -> None:
        """Name the sweeps that have no name yet by the pass that made them."""
        for sweep in self.sweeps:
            sweep.title = sweep.title or title


__all__ = ["BOUNDS", "CONGRUENCE", "Edit", "Faithful", "Log", "Manner", "Numerics", "Sweep"]
