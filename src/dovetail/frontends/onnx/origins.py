"""Where the values of a node come from, in the words of the model and of the program that it was exported from."""

from __future__ import annotations

import onnx

from dovetail.frontends.onnx.node import printable
from dovetail.ir.origin import Origin


def origins_of(node: onnx.NodeProto) -> tuple[Origin, ...]:
    """The node by its name and operator."""
    name = node.name or next((o for o in node.output if o), "")
    return (Origin("onnx", f"{printable(name)} ({node.op_type})" if name else node.op_type),)
