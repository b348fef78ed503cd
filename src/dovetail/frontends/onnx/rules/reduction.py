"""Reductions over axes."""

from __future__ import annotations

from collections.abc import Callable

from dovetail import ops
from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import Ints, Rule, rule
from dovetail.ir.dim import Dim, product
from dovetail.ir.value import Value
from dovetail.ops import build
from dovetail.ops.primitive import axis_from_end

Along = Callable[[Value, tuple[int, ...]], Value]
"""A reduction over axes counted from the end, which stay with size 1."""


def _reduction(op_type: str, along: Along, doc: str) -> tuple[Rule, ...]:
    def function(
        n: Node, x: Value, axes: Ints | None = None, *, keepdims: bool = True, noop_with_empty_axes: bool = False
    ) -> Value:
        if axes:
            chosen = tuple(sorted(axis_from_end(a, x.rank) for a in axes))
        else:
            # Over no axes at all, what is computed beside the reduction still is: SumSquare squares.
            chosen = () if noop_with_empty_axes else tuple(range(-x.rank, 0))
        if len(set(chosen)) != len(chosen):
            raise n.malformed(f"axes {axes} name one axis twice")
        reduced = along(x, chosen)
        return reduced if keepdims else build.squeeze_dims(reduced, chosen)

    function.__doc__ = doc
    return rule(op_type)(function)


def _by(op: Callable[..., Value]) -> Along:
    """A reduction of ops; over no axes each element is its own result."""
    return lambda x, axes: op(x, axes=axes) if axes else x


def _mean(x: Value, axes: tuple[int, ...]) -> Value:
    if not axes or x.dtype.is_inexact:
        return ops.reduce_mean(x, axes=axes) if axes else x
    count = product(tuple(x.shape[a] for a in axes))
    # Whole numbers have a mean that is cut to a whole number.
    return ops.reduce_sum(x, axes=axes) / (ops.extent(size=count, dtype=x.dtype) if isinstance(count, Dim) else count)


_SUM = _by(ops.reduce_sum)


def _log_sum_exp(x: Value, axes: tuple[int, ...]) -> Value:
    return ops.reduce_log_sum_exp(x, axes=axes) if axes else x


REDUCE_SUM = _reduction("ReduceSum", _SUM, "Sum over axes.")
REDUCE_MEAN = _reduction("ReduceMean", _mean, "Mean over axes.")
REDUCE_MAX = _reduction("ReduceMax", _by(ops.reduce_max), "Largest element over axes.")
REDUCE_MIN = _reduction("ReduceMin", _by(ops.reduce_min), "Smallest element over axes.")
REDUCE_PROD = _reduction("ReduceProd", _by(ops.reduce_prod), "Product over axes.")
REDUCE_L1 = _reduction("ReduceL1", lambda x, axes: _SUM(ops.abs_(x), axes), "Sum of absolute values over axes.")
REDUCE_L2 = _reduction("ReduceL2", lambda x, axes: ops.sqrt(_SUM(x * x, axes)), "Euclidean length over axes.")
REDUCE_SUM_SQUARE = _reduction("ReduceSumSquare", lambda x, axes: _SUM(x * x, axes), "Sum of squares over axes.")
REDUCE_LOG_SUM = _reduction("ReduceLogSum", lambda x, axes: ops.log(_SUM(x, axes)), "Logarithm of the sum over axes.")
REDUCE_LOG_SUM_EXP = _reduction("ReduceLogSumExp", _log_sum_exp, "log(sum(exp(x))) over axes that does not overflow.")
