"""What operands need not spell out, because elementwise ops and matmul broadcast."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from dovetail import ops
from dovetail.declare.cost import is_given, is_weight
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.library.scores import scores
from dovetail.ops import elementwise, reduction
from dovetail.passes.canonical.rule import listed, rule, under_numbers

_JOINING = tuple(op for op in elementwise.FAMILY if op.arity is not None and op.arity > 1)
_LARGEST_LOOKED_AT = 1 << 16
"""Elements of a constant that is read to see whether they are all one number."""

_LARGEST_COPIED = 1 << 24
"""Bytes of a constant that is copied to drop axes of size 1."""


@rule(*elementwise.FAMILY)
def repeat_after_elementwise(value: Value) -> Value | None:
    """Operands are not repeated before an elementwise op: it stretches them, or its result is repeated."""
    operands = value.operands
    for operand in operands:
        if operand.op is ops.expand:
            break
    else:
        return None
    if len(operands) == 1:
        x, attrs = operands[0].operands[0], operands[0].attrs
        return ops.expand(value.with_operands((x,)), axis=attrs["axis"], size=attrs["size"])
    return None if value.known_type is None else _repeat_late(value, 0)


@rule(ops.matmul, scores)
def repeat_after_matmul(value: Value) -> Value | None:
    """Matrices are not repeated before a product: it stretches their leading axes, or its result is repeated."""
    if value.known_type is None or all(v.op is not ops.expand for v in value.operands):
        return None
    return _repeat_late(value, 2)


@rule(*reduction.FAMILY)
def repeat_after_reduction(value: Value) -> Value | None:
    """What is repeated along one axis and reduced along others is reduced once and then repeated."""
    (x,) = value.operands
    along = value.attrs["axes"] if "axes" in value.attrs else (value.attrs["axis"],)
    if x.op is not ops.expand or x.attrs["axis"] in along:
        return None
    return ops.expand(value.with_operands(x.operands), axis=x.attrs["axis"], size=x.attrs["size"])


@rule(ops.reduce_max, ops.reduce_min, ops.reduce_any, ops.reduce_all)
def extreme_of_a_repeat(value: Value) -> Value | None:
    """The extreme of what is repeated along the reduced axis is the extreme of it once."""
    (x,) = value.operands
    # A reduction of nothing has a value of its own.
    if x.op is not ops.expand or x.attrs["axis"] not in value.attrs["axes"] or not _is_some(x.attrs["size"]):
        return None
    return value.with_operands(x.operands)


def _is_some(size: Size) -> bool:
    return isinstance(size, int) and size > 0


@rule(*reduction.FAMILY)
def ones_after_reduction(value: Value) -> Value | None:
    """Axes of size 1 in front that a reduction leaves alone are put in front of its result."""
    (x,) = value.operands
    if value.known_type is None or x.op is not ops.unsqueeze:
        return None
    along = value.attrs["axes"] if "axes" in value.attrs else (value.attrs["axis"],)
    count = min(_ones_in_front(x), x.rank + min(along, default=0))
    if count < 1:
        return None
    rest = x.attrs["axes"][count:]
    bare = ops.unsqueeze(x.operands[0], axes=rest) if rest else x.operands[0]
    return ops.unsqueeze(value.with_operands((bare,)), axes=tuple(range(-x.rank, count - x.rank)))


def _repeat_late(value: Value, kept: int) -> Value | None:
    """The op on operands that are not repeated, but along the last `kept` axes; repeated afterwards where needed."""
    shape = value.shape
    bases: list[Value] = []
    repeated: set[int] = set()
    for operand in value.operands:
        while operand.op is ops.expand and operand.attrs["axis"] < -kept:
            repeated.add(operand.attrs["axis"])
            (operand,) = operand.operands
        bases.append(operand)
    again: list[int] = []
    for axis in sorted(repeated):
        sizes = [v.shape[axis] for v in bases if v.rank >= -axis]
        if all(size == 1 for size in sizes):
            again.append(axis)
        elif any(size not in (1, shape[axis]) for size in sizes):
            return None
    result = value.with_operands(tuple(bases))
    for axis in again:
        result = ops.expand(result, axis=axis, size=shape[axis])
    return result if repeated else None


@rule(*_JOINING, ops.matmul)
def leading_axes(value: Value) -> Value | None:
    """Axes of size 1 are not put in front of an operand where another one has as many."""
    operands = value.operands
    for at, operand in enumerate(operands):
        if operand.op is ops.unsqueeze and operand.known_type is not None:
            others = [v.rank for i, v in enumerate(operands) if i != at and v.known_type is not None]
            if max(others, default=0) < operand.rank:
                continue
            axes: tuple[int, ...] = operand.attrs["axes"]
            kept = 2 if value.op is ops.matmul else 0
            front = 0
            while front < len(axes) and axes[front] == front - operand.rank and axes[front] < -kept:
                front += 1
            if front:
                (x,) = operand.operands
                rest = axes[front:]
                return _replaced(value, at, ops.unsqueeze(x, axes=rest) if rest else x)
    return None


@rule(*elementwise.FAMILY, ops.cast)
def ones_after_elementwise(value: Value) -> Value | None:
    """Axes of size 1 that all operands have in front are put in front of the result."""
    operands = value.operands
    if value.known_type is None or not any(v.op is ops.unsqueeze for v in operands):
        return None
    rank: int = value.rank
    count = min(_ones_in_front(v) if v.rank == rank else rank - v.rank for v in operands)
    if count < 1:
        return None
    bare: list[Value] = []
    for operand in operands:
        if operand.rank == rank:
            rest = operand.attrs["axes"][count:]
            operand = ops.unsqueeze(operand.operands[0], axes=rest) if rest else operand.operands[0]
        bare.append(operand)
    return ops.unsqueeze(value.with_operands(tuple(bare)), axes=tuple(range(-rank, count - rank)))


@rule(*elementwise.FAMILY, ops.cast)
def ones_after_scores(value: Value) -> Value | None:
    """Axes of size 1 that are put into the product of queries and keys follow the numbers that bend it."""
    tensors = [v for v in value.operands if v.known_type is not None and v.rank]
    if value.known_type is None or len(tensors) != 1 or not _are_scores_with_ones(tensors[0]):
        return None
    ((x,), axes) = tensors[0].operands, tensors[0].attrs["axes"]
    return ops.unsqueeze(value.with_operands(tuple(x if v is tensors[0] else v for v in value.operands)), axes=axes)


@rule(*reduction.FAMILY)
def ones_after_reduced_scores(value: Value) -> Value | None:
    """Axes of size 1 that are put into the product of queries and keys follow a reduction over the keys."""
    (x,) = value.operands
    along = value.attrs["axes"] if "axes" in value.attrs else (value.attrs["axis"],)
    if value.known_type is None or tuple(along) != (-1,) or not _are_scores_with_ones(x) or -1 in x.attrs["axes"]:
        return None
    reduced = value.with_operands(x.operands)
    return ops.unsqueeze(reduced, axes=x.attrs["axes"]) if reduced.rank == x.operands[0].rank else None


def _are_scores_with_ones(value: Value) -> bool:
    """Whether axes of size 1 are put into a product of two batches of matrices, bent by numbers or not."""
    if value.op is not ops.unsqueeze or value.known_type is None:
        return False
    under = under_numbers(value.operands[0])[1]
    return under.op is ops.matmul and under.operands[1].rank > 2


def _ones_in_front(value: Value) -> int:
    """How many axes an unsqueeze puts in front of all others."""
    if value.op is not ops.unsqueeze:
        return 0
    axes: tuple[int, ...] = value.attrs["axes"]
    return next((i for i, axis in enumerate(axes) if axis != i - value.rank), len(axes))


def _replaced(value: Value, at: int, operand: Value) -> Value:
    return value.with_operands((*value.operands[:at], operand, *value.operands[at + 1 :]))


@rule(*_JOINING, on_constant=True)
def lone_number(value: Value) -> Value | None:
    """A constant of one element has rank 0 where the other operands give the shape."""
    return _with_constant(value, _as_number)


@rule(*_JOINING, on_constant=True)
def uniform_constant(value: Value) -> Value | None:
    """A constant of one number throughout is that number where the other operands give the shape."""
    return _with_constant(value, _as_uniform)


def _with_constant(value: Value, simpler: Callable[[Array], Array | None]) -> Value | None:
    if value.known_type is None:
        return None
    for at, operand in enumerate(value.operands):
        if operand.op is leaf.CONST and operand.shape:
            number = simpler(operand.attrs["value"].array)
            if number is not None and _give_shape(value, at):
                return _replaced(value, at, leaf.constant(number))
    return None


def _as_number(array: Array) -> Array | None:
    return array.reshape(()) if array.size == 1 else None


def _as_uniform(array: Array) -> Array | None:
    if not 1 < array.size <= _LARGEST_LOOKED_AT:
        return None
    # Bits, not ==: NaN is itself, and 0.0 is not -0.0.
    bits = array.reshape(-1).view(np.uint8).reshape(array.size, -1)
    return array.reshape(-1)[0] if bool((bits == bits[0]).all()) else None


def _give_shape(value: Value, without: int) -> bool:
    """Whether the other operands stretch to the shape of the result by themselves."""
    shape: tuple[Size, ...] = value.shape
    others = [v.shape for i, v in enumerate(value.operands) if i != without]
    if max(map(len, others)) < len(shape):
        return False
    return all(
        size == 1 or any(len(other) >= axis and other[-axis] == size for other in others)
        for axis, size in zip(range(len(shape), 0, -1), shape, strict=True)
    )


@rule(*_JOINING, on_constant=True)
def leading_ones(value: Value) -> Value | None:
    """A constant has no axes of size 1 in front where another operand has as many axes."""
    if value.known_type is None:
        return None
    for at, operand in enumerate(value.operands):
        if operand.op is leaf.CONST and operand.shape and operand.shape[0] == 1:
            others = [v.rank for i, v in enumerate(value.operands) if i != at]
            if max(others) >= operand.rank:
                array: Array = operand.attrs["value"].array
                if array.nbytes > _LARGEST_COPIED:
                    continue
                front = next((i for i, size in enumerate(array.shape) if size != 1), array.ndim)
                return _replaced(value, at, leaf.constant(array.reshape(array.shape[front:])))
    return None


@rule(*_JOINING)
def leading_ones_of_a_weight(value: Value) -> Value | None:
    """A weight that is stretched, or a row that is added to a product, has no axes of size 1 in front.

    Another operand has as many axes.
    """
    operands = value.operands
    if value.known_type is None:
        return None
    for at, operand in enumerate(operands):
        if operand.rank < 2 or operand.shape[0] != 1 or operand.op is leaf.CONST:
            continue
        others = [v for i, v in enumerate(operands) if i != at]
        if not is_weight(operand) and not (value.op is ops.add and _is_row(operand) and _is_product(others[0])):
            continue
        # Two tensors of one shape stay so: kernels that read both row by row take them as they are.
        if max(v.rank for v in others) < operand.rank or any(v.shape == operand.shape for v in others):
            continue
        front = next((i for i, size in enumerate(operand.shape) if size != 1), operand.rank)
        return _replaced(value, at, ops.squeeze(operand, axes=tuple(range(-operand.rank, front - operand.rank))))
    return None


def _is_row(value: Value) -> bool:
    return all(size == 1 for size in value.shape[:-1]) and is_given(value)


def _is_product(value: Value) -> bool:
    """A product with one matrix; what is added to batched products may be a mask of scores."""
    return value.op is ops.matmul and value.operands[1].rank == 2


RULES = listed(globals())
