"""One or more calls of every primitive with a gradient rule: shapes, ranges, attributes. Names of sizes are symbols."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from dovetail import ops
from dovetail.ir.leaf import constant
from dovetail.ir.value import Value

Array = NDArray[Any]
Shape = tuple[int | str, ...]
Call = (
    Callable[[Value], Value]
    | Callable[[Value, Value], Value]
    | Callable[[Value, Value, Value], Value]
    | Callable[[Value, Value, Value, Value], Value]
)
SIZES = {"n": 2, "m": 3, "k": 4, "l": 7}
"""What the symbols are in a run: a batch above 1, and no two axes alike."""


@dataclass(frozen=True)
class Case:
    """A call of one primitive; operands are floats to be drawn, or arrays that stay as they are."""

    op: str
    operands: Sequence[Shape | Array]
    attrs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    within: tuple[float, float] = (-2.0, 2.0)
    call: Call | None = None
    label: str = ""

    def __str__(self) -> str:
        return f"{self.op}-{self.label}" if self.label else self.op

    @property
    def shapes(self) -> list[Shape]:
        """The shapes of the floats."""
        return [shape for shape in self.operands if isinstance(shape, tuple)]

    def __call__(self, *floats: Value) -> Value:
        """The primitive of these floats, or the first of its results."""
        rest = iter(floats)
        given = [constant(o) if isinstance(o, np.ndarray) else next(rest) for o in self.operands]
        if self.call is not None:
            return cast(Callable[..., Value], self.call)(*given)
        y = BY_NAME[self.op](*given, **self.attrs)
        return y if self.op not in SEVERAL else y[0]


BY_NAME = {op.name: op for op in ops.ALL}
SMOOTH = ("neg", "exp", "expm1", "sin", "cos", "atan", "sinh", "cosh", "tanh", "asinh", "erf", "sigmoid", "softplus")
SEVERAL = ("unique", "sort", "top_k", "max_pool_indices")


def _index(*numbers: Any) -> Array:
    return np.array(numbers, np.int64)


_NM: Shape = ("n", "m")
_NM4: Shape = ("n", "m", 4)


def _elementwise() -> Iterator[Case]:
    for op in ("add", "sub", "mul", "maximum", "minimum", "atan2"):
        yield Case(op, [_NM, _NM])
        yield Case(op, [_NM4, (4,)], label="row")
        yield Case(op, [("n", 1, 4), ("m", 1)], label="both")
        yield Case(op, [_NM4, ()], label="scalar")
    yield Case("div", [_NM4, ("m", 1)], within=(0.5, 2.0))
    yield Case("mod", [_NM, ("m",)], within=(0.6, 5.0))
    yield Case("rem", [_NM, ("m",)], within=(0.6, 5.0))
    yield Case("pow", [_NM, ("m",)], within=(0.5, 2.5))
    for n in (2.0, 3.0, 0.5, -1.0, 0.0, 1.0):
        yield Case("pow", [_NM], within=(0.5, 2.5), call=_powered(n), label=f"to {n}")
    for op in [
        "neg",
        "relu",
        "exp",
        "expm1",
        "sin",
        "cos",
        "atan",
        "sinh",
        "cosh",
        "tanh",
        "asinh",
        "erf",
        "sigmoid",
        "softplus",
        "abs",
        "real",
    ]:
        yield Case(op, [_NM])
    for op in ("log", "log1p", "sqrt", "rsqrt", "reciprocal"):
        yield Case(op, [_NM], within=(0.3, 3.0))
    for op in ("tan", "asin", "acos", "atanh"):
        yield Case(op, [_NM], within=(-0.8, 0.8))
    yield Case("acosh", [_NM], within=(1.3, 3.0))
    yield Case("where", [_NM, _NM, ("m",)], call=lambda c, a, b: ops.where(c > 0.0, a, b))
    yield Case("where", [_NM4, ("m", 1)], call=lambda a, b: ops.where(a > 0.3, a, b), label="stretched")
    yield Case("cast", [_NM], call=lambda x: ops.cast(ops.cast(x, dtype="f64"), dtype="f64"))


def _powered(n: float) -> Callable[[Value], Value]:
    return lambda x: ops.pow_(x, n) + x


def _contractions() -> Iterator[Case]:
    yield Case("matmul", [("n", 3), (3, 4)])
    yield Case("matmul", [("n", "m", 3), (3, 4)], label="one weight")
    yield Case("matmul", [("n", "k", 2, 3), ("k", 3, 4)], label="batches")
    yield Case("matmul", [(2, 3), ("n", 3, 4)], label="left stretched")
    yield Case("matmul", [("n", 1, 2, 3), ("k", 3, 4)], label="both stretched")
    yield Case("grouped_matmul", [(6, 3), (4, 3, 2), np.array([2, 2, 5, 5])])
    yield Case("grouped_outer", [(6, 3), (6, 2), np.array([2, 2, 5, 5])])
    yield Case("dot", [("n", 3, 4), (4, 5)], {"left": (-1,), "right": (-2,)})
    axes = {"left": (-3, -1), "right": (-1, -4), "left_batch": (-4,), "right_batch": (-3,)}
    yield Case("dot", [("n", 3, "k", 2), (2, "n", 5, 3)], axes, label="batch, two axes")


def _reductions() -> Iterator[Case]:
    for op in ("reduce_sum", "reduce_mean", "reduce_max", "reduce_min", "reduce_prod"):
        yield Case(op, [_NM4], {"axes": (-1,)})
        yield Case(op, [_NM4], {"axes": (-3, -1)}, label="two axes")
    zeros = np.array([[1.0, 0, 2], [0, 0, 1]])
    yield Case("reduce_prod", [(2, 3), zeros], call=lambda x, z: ops.reduce_prod(x * z, axes=(-1,)), label="zeros")
    for op in ("cum_sum", "cum_prod", "cum_max", "cum_min"):
        for exclusive, reverse in ((False, False), (True, False), (False, True), (True, True)):
            label = f"{'exclusive' if exclusive else 'inclusive'}{', reverse' if reverse else ''}"
            yield Case(op, [("n", "k", 2)], call=_running(op, exclusive, reverse), label=label)
    zeros = np.array([[1.0, 0, 2, 0], [3, 1, 1, 0]])
    yield Case("cum_prod", [(2, 4), zeros], call=lambda x, z: ops.cum_prod(x * z, axis=-1), label="zeros")


def _running(op: str, exclusive: bool, reverse: bool) -> Callable[[Value], Value]:
    # Of nothing, the running extreme is the largest number that there is.
    return lambda x: ops.clip(BY_NAME[op](x, axis=-2, exclusive=exclusive, reverse=reverse), -9.0, 9.0)


def _movement() -> Iterator[Case]:
    yield Case("split", [("n", 6)], {"axis": -1, "parts": 2})
    yield Case("split", [("n", 6, 2)], {"axis": -2, "size": 2}, label="size")
    yield Case("merge", [_NM4], {"axis": -1})
    yield Case("merge", [("n", "m", 4, 2)], {"axis": -2, "count": 3}, label="three")
    yield Case("unsqueeze", [_NM], {"axes": (-1, -3)})
    yield Case("squeeze", [("n", 1, "m", 1)], {"axes": (-1, -3)})
    yield Case("permute", [_NM4], {"order": (-1, -3, -2)})
    yield Case("permute", [_NM4], {"order": (-1, -2)}, label="last two")
    yield Case("slice", [("n", 7)], {"axis": -1, "start": 2, "stop": 5})
    yield Case("slice", [("n", 7, 2)], {"axis": -2, "start": 1, "stop": 7, "step": 2}, label="step")
    yield Case("slice", [("n", 7, 2)], {"axis": -2, "start": 1, "stop": 5, "step": 3}, label="step, rest")
    yield Case("slice", [("l", 2)], call=lambda x: _from_1(x, 0, 2), label="step, symbol")
    yield Case("slice", [("l", 2)], call=lambda x: _from_1(x, 2, 1), label="symbol")
    yield Case("part", [("n", 6)], {"axis": -1, "index": 1, "parts": 3})
    yield Case("part", [("n", 6)], call=_all_parts, label="all")
    yield Case("expand", [("n", 1, 3)], {"axis": -2, "size": 4})
    yield Case("pad", [("n", 3), ()], {"axis": -1, "before": 2, "after": 1})
    yield Case("concat", [("n", 2), ("n", 3), ("n", 2)], {"axis": -1})
    yield Case("concat", [("n", 2), ("m", 2)], {"axis": -2}, label="symbols")
    yield Case("sized", [("n", 3)], {"axis": -2, "size": 2})
    yield Case("again", [("n", 3)])
    yield Case("flip", [("n", "m", 2)], {"axes": (-3, -1)})


def _from_1(x: Value, left: int, step: int) -> Value:
    return ops.slice_(x, axis=-2, start=1, stop=x.shape[0] - left, step=step)


def _all_parts(x: Value) -> Value:
    first, second, third = (ops.part(x, axis=-1, index=i, parts=3) for i in range(3))
    return first * second + third * 2.0


def _indexing() -> Iterator[Case]:
    yield Case("gather", [("m", 4), _index([0, 2, 2], [1, -1, 0])], {"axis": -2})
    yield Case("gather", [_NM4, _index(3, 0, 3)], {"axis": -1}, label="last axis")
    yield Case("gather", [("n", 4, "m"), _index([3, 0], [3, 3])], {"axis": -2}, label="middle axis")
    yield Case("gather_elements", [(3, 4), _index([0, 2], [1, -1], [3, 3])], {"axis": -1})
    yield Case("gather_elements", [(3, 4), _index([2], [-1], [0])], {"axis": -1}, label="one of each row")
    yield Case("gather_elements", [(3, 4), _index([2, -1, 0, -3])], {"axis": -2}, label="one of each column")
    yield Case("gather_elements", [(3, 4), _index([2], [1])], {"axis": -1}, label="one of some rows")
    yield Case("gather_nd", [(3, 4, 2), _index([0, 2], [2, 3], [0, 2])])
    yield Case("gather_nd", [(2, 3, 4), _index([[0], [2]], [[2], [2]])], {"batch": 1}, label="batch")
    columns, rows = _index([0, 2, 2], [1, -1, 0], [3, 3, 3]), _index([0, 2], [2, 3], [0, 2])
    for how in ("none", "add", "mul", "max", "min"):
        yield Case("scatter_elements", [(3, 4), columns, (3, 3)], {"axis": -1, "reduction": how}, label=how)
        yield Case("scatter_nd", [(3, 4, "n"), rows, (3, "n")], {"reduction": how}, label=how)
    yield Case("scatter_nd", [(3,), _index([1], [1], [0]), (3,)], call=_product_with_zeros, label="mul, zeros")
    yield Case("unique", [(4, 2)], {"axis": -2, "count": 4})
    yield Case("unique", [(2, 3)], {"in_order": False, "count": 6}, label="elements")
    yield Case("sort", [("n", 5)])
    yield Case("sort", [("n", "m", 2)], {"axis": -2, "descending": True}, label="descending")
    yield Case("top_k", [("n", 5)], {"k": 2})


def _product_with_zeros(x: Value, indices: Value, updates: Value) -> Value:
    factors = constant(np.array([0.0, 1.0, 2.0]))
    return ops.scatter_nd(x * constant(np.array([1.0, 0.0, 0.0])), indices, updates * factors, reduction="mul")


def _windows() -> Iterator[Case]:
    yield Case("conv", [("n", 2, 6), (3, 2, 3)])
    yield Case("conv", [("n", 2, 6, 5), (3, 2, 3, 2)], {"strides": (2, 1), "padding": (1, 0, 2, 1)}, label="strides")
    options: dict[str, Any] = {"strides": 2, "dilations": (2, 1), "padding": 1, "groups": 2}
    yield Case("conv", [("n", 4, 7, 6), (6, 2, 2, 3)], options, label="groups")
    yield Case("conv", [("n", 3, "l"), (3, 1, 3)], {"padding": 1, "groups": 3}, label="depthwise, symbol")
    yield Case("conv", [("n", 2, "l"), (3, 2, 3)], {"strides": 2, "padding": 1}, label="strides, symbol")
    yield Case("conv_transpose", [("n", 2, 4), (2, 3, 3)])
    options = {"strides": (2, 3), "padding": (1, 0, 0, 1), "output_padding": (1, 2), "groups": 2}
    yield Case("conv_transpose", [("n", 4, 3, 4), (4, 3, 3, 2)], options, label="groups")
    options = {"strides": 2, "dilations": 3, "padding": 1}
    yield Case("conv_transpose", [("n", 2, 4), (2, 3, 2)], options, label="dilated")
    for op in ("max_pool", "average_pool", "lp_pool"):
        yield Case(op, [("n", 2, 6)], {"window": 2, "strides": 2})
        options = {"window": (3, 2), "strides": (2, 1), "padding": (1, 0, 1, 1)}
        yield Case(op, [("n", 2, 5, 6)], options, label="padding")
        yield Case(op, [("n", 2, 6)], {"window": 3, "strides": 2, "ceil": True}, label="ceil")
        yield Case(op, [("n", 2, 7)], {"window": 2, "strides": 2, "dilations": 2}, label="dilated")
    options = {"window": 3, "strides": 2, "padding": 1, "ceil": True, "count_padding": True}
    yield Case("average_pool", [("n", 2, 6)], options, label="counted")
    yield Case("lp_pool", [("n", 2, 6)], {"window": 3, "p": 3.0}, label="cubes")
    yield Case("max_pool_indices", [("n", 2, 5)], {"window": 3, "padding": 1})
    yield from _resized()


def _resized() -> Iterator[Case]:
    for mode in ("nearest", "linear", "cubic"):
        yield Case("resize", [("n", 2, 4)], {"axes": (-1,), "sizes": (7,), "mode": mode}, label=mode)
        options = {"axes": (-2, -1), "scales": (1.5, 0.5), "mode": mode, "coordinates": "asymmetric"}
        yield Case("resize", [("n", 2, 4, 6)], options, label=f"{mode}, two axes")
    options = {"axes": (-1,), "sizes": (3,), "mode": "linear", "antialias": True}
    yield Case("resize", [(2, 6)], options, label="antialias")
    crop = {"coordinates": "tf_crop_and_resize", "roi": (-0.5, 0.9), "extrapolation": 3.0}
    yield Case("resize", [(5,)], {"axes": (-1,), "sizes": (4,), "mode": "linear", **crop}, label="crop")


def _others() -> Iterator[Case]:
    yield Case("fourier", [("n", 5, 2)])
    yield Case("fourier", [("n", 5, 2)], {"inverse": True}, label="inverse")
    numbers, zeros = np.array([[1, -3, 5], [100, 7, -8]], np.int8), np.array([1, 2, 3], np.int8)
    yield Case("dequantise", [numbers, (), np.array(2, np.int8)], {"dtype": "f64"})
    yield Case("dequantise", [numbers, (3,), zeros], {"dtype": "f64", "axis": -1}, label="axis")
    yield Case("if", [_NM], call=lambda x: ops.cond(_positive(x), lambda v: v * 3.0, ops.tanh, x)[0])
    yield Case("if", [_NM, ("m",)], call=_two_branches, label="two operands")
    yield Case("scan", [("m",), ("k", "m")], call=_recurrence)
    yield Case("scan", [("m",), ("k", "m"), ("m", "m")], call=_with_captures, label="captures", within=(-1.0, 1.0))
    yield Case("while", [("m",), ("m",)], call=_loop, within=(0.5, 1.0))


def _matrices() -> Iterator[Case]:
    yield Case("det", [("n", 3, 3)], call=lambda x: ops.det(x + _THRICE))
    yield Case("solve", [("n", 3, 3), ("n", 3, 2)], call=lambda a, b: ops.solve(a + _THRICE, b))
    yield Case("cholesky", [("n", 3, 3)], call=lambda x: ops.cholesky(x @ ops.permute(x, order=(-1, -2)) + _THRICE))
    yield Case("cholesky", [(3, 3)], call=lambda x: ops.cholesky(x + _THRICE), within=(-0.5, 0.5), label="one triangle")
    yield Case("eigh", [("n", 3, 3)], call=lambda x: ops.eigh(x)[0])
    yield Case("eigh", [(3, 3)], call=_scaled_vectors, label="vectors")


def _scaled_vectors(x: Value) -> Value:
    found = ops.eigh(x)
    return found[1] * ops.unsqueeze(found[0], axes=(-2,))


_THRICE = constant(np.eye(3) * 3.0)


def _two_branches(x: Value, w: Value) -> Value:
    return ops.cond(_positive(-x), lambda v, u: (v * u, u), lambda v, u: (ops.exp(v), ops.sin(u)), x, w)[0]


def _recurrence(carry: Value, xs: Value) -> Value:
    return ops.scan(lambda h, x: (ops.tanh(h + x),), [carry], [xs]).carries[0]


def _with_captures(carry: Value, xs: Value, weight: Value) -> Value:
    def step(h: Value, x: Value, w: Value) -> tuple[Value, Value]:
        return ops.tanh(ops.squeeze(ops.unsqueeze(h, axes=(-2,)) @ w, axes=(-2,)) + x), h * x

    found = ops.scan(step, [carry], [xs], [weight], reverse=True)
    return found.outputs[0] + found.carries[0]


def _loop(carry: Value, weight: Value) -> Value:
    def goes_on(h: Value, w: Value) -> Value:
        return ops.squeeze(ops.reduce_sum(h * h, axes=(-1,)), axes=(-1,)) < 20.0

    return ops.while_loop(goes_on, lambda h, w: (h * 1.3 + ops.sin(w),), [carry], [weight], limit=6).carries[0]


def _positive(x: Value) -> Value:
    axes = tuple(range(-x.rank, 0))
    return ops.squeeze(ops.reduce_sum(x, axes=axes), axes=axes) > 0.0


CASES = [
    case
    for family in (_elementwise, _contractions, _reductions, _movement, _indexing, _windows, _matrices, _others)
    for case in family()
]
