"""A body for several elements, one after the other: what is the same for all of them runs once."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    Expr,
    Extent,
    Load,
    Loop,
    Name,
    Set,
    Statement,
    Store,
    When,
    defs,
    rewrite,
    uses,
)


@dataclass(frozen=True, slots=True)
class Repeated:
    """Elements that are independent of each other, whose number in a loop of known length is a name."""

    variable: str
    count: int

    def of(self, body: Sequence[Statement], moving: Sequence[Set]) -> list[Statement] | None:
        """A body; `moving` are the names that differ between elements, each of which follows from those before it.

        None where a name is the same for all elements at first and then differs, or leaves a loop or a condition.
        """
        own, statements, still = [*moving], list[Statement](), set[str]()
        for number, s in enumerate(body):
            names = {one.name for one in own}
            if isinstance(s, When) and defs(s.body) & uses(body[number + 1 :]):
                return None
            match s:
                case Set() if not _moves(s.value, names) and s.name not in names:
                    statements.append(replace(s, value=_still(s.value)))
                    still.add(s.name)
                case Set() if s.name not in still:
                    own.append(s)
                case When(condition, inner) if not _moves(condition, names):
                    repeated = self.of(inner, own)
                    if repeated is None or defs(inner) & (names | still):
                        return None
                    statements.append(When(_still(condition), tuple(repeated)))
                case Store() if not any(_moves(x, names) for x in (s.value, *s.at)):
                    statements.append(s)
                case Store():
                    statements.append(Loop(self.variable, Extent(self.count), (*own, s), kind="unrolled"))
                case _:
                    return None
        return statements


def _moves(expr: Expr, names: set[str]) -> bool:
    """Whether an expression differs between elements: it reads some names, elsewhere than along an axis of one."""
    match expr:
        case Name(name):
            return name in names
        case Load(tensor, at):
            return any(_moves(x, names) for x, stride in zip(at, tensor.strides, strict=True) if stride != 0)
        case Call(_, operands):
            return any(_moves(x, names) for x in operands)
        case _:
            return False


def _still(expr: Expr) -> Expr:
    """An expression that does not differ, without names of elements: they are indices along axes of one."""

    def still(part: Any) -> Any:
        if not isinstance(part, Load):
            return None
        pairs = zip(part.at, part.tensor.strides, strict=True)
        return replace(part, at=tuple([ZERO if stride == 0 else _still(x) for x, stride in pairs]))

    return rewrite(expr, still)


__all__ = ["Repeated"]
