"""Control flow: `if`, `while` and `scan` over closed sub-graphs. Each has one meaning, and it stands here.

A meaning is given its sub-graphs as functions of arrays. Everything that a sub-graph reads is an operand.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Protocol

import numpy as np

from dovetail.errors import BindError, TypeRuleError
from dovetail.ir import leaf
from dovetail.ir.dim import Size, evaluate, largest
from dovetail.ir.dtype import DType, bool_
from dovetail.ir.fact import Facts
from dovetail.ir.graph import Subgraph
from dovetail.ir.type import TensorType, TupleType, Type
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops.control_gradient import if_pull, scan_pull, while_pull
from dovetail.ops.gradient import NO_OPERAND, Nested
from dovetail.ops.primitive import (
    Array,
    Body,
    DTypeAttr,
    Fresh,
    Freshes,
    Ints,
    Primitive,
    SizeAttr,
    Sizes,
    family,
    no_flops,
    primitive,
)
from dovetail.ops.rules import tensor

MOST_TRIPS = 10_000_000
"""A loop with more trips has no end, or none worth waiting for."""
_FLAG = TensorType(bool_, ())


class Runnable(Protocol):
    """A sub-graph as a meaning sees it."""

    @property
    def results(self) -> tuple[TensorType, ...]:
        """The types of the results, with their sizes as numbers."""
        ...

    def __call__(self, *arguments: Array) -> tuple[Array, ...]: ...


def _if(
    facts: Facts,
    predicate: Type,
    *operands: Type,
    then: Subgraph,
    otherwise: Subgraph,
    sizes: tuple[Size, ...],
    places: tuple[int, ...],
) -> Type:
    _needs_flag(facts, "the predicate", predicate)
    types = [tensor(t) for t in operands]
    results = _named(facts, _signature(facts, "then", then, types), sizes, places)
    other = _named(facts, _signature(facts, "otherwise", otherwise, types), sizes, places)
    _same_types(facts, "a result of otherwise", other, results)
    return TupleType(results)


def differing(left: Sequence[TensorType], right: Sequence[TensorType]) -> tuple[int, ...]:
    """Return the places at which types of the same ranks have different sizes, counted through all of their axes."""
    sizes = [[s for t in types for s in t.shape] for types in (left, right)]
    return tuple(i for i, (a, b) in enumerate(zip(*sizes, strict=True)) if a != b)


def _named(
    facts: Facts, types: tuple[TensorType, ...], sizes: tuple[Size, ...], places: tuple[int, ...]
) -> tuple[TensorType, ...]:
    """Return the types with a named size at each of the places."""
    if not sizes and not places:
        return types
    rest: list[Size] = [s for t in types for s in t.shape]
    if len(sizes) != len(places) or any(not 0 <= p < len(rest) for p in places):
        raise TypeRuleError(
            f"{facts.op}: {len(sizes)} sizes at the places {places} of {len(rest)}", hint="give each size its place"
        )
    for size, place in zip(sizes, places, strict=True):
        rest[place] = size
    return tuple(TensorType(t.dtype, tuple(rest.pop(0) for _ in t.shape)) for t in types)


def _if_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    return largest(_body_flops(attrs["then"]), _body_flops(attrs["otherwise"]))


@primitive(_if, flops=_if_flops, branches=True, pull=Nested(if_pull))
def if_(
    predicate: Array, *operands: Array, then: Body, otherwise: Body, sizes: Freshes = (), places: Ints = ()
) -> tuple[Array, ...]:
    """The results of one of two branches; only that one is run. `sizes` stand where the shapes of both differ."""
    branch: Runnable = then if predicate else otherwise
    return branch(*operands)


def _while(
    facts: Facts,
    *operands: Type,
    condition: Subgraph,
    body: Subgraph,
    carries: int,
    limit: Size | None,
    trips: Size | None,
    sizes: tuple[Size, ...],
    places: tuple[int, ...],
) -> Type:
    types = [tensor(t) for t in operands]
    carried = _named(facts, tuple(_counted(facts, types, carries, "carries")), sizes, places)
    types = [*carried, *types[carries:]]
    (flag,) = _exactly_one(facts, _signature(facts, "condition", condition, types))
    _needs_flag(facts, "the condition", flag)
    results = _signature(facts, "body", body, types)
    after = _named(facts, results[:carries], sizes, places) if sizes and len(results) >= carries else results[:carries]
    stacked = _carried_on(facts, (*after, *results[carries:]), carried)
    if limit is not None:
        facts.at_least(limit, 0, "the limit of a loop")
    if not stacked:
        return TupleType((*carried, _FLAG))
    if trips is None:
        raise TypeRuleError(
            f"{facts.op}: the body has {len(results)} results for {len(carried)} carries, and trips is not named",
            hint='outputs of every trip are stacked to a size that depends on data; name it: trips=symbol("n")',
        )
    return TupleType((*carried, *_stack_types(trips, stacked), _FLAG))


def _while_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    once = _body_flops(attrs["condition"]) + _body_flops(attrs["body"])
    return once if attrs["limit"] is None else once * attrs["limit"]


@primitive(_while, flops=_while_flops, pull=Nested(while_pull))
def while_(
    *operands: Array,
    condition: Body,
    body: Body,
    carries: int,
    limit: SizeAttr | None = None,
    trips: Fresh | None = None,
    sizes: Freshes = (),
    places: Ints = (),
) -> tuple[Array, ...]:
    """The carries once the condition fails, the outputs of every trip, and whether the limit stopped it before.

    `sizes` stand where the shape of a carry changes: in a trip for what it is then, in the result for the last one.
    """
    carried, captures = operands[:carries], operands[carries:]
    outputs: list[tuple[Array, ...]] = []
    holds = bool(condition(*carried, *captures)[0])
    while holds and (limit is None or len(outputs) < limit):
        check_trips(len(outputs))
        results: tuple[Array, ...] = body(*carried, *captures)
        carried = results[:carries]
        outputs.append(results[carries:])
        holds = bool(condition(*carried, *captures)[0])
    return (*carried, *_stacked(outputs, body, carries), np.array(holds))


def _scan(
    facts: Facts,
    *operands: Type,
    body: Subgraph,
    carries: int,
    scanned: int,
    length: Size | None,
    reverse: bool,
) -> Type:
    types = [tensor(t) for t in operands]
    carried = _counted(facts, types, carries, "carries")
    over = _counted(facts, types[carries:], scanned, "scanned")
    for x in over:
        if x.rank == 0:
            raise TypeRuleError(f"{facts.op}: a scanned operand is {x}", hint="it needs an axis; pass it as a capture")
        length = x.shape[0] if length is None else facts.equal(length, x.shape[0], "the lengths of what is scanned")
    if length is None:
        raise TypeRuleError(f"{facts.op}: nothing says how long it is", hint="scan an operand, or pass length")
    facts.at_least(length, 0, "the length of a scan")
    slices = [TensorType(x.dtype, x.shape[1:]) for x in over]
    results = _signature(facts, "body", body, [*carried, *slices, *types[carries + scanned :]])
    return TupleType((*carried, *_stack_types(length, _carried_on(facts, results, carried))))


def _scan_flops(result: Type, operands: tuple[Type, ...], attrs: Mapping[str, Any]) -> Size:
    length: Size | None = attrs["length"]
    if length is None:
        first: int = attrs["carries"]
        length = tensor(operands[first]).shape[0]
    return _body_flops(attrs["body"]) * length


@primitive(_scan, flops=_scan_flops, pull=Nested(scan_pull))
def scan_(
    *operands: Array,
    body: Body,
    carries: int,
    scanned: int,
    length: SizeAttr | None = None,
    reverse: bool = False,
) -> tuple[Array, ...]:
    """The carries after every slice along the first axis, and the outputs of every slice stacked in its order."""
    carried, xs, captures = operands[:carries], operands[carries : carries + scanned], operands[carries + scanned :]
    count: int = xs[0].shape[0] if length is None else length
    outputs: list[tuple[Array, ...]] = []
    for i in range(count):
        check_trips(i)
        at = count - 1 - i if reverse else i
        results: tuple[Array, ...] = body(*carried, *(x[at] for x in xs), *captures)
        carried = results[:carries]
        outputs.append(results[carries:])
    return (*carried, *_stacked(outputs[::-1] if reverse else outputs, body, carries))


def _refusal(facts: Facts, *, shape: tuple[Size, ...], dtype: DType, message: str, hint: str) -> Type:
    return TensorType(dtype, shape)


@primitive(_refusal, flops=no_flops, pull=NO_OPERAND)
def refusal(*, shape: Sizes, dtype: DTypeAttr, message: str, hint: str) -> Array:
    """A tensor that cannot be computed: the result of a branch that does not fit the sizes at hand."""
    raise BindError(message, hint=hint)


FAMILY = family(globals())


def check_trips(done: int) -> None:
    """Refuse to continue a loop after this many trips."""
    if done >= MOST_TRIPS:
        raise BindError(
            f"a loop that does not end within {MOST_TRIPS:,} trips", hint="check its condition and its trip count"
        )


def _stacked(outputs: Sequence[tuple[Array, ...]], body: Runnable, carries: int) -> list[Array]:
    """Stack the outputs of all trips along a new first axis."""
    if not outputs:
        return [np.zeros((0, *(evaluate(s, {}) for s in t.shape)), t.dtype.numpy) for t in body.results[carries:]]
    columns = list(zip(*outputs, strict=True))
    for column in columns:
        if len({a.shape for a in column}) > 1:
            raise BindError(
                f"the trips of a loop have outputs of shapes {sorted({a.shape for a in column})}",
                hint="outputs are stacked; pad them to one shape, or carry them",
            )
    return [np.stack(column) for column in columns]


def _stack_types(length: Size, types: Sequence[TensorType]) -> tuple[TensorType, ...]:
    return tuple(TensorType(t.dtype, (length, *t.shape)) for t in types)


def _needs_flag(facts: Facts, what: str, type: Type) -> None:
    if type != _FLAG:
        raise TypeRuleError(
            f"{facts.op}: {what} is {type}, and one bool is wanted",
            hint="compare, then reduce to rank 0: reduce_all or reduce_any, then squeeze",
        )


def _exactly_one(facts: Facts, results: tuple[TensorType, ...]) -> tuple[TensorType]:
    if len(results) != 1:
        raise TypeRuleError(f"{facts.op}: the condition has {len(results)} results", hint="return one bool")
    return (results[0],)


def _counted(facts: Facts, types: Sequence[TensorType], count: int, what: str) -> Sequence[TensorType]:
    if not 0 <= count <= len(types):
        raise TypeRuleError(f"{facts.op}: {what} is {count} of {len(types)} operands", hint="count the operands")
    return types[:count]


def _carried_on(facts: Facts, results: tuple[TensorType, ...], carried: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Return what the body computes in addition to the carries; those keep their types."""
    if len(results) < len(carried):
        raise TypeRuleError(
            f"{facts.op}: the body has {len(results)} results for {len(carried)} carries",
            hint="return every carry, in order, then the outputs of the trip",
        )
    _same_types(facts, "a carry after the body", results[: len(carried)], tuple(carried))
    return results[len(carried) :]


