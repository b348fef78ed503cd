"""Reductions, windows and sorts, whose blocks are recognised by what they compute."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Sequence

import numpy as np

from dovetail import ops
from dovetail.frontends.jax.importing import Node, rule
from dovetail.frontends.jax.module import Block, Operation
from dovetail.frontends.shared.rule import Made
from dovetail.grad.gradient import gradient as derivatives
from dovetail.ir import leaf
from dovetail.ir.dtype import DType, bool_
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.special import highest, lowest

MOST_TAPS = 256
"""Elements of a window that are combined one by one."""
_BINARY: dict[str, Callable[[Value, Value], Value]] = {
    "add": ops.add,
    "and": ops.bit_and,
    "maximum": ops.maximum,
    "minimum": ops.minimum,
    "multiply": ops.mul,
    "or": ops.bit_or,
}
_REDUCED: dict[str, Callable[..., Value]] = {
    "add": ops.reduce_sum,
    "and": ops.reduce_all,
    "maximum": ops.reduce_max,
    "minimum": ops.reduce_min,
    "multiply": ops.reduce_prod,
    "or": ops.reduce_any,
}
_RUNNING: dict[str, Callable[..., Value]] = {
    "add": ops.cum_sum,
    "maximum": ops.cum_max,
    "minimum": ops.cum_min,
    "multiply": ops.cum_prod,
}


def combines(n: Node, block: Block) -> str:
    """The one operation of two elements that a block is."""
    if len(block.operations) == 1 and len(block.arguments) == 2:
        (operation,) = block.operations
        name = operation.name.removeprefix("stablehlo.")
        if name in _BINARY and {*operation.operands} == {*block.arguments} and block.returned == operation.results:
            return name
    said = ", ".join(o.name.split(".")[-1] for o in block.operations) or "a choice"
    raise n.unsupported(f"by a function of its own ({said})")


def neutral(name: str, dtype: DType) -> object:
    """What changes nothing."""
    of = dtype.numpy
    return {
        "add": 0,
        "or": False,
        "multiply": 1,
        "and": True,
        "maximum": lowest(of) if dtype is not bool_ else False,
        "minimum": highest(of) if dtype is not bool_ else True,
    }[name]


@rule("stablehlo.reduce")
def reduce(n: Node) -> Made:
    axes = tuple(n.attrs["dimensions"])
    if len(n.operands) == 4:
        return _extreme_index(n, axes)
    if len(n.operands) != 2:
        raise n.unsupported(f"of {len(n.operands) // 2} tensors at once")
    x, start = n.operands
    name = combines(n, n.operation.blocks[0])
    if not axes:
        return _started(name, x, start)
    at = tuple(a - x.rank for a in axes)
    if x.dtype is bool_ and name in ("add", "maximum", "multiply", "minimum"):
        name = "or" if name in ("add", "maximum") else "and"
    if x.dtype is not bool_ and name in ("and", "or"):
        raise n.unsupported(f"by {name} of {x.dtype}")
    return _started(name, ops.squeeze(_REDUCED[name](x, axes=at), axes=at), start)


def _started(name: str, x: Value, start: Value) -> Value:
    """A reduction combined with the element that it starts from, unless that changes nothing."""
    if start.op is leaf.CONST:
        array = np.asarray(start.attrs["value"].array)
        if bool(np.all(array == np.asarray(neutral(name, start.dtype), array.dtype))):
            return x
    return _BINARY[name](x, build.broadcast_to(start, x.shape))


def _extreme_index(n: Node, axes: tuple[int, ...]) -> Made:
    """The largest or smallest element and its index, as jnp.argmax lowers it."""
    x, indices, *_ = n.operands
    block = n.operation.blocks[0]
    said = [_spelled(block, o) for o in block.operations]
    which = said[0][1] if said else ""
    of_floats = [("compare", which), ("compare", "NE"), ("or", ""), ("compare", "EQ"), ("compare", "LT")]
    of_integers = [("compare", which), ("compare", "EQ"), ("compare", "LT")]
    rest = [("and", ""), ("or", ""), ("select", ""), ("select", "")]
    is_counted = _counts(indices, axes)
    if len(axes) != 1 or which not in ("GT", "LT") or said not in (of_floats + rest, of_integers + rest):
        raise n.unsupported("of two tensors at once by a function of its own")
    if not is_counted:
        raise n.unsupported("of two tensors at once, of which the second does not count the first")
    at = axes[0] - x.rank
    largest = which == "GT"
    value = (ops.reduce_max if largest else ops.reduce_min)(x, axes=(at,))
    index = (ops.arg_max if largest else ops.arg_min)(x, axis=at)
    return (
        ops.squeeze(value, axes=(at,)),
        ops.squeeze(ops.cast(index, dtype=indices.dtype), axes=(at,)),
    )


def _spelled(block: Block, operation: Operation) -> tuple[str, str]:
    direction = str(operation.attrs.get("comparison_direction", "")).split()
    return operation.name.removeprefix("stablehlo."), direction[-1].rstrip(">") if direction else ""


def _counts(indices: Value, axes: tuple[int, ...]) -> bool:
    """Whether a tensor has along an axis 0, 1, 2, …, and the same for all others."""
    while indices.op in (ops.expand, ops.unsqueeze):
        indices = indices.operands[0]
    return indices.op is ops.iota


@rule("stablehlo.reduce_window")
def reduce_window(n: Node) -> Value:
    if len(n.operands) != 2:
        raise n.unsupported(f"of {len(n.operands) // 2} tensors at once")
    x, start = n.operands
    name = combines(n, n.operation.blocks[0])
    ones = (1,) * x.rank
    window: Sequence[int] = n.attrs["window_dimensions"]
    strides: Sequence[int] = n.attrs.get("window_strides", ones)
    dilations: Sequence[int] = n.attrs.get("window_dilations", ones)
    if any(step != 1 for step in n.attrs.get("base_dilations", ones)):
        raise n.unsupported("with gaps between the elements")
    around = n.attrs["padding"].tolist() if "padding" in n.attrs else [[0, 0]] * x.rank
    running = _running(x, name, window, strides, around)
    if running is not None:
        return _started(name, running, start)
    if math.prod(window) > MOST_TAPS:
        raise n.unsupported(f"of {math.prod(window)} elements")
    x = build.pad_dims(x, [a for a, _ in around], [b for _, b in around], start)
    found: Value | None = None
    sizes = n.operation.types[0].shape
    for tap in itertools.product(*map(range, window)):
        y = x
        for at, (index, dilation, step) in enumerate(zip(tap, dilations, strides, strict=True)):
            size = sizes[at]
            if step == 1 and window[at] == 1:
                continue  # of a size that may be open
            if not isinstance(size, int):
                raise n.unsupported("along a size that is not known")
            first = index * dilation
            y = build.cut(y, at - x.rank, first, first + (size - 1) * step + 1, step)
        found = y if found is None else _BINARY[name](found, y)
    assert found is not None, "a window has an element"
    return _started(name, found, start)


@rule("stablehlo.select_and_scatter")
def select_and_scatter(n: Node) -> Value:
    """What is scattered to the largest element of each window, the first of equals: the gradient of a max pool."""
    x, g, start = n.operands
    choice, sum_ = n.operation.blocks
    said = [_spelled(choice, o) for o in choice.operations]
    is_least = said == [("compare", "LE")]
    if said not in ([("compare", "GE")], [("compare", "LE")]) or combines(n, sum_) != "add":
        raise n.unsupported("by functions of its own")
    ones = (1,) * x.rank
    window: Sequence[int] = n.attrs.get("window_dimensions", ones)
    strides: Sequence[int] = n.attrs.get("window_strides", ones)
    around = n.attrs["padding"].tolist() if "padding" in n.attrs else [[0, 0]] * x.rank
    wide = [a for a in range(x.rank) if window[a] != 1 or strides[a] != 1 or around[a] != [0, 0]]
    rest = [a for a in range(x.rank) if a not in wide]
    order = [*rest, *wide]

    def images(value: Value) -> Value:
        """One image for each index of the other axes."""
        moved = build.transpose(value, order)
        count = math.prod(int(str(value.shape[a])) for a in rest)
        return ops.reshape(moved, (count, 1, *(value.shape[a] for a in wide)))

    image, seed = images(-x if is_least else x), images(g)
    pooled = ops.max_pool(
        image,
        window=tuple(window[a] for a in wide),
        strides=tuple(strides[a] for a in wide),
        padding=(*(around[a][0] for a in wide), *(around[a][1] for a in wide)),
    )
    (found,) = derivatives(pooled, [image], seed)
    moved = ops.reshape(found, tuple(x.shape[a] for a in order))
    back = build.transpose(moved, [order.index(a) for a in range(x.rank)])
    return _started("add", back, start)


def _running(
    x: Value, name: str, window: Sequence[int], strides: Sequence[int], around: Sequence[Sequence[int]]
) -> Value | None:
    """A running reduction along one axis: its window reaches back to the first element, or on to the last."""
    wide = [i for i, size in enumerate(window) if size != 1]
    if len(wide) != 1 or name not in _RUNNING or any(step != 1 for step in strides):
        return None
    (at,) = wide
    if any(a or b for i, (a, b) in enumerate(around) if i != at) or window[at] != x.shape[at]:
        return None
    most = window[at] - 1
    if tuple(around[at]) not in ((most, 0), (0, most)):
        return None
    return _RUNNING[name](x, axis=at - x.rank, reverse=tuple(around[at]) == (0, most))


@rule("stablehlo.sort")
def sort(n: Node) -> Made:
    """All tensors in the order of the first."""
    axis = int(n.attrs["dimension"]) - n.x.rank
    order = ops.sort(n.x, axis=axis, descending=_is_descending(n))
    others = [ops.gather_elements(v, order[1], axis=axis) for v in n.operands[1:]]
    return (order[0], *others)


def _is_descending(n: Node) -> bool:
    """Which way a comparator sorts: it compares the first tensor's elements, perhaps made equal before (0, NaN)."""
    (block,) = n.operation.blocks
    made = {o.results[0]: o for o in block.operations if o.results}
    last = made.get(block.returned[0])
    if last is not None and last.name == "stablehlo.compare":
        which = _spelled(block, last)[1]
        seen = [_arguments(number, made, block) for number in last.operands]
        if which in ("LT", "GT") and seen == [{0}, {1}]:
            return which == "GT"
    raise n.unsupported("by several keys, or by a function of its own")


def _arguments(number: int, made: dict[int, Operation], block: Block) -> set[int]:
    """The arguments of a block that a value depends on through what makes zeros and NaN equal."""
    if number in block.arguments:
        return {block.arguments.index(number)}
    operation = made.get(number)
    if operation is None or operation.name.removeprefix("stablehlo.") not in ("constant", "compare", "select"):
        return {-1}
    return set[int]().union(*(_arguments(o, made, block) for o in operation.operands))


@rule("chlo.top_k")
def top_k(n: Node) -> Made:
    found = ops.top_k(n.x, k=int(n.attrs["k"]), axis=-1, largest=True, in_order=True)
    return found[0], ops.cast(found[1], dtype=n.operation.types[1].dtype)


__all__ = ["combines", "neutral"]
