"""Kernels as closed bodies: what they compute from their operands, with the views between them in or out."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.dataclass import dataclass
from dovetail.errors import DovetailError
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Subgraph
from dovetail.ir.inline import inline, outline
from dovetail.ir.value import Op, Value
from dovetail.ops import movement
from dovetail.ops.primitive import Primitive
from dovetail.ops.region import region
from dovetail.ops.reshaping import reshape

_SAME_ORDER: tuple[Op, ...] = (movement.split, movement.merge, movement.squeeze, movement.unsqueeze)
_FOLLOWED: tuple[Op, ...] = (*_SAME_ORDER, movement.permute)
"""Views that have every element of their source once."""


@dataclass(frozen=True, slots=True)
class Closed:
    """A body, its operands, and the values that it stands for."""

    body: Subgraph
    operands: tuple[Value, ...]
    covers: tuple[Value, ...]


def closed(value: Value, looks_through: Callable[[Value], bool] = lambda value: False) -> Closed:
    """What a kernel computes. Operands that are views, and that are looked through, are part of it."""
    operands = tuple(dict.fromkeys([v for v in value.operands if not _is_scalar(v)]))
    body: Subgraph = value.attrs["body"] if value.op is region else outline([value], operands)
    covers = {value: None}
    found: dict[Value, None] = {}
    for operand in value.operands if value.op is region else operands:
        source = operand
        while _is_view(source) and source.op is not movement.again and looks_through(source):
            covers[source] = None
            (source,) = source.operands
        found[source] = None
    if len(covers) == 1:
        return Closed(body, value.operands if value.op is region else operands, (value,))
    given = {v: leaf.argument(i, v.tensor) for i, v in enumerate(found)}
    for view in reversed(covers):
        if view is not value:
            given[view] = view.with_operands((given[view.operands[0]],))
    results = inline(body, [given[v] for v in (value.operands if value.op is region else operands)])
    return Closed(Subgraph(tuple([v.tensor for v in found]), results), tuple(found), tuple(covers))


@dataclass(frozen=True, slots=True)
class Unviewed:
    """A body that reads an operand as it is, and the views that its result is seen through instead."""

    closed: Closed
    views: tuple[Value, ...]
    """As they stood inside, the first to be applied first."""
    needs: tuple[Value, ...]
    """The operands before they were reshaped."""

    @property
    def reorders(self) -> bool:
        """Whether the result has its elements in another order than it is stored in."""
        return any(view.op is movement.permute for view in self.views)

    def outside(self, value: Value) -> Value:
        for view in self.views:
            value = view.with_operands((value,))
        return value


def unviewed(read: Closed, operand: Value) -> Unviewed | None:
    """The body with its views of one operand moved behind its steps; None where steps do not commute with them."""
    index = read.operands.index(operand)
    readers: dict[Value, list[Value]] = {}
    values = read.body.values
    for value in values:
        for v in dict.fromkeys(value.operands):
            readers.setdefault(v, []).append(value)
    (result,) = read.body.results
    at = next((v for v in values if v.op is leaf.ARGUMENT and v.attrs["index"] == index), None)
    views: list[Value] = []
    while at is not None and any(not r.op.elementwise for r in readers.get(at, ())):
        if len(readers[at]) != 1 or readers[at][0].op not in _FOLLOWED:
            return None
        at = readers[at][0]
        views.append(at)
    if at is None or (result.shape != at.shape and views):
        return None
    if not views:
        return Unviewed(read, (), read.operands)
    moved = [_moved(v, operand, views) if v is not operand else v for v in read.operands]
    seen = _seen_as_given(read.body, index, views)
    given = [v for v in moved if v is not None]
    if not seen or len(given) != len(moved):
        return None
    arguments = [leaf.argument(i, v.tensor) for i, v in enumerate(given)]
    try:
        results = _on(read.body, arguments, views[-1], arguments[index])
    except DovetailError:
        return None
    if results.shape != operand.shape:
        return None
    body = Subgraph(tuple([v.tensor for v in given]), (results,))
    return Unviewed(Closed(body, tuple(given), read.covers), tuple(views), read.operands)


def _seen_as_given(body: Subgraph, index: int, views: list[Value]) -> bool:
    """Whether the other operands are read without views of their own."""
    return all(v.op.elementwise or v in views for v in body.values if v.operands)


def _moved(value: Value, operand: Value, views: list[Value]) -> Value | None:
    """Another operand as steps read it once the views are gone; None where its elements would meet others."""
    if value.tensor.count == 1 and value.rank <= operand.rank:
        return value
    if any(v.op not in _SAME_ORDER for v in views):
        return None
    seen: tuple[Size, ...] = views[-1].shape
    if value.rank == 1 and seen[-1:] == value.shape == operand.shape[-1:]:
        return value
    # What a kernel has written lies densely, so that another shape of it is free.
    if value.shape != seen or _is_view(value):
        return None
    try:
        return reshape(value, operand.shape)
    except DovetailError:
        return None


def _on(body: Subgraph, arguments: list[Value], last: Value, source: Value) -> Value:
    """The result of a body on these arguments, with the source in place of the last view of it."""
    new: dict[Value, Value] = {last: source}
    for value in body.values:
        if value in new:
            continue
        if value.op is leaf.ARGUMENT:
            new[value] = arguments[value.attrs["index"]]
        elif value.operands and value.op.elementwise:
            new[value] = value.with_operands(tuple([new[v] for v in value.operands]))
        elif not value.operands:
            new[value] = value
    return new[body.results[0]]


def _is_view(value: Value) -> bool:
    return isinstance(value.op, Primitive) and value.op.view


def _is_scalar(value: Value) -> bool:
    """A rank-0 constant is written into the kernel and is no operand."""
    return value.op is leaf.CONST and value.rank == 0


__all__ = ["Closed", "Unviewed", "closed", "unviewed"]