def _same_types(facts: Facts, what: str, actual: tuple[TensorType, ...], expected: tuple[TensorType, ...]) -> None:
    if len(actual) != len(expected):
        raise TypeRuleError(
            f"{facts.op}: {what}: there are {len(actual)}, and {len(expected)} are wanted",
            hint="return the same number of results",
        )
    for index, (a, b) in enumerate(zip(actual, expected, strict=True)):
        if a != b:
            raise TypeRuleError(
                f"{facts.op}: {what}: number {index} is {a}, and {b} is wanted",
                hint="cast it, or bring it to one shape, inside the sub-graph",
            )


def _signature(facts: Facts, what: str, body: Subgraph, operands: Sequence[TensorType]) -> tuple[TensorType, ...]:
    """Return the results of a sub-graph that takes exactly these operands and reads nothing else."""
    if len(body.arguments) != len(operands):
        raise TypeRuleError(
            f"{facts.op}: {what} takes {len(body.arguments)} arguments, and {len(operands)} operands are passed to it",
            hint="a sub-graph takes every operand, captures included, in order",
        )
    _same_types(facts, f"an argument of {what}", body.arguments, tuple(operands))
    for value in body.values:
        if value.op is leaf.INPUT or value.op is leaf.PARAM:
            raise TypeRuleError(f"{facts.op}: {what} reads {value!r} from outside", hint="pass it as an operand")
        if value.op is leaf.ARGUMENT:
            index: int = value.attrs["index"]
            if not 0 <= index < len(operands) or value.type != operands[index]:
                raise TypeRuleError(
                    f"{facts.op}: {what} reads argument {index} as {value.type}, and has {len(operands)} arguments",
                    hint="read arguments by their index, with the type that is declared",
                )
    return tuple(tensor(t, f"a result of {what}") for t in body.result_types)


def _body_flops(body: Subgraph) -> Size:
    """Return the flops of one run of a sub-graph; declared ops count as their expansion."""
    total: Size = 0
    pending: list[tuple[Sequence[Value], tuple[Value, ...]]] = [(body.results, ())]
    while pending:
        outputs, until = pending.pop()
        for value in walk(outputs, until=until):
            if value in until or value.op in leaf.LEAVES:
                continue
            if isinstance(value.op, Primitive):
                total = total + value.op.flops(value.type, tuple(v.type for v in value.operands), value.attrs)
            elif (spelled := value.op.expansion(value.operands, value.attrs)) is not None:
                pending.append(([spelled], value.operands))
    return total


__all__ = ["if_", "refusal", "scan_", "while_"]
