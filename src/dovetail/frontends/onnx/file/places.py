"""Where a node is in a file: in the graph itself, or in a body or a function of one of the graph's nodes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import onnx

from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.file.names import describe, domain
from dovetail.frontends.onnx.file.read import read_apart


@dataclass(frozen=True, slots=True)
class Place:
    """A node, and the node of the graph that it is part of."""

    node: str
    """What messages call it."""
    outer: str
    """The name of the graph's node whose body or function has it; its own name where the graph has it."""


def place_of(path: Path, name: str) -> Place | None:
    """The node of this name; one without a name has that of its first output."""
    model = read_apart(path)[0]
    functions = {(domain(f.domain), f.name): f for f in model.functions}
    for outer in model.graph.node:
        for node in _within(outer, functions, set()):
            if _name(node) == name:
                return Place(describe(node), _name(outer))
    return None


def _within(
    outer: onnx.NodeProto, functions: dict[tuple[str, str], onnx.FunctionProto], seen: set[str]
) -> Iterator[onnx.NodeProto]:
    """A node and those of its bodies and functions, each function once."""
    pending: list[Iterable[onnx.NodeProto]] = [[outer]]
    while pending:
        for node in pending.pop():
            yield node
            for attribute in node.attribute:
                pending += [graph.node for graph in (attribute.g, *attribute.graphs) if graph.node]
            function = functions.get((domain(node.domain), node.op_type))
            if function is not None and function.name not in seen:
                seen.add(function.name)
                pending.append(function.node)


def _name(node: onnx.NodeProto) -> str:
    return node.name or next((output for output in node.output if output), "")


__all__ = ["Place", "place_of"]
