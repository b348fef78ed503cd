"""The io manifest: what a program is given and what it gives, by name."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.dataclass import dataclass
from dovetail.errors import GraphError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value


@dataclass(frozen=True, slots=True)
class Manifest:
    """Names and types of inputs, parameters and outputs, in the order of the graph.

    Inputs are the caller's memory and parameters the binder's. A run writes to donated inputs alone. Other outputs are
    in new memory, which the caller owns.
    """

    inputs: Mapping[str, TensorType]
    params: Mapping[str, TensorType]
    outputs: Mapping[str, TensorType]


def manifest_of(graph: Graph) -> Manifest:
    """Return the manifest of a graph; inputs that nothing reads are part of it."""
    inputs, params = _named(graph.inputs), _named(graph.parameters)
    for name in inputs.keys() & params.keys():
        raise GraphError(f"{name!r} is an input and a parameter", hint="give one of them another name")
    for value in graph.values:
        if value.op is leaf.INPUT and inputs.get(str(value.attrs["name"])) != value.type:
            raise GraphError(f"{value!r} is read and is no input of the graph", hint="list it among the inputs")
    return Manifest(inputs, params, {name: _one(name, v) for name, v in graph.outputs.items()})


def _named(values: Iterable[Value]) -> dict[str, TensorType]:
    types: dict[str, TensorType] = {}
    for value in values:
        name = str(value.attrs["name"])
        if types.setdefault(name, value.tensor) != value.tensor:
            raise GraphError(
                f"{name!r} is {types[name]} and {value.type} at once",
                hint="give inputs and parameters names of their own",
            )
    return types


def _one(name: str, value: Value) -> TensorType:
    if not isinstance(value.type, TensorType):
        raise GraphError(f"the output {name} is {value.type}, several tensors", hint="name each of them: value[0]")
    return value.type
