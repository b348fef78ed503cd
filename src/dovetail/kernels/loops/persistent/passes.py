"""Parts of a persistent kernel that some of its passes run: the last pass may end early, and it alone runs what follows
the layers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from dovetail.ir.dtype import bool_
from dovetail.kernels.loops.ir import Call, Extent, Statement, SubGrid, When
from dovetail.kernels.loops.persistent.bodies import PASS

IN_FIRST = Call("equal", (PASS, Extent(0)), bool_)
"""Whether this is the first pass."""


def in_passes(body: Sequence[Statement], passes: range, count: int, *, ahead: bool = False) -> list[Statement]:
    """Statements that run in some of `count` passes; what is done `ahead` is done one pass before these."""
    first, stop = passes.start - ahead, passes.stop - ahead
    statements: list[Statement] = [*body]
    if not statements:
        return statements
    if stop < count:
        statements = [When(Call("less", (PASS, Extent(stop)), bool_), tuple(statements))]
    if first > 0:
        statements = [When(Call("less", (Extent(first - 1), PASS), bool_), tuple(statements))]
    return statements


def part_in(statement: Statement) -> SubGrid | None:
    """The part that a statement is, in whichever passes; None where it is something else."""
    if isinstance(statement, When) and len(statement.body) == 1 and statement.condition != IN_FIRST:
        return part_in(statement.body[0])
    return statement if isinstance(statement, SubGrid) else None


def starts_late(statement: Statement) -> bool:
    """Whether the first passes do not run a statement."""
    condition = statement.condition if isinstance(statement, When) else None
    return isinstance(condition, Call) and condition.operands[1] == PASS


def with_part(statement: Statement, change: Callable[[SubGrid], Statement]) -> Statement:
    """The same with another part in the same passes."""
    if isinstance(statement, When):
        return replace(statement, body=(with_part(statement.body[0], change),))
    assert isinstance(statement, SubGrid), "it is a part"
    return change(statement)


__all__ = ["IN_FIRST", "in_passes", "part_in", "starts_late", "with_part"]
