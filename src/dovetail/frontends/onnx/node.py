"""One node of a model as a rule sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import onnx

from dovetail.errors import LoadError, NeedsValueError, UnsupportedError
from dovetail.frontends.onnx import contents
from dovetail.frontends.onnx.contents import Contents
from dovetail.frontends.onnx.tensors import Tensors
from dovetail.frontends.words import printable
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, symbols
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.ops import generate


class Surroundings(Protocol):
    """What a node can ask of the import that it is part of."""

    follower: contents.Follower
    tensors: Tensors

    def fresh(self, name: str) -> Dim: ...

    def array_value(self, name: str, array: Array) -> Value:
        """An array as a constant, or as a parameter of that name where it is large."""
        ...


@dataclass(frozen=True, slots=True)
class Captured:
    """Values around a body that it reads, by name. They go into a sub-graph as operands."""

    values: Mapping[str, Value]

    @property
    def operands(self) -> tuple[Value, ...]:
        return tuple(self.values.values())

    def named(self, slots: Sequence[Value]) -> dict[str, Value]:
        """The operands as they arrive inside."""
        return dict(zip(self.values, slots, strict=True))


class Body(Protocol):
    """A graph in an attribute: a branch, or the body of a loop."""

    @property
    def inputs(self) -> tuple[str, ...]: ...

    @property
    def outputs(self) -> tuple[str, ...]: ...

    def rank(self, index: int) -> int | None:
        """The rank that the graph declares for an input, if it does."""
        ...

    def reads(self) -> Captured:
        """The values around it that it reads, and that are not the same in every run."""
        ...

    def __call__(self, *arguments: Value, captured: Mapping[str, Value] | None = None) -> tuple[Value, ...]:
        """Its results for these arguments. Without `captured` it reads the values around it directly."""
        ...


class Node:
    """One node of a model: its name, its operator, and what its rule may ask."""

    def __init__(self, proto: onnx.NodeProto, version: int, around: Surroundings) -> None:
        self.proto = proto
        self.version = version
        """The version of the operator's domain that the model asks for."""
        self.around = around

    @property
    def op_type(self) -> str:
        return self.proto.op_type

    @property
    def name(self) -> str:
        return self.proto.name or next((o for o in self.proto.output if o), "")

    @property
    def where(self) -> str:
        return describe(self.proto)

    def makes(self, index: int) -> bool:
        """Whether the node names this output, so that somebody may read it."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    @property
    def output_count(self) -> int:
        return len(self.proto.output)

    def fresh(self, name: str) -> Dim:
        """A symbol that no other size of the model has."""
        return self.around.fresh(name)

    def known(self, value: Value) -> Contents | None:
        """What a value holds in every run, element by element; None where it depends on the run."""
        return self.around.follower.contents(value)

    def sizes(self, value: Value) -> tuple[Size, ...] | None:
        """The sizes that an integer tensor holds, or None where they depend on the run."""
        found = self.known(value)
        return None if found is None else contents.sizes(found)

    def counted(self, value: Value, name: str) -> Value:
        """0, 1, 2, … below an integer of rank 0. Where the run finds it, the size of the result is a new symbol."""
        found = self.sizes(value)
        if found is not None:
            return generate.iota(size=found[0])
        return generate.counting(value, count=self.fresh(name))

    def array(self, value: Value, name: str) -> Array:
        """What a value holds, as an array."""
        found = self.known(value)
        if found is None or any(isinstance(x, Dim) for x in found.flat):
            raise self.needs(value, name)
        return found.astype(value.dtype.numpy)

    def needs(self, value: Value, name: str) -> UnsupportedError:
        """The error for a value that must be known when the model is imported and is not."""
        behind = walk([value])
        inputs = tuple(v.attrs["name"] for v in behind if v.op is leaf.INPUT)
        sizes = tuple(sorted({s for v in behind if v.op is generate.extent for s in symbols(v.attrs["size"])}))
        if inputs or sizes:
            asked = [*(f"{i!r}: array" for i in inputs), *(f"{s!r}: number" for s in sizes)]
            return NeedsValueError(
                f"{name} of {self.op_type} decides the structure of the model, and it depends on "
                f"{', '.join((*inputs, *sizes))}",
                inputs=inputs,
                sizes=sizes,
                hint=f"fix it when the model is compiled: fixed={{{', '.join(asked)}}}",
                where=self.where,
            )
        return self.unsupported(f"{name} that is computed in the run", hint="export the model with it as a constant")

    def unsupported(self, what: str, hint: str = "export the model without it") -> UnsupportedError:
        """The error for something that ONNX allows and we do not have."""
        return UnsupportedError(f"{self.op_type}: {what}", hint=hint, where=self.where)

    def malformed(self, what: str, hint: str = "check how the model was written") -> LoadError:
        """The error for something that ONNX does not allow."""
        return LoadError(f"{self.op_type}: {what}", hint=hint, where=self.where)


def describe(proto: Any) -> str:
    """A node as messages name it."""
    name = proto.name or next((o for o in proto.output if o), "")
    return f"the {proto.op_type} node {printable(name)!r}" if name else f"a {proto.op_type} node without a name"
