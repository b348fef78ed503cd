"""Loops that go through memory backwards: each iteration accesses the element before that of the last one.

The loop vectoriser of LLVM 22 has two cost models, which disagree on such loops with a known number of iterations for
AVX-512; a build of LLVM with assertions then aborts the process. A loop that says its width is not costed.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from dovetail.ir.dtype import i64
from dovetail.kernels.loops.analysis import everything
from dovetail.kernels.loops.ir import Call, Expr, Extent, Load, Loop, Name, Set, Statement, Store, Tensor, When, within

_VECTOR_BYTES = 64
"""Of the widest vectors. LLVM splits them into those of the machine."""
_ORDERED = frozenset({"add", "mul"})
"""What rounds differently in another order."""


def width_of_reversed(variable: str, extent: Expr, body: Sequence[Statement], *, reassociate: bool) -> int:
    """Lanes for a loop with reversed accesses, 1 where it must stay scalar; 0 where no access is reversed."""
    accesses = list(_accesses(body, {variable: 1}))
    if not any(_is_reversed(tensor, steps) for tensor, steps in accesses):
        return 0
    if not reassociate and any(_is_ordered_sum(s) for s in everything(body)):
        return 1
    kept = [s.value.dtype for s in everything(body) if isinstance(s, Set)]
    lanes = _VECTOR_BYTES // max(d.itemsize for d in (*kept, *(tensor.dtype for tensor, _ in accesses)))
    count = extent.size if isinstance(extent, Extent) else None
    while isinstance(count, int) and lanes > 1 and 4 * (count % lanes) > count:
        lanes //= 2  # more than a quarter of the iterations would be left to a scalar loop
    return lanes


_Steps = tuple[int | None, ...]
"""By how much each index of an access grows with the loop's variable; None where that is not known."""


def _accesses(body: Sequence[Statement], steps: Mapping[str, int | None]) -> Iterator[tuple[Tensor, _Steps]]:
    """The tensors that a body accesses, each with how its indices grow."""
    known = dict(steps)
    for statement in body:
        match statement:
            case Store(tensor, at, value):
                yield tensor, tuple([_step(index, known) for index in at])
                yield from _loads((value, *at), known)
            case Set(name, value):
                yield from _loads((value,), known)
                known[name] = _step(value, known)
            case Loop():
                yield from _loads((statement.extent,), known)
                yield from _accesses(statement.body, {**known, statement.variable: 0})
            case When():
                yield from _loads((statement.condition,), known)
                yield from _accesses(statement.body, known)
            case _:
                pass


def _loads(exprs: Sequence[Expr], steps: Mapping[str, int | None]) -> Iterator[tuple[Tensor, _Steps]]:
    for part in within(exprs):
        if isinstance(part, Load):
            yield part.tensor, tuple([_step(index, steps) for index in part.at])


def _step(expr: Expr, steps: Mapping[str, int | None]) -> int | None:
    """By how much an index grows from one iteration to the next; None where that is not known."""
    if expr.dtype is not i64:
        return None
    steps_of: dict[int, int | None] = {}
    stack = [expr]  # a chain may be longer than Python's stack
    while stack:
        part = stack[-1]
        operands = part.operands if isinstance(part, Call) else part.at if isinstance(part, Load) else ()
        pending = [x for x in operands if id(x) not in steps_of]
        if pending:
            stack += pending
            continue
        stack.pop()
        steps_of[id(part)] = _combined(part, [steps_of[id(x)] for x in operands], steps)
    return steps_of[id(expr)]


def _combined(expr: Expr, grown: Sequence[int | None], steps: Mapping[str, int | None]) -> int | None:
    """By how much an expression grows whose operands grow by these."""
    if isinstance(expr, Name):
        return steps.get(expr.name, 0)
    if not any(step != 0 for step in grown):
        return 0
    one, other = grown if len(grown) == 2 else (None, None)
    if not isinstance(expr, Call) or one is None or other is None:
        return None
    if expr.op in ("add", "sub"):
        return one + other if expr.op == "add" else one - other
    by = expr.operands[1] if other == 0 else expr.operands[0]
    known = by.size if isinstance(by, Extent) else None
    return (one + other) * known if expr.op == "mul" and 0 in grown and isinstance(known, int) else None


def _is_reversed(tensor: Tensor, steps: _Steps) -> bool:
    """Whether an access goes back by one element. LLVM may know more of an index: then its axis decides."""
    back = -tensor.dtype.itemsize
    pairs = list(zip(tensor.strides, steps, strict=True))
    if any(step is None for _, step in pairs):
        return any(step is None and stride == back for stride, step in pairs)
    return sum(stride * step for stride, step in pairs if step) == back


def _is_ordered_sum(statement: Statement) -> bool:
    """Whether it adds to a scalar, or multiplies one, so that the order of iterations is part of the result."""
    match statement:
        case Set(name, Call(op, operands, dtype)) if op in _ORDERED:
            return dtype.is_inexact and any(isinstance(x, Name) and x.name == name for x in operands)
        case _:
            return False


__all__ = ["width_of_reversed"]
