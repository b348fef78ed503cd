"""Products summed over axes."""

from __future__ import annotations

from dovetail import ops
from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.rule import collected, rule
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("MatMul")
def matmul(n: Node, x: Value, y: Value) -> Value:
    """Matrix product over the last two axes; a vector is a row on the left, a column on the right."""
    if x.rank == 0 or y.rank == 0:
        raise n.malformed("a product with a number", hint="use Mul")
    left = ops.unsqueeze(x, axes=(-2,)) if x.rank == 1 else x
    right = ops.unsqueeze(y, axes=(-1,)) if y.rank == 1 else y
    product = left @ right
    gone = tuple(axis for axis, of in ((-2, x), (-1, y)) if of.rank == 1)
    return build.squeeze_dims(product, gone) if gone else product


@rule("Gemm")
def gemm(
    n: Node,
    a: Value,
    b: Value,
    c: Value | None = None,
    *,
    alpha: float = 1.0,
    beta: float = 1.0,
    transA: bool = False,
    transB: bool = False,
    broadcast: bool = True,  # before opset 7; without it c has the shape of the result, which needs no stretching
) -> Value:
    """alpha * a @ b + beta * c, where a and b may be turned."""
    left = ops.permute(a, order=(-1, -2)) if transA else a
    right = ops.permute(b, order=(-1, -2)) if transB else b
    product = _times(n, left @ right, alpha)
    if c is None or beta == 0.0:
        return product
    # One row for all is a bias, whichever way it is written.
    row = ops.squeeze(c, axes=(-2,)) if c.rank == 2 and c.shape[0] == 1 else c
    return product + _times(n, row, beta)


def _times(n: Node, x: Value, factor: float) -> Value:
    if factor == 1.0:
        return x
    if x.dtype.is_inexact:
        return x * factor
    if factor != int(factor):
        raise n.unsupported(f"a factor of {factor} for {x.dtype.name}", hint="use a whole number")
    return x * int(factor)


RULES = collected(globals())
