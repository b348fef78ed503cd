"""What a value computes. Primitives and declared ops are both of this kind."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail.ir.fact import Facts
from dovetail.ir.type import Type

if TYPE_CHECKING:
    from dovetail.ir.value import Value


class Op:
    """A name, a type rule and the traits that every pass may ask for."""

    name: str
    commutative: bool = False
    elementwise: bool = False
    branches: bool = False
    """Whether only one of its sub-graphs is run: what each takes for granted holds where it is run, and only there."""

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        """The type of the result; what it takes for granted goes into `facts`."""
        raise NotImplementedError

    def normal(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Mapping[str, Any]:
        """The attributes in their one normal form; doing it twice changes nothing."""
        return attrs

    def expansion(self, operands: tuple[Value, ...], attrs: Mapping[str, Any]) -> Value | None:
        """The same value spelled out in lower ops; None for an op that is spelled no lower."""
        return None

    def __str__(self) -> str:
        return self.name

    def __repr__(self) -> str:
        return f"<op {self.name}>"
