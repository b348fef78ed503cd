"""Python functions of values as sub-graphs, and control flow written with them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias, cast

from dovetail.errors import GraphError, TypeRuleError
from dovetail.ir import leaf, origin
from dovetail.ir.dim import Size
from dovetail.ir.fact import Facts
from dovetail.ir.graph import Subgraph
from dovetail.ir.type import TensorType, TupleType, Type
from dovetail.ir.value import Op, Value, make
from dovetail.ir.walk import walk
from dovetail.ops.control import differing, if_, scan_, while_
from dovetail.ops.movement import permute
from dovetail.ops.primitive import axis_from_end

Results: TypeAlias = Value | Sequence[Value]
# Written out, so that type checkers know the parameters of a lambda; `def f(*xs: Value)` fits all of them.
Traced: TypeAlias = (
    Callable[[], Results]
    | Callable[[Value], Results]
    | Callable[[Value, Value], Results]
    | Callable[[Value, Value, Value], Results]
    | Callable[[Value, Value, Value, Value], Results]
    | Callable[[Value, Value, Value, Value, Value], Results]
    | Callable[[Value, Value, Value, Value, Value, Value], Results]
    | Callable[[Value, Value, Value, Value, Value, Value, Value], Results]
    | Callable[[Value, Value, Value, Value, Value, Value, Value, Value], Results]
)
"""A function of values, one for each argument, that returns one value or several."""


class Looped(NamedTuple):
    """What a `while_loop` gives: the last carries, the outputs of all trips, whether the limit stopped it."""

    carries: tuple[Value, ...]
    outputs: tuple[Value, ...]
    stopped: Value


class Scanned(NamedTuple):
    """What a `scan` gives: the last carries and the stacked outputs."""

    carries: tuple[Value, ...]
    outputs: tuple[Value, ...]


def cond(
    predicate: Value, then: Traced, otherwise: Traced, *operands: Value, sizes: Sequence[Size] = ()
) -> tuple[Value, ...]:
    """Return the results of `then(*operands)` where the predicate holds, else of `otherwise(*operands)`.

    `sizes` name those in which the results of the branches differ, in the order of results and axes.
    """
    types = [v.tensor for v in operands]
    yes, no = subgraph(then, types), subgraph(otherwise, types)
    places = differing(*([v.tensor for v in branch.results] for branch in (yes, no))) if sizes else ()
    return items(if_(predicate, *operands, then=yes, otherwise=no, sizes=tuple(sizes), places=places))


def while_loop(
    condition: Traced,
    body: Traced,
    carries: Sequence[Value],
    captures: Sequence[Value] = (),
    *,
    limit: Size | None = None,
    trips: Size | None = None,
    growing: Sequence[TensorType] = (),
) -> Looped:
    """`carries = body(*carries, *captures)` while `condition(*carries, *captures)`, at most `limit` times.

    What else the body returns is stacked over the trips; `trips` names that size. `growing` are the types
    of carries whose shapes change from trip to trip, with a new symbol for each size that does.
    """
    operands = (*carries, *captures)
    types = [v.tensor for v in operands]
    places = differing(types[: len(carries)], growing) if growing else ()
    named = [size for t in growing for size in t.shape]
    types[: len(growing)] = growing
    bodies = {"condition": subgraph(condition, types), "body": subgraph(body, types)}
    sizes = tuple(named[place] for place in places)
    attrs = {"carries": len(carries), "limit": limit, "trips": trips, "sizes": sizes, "places": places}
    results = items(while_(*operands, **bodies, **attrs))
    return Looped(results[: len(carries)], results[len(carries) : -1], results[-1])


def scan(
    body: Traced,
    carries: Sequence[Value],
    xs: Sequence[Value] = (),
    captures: Sequence[Value] = (),
    *,
    axis: int = 0,
    stack_axis: int = 0,
    length: Size | None = None,
    reverse: bool = False,
) -> Scanned:
    """`carries, *outputs = body(*carries, *slices of xs, *captures)` along an axis of every x.

    `reverse` starts at the last slice; the outputs are stacked in the order of the slices all the same.
    """
    fronted = [_moved(x, axis, 0) for x in xs]
    slices = [TensorType(x.dtype, x.shape[1:]) for x in fronted]
    types = [*(v.tensor for v in carries), *slices, *(v.tensor for v in captures)]
    results = items(
        scan_(
            *carries,
            *fronted,
            *captures,
            body=subgraph(body, types),
            carries=len(carries),
            scanned=len(xs),
            length=length,
            reverse=reverse,
        )
    )
    outputs = tuple(_moved(y, 0, stack_axis) for y in results[len(carries) :])
    return Scanned(results[: len(carries)], outputs)


def subgraph(function: Traced, types: Sequence[TensorType]) -> Subgraph:
    """Return the closed sub-graph that a function of values spells out."""
    # Arguments are interned: a slot of this trace's own cannot be taken for an argument of the trace around it.
    slot = _Slot()
    slots = [make(slot, (), {"index": i, "type": t}) for i, t in enumerate(types)]
    returned = cast(Callable[..., Results], function)(*slots)
    results = (returned,) if isinstance(returned, Value) else tuple(returned)
    if not all(isinstance(v, cast(Any, Value)) for v in results):
        raise TypeRuleError(f"a traced function returned {results!r}", hint="return values; constant(…) makes one")
    return Subgraph(
        tuple(types),
        _closed(results, {s: leaf.argument(i, t) for i, (s, t) in enumerate(zip(slots, types, strict=True))}),
    )


class _Slot(Op):
    """Stands for the arguments of one trace."""

    name = "slot"

    def infer(self, facts: Facts, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Type:
        return attrs["type"]


_OUTSIDE = (leaf.INPUT, leaf.PARAM, leaf.ARGUMENT)


def _closed(results: tuple[Value, ...], arguments: Mapping[Value, Value]) -> tuple[Value, ...]:
    """Return the results read from arguments instead of slots; they must read nothing else from outside."""
    new: dict[Value, Value] = {}
    recorder = origin.active()
    # What is made here was written elsewhere, so that its origins are handed over instead of noted.
    with origin.recording(origin.Recorder(lines=False)):
        for value in walk(results):
            if value in arguments:
                new[value] = arguments[value]
            elif value.op in _OUTSIDE or isinstance(value.op, _Slot):
                raise GraphError(
                    f"a traced function reads {value!r} from outside",
                    hint="pass it explicitly: as an operand of cond, or in captures of a loop",
                )
            else:
                new[value] = value.with_operands(tuple([new[v] for v in value.operands]))
            if recorder is not None and new[value] is not value and (known := recorder.origins.get(value)):
                recorder.origins[new[value]] = origin.merge(recorder.origins.get(new[value], ()), known)
    return tuple(new[v] for v in results)


def items(value: Value) -> tuple[Value, ...]:
    """Return the results of control flow, one by one."""
    type = value.type
    assert isinstance(type, TupleType), "control flow has a tuple of results"
    return tuple(value[i] for i in range(len(type.items)))


def _moved(x: Value, source: int, target: int) -> Value:
    """Return one axis moved to another place; the others keep their order."""
    start, stop = axis_from_end(source, x.rank), axis_from_end(target, x.rank)
    if start == stop:
        return x
    order = [a for a in range(-x.rank, 0) if a != start]
    order.insert(stop + x.rank, start)
    return permute(x, order=tuple(order))


__all__ = ["Looped", "Scanned", "cond", "scan", "subgraph", "while_loop"]
