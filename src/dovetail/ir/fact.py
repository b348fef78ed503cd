"""What must hold of sizes: checked at once where they are known, recorded where they are not."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Literal

from dovetail.dataclass import dataclass
from dovetail.errors import SizeError, TypeRuleError
from dovetail.ir.dim import Size, at_least, divide, evaluate, substitute, symbols

Relation = Literal["equals", "at_least", "multiple_of"]


@dataclass(frozen=True, slots=True)
class Constraint:
    """A relation between two sizes that some value depends on."""

    left: Size
    relation: Relation
    right: Size
    why: str

    def holds(self, binding: Mapping[str, Size]) -> bool:
        left, right = evaluate(self.left, binding), evaluate(self.right, binding)
        match self.relation:
            case "equals":
                return left == right
            case "at_least":
                return left >= right
            case "multiple_of":
                return right != 0 and left % right == 0

    def bind(self, binding: Mapping[str, Size]) -> Constraint | None:
        """Return the constraint under a partial binding; None once it is known to hold."""
        left, right = substitute(self.left, binding), substitute(self.right, binding)
        verdict = _decide(left, self.relation, right)
        if verdict is True:
            return None
        if verdict is False:
            raise SizeError(
                f"{self.left} {self.relation.replace('_', ' ')} {self.right} does not hold: found {left} and {right}",
                hint=f"it is needed because {self.why}",
                symbols=tuple(sorted(self.symbols)),
            )
        return Constraint(left, self.relation, right, self.why)

    @property
    def symbols(self) -> frozenset[str]:
        return symbols(self.left) | symbols(self.right)

    def __str__(self) -> str:
        return f"{self.left} {self.relation} {self.right}"


def _decide(left: Size, relation: Relation, right: Size) -> bool | None:
    """True or False where algebra tells, None where it depends on the symbols."""
    if isinstance(left, int) and isinstance(right, int):
        return Constraint(left, relation, right, "").holds({})
    match relation:
        case "equals":
            apart = left - right
            return apart == 0 if isinstance(apart, int) else None
        case "at_least":
            bound = at_least(left - right)
            return True if bound is not None and bound >= 0 else None
        case "multiple_of":
            if right == 0:
                return False
            return True if divide(left, right) is not None else None


class Facts:
    """Collects, for one value, what its type rule takes for granted."""

    __slots__ = ("op", "recorded")

    def __init__(self, op: str) -> None:
        self.op = op
        self.recorded: list[Constraint] = []

    def equal(self, left: Size, right: Size, why: str) -> Size:
        """Record that both sizes are the same; return the better known one."""
        if left is right or left == right:
            return left
        self._need(left, "equals", right, why)
        return left if isinstance(left, int) else right

    def at_least(self, left: Size, right: Size, why: str) -> None:
        self._need(left, "at_least", right, why)

    def multiple(self, left: Size, right: Size, why: str) -> Size:
        """`right` divides `left`; gives back the quotient."""
        self._need(left, "multiple_of", right, why)
        return left // right

    def _need(self, left: Size, relation: Relation, right: Size, why: str) -> None:
        verdict = _decide(left, relation, right)
        if verdict is False:
            raise TypeRuleError(
                f"{self.op}: {why}: found {left} and {right}", hint=f"{left} must be {_WORDS[relation]} {right}"
            )
        if verdict is None:
            self.recorded.append(Constraint(left, relation, right, f"{self.op}: {why}"))


_WORDS: dict[Relation, str] = {"equals": "equal to", "at_least": "at least", "multiple_of": "a multiple of"}
