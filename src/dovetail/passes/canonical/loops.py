"""Loops: carries that never change are captures, and what trips compute of captures alone is computed once, before."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail import ops
from dovetail.ir import leaf
from dovetail.ir.dim import product
from dovetail.ir.graph import Subgraph
from dovetail.ir.inline import inline
from dovetail.ir.value import Value
from dovetail.ops import elementwise
from dovetail.ops.control import scan_, while_
from dovetail.ops.view import VIEW_OPS
from dovetail.passes.canonical.rule import listed, number_in, rule

_PRODUCTS = frozenset({ops.matmul, ops.dot, ops.conv})
_REDUCTIONS = frozenset({ops.reduce_sum, ops.reduce_mean, ops.reduce_prod, ops.reduce_any, ops.reduce_all})
_EXTREMES = frozenset({ops.reduce_max, ops.reduce_min})
"""They are moved where they have something to reduce."""
_FUNCTIONS = frozenset(
    {
        *(ops.exp, ops.log, ops.tanh, ops.sigmoid, ops.softplus, ops.erf, ops.sqrt, ops.rsqrt, ops.pow_, ops.div),
        *(ops.sin, ops.cos, ops.tan, ops.asin, ops.acos, ops.atan, ops.atan2, ops.sinh, ops.cosh),
    }
)
"""Elementwise ops that take longer than a load of their result."""
_WORK = frozenset({*_PRODUCTS, *_REDUCTIONS, *_EXTREMES, *_FUNCTIONS})
_MOVED = frozenset({*_WORK, *VIEW_OPS, *elementwise.FAMILY, ops.slice_, ops.concat})
"""Ops that are computed before a loop. None of them raises an error on data, so a loop of no trips may compute them."""


@rule(while_, scan_)
def unchanged_carry_as_capture(value: Value) -> Value | None:
    """A carry that every trip passes on as it is needs no carrying: the trips read it from outside."""
    if value.known_type is None or value.attrs.get("places"):
        return None
    body: Subgraph = value.attrs["body"]
    carries = int(value.attrs["carries"])
    still = [i for i in range(carries) if _is_argument(body.results[i], i)]
    if not still:
        return None
    changing = [i for i in range(carries) if i not in still]
    order = [*changing, *range(carries, len(value.operands)), *still]
    kept = [r for i, r in enumerate(body.results) if i not in still]
    made = _with_operands(value, [value.operands[i] for i in order], order, kept, len(changing))
    results = iter(range(len(body.results) - len(still) + (value.op is while_)))
    items = [value.operands[i] if i in still else leaf.item(made, next(results)) for i in range(carries)]
    return leaf.pack((*items, *(leaf.item(made, i) for i in results)))


def _is_argument(value: Value, index: int) -> bool:
    """Whether a result is an argument, maybe through axes of size 1 and sums with 0, as some exporters write it."""
    type = value.known_type
    while value.op in (ops.squeeze, ops.unsqueeze, ops.add):
        if value.op is ops.add and number_in(value.operands[1]) != 0:
            return False
        value = value.operands[0]
    return value.op is leaf.ARGUMENT and value.attrs["index"] == index and value.known_type == type


def _with_operands(
    value: Value, operands: Sequence[Value], order: Sequence[int], results: Sequence[Value], carries: int
) -> Value:
    """A loop with its operands in another order; `order` has the index that each had before."""
    before: Subgraph = value.attrs["body"]
    types = tuple(before.arguments[old] for old in order)
    arguments = {old: leaf.argument(new, types[new]) for new, old in enumerate(order)}
    given = [arguments[i] for i in range(len(value.operands))]
    attrs = dict(value.attrs)
    attrs["body"] = Subgraph(types, inline(Subgraph(before.arguments, tuple(results)), given))
    if value.op is while_:
        attrs["condition"] = Subgraph(types, inline(value.attrs["condition"], given))
    attrs["carries"] = carries
    return value.op(*operands, **attrs)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]


@rule(while_, scan_)
def work_before_the_loop(value: Value) -> Value | None:
    """Products, reductions and functions that each trip computes from captures alone are computed once."""
    if value.known_type is None:
        return None
    body: Subgraph = value.attrs["body"]
    first = int(value.attrs["carries"]) + int(value.attrs.get("scanned", 0))
    moved = _work_on_captures(body, first)
    if not moved:
        return None
    given = list(value.operands)
    outside = inline(Subgraph(body.arguments, tuple(moved)), given)
    operands = [*given, *outside]
    types = (*body.arguments, *(v.tensor for v in outside))
    inside = {v: leaf.argument(len(given) + i, types[len(given) + i]) for i, v in enumerate(moved)}
    attrs = dict(value.attrs)
    attrs["body"] = Subgraph(types, _replaced(body.results, inside))
    if value.op is while_:
        attrs["condition"] = Subgraph(types, value.attrs["condition"].results)
    return value.op(*operands, **attrs)  # pyright: ignore[reportCallIssue, reportUnknownVariableType]


def _work_on_captures(body: Subgraph, first: int) -> list[Value]:
    """The last values with work in them that depend on arguments from `first` on and constants alone."""
    has_work: dict[Value, bool] = {}
    for v in body.values:
        if v.op is leaf.ARGUMENT:
            if v.attrs["index"] >= first:
                has_work[v] = False
        elif v.op is leaf.CONST:
            has_work[v] = False
        elif v.op in _MOVED and all(x in has_work for x in v.operands):
            worked = any(has_work[x] for x in v.operands)
            # What only repeats elements is cheaper to compute in a trip than to read.
            if worked and v.op not in _WORK and not _is_no_larger(v):
                continue
            has_work[v] = worked or _is_work(v)
    read = {x for v in body.values if v not in has_work for x in v.operands} | set(body.results)
    return [v for v in body.values if has_work.get(v) and v in read]


def _is_work(value: Value) -> bool:
    """Whether computing a value takes longer than reading it; constants alone are folded elsewhere."""
    if all(x.op is leaf.CONST for x in value.operands):
        return False
    if value.op in _EXTREMES:
        return all(isinstance(size, int) and size > 0 for size in value.operands[0].shape)
    return value.op in _PRODUCTS or value.op in _REDUCTIONS or (value.op in _FUNCTIONS and _is_no_larger(value))


def _is_no_larger(value: Value) -> bool:
    """Whether a value has no more elements than the largest of its operands."""
    elements = product(value.shape)
    return any(product(x.shape) == elements for x in value.operands) or (
        isinstance(elements, int)
        and any(isinstance(n := product(x.shape), int) and n >= elements for x in value.operands)
    )


def _replaced(results: Sequence[Value], by: dict[Value, Value]) -> tuple[Value, ...]:
    new = dict(by)
    stack = list(results)
    while stack:
        v = stack[-1]
        pending = [] if v in new else [x for x in v.operands if x not in new]
        if pending:
            stack += pending
            continue
        stack.pop()
        if v not in new:
            new[v] = v.with_operands(tuple([new[x] for x in v.operands]))
    return tuple(new[v] for v in results)


RULES = listed(globals())
