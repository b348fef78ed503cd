"""How nodes and domains of a model are named."""

from __future__ import annotations

from typing import Any

from dovetail.frontends.shared.messages import printable


def describe(proto: Any) -> str:
    """A node as messages name it."""
    name = proto.name or next((o for o in proto.output if o), "")
    return f"the {proto.op_type} node {printable(name)!r}" if name else f"a {proto.op_type} node without a name"


def describe_output(info: Any) -> str:
    """An output as messages name it."""
    return f"the output {printable(info.name)!r}"


def domain(name: str) -> str:
    """A domain by one name: that of ONNX itself has two."""
    return "" if name == "ai.onnx" else name
