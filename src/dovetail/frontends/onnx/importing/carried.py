"""Values that a loop carries: in the shape that they had before a trip, or in one that changes from trip to trip."""

from __future__ import annotations

from collections.abc import Container, Sequence

from dovetail import ops
from dovetail.errors import UnsupportedError
from dovetail.frontends.onnx.importing.declared_ranks import in_rank
from dovetail.frontends.onnx.importing.node import Body, Captured, Node
from dovetail.ir.dim import Size, at_least
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value


class GrowingCarryError(UnsupportedError):
    """A carried value that has another shape after a trip."""


def as_before(n: Node, value: Value, before: TensorType, named: Container[Size] = ()) -> Value:
    """A carried value in the shape that it had before the trip; sizes that are `named` may change."""
    what = f"a carried value that is {before} before a trip and {value.tensor} after it"
    if value.dtype is not before.dtype:
        raise n.malformed(what)
    if value.rank != before.rank:
        raise GrowingCarryError(what, hint="carry it in its final shape, and write each part at its place")
    for axis, size in enumerate(before.shape):
        if size not in named and _may_be(value.shape[axis], size):
            value = ops.sized(value, axis=axis, size=size)
    if any(size not in named and size != found for size, found in zip(before.shape, value.shape, strict=True)):
        raise GrowingCarryError(what, hint="carry it in its final shape, and write each part at its place")
    return value


def growing_types(
    n: Node, body: Body, first: tuple[Value, Value], initial: Sequence[Value], captured: Captured
) -> tuple[list[TensorType], frozenset[Size]]:
    """The types of carried values with a new symbol for each size that a trip changes, and these symbols."""
    types, named = [v.tensor for v in initial], set[Size]()
    for _ in range(1 + sum(t.rank for t in types)):
        outer = [*(v.tensor for v in first), *types, *(v.tensor for v in captured.operands)]

        def trip(*slots: Value) -> tuple[Value, ...]:
            return body(*slots[: 2 + len(initial)], captured=captured.named(slots[2 + len(initial) :]))

        results = ops.subgraph(trip, outer).results[1 : 1 + len(initial)]
        settled = True
        for k, (before, after) in enumerate(zip(types, results, strict=True)):
            after = in_rank(after, before.rank if body.output_rank(k + 1) == before.rank else None)
            if after.rank != before.rank:
                raise n.unsupported(
                    f"a carried value that is {before} before a trip and {after.tensor} after it",
                    hint="its rank must stay: unsqueeze it before the loop",
                )
            for axis, (size, found) in enumerate(zip(before.shape, after.shape, strict=True)):
                if size != found and size not in named and not _may_be(found, size):
                    symbol, settled = n.fresh(f"{n.name}_carry"), False
                    named.add(symbol)
                    shape = types[k].shape
                    types[k] = TensorType(before.dtype, (*shape[:axis], symbol, *shape[axis + 1 :]))
        if settled:
            break
    return types, frozenset(named)


def _may_be(found: Size, size: Size) -> bool:
    """Whether two sizes that are spelled differently can be the same in a run that is not empty."""
    apart = found - size
    if isinstance(apart, int):
        return False
    return all(bound is None or bound < 0 for bound in (at_least(apart), at_least(-apart)))
