"""Loads that come before what uses them: scalars under names take their place."""

from __future__ import annotations

from dataclasses import field, replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import Expr, Load, Name, Set, Store, Tensor, rewrite


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
        return replace(statement, value=rewrite(statement.value, self._loaded))

    def _loaded(self, part: Any) -> Expr | None:
        if not isinstance(part, Load):
            return None
        return Name(self._name(part), part.dtype) if part.tensor.space == "global" else part

    def _name(self, load: Load) -> str:
        key = (load.tensor, load.at)
        if key not in self.names:
            self.names[key] = f"{self.prefix}{len(self.names)}"
            self.sets.append(Set(self.names[key], load))
        return self.names[key]


__all__ = ["Hoisted"]
