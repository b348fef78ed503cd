"""Operators that are defined by other operators: functions of the model, and those that ONNX defines by a body."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.file.names import describe, domain
from dovetail.frontends.onnx.file.order import bodies
from dovetail.frontends.onnx.file.proto import AttributeProto, messages
from dovetail.frontends.onnx.file.types import type_proto
from dovetail.ir.value import Value


@dataclass(frozen=True, slots=True)
class Function:
    """A body of nodes with formal inputs, outputs and attributes."""

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    nodes: Sequence[messages.NodeProto]
    opsets: Mapping[str, int]
    required: tuple[str, ...]
    defaults: Mapping[str, AttributeProto]

    @staticmethod
    def of(proto: messages.FunctionProto, opsets: Mapping[str, int]) -> Function:
        own = {domain(o.domain): o.version for o in proto.opset_import}
        return Function(
            proto.name,
            tuple(proto.input),
            tuple(proto.output),
            proto.node,
            {**opsets, **own},
            tuple(proto.attribute),
            {a.name: a for a in proto.attribute_proto},
        )

    def attributes(self, node: messages.NodeProto, given: Mapping[str, AttributeProto]) -> dict[str, AttributeProto]:
        """What attributes are inside, for one call."""
        unknown = [n for n in given if n not in self.required and n not in self.defaults]
        if unknown:
            raise LoadError(
                f"the function {self.name} has no attribute {unknown[0]!r}",
                hint=f"it has {', '.join((*self.required, *self.defaults)) or 'none'}",
                where=describe(node),
            )
        return {**self.defaults, **given}


def defined(node: messages.NodeProto, version: int, operands: Sequence[Value | None]) -> Function:
    """The body by which ONNX defines an operator, for the types at hand."""
    from onnx import defs  # schemas take 70 ms to import, and few models have operators without a rule

    schema: Any = defs.get_schema(node.op_type, version, domain(node.domain))  # its stub leaves bodies out
    body = messages.FunctionProto()
    if schema.has_function:
        chosen = _newest(schema.function_opset_versions, version)
        body.ParseFromString(schema.get_function_with_opset_version(chosen))
    else:
        types = [messages.TypeProto() if v is None else type_proto(v.tensor) for v in operands]
        chosen = _newest(schema.context_dependent_function_opset_versions, version)
        body.ParseFromString(
            schema.get_context_dependent_function_with_opset_version(
                chosen, node.SerializeToString(), [t.SerializeToString() for t in types]
            )
        )
    if not body.node:
        raise UnsupportedError(
            f"{node.op_type} of these types", hint="export it as simpler operators", where=describe(node)
        )
    found = Function.of(body, {"": version})
    own = {name: a.default_value for name, a in schema.attributes.items() if a.default_value.name}
    return Function(
        found.name,
        found.inputs,
        found.outputs,
        found.nodes,
        found.opsets,
        tuple(schema.attributes),
        {**own, **found.defaults},
    )


def _newest(versions: Sequence[int], version: int) -> int:
    return max((v for v in versions if v <= version), default=min(versions))


def has_body(op_type: str, version: int, of: str) -> bool:
    """Whether ONNX defines an operator by a body."""
    from onnx import defs

    # Asked first: an error for each of many unknown operators takes most of the time to refuse them.
    if not defs.has(op_type, version, of):
        return False
    schema: Any = defs.get_schema(op_type, version, of)
    return schema.has_function or schema.has_context_dependent_function


def free_names(graph: messages.GraphProto) -> tuple[str, ...]:
    """The names that a graph reads from around it, those of graphs inside it included; each once."""
    made = {i.name for i in graph.input} | {t.name for t in graph.initializer}
    made |= {t.values.name for t in graph.sparse_initializer}
    found: dict[str, None] = {}
    for node in graph.node:
        inner = [name for body in bodies(node) for name in free_names(body)]
        for name in (*node.input, *inner):
            if name and name not in made:
                found[name] = None
        made.update(node.output)
    for output in graph.output:
        if output.name not in made:
            found[output.name] = None
    return tuple(found)
