"""Operators that move elements and compute nothing."""

from __future__ import annotations

from dovetail.frontends.onnx.node import Node
from dovetail.frontends.onnx.rule import Ints, Sizes, collected, rule
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.ops import build


@rule("Reshape", since=5)
def reshape(n: Node, x: Value, shape: Sizes, *, allowzero: bool = False) -> Value:
    """The same elements in another shape; -1 is what is left, and 0 copies a size unless allowzero."""
    wanted: list[Size] = [x.shape[i] if s == 0 and not allowzero else s for i, s in enumerate(shape)]
    return build.reshape(x, wanted)


@rule("Squeeze")
def squeeze(n: Node, x: Value, axes: Ints | None = None) -> Value:
    """Axes of size 1 are left out."""
    return build.squeeze_dims(x, axes)


RULES = collected(globals())
