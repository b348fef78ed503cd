"""One node of a model as a rule sees it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Protocol

from dovetail.dataclass import dataclass
from dovetail.frontends.onnx.file.names import describe
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.file.tensors import Tensors
from dovetail.frontends.shared import site
from dovetail.ir.literal import Array
from dovetail.ir.value import Value


class Surroundings(site.Surroundings, Protocol):
    """What a node can ask of the import that it is part of."""

    tensors: Tensors
    ranked_by_sizes: set[Value]
    """Values whose rank other sizes of the run would change: an axis that is squeezed where it is 1."""

    def array_value(self, name: str, array: Array) -> Value:
        """An array as a constant, or as a parameter of that name where it is large."""
        ...

    def stored(self, value: Value) -> Array | None:
        """The array that the file holds for a value; None for values that are computed or given."""
        ...

    def replaced(self, *values: Value) -> None:
        """Note that others stand for these arrays of the file: they are dropped where nothing else reads them."""
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

    def output_rank(self, index: int) -> int | None:
        """The rank that the graph declares for an output, if it does."""
        ...

    def reads(self) -> Captured:
        """The values around it that it reads, and that are not the same in every run."""
        ...

    def __call__(self, *arguments: Value, captured: Mapping[str, Value] | None = None) -> tuple[Value, ...]:
        """Its results for these arguments. Without `captured` it reads the values around it directly."""
        ...


class Node(site.Site):
    """One node of a model: its name, its operator, and what its rule may ask."""

    def __init__(
        self,
        proto: messages.NodeProto,
        version: int,
        around: Surroundings,
        named: Callable[[str], Value | None] = lambda name: None,
    ) -> None:
        super().__init__(around)
        self.proto = proto
        self.named = named
        """The value of a name of the graph, where one before this node makes it."""
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
        """Whether the node names this output, so that another may read it."""
        return index < len(self.proto.output) and bool(self.proto.output[index])

    @property
    def output_count(self) -> int:
        return len(self.proto.output)

    def ranked_by_sizes(self, *values: Value) -> None:
        """Note that sizes of the run decide the rank of these values: what the file declares may be another."""
        self.around.ranked_by_sizes.update(values)
