"""Index map: elementwise steps that read through any views; every element computes the index that it reads at.

It serves views that strides and boxes cannot express, such as a slice across merged axes. Divisions are its price.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from dovetail import ops
from dovetail.ir.dim import Size
from dovetail.ir.dtype import i64
from dovetail.ir.value import Op, Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.families.map import moving_body
from dovetail.kernels.loops.body import Body, cast_to, is_number, number, pointers_of
from dovetail.kernels.loops.ir import (
    ZERO,
    Call,
    Expr,
    Extent,
    Kernel,
    Load,
    Name,
    Set,
    Statement,
    Store,
    Tensor,
    add,
    mul,
    sizes_in,
)
from dovetail.kernels.loops.tiling import Turn, cut, in_turn
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.plan import Step

Indices: TypeAlias = tuple[Expr, ...]
_COST = 8
"""Work of an element, relative to a copy: its index takes divisions."""


def offer_index_map(of: StepProblem[object]) -> Offer | Refused:
    """The kernel of a region of elementwise steps and views."""
    body = moving_body(of, lambda v: v.op in _RULES, "elementwise steps and views")
    if isinstance(body, Refused):
        return body
    return Offer(lambda: _IndexMap(of.step, of.locations, body).job())


class _IndexMap:
    """Write the kernel of one map of indices."""

    def __init__(self, step: Step, locations: TensorLocations, body: Body) -> None:
        self.step, self.locations, self.body = step, locations, body
        self.names, self.bindings = pointers_of(step, locations, body.arguments.values())
        self.sets: list[Statement] = []
        self.kept: dict[Expr, Expr] = {}

    def job(self) -> Job:
        turns = [self._turn(number) for number in range(len(self.body.results))]
        body, tiles, work = in_turn(turns)
        written = tuple(name for name in self.bindings if name.startswith("y"))
        kernel = Kernel("index_map", tuple(self.bindings), written, "tile", body, sizes=sizes_in(body))
        return Job(kernel, self.bindings, Tiles(tiles, work))

    def _turn(self, result: int) -> Turn:
        value = self.step.results[result]
        boxes = cut(value.shape, value.dtype.itemsize * 2, self.locations.target.tiles)
        self.sets, self.kept = [], {}
        element = self._element(self.body.results[result], boxes.at)
        store = Store(Tensor(f"y{result}", value.dtype, self.locations(value).strides), boxes.at, element)
        return Turn(boxes, (*self.sets, store), boxes.work * _COST)

    def _element(self, result: Value, at: Indices) -> Expr:
        """The element of a value at an index; what is read twice at one index is one expression."""
        exprs: dict[tuple[Value, Indices], Expr] = {}
        pending: list[tuple[Value, Indices]] = [(result, at)]
        while pending:
            key = value, place = pending[-1]
            if key in exprs:
                pending.pop()
                continue
            leaf_of = self._read(value, place)
            if leaf_of is not None:
                exprs[key] = leaf_of
                continue
            needed = self._operands(value, place)
            missing = [k for k in needed if k not in exprs]
            if missing:
                pending += missing
                continue
            operands = tuple(exprs[k] for k in needed)
            exprs[key] = Call(value.op.name, operands, value.dtype) if value.op.elementwise else operands[0]
        return exprs[result, at]

    def _read(self, value: Value, at: Indices) -> Expr | None:
        """A number, an element in memory, or an index; None for what is computed."""
        if is_number(value):
            return number(value)
        if value in self.body.views:
            view = self.body.views[value]
            return Load(Tensor(self.names[self.body.arguments[view.root]], value.dtype, view.strides, view.offset), at)
        if value.op is ops.extent:
            return cast_to(Extent(value.attrs["size"]), value.dtype)
        return cast_to(at[0], value.dtype) if value.op is ops.iota else None

    def _operands(self, value: Value, at: Indices) -> list[tuple[Value, Indices]]:
        if value.op.elementwise:
            return [(v, _stretched(v, at)) for v in value.operands]
        (x,) = value.operands
        return [(x, tuple(map(self._keep, _RULES[value.op](value, at, value.attrs))))]

    def _keep(self, index: Expr) -> Expr:
        """An index under a name, so that expressions stay short."""
        if not isinstance(index, Call):
            return index
        if index not in self.kept:
            name = f"k{len(self.kept)}"
            self.sets.append(Set(name, index))
            self.kept[index] = Name(name)
        return self.kept[index]


def _stretched(operand: Value, at: Indices) -> Indices:
    """The index of an operand that is broadcast."""
    lead = len(at) - operand.rank
    return tuple(ZERO if size == 1 else at[lead + a] for a, size in enumerate(operand.shape))


_Rule: TypeAlias = Callable[[Value, Indices, Mapping[str, Any]], Indices]


def _split(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    a = int(attrs["axis"]) + value.rank - 1
    return (*at[:a], add(mul(at[a], Extent(value.shape[a + 1])), at[a + 1]), *at[a + 2 :])


def _merge(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    shape = value.operands[0].shape
    last = int(attrs["axis"]) + len(shape)
    first = last - int(attrs["count"]) + 1
    rest, inside = at[first], list[Expr]()
    for a in range(last, first, -1):
        rest, inner = _divided(rest, shape[a])
        inside.insert(0, inner)
    return (*at[:first], rest, *inside, *at[first + 1 :])


def _divided(index: Expr, size: Size) -> tuple[Expr, Expr]:
    if size == 1:
        return index, ZERO
    return Call("div", (index, Extent(size)), i64), Call("rem", (index, Extent(size)), i64)


def _unsqueeze(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    return tuple(index for a, index in enumerate(at) if a - value.rank not in attrs["axes"])


def _squeeze(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    rest, rank = iter(at), value.operands[0].rank
    return tuple([ZERO if a - rank in attrs["axes"] else next(rest) for a in range(rank)])


def _permute(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    order: tuple[int, ...] = attrs["order"]
    kept = value.rank - len(order)
    by_axis = dict(zip(order, at[kept:], strict=True))
    return (*at[:kept], *(by_axis[a] for a in range(-len(order), 0)))


def _slice(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    a = int(attrs["axis"]) + value.rank
    return (*at[:a], add(mul(at[a], Extent(attrs["step"])), Extent(attrs["start"])), *at[a + 1 :])


def _part(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    a = int(attrs["axis"]) + value.rank
    return (*at[:a], add(at[a], Extent(attrs["index"] * value.shape[a])), *at[a + 1 :])


def _expand(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    a = int(attrs["axis"]) + value.rank
    return (*at[:a], ZERO, *at[a + 1 :])


def _flip(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    def flipped(a: int, index: Expr) -> Expr:
        return Call("sub", (Extent(value.shape[a] - 1), index), i64) if a - value.rank in attrs["axes"] else index

    return tuple(flipped(a, index) for a, index in enumerate(at))


def _same(value: Value, at: Indices, attrs: Mapping[str, Any]) -> Indices:
    return at


_RULES: Mapping[Op, _Rule] = {
    ops.split: _split,
    ops.merge: _merge,
    ops.unsqueeze: _unsqueeze,
    ops.squeeze: _squeeze,
    ops.permute: _permute,
    ops.slice_: _slice,
    ops.part: _part,
    ops.expand: _expand,
    ops.flip: _flip,
    ops.sized: _same,
    ops.again: _same,
    ops.stop_gradient: _same,
}

__all__ = ["offer_index_map"]
