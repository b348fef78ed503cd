"""Loads that come before what uses them: scalars under names take their place."""

from __future__ import annotations

from dataclasses import field, replace

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Call, Expr, Load, Name, Set, Store, Tensor


@dataclass(slots=True)
class Hoisted:
    """Loads from memory of the device that several stores use."""

    prefix: str
    names: dict[tuple[Tensor, tuple[Expr, ...]], str] = field(
        default_factory=dict[tuple[Tensor, tuple[Expr, ...]], str]
    )
    sets: list[Set] = field(default_factory=list[Set])
    """What loads them."""

    def store(self, statement: Store) -> Store:
        """A store that finds its operands loaded."""
        return replace(statement, value=self._without(statement.value, {}))

    def _without(self, expr: Expr, known: dict[int, Expr]) -> Expr:
        hoisted = known.get(id(expr))
        if hoisted is None:
            hoisted = expr
            if isinstance(expr, Load) and expr.tensor.space == "global":
                hoisted = Name(self._name(expr), expr.dtype)
            elif isinstance(expr, Call):
                hoisted = replace(expr, operands=tuple([self._without(x, known) for x in expr.operands]))
            known[id(expr)] = hoisted
        return hoisted

    def _name(self, load: Load) -> str:
        key = (load.tensor, load.at)
        if key not in self.names:
            self.names[key] = f"{self.prefix}{len(self.names)}"
            self.sets.append(Set(self.names[key], load))
        return self.names[key]


__all__ = ["Hoisted"]
