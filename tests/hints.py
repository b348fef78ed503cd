"""Following hints: a graph with inputs and parameters of the types that a report asks for, and their numbers."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dovetail.ir import dtype, leaf
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.rewrite import rebuild
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value


def typed(text: str) -> TensorType:
    """The type that a text such as f32[2, 3] names."""
    name, _, sizes = text.rstrip("]").partition("[")
    found = next(d for d in dtype.ALL if d.name == name)
    return TensorType(found, tuple(int(s) for s in sizes.split(",") if s.strip()))


def followed(graph: Graph, changes: Mapping[str, str]) -> Graph:
    """The graph with inputs and parameters of other types."""
    new: dict[Value, Value] = {}
    for value in (*graph.inputs, *graph.parameters):
        name = str(value.attrs["name"])
        if name in changes:
            type = typed(changes[name])
            new[value] = leaf.param(name, type) if value.op is leaf.PARAM else leaf.input(name, type)

    def step(value: Value, operands: tuple[Value, ...]) -> Value | None:
        return new.get(value)

    made = rebuild(graph, step)
    return Graph.of(dict(made.outputs), name=graph.name, inputs=[new.get(v, v) for v in graph.inputs])


def repeated(arrays: Mapping[str, Array], changes: Mapping[str, str]) -> dict[str, Array]:
    """The same numbers for the changed types."""
    found = dict(arrays)
    for name, text in changes.items():
        shape = tuple(int(str(s)) for s in typed(text).shape)
        found[name] = np.ascontiguousarray(np.broadcast_to(arrays[name], shape))
    return found
