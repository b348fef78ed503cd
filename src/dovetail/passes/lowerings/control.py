"""Control flow for targets that cannot branch: both branches are run, loops are unrolled with early freeze."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Subgraph
from dovetail.ir.inline import inline
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.passes.claims import Claims


def is_rewritten(value: Value, most: int) -> bool:
    """Whether an if becomes a choice between results, or a loop at most `most` copies of its body."""
    match value.op.name:
        case "if":
            return not value.attrs["sizes"]  # what has two shapes cannot be selected element by element
        case "while":
            stacks = len(value.attrs["body"].results) > value.attrs["carries"]
            count = value.attrs["limit"]
            return not stacks and not value.attrs["sizes"] and isinstance(count, int) and count <= most
        case _:
            count = _length(value)
            return isinstance(count, int) and count <= most


def _length(value: Value) -> Size:
    """The trips of a scan."""
    found: Size | None = value.attrs["length"]
    carries: int = value.attrs["carries"]
    return found if found is not None else value.operands[carries].shape[0]


def lower_if(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """Both branches, and one of their results selected for each output, if both have one shape."""
    if not is_rewritten(value, claims.unrolls_at_most):
        return None
    predicate, given = operands[0], operands[1:]
    yes, no = inline(value.attrs["then"], given), inline(value.attrs["otherwise"], given)
    return leaf.pack(_select(predicate, yes, no))


def lower_while(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """As many trips as the limit allows; once the condition has failed, every carry keeps its value."""
    limit, carries = value.attrs["limit"], value.attrs["carries"]
    if not is_rewritten(value, claims.unrolls_at_most):
        return None
    condition: Subgraph = value.attrs["condition"]
    carried, captures = operands[:carries], operands[carries:]
    (active,) = inline(condition, (*carried, *captures))
    for _ in range(limit):
        carried = _select(active, inline(value.attrs["body"], (*carried, *captures)), carried)
        (again,) = inline(condition, (*carried, *captures))
        active = ops.bit_and(active, again)
    return leaf.pack((*carried, active))


def lower_scan(value: Value, operands: tuple[Value, ...], claims: Claims) -> Value | None:
    """One copy of the body for each slice."""
    carries, scanned = value.attrs["carries"], value.attrs["scanned"]
    carried, xs, captures = operands[:carries], operands[carries : carries + scanned], operands[carries + scanned :]
    length = _length(value)
    if not isinstance(length, int) or not is_rewritten(value, claims.unrolls_at_most):
        return None
    body: Subgraph = value.attrs["body"]
    outputs: list[tuple[Value, ...]] = []
    for trip in range(length):
        at = length - 1 - trip if value.attrs["reverse"] else trip
        results = inline(body, (*carried, *(_slice(x, at) for x in xs), *captures))
        carried = results[:carries]
        outputs.append(results[carries:])
    in_order = outputs[::-1] if value.attrs["reverse"] else outputs
    return leaf.pack((*carried, *_stack(in_order, body, carries)))


def _select(predicate: Value, yes: Sequence[Value], no: Sequence[Value]) -> tuple[Value, ...]:
    return tuple(a if a is b else ops.where(predicate, a, b) for a, b in zip(yes, no, strict=True))


def _slice(x: Value, at: int) -> Value:
    return ops.squeeze(ops.slice_(x, axis=0, start=at, stop=at + 1), axes=(0,))


def _stack(trips: Sequence[tuple[Value, ...]], body: Subgraph, carries: int) -> list[Value]:
    types = [v.tensor for v in body.results[carries:]]
    if not trips:
        # An empty array has no elements to make, whatever the sizes behind the first.
        return [build.full((0, *t.shape), 0, t.dtype) for t in types]
    columns = zip(*trips, strict=True)
    return [ops.concat(*(ops.unsqueeze(v, axes=(-v.rank - 1,)) for v in column), axis=0) for column in columns]
