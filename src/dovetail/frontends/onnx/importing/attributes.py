"""Attributes of nodes as what a rule declares them to be."""

from __future__ import annotations

import typing
from collections.abc import Callable, Mapping
from typing import Any

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.file.names import describe
from dovetail.frontends.onnx.file.proto import AttributeProto, messages
from dovetail.frontends.onnx.file.types import element
from dovetail.frontends.onnx.importing.node import Body
from dovetail.frontends.onnx.importing.rule import Rule
from dovetail.ir.dtype import DType
from dovetail.ir.literal import Array

Read = Mapping[str, AttributeProto]


def by_name(node: messages.NodeProto, outer: Read | None) -> dict[str, AttributeProto]:
    """The attributes of a node; one that refers to an attribute of the function around it is looked up there."""
    found: dict[str, AttributeProto] = {}
    if not node.attribute:
        return found
    for attribute in node.attribute:
        if attribute.name in found:
            raise LoadError(
                f"the attribute {attribute.name!r} twice", hint="a node has each once", where=describe(node)
            )
        if not attribute.ref_attr_name:
            found[attribute.name] = attribute
        elif outer is None:
            raise LoadError(
                f"{attribute.name} refers to {attribute.ref_attr_name!r} of a function, and stands in none",
                hint="check how the model was written",
                where=describe(node),
            )
        elif attribute.ref_attr_name in outer:
            found[attribute.name] = outer[attribute.ref_attr_name]
    return found


class Reader:
    """Reads attributes for rules; tensors and graphs are handed to the import that they are part of."""

    def __init__(
        self, tensor: Callable[[messages.TensorProto, str], Array], body: Callable[[messages.GraphProto], Body]
    ):
        self.tensor = tensor
        self.body = body

    def read(self, node: messages.NodeProto, rule: Rule, found: Read) -> dict[str, Any]:
        """The keyword arguments of a rule; what is left over must name inputs of older opsets."""
        attributes = rule.attributes
        for name in found:
            if name not in attributes and all(name != p.name for p in rule.parameters):
                raise UnsupportedError(
                    f"{node.op_type} with the attribute {name!r}",
                    hint=f"it takes {', '.join(attributes) or 'none'}",
                    where=describe(node),
                )
        arguments: dict[str, Any] = {}
        for onnx_name, attribute in attributes.items():
            if onnx_name in found:
                arguments[attribute.name] = self.value(node, found[onnx_name], attribute.kind)
            elif attribute.required:
                raise LoadError(
                    f"{node.op_type} without {onnx_name}", hint="the operator requires it", where=describe(node)
                )
        return arguments

    def value(self, node: messages.NodeProto, attribute: AttributeProto, kind: Any) -> Any:
        """An attribute as a Python value of a kind."""
        wanted = _WANTED.get(kind)
        if wanted is None:
            raise TypeError(f"a rule takes {attribute.name} of {node.op_type} as {kind}")
        if attribute.type != wanted and not (kind in _LISTS and attribute.type == AttributeProto.UNDEFINED):
            raise LoadError(
                f"the attribute {attribute.name!r} of {node.op_type} is a"
                f" {AttributeProto.AttributeType.Name(attribute.type).lower()}",
                hint=f"it is a {AttributeProto.AttributeType.Name(wanted).lower()}",
                where=describe(node),
            )
        if kind in _HELD and not attribute.HasField(_HELD[kind]):
            raise LoadError(
                f"the attribute {attribute.name!r} of {node.op_type} holds nothing of its type",
                hint="check how the model was written",
                where=describe(node),
            )
        if kind is str:
            return attribute.s.decode("utf-8", errors="replace")
        if kind is bool:
            return bool(attribute.i)
        if kind is DType:
            return element(attribute.i, describe(node))
        if kind is Array:
            return self.tensor(attribute.t, describe(node))
        if kind is messages.SparseTensorProto:
            return attribute.sparse_tensor
        if kind is Body:
            return self.body(attribute.g)
        if kind is int:
            return attribute.i
        if kind is float:
            return attribute.f
        items = {int: attribute.ints, float: attribute.floats, str: attribute.strings}[typing.get_args(kind)[0]]
        return tuple(i.decode("utf-8", errors="replace") if isinstance(i, bytes) else i for i in items)


_LISTS = {tuple[int, ...]: AttributeProto.INTS, tuple[float, ...]: AttributeProto.FLOATS}
_WANTED: dict[Any, int] = {
    int: AttributeProto.INT,
    bool: AttributeProto.INT,
    DType: AttributeProto.INT,
    float: AttributeProto.FLOAT,
    str: AttributeProto.STRING,
    Array: AttributeProto.TENSOR,
    Body: AttributeProto.GRAPH,
    messages.SparseTensorProto: AttributeProto.SPARSE_TENSOR,
    tuple[str, ...]: AttributeProto.STRINGS,
    **_LISTS,
}
_HELD: dict[Any, str] = {int: "i", bool: "i", DType: "i", float: "f", str: "s", Array: "t", Body: "g"}
"""The field that an attribute of one number, text, tensor or graph must have."""
