"""Higher-order operators: branches, loops, and attention with a function of the scores."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dovetail import library, ops
from dovetail.frontends.shared.rule import Made
from dovetail.frontends.torch.importing.node import Nested, Node
from dovetail.frontends.torch.importing.rule import rule
from dovetail.ir.dim import Dim, Size
from dovetail.ir.value import Value
from dovetail.ops import build, tracing
from dovetail.ops.control import differing


@rule("higher_order.cond")
def cond(n: Node, predicate: Value | bool, then: Nested, otherwise: Nested, operands: Sequence[Any]) -> Made:
    """The results of one of two branches."""
    if not isinstance(predicate, Value):
        return (then if predicate else otherwise)(*operands)
    tensors = _tensors(operands)
    yes, no = (ops.subgraph(_traced(branch, operands), [v.tensor for v in tensors]) for branch in (then, otherwise))
    places = differing(*([v.tensor for v in branch.results] for branch in (yes, no)))
    named: list[Size] = [size for t in n.types for size in t.shape]
    sizes = tuple(named[place] for place in places)
    if any(not isinstance(size, Dim) for size in sizes):
        raise n.malformed("branches that give other sizes")
    return tracing.items(
        ops.if_(build.reshape(predicate, ()), *tensors, then=yes, otherwise=no, sizes=sizes, places=places)
    )


@rule("higher_order.while_loop")
def while_loop(n: Node, condition: Nested, body: Nested, carried: Sequence[Any], more: Sequence[Any] = ()) -> Made:
    """The carried tensors once a condition fails."""
    carries = _only_tensors(n, carried)
    given = (*carried, *more)

    def goes_on(*slots: Value) -> Value:
        return build.reshape(_traced(condition, given)(*slots)[0], ())

    return ops.while_loop(goes_on, _traced(body, given), carries, _tensors(more)).carries


@rule("higher_order.scan")
def scan(n: Node, body: Nested, init: Sequence[Any], xs: Sequence[Any], more: Sequence[Any] = ()) -> Made:
    """The carried tensors after every slice along the first axis, and what each slice gives."""
    carries, scanned = _only_tensors(n, init), _only_tensors(n, xs)
    found = ops.scan(_traced(body, (*init, *xs, *more)), carries, scanned, _tensors(more))
    return (*found.carries, *found.outputs)


@rule("higher_order.map_impl")
def map_(n: Node, body: Nested, xs: Sequence[Any], more: Sequence[Any] = ()) -> Made:
    """What a function gives for each slice along the first axis."""
    return ops.scan(_traced(body, (*xs, *more)), [], _only_tensors(n, xs), _tensors(more)).outputs


def _traced(body: Nested, operands: Sequence[Any]) -> Callable[..., tuple[Value, ...]]:
    """A function of the tensors among the operands; numbers are part of the sub-graph."""

    def function(*slots: Value) -> tuple[Value, ...]:
        remaining = iter(slots)
        return body(*(next(remaining) if isinstance(o, Value) else o for o in operands))

    return function


def _tensors(operands: Sequence[Any]) -> list[Value]:
    return [o for o in operands if isinstance(o, Value)]


def _only_tensors(n: Node, operands: Sequence[Any]) -> list[Value]:
    found = _tensors(operands)
    if len(found) != len(operands):
        raise n.unsupported("a number that a loop carries", hint="carry it as a tensor")
    return found


@rule("higher_order.flex_attention")
def flex_attention(
    n: Node,
    query: Value,
    key: Value,
    value: Value,
    score_mod: Nested,
    blocks: Sequence[Any],
    scale: float,
    options: object,
    score_tensors: Sequence[Any] = (),
    mask_tensors: Sequence[Any] = (),
) -> Made:
    """softmax(score_mod(q @ kᵀ * scale)) @ v over the keys that mask_mod keeps; a query that sees none gets 0."""
    heads, shared = query.shape[1], key.shape[1]
    if heads != shared:
        key, value = (build.repeat(x, heads // shared, axis=1) for x in (key, value))
    product = ops.matmul(query, build.swap(key, -1, -2)) * scale
    places = [_places(size, axis) for axis, size in enumerate(product.shape)]
    (scores,) = score_mod.of_each(product, *places, *score_tensors)
    (kept,) = blocks[-1].of_each(*places, *mask_tensors)
    if n.known(kept) is None:
        y = library.softmax.body(ops.where(kept, scores, float("-inf"))) @ value
        return ops.where(ops.reduce_any(kept, axes=(-1,)), y, 0.0), None, None
    return library.softmax.body(scores) @ value, None, None


def _places(size: Size, axis: int) -> Value:
    """The position along an axis of four, shaped to broadcast; eager counts them in i64, too."""
    shape: list[Size] = [1, 1, 1, 1]
    shape[axis] = size
    return build.reshape(ops.iota(size=size), shape)
