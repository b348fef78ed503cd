"""Optional values. Whether one is there is known when the model is imported: it is a tensor, or it is left out."""

from __future__ import annotations

from dovetail.frontends.onnx.importing.node import Node
from dovetail.frontends.onnx.importing.rule import rule
from dovetail.ir import leaf
from dovetail.ir.value import Value


@rule("Optional")
def optional(n: Node, x: Value | None = None) -> Value:
    """The tensor itself."""
    if x is None:
        raise n.unsupported("an optional value that is empty", hint="leave the input of its reader out")
    return x


@rule("OptionalHasElement")
def optional_has_element(n: Node, x: Value | None = None) -> Value:
    """Whether the value is there."""
    return leaf.constant(x is not None)


@rule("OptionalGetElement")
def optional_get_element(n: Node, x: Value) -> Value:
    """The tensor itself."""
    return x
