"""Branches and loops. Each body is imported once, as a sub-graph of what it reads."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.errors import UnsupportedError
from dovetail.frontends.onnx.importing.carried import GrowingCarryError, as_before, growing_types
from dovetail.frontends.onnx.importing.declared_ranks import in_one_rank, in_rank, started
from dovetail.frontends.onnx.importing.forks import ForkError
from dovetail.frontends.onnx.importing.node import Body, Captured, Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.frontends.onnx.importing.trip_count import trip_count as trips_counted
from dovetail.frontends.shared.rule import Made
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bool_, i64
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Subgraph, walk_into
from dovetail.ir.inline import inline
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ops import build, tracing
from dovetail.ops.control import MOST_TRIPS, differing


@rule("If")
def if_(n: Node, condition: Value, *, then_branch: Body, else_branch: Body) -> Made:
    """The results of one of two branches; a condition that is known at import leaves only that one."""
    known = n.known(condition)
    if known is not None and known.size == 1:
        return (then_branch if known.item() else else_branch)()
    captured = Captured({**then_branch.reads().values, **else_branch.reads().values})
    types = [v.tensor for v in captured.operands]

    def traced(branch: Body) -> Subgraph:
        def function(*slots: Value) -> tuple[Value, ...]:
            return branch(captured=captured.named(slots))

        return ops.subgraph(function, types)

    then, otherwise = in_one_rank((then_branch, traced(then_branch)), (else_branch, traced(else_branch)))
    yes, no = (tuple(v.tensor for v in branch.results) for branch in (then, otherwise))
    if len(yes) != len(no) or any(a.dtype is not b.dtype for a, b in zip(yes, no, strict=True)):
        raise n.malformed(f"branches that give {_listed(yes)} and {_listed(no)}")
    if any(a.rank != b.rank for a, b in zip(yes, no, strict=True)):
        try:
            return _implied(n, condition, then, otherwise, captured)
        except UnsupportedError as error:
            raise ForkError(error, n.proto, _scalar(condition), (then_branch, else_branch)) from None
    places = differing(yes, no)
    sizes = tuple(n.fresh(f"{n.name}_{i}") for i in range(len(places)))
    chosen = ops.if_(_scalar(condition), *captured.operands, then=then, otherwise=otherwise, sizes=sizes, places=places)
    return tracing.items(chosen)


def _implied(n: Node, condition: Value, then: Subgraph, otherwise: Subgraph, captured: Captured) -> Made:
    """The branch that demands what its condition asks: where that does not hold, running it says so.

    Exporters spell `squeeze` as: where the size is 1, squeeze, else leave it. The rank tells that 1 is meant.
    """
    asked = _sizes_asked(n, condition)
    if asked is not None:
        left, right, wanted = asked
        branch = then if wanted else otherwise
        demanded = [c for v in walk_into(branch.results, branches=False) for c in v.constraints]
        if any(_says(c, left, right) for c in demanded):
            results = inline(branch, captured.operands)
            n.ranked_by_sizes(*results)
            return results
    ranks = [
        f"{a.tensor} and {b.tensor}" for a, b in zip(then.results, otherwise.results, strict=True) if a.rank != b.rank
    ]
    needs = n.needs(condition, "the condition")
    needs.message += f"; its branches give {ranks[0]}, tensors of different rank"
    raise needs


def _sizes_asked(n: Node, condition: Value) -> tuple[Size, Size, bool] | None:
    """The two sizes that a condition compares, and whether it asks for them to be equal."""
    value, wanted = condition, True
    while value.op in _PASSING:
        wanted = wanted != (value.op is ops.bit_not)
        value = value.operands[0]
    if value.op is not ops.equal and value.op is not ops.not_equal:
        return None
    left, right = (n.sizes(v) for v in value.operands)
    if left is None or right is None or len(left) != 1 or len(right) != 1:
        return None
    return left[0], right[0], wanted == (value.op is ops.equal)


_PASSING = (ops.cast, ops.squeeze, ops.unsqueeze, ops.bit_not)


def _says(constraint: Constraint, left: Size, right: Size) -> bool:
    apart = constraint.left - constraint.right
    return constraint.relation == "equals" and apart in (left - right, right - left)


@rule("Loop")
def loop(n: Node, trip_count: Value | None = None, condition: Value | None = None, *initial: Value, body: Body) -> Made:
    """The carried values after as many trips as the trip count and the condition allow, and what each trip gives."""
    carried = len(initial)
    if len(body.inputs) != carried + 2 or len(body.outputs) < carried + 1:
        raise n.malformed(f"a body of {len(body.inputs)} inputs and {len(body.outputs)} outputs for {carried} values")
    captured = body.reads()
    number, flag = leaf.scalar(0, i64), leaf.constant(True) if condition is None else _flag(n, condition)
    initial = started(body, (_declared(number, body, 0), _declared(flag, body, 1), *initial), captured)
    keeps: list[bool] = []
    types, named = [v.tensor for v in initial], frozenset[Size]()

    def trip(i: Value, flag: Value, *rest: Value) -> tuple[Value, ...]:
        given = _declared(flag, body, 1)
        results = body(_declared(i, body, 0), given, *rest[:carried], captured=captured.named(rest[carried:]))
        keeps.append(results[0] is given or _is_true(n, results[0]))
        fitted = [
            as_before(n, in_rank(v, old.rank if body.output_rank(k) == old.rank else None), old, named)
            for k, (v, old) in enumerate(zip(results[1 : carried + 1], types, strict=True), 1)
        ]
        return (i + 1, _flag(n, results[0]), *fitted, *results[carried + 1 :])

    carries = (number, flag, *initial)
    known = None if trip_count is None else n.sizes(trip_count)
    limit = None if known is None else max(known[0], 0) if isinstance(known[0], int) else known[0]
    try:
        once = ops.subgraph(trip, [v.tensor for v in (*carries, *captured.operands)])
    except GrowingCarryError:
        unrolled = _unrolled(n, body, initial, limit) if _is_true(n, flag) else None
        if unrolled is not None:
            return unrolled
        types, named = growing_types(n, body, (number, flag), initial, captured)
        once = ops.subgraph(trip, [number.tensor, flag.tensor, *types, *(v.tensor for v in captured.operands)])
    if keeps[0] and _is_true(n, flag):
        # Exporters write the largest i64 as the trip count of a loop that its condition ends; this one has none.
        if trip_count is None or (isinstance(limit, int) and limit > MOST_TRIPS):
            raise n.unsupported("a loop that nothing ends", hint="give it a trip count, or a condition that fails")
        if limit is not None and not named:
            return _counted(once, carries, captured, limit)
    elif condition is None:
        # The standard ignores what the body computes, and runtimes do not: no result would be right for all.
        raise n.unsupported("a condition inside that has none outside", hint="pass true as the condition of the loop")
    if not named and (trip_count is None or (isinstance(limit, int) and limit > MOST_TRIPS)):
        length = trips_counted(n, once, carries, captured.operands, flag=1)
        if length is not None:
            return _counted(once, carries, captured, length)
    return _tested(n, once, carries, captured, trip_count, limit, growing=bool(named))


def _unrolled(n: Node, body: Body, initial: Sequence[Value], limit: Size | None) -> Made | None:
    """A loop of few trips, one after the other: carried values may change their shapes. None where it has many."""
    if not isinstance(limit, int) or limit > MOST_UNROLLED:
        return None
    carried: Sequence[Value] = initial
    trips: list[Sequence[Value]] = []
    for number in range(limit):
        flag = _declared(leaf.constant(True), body, 1)
        goes_on, *results = body(_declared(leaf.scalar(number, i64), body, 0), flag, *carried)
        if goes_on is not flag and not _is_true(n, goes_on):
            return None
        carried = results[: len(initial)]
        trips.append(results[len(initial) :])
    if not trips and len(body.outputs) > len(initial) + 1:
        return None  # nothing tells the shape of what no trip gives
    return (*carried, *(build.stack(listed, axis=0) for listed in zip(*trips, strict=True)))


MOST_UNROLLED = 64
"""Trips of a loop that is written out because a carried value changes its shape."""


def _counted(once: Subgraph, carries: Sequence[Value], captured: Captured, length: Size) -> Made:
    """A loop of `length` trips."""
    start, _, *initial = carries

    def function(*slots: Value) -> tuple[Value, ...]:
        i, *rest = slots
        after, _, *results = inline(once, (i, leaf.constant(True), *rest))
        return (after, *results)

    scanned = ops.scan(function, [start, *initial], captures=captured.operands, length=length)
    return (*scanned.carries[1:], *scanned.outputs)


def _tested(
    n: Node,
    once: Subgraph,
    carries: Sequence[Value],
    captured: Captured,
    trip_count: Value | None,
    limit: Size | None,
    growing: bool,
) -> Made:
    """A loop that asks before every trip whether to go on."""
    computed = trip_count if limit is None else None
    captures = (*captured.operands, *(() if computed is None else (_scalar(computed),)))

    def goes_on(*slots: Value) -> Value:
        i, flag = slots[:2]
        return flag if computed is None else ops.bit_and(flag, ops.less(i, ops.cast(slots[-1], dtype=i64)))

    def function(*slots: Value) -> tuple[Value, ...]:
        return inline(once, slots if computed is None else slots[:-1])

    stacks = len(once.results) > len(carries)
    looped = ops.while_loop(
        goes_on,
        function,
        carries,
        captures,
        limit=None if isinstance(limit, int) and limit > MOST_TRIPS else limit,
        trips=n.fresh(f"{n.name}_trips") if stacks else None,
        growing=once.arguments[: len(carries)] if growing else (),
    )
    return (*looped.carries[2:], *looped.outputs)


@rule("Scan", since=9)
def scan(
    n: Node,
    *operands: Value,
    body: Body,
    num_scan_inputs: int,
    scan_input_axes: tuple[int, ...] = (),
    scan_input_directions: tuple[int, ...] = (),
    scan_output_axes: tuple[int, ...] = (),
    scan_output_directions: tuple[int, ...] = (),
) -> Made:
    """The states after the body has seen every slice of the scanned inputs, and what it gives for each."""
    states = len(operands) - num_scan_inputs
    outputs = len(body.outputs) - states
    if num_scan_inputs < 1 or states < 0 or outputs < 0:
        raise n.malformed(f"{len(operands)} inputs, {num_scan_inputs} of them scanned")
    axes = _each(n, scan_input_axes, num_scan_inputs, "scan_input_axes")
    turned = _each(n, scan_input_directions, num_scan_inputs, "scan_input_directions")
    xs = [
        _turned(build.move_axis(x, axis, 0), backwards)
        for x, axis, backwards in zip(operands[states:], axes, turned, strict=True)
    ]
    results = _scanned(n, body, operands[:states], xs, body.reads())
    axes = _each(n, scan_output_axes, outputs, "scan_output_axes")
    turned = _each(n, scan_output_directions, outputs, "scan_output_directions")
    stacked = [
        build.move_axis(_turned(y, backwards), 0, axis)
        for y, axis, backwards in zip(results[states:], axes, turned, strict=True)
    ]
    return (*results[:states], *stacked)


@rule("Scan", until=8)
def scan_of_batch(
    n: Node,
    sequence_lens: Value | None = None,
    *operands: Value,
    body: Body,
    num_scan_inputs: int,
    directions: tuple[int, ...] = (),
) -> Made:
    """The same for every element of a batch, each with a length of its own."""
    states = len(operands) - num_scan_inputs
    if num_scan_inputs < 1 or states < 0:
        raise n.malformed(f"{len(operands)} inputs, {num_scan_inputs} of them scanned")
    turned = _each(n, directions, num_scan_inputs, "directions")
    if sequence_lens is not None and any(turned):
        raise n.unsupported("sequence_lens with a direction that is reversed", hint="reverse the sequences before")
    captured = body.reads()
    lengths = () if sequence_lens is None else (ops.cast(sequence_lens, dtype=i64),)

    def element(*slots: Value) -> tuple[Value, ...]:
        given, inside = slots[: len(operands)], slots[len(operands) + len(lengths) :]
        xs = [_turned(x, backwards) for x, backwards in zip(given[states:], turned, strict=True)]
        length = slots[len(operands)] if lengths else None
        here = Captured(captured.named(inside))
        return _scanned(n, body, given[:states], xs, here, length)

    return ops.scan(element, [], [*operands, *lengths], captured.operands).outputs


def _scanned(
    n: Node, body: Body, states: Sequence[Value], xs: Sequence[Value], captured: Captured, length: Value | None = None
) -> tuple[Value, ...]:
    """The states and stacked outputs of a scan along the first axis; from `length` on nothing changes."""
    counted = () if length is None else (ops.iota(size=xs[0].shape[0]),)
    limit = () if length is None else (length,)

    def function(*slots: Value) -> tuple[Value, ...]:
        given = slots[: len(states) + len(xs)]
        inside = slots[len(given) + len(counted) : len(given) + len(counted) + len(captured.values)]
        results = body(*given, captured=captured.named(inside))
        try:
            after = [as_before(n, v, old.tensor) for v, old in zip(results[: len(states)], states, strict=True)]
        except GrowingCarryError as error:
            raise n.unsupported(error.message, hint=error.hint) from None
        outputs = results[len(states) :]
        if length is None:
            return (*after, *outputs)
        inner = ops.less(slots[len(given)], slots[-1])
        kept = [ops.where(inner, v, old) for v, old in zip(after, given, strict=False)]
        return (*kept, *(ops.where(inner, y, leaf.scalar(0, y.dtype)) for y in outputs))

    found = ops.scan(function, states, [*xs, *counted], [*captured.operands, *limit])
    return (*found.carries, *found.outputs)


def _each(n: Node, given: tuple[int, ...], count: int, name: str) -> tuple[int, ...]:
    if given and len(given) != count:
        raise n.malformed(f"{len(given)} numbers in {name} for {count}")
    return given or (0,) * count


def _turned(x: Value, backwards: int) -> Value:
    return ops.flip(x, axes=(0,)) if backwards else x


def _listed(types: Sequence[TensorType]) -> str:
    return ", ".join(map(str, types)) or "nothing"


def _scalar(value: Value) -> Value:
    return build.reshape(value, ())


def _declared(value: Value, body: Body, index: int) -> Value:
    """The number of the trip, or the condition, in the rank that the body declares: exporters write 0 or 1."""
    return build.reshape(value, (1,)) if body.rank(index) == 1 else value


def _flag(n: Node, value: Value) -> Value:
    if value.dtype is not bool_:
        raise n.malformed(f"a condition of {value.tensor}")
    return _scalar(value)


def _is_true(n: Node, value: Value) -> bool:
    known = n.known(value)
    return known is not None and known.size == 1 and bool(known.item())
