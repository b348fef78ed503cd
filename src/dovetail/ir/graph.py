"""Graphs: named outputs over interned values, and their metadata."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Mapping
from contextlib import contextmanager
from dataclasses import field, replace
from functools import cached_property
from typing import Any, TypeAlias, cast

from dovetail.dataclass import dataclass
from dovetail.errors import GraphError
from dovetail.ir import leaf, origin
from dovetail.ir.donation import check_donated
from dovetail.ir.fact import Constraint
from dovetail.ir.literal import Array
from dovetail.ir.origin import Origin
from dovetail.ir.type import TensorType, Type, type_symbols
from dovetail.ir.value import Op, Value
from dovetail.ir.walk import walk


@dataclass(frozen=True, slots=True, eq=False)
class Subgraph:
    """A closed function of its arguments: the body of a branch, a loop or a region."""

    arguments: tuple[TensorType, ...]
    results: tuple[Value, ...]
    _order: tuple[Value, ...] | None = field(default=None, init=False, repr=False)

    # Values that have sub-graphs are looked up by them: the results, objects that are interned, are hashed at once.
    def __eq__(self, other: object) -> bool:
        if self is other:
            return True
        return other.__class__ is Subgraph and self.results == other.results and self.arguments == other.arguments  # type: ignore[attr-defined]

    def __hash__(self) -> int:
        return hash(self.results)

    @property
    def values(self) -> list[Value]:
        """Everything that the results need, operands before users. Passes ask many times."""
        order = self._order
        if order is None:
            order = tuple(walk(self.results))
            object.__setattr__(self, "_order", order)
        return list(order)

    @property
    def result_types(self) -> tuple[Type, ...]:
        return tuple(v.type for v in self.results)


def subgraphs(value: Value) -> list[Subgraph]:
    """Return the sub-graphs among the attributes of a value."""
    subgraphs_: list[Subgraph] = []
    if not value.attrs:
        return subgraphs_
    for attr in value.attrs.values():
        if attr.__class__ is Subgraph:
            subgraphs_.append(attr)
        elif attr.__class__ is tuple:
            subgraphs_ += [item for item in attr if item.__class__ is Subgraph]
    return subgraphs_


def walk_into(outputs: Iterable[Value], *, branches: bool = True) -> list[Value]:
    """Everything that the outputs need, what stands inside sub-graphs included; each once. Branches may be left out."""
    order: dict[Value, None] = {}
    pending: list[Iterable[Value]] = [outputs]
    while pending:
        for value in walk(pending.pop(), until=order):
            if value not in order:
                order[value] = None
                if value.attrs and (branches or not value.op.branches):
                    pending += [body.results for body in subgraphs(value)]
    return list(order)


Reread: TypeAlias = Callable[[Mapping[str, Array | int], frozenset[str]], "Graph"]
"""Imports the model of a graph again: with inputs and sizes fixed, and with initializers as inputs."""


@dataclass(frozen=True, eq=False)
class Graph:
    """Named outputs, the inputs they are given, and metadata about values."""

    name: str
    inputs: tuple[Value, ...]
    outputs: Mapping[str, Value]
    origins: Mapping[Value, tuple[Origin, ...]] = field(default_factory=dict[Value, tuple[Origin, ...]])
    assumed: tuple[Constraint, ...] = ()
    """Constraints of values that earlier passes rewrote away; they hold all the same."""
    params: Mapping[str, Array] = field(default_factory=dict[str, Array])
    """Arrays for the parameters, where the model came with them."""
    moved: Mapping[Value, Value] = field(default_factory=dict[Value, Value])
    """Where the values of an earlier form of this graph are now; what is not listed stands as it stood."""
    donated: Mapping[str, str] = field(default_factory=dict[str, str])
    """Output -> the input whose memory it is written into, both by name."""
    forward: tuple[str, ...] = ()
    """Outputs of the forward pass, where there is a backward pass too; what only others need belongs to that."""
    reread: Reread | None = None
    """Where the graph came from a model that can be imported again."""
    declared: tuple[Value, ...] = ()
    """Parameters as declared; a rewrite may leave some of them without a reader."""
    frozen: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parameters that the model does not train, by name, and why; training names them to train them all the same."""

    @staticmethod
    def of(
        outputs: Mapping[str, Value] | Value, *, name: str = "graph", inputs: Iterable[Value] | None = None
    ) -> Graph:
        """Return a graph of these outputs. By default inputs are listed in the order in which they are met."""
        named = {"y": outputs} if isinstance(outputs, Value) else dict(outputs)
        for output, value in named.items():
            if not isinstance(value, cast(Any, Value)):
                raise GraphError(f"the output {output!r} is a {value.__class__.__name__}", hint="outputs are values")
        met = [v for v in walk(named.values()) if v.op is leaf.INPUT]
        return Graph(name, tuple(met if inputs is None else inputs), named)

    @cached_property
    def values(self) -> list[Value]:
        """Everything reachable from the outputs, operands before users."""
        return walk(self.outputs.values())

    @cached_property
    def uses(self) -> Uses:
        return Uses(self)

    @cached_property
    def constraints(self) -> tuple[Constraint, ...]:
        """What must hold of the symbols for this graph to mean anything. A branch checks its own when it is run."""
        distinct = dict.fromkeys(self.assumed)
        always = [value for value in self.values if not value.op.branches]
        inside = [result for value in always if value.attrs for body in subgraphs(value) for result in body.results]
        for value in (*self.values, *walk_into(inside, branches=False)):
            if value.constraints:
                distinct.update(dict.fromkeys(value.constraints))
        return tuple(distinct)

    @cached_property
    def symbols(self) -> tuple[str, ...]:
        leaves = (*self.inputs, *self.parameters)
        names = {name for v in (*leaves, *self.values) for name in type_symbols(v.type)}
        return tuple(sorted(names))

    @cached_property
    def signature(self) -> tuple[Value, ...]:
        """All parameters: those that values read, in their order, then those that no value reads."""
        return tuple(dict.fromkeys((*self._read, *self.declared)))

    @cached_property
    def parameters(self) -> tuple[Value, ...]:
        """The parameters that a run needs: those that values read, and those whose shapes bind symbols."""
        unread = self.signature[len(self._read) :]
        return (*self._read, *(v for v in unread if not v.tensor.is_static))

    @cached_property
    def _read(self) -> tuple[Value, ...]:
        return tuple([v for v in self.values if v.op is leaf.PARAM])

    def count(self, op: Op | None = None) -> int:
        """Return the number of values, or of one op."""
        return len(self.values) if op is None else sum(v.op is op for v in self.values)

    def where(self, value: Value) -> str:
        """Return the user's words for a value, for messages."""
        return ", ".join(str(o) for o in self.origins.get(value, ())[:3])

    def replace(
        self,
        outputs: Mapping[str, Value],
        origins: Mapping[Value, tuple[Origin, ...]],
        moved: Mapping[Value, Value] | None = None,
    ) -> Graph:
        """Return this graph after a rewrite: new values, the same interface and the same promises."""
        return replace(
            self,
            outputs=dict(outputs),
            origins=origins,
            assumed=self.constraints,
            moved=follow(self.moved, moved or {}),
            declared=self.signature,
        )

    def donate(self, donated: Mapping[str, str]) -> Graph:
        """Return this graph with outputs written into the memory of inputs: output name -> input name, of one type."""
        both = {**self.donated, **donated}
        check_donated(both, self.inputs, self.outputs)
        return replace(self, donated=both)

    def settled(self) -> Graph:
        """Return this graph as a starting point: `moved` is counted from here."""
        return replace(self, moved={}) if self.moved else self


def follow(first: Mapping[Value, Value], then: Mapping[Value, Value]) -> dict[Value, Value]:
    """Compose two moves; values that stay where they are are left out."""
    both = {old: then.get(new, new) for old, new in first.items()}
    for old, new in then.items():
        if old is not new:
            both.setdefault(old, new)
    return both


class Uses:
    """The readers of each value: counted in one place, with multiplicity; being an output is a use."""

    def __init__(self, graph: Graph) -> None:
        self.readers: dict[Value, list[Value]] = {v: [] for v in graph.values}
        for value in graph.values:
            for operand in value.operands:
                self.readers[operand].append(value)
        self.as_output: dict[Value, int] = {}
        for value in graph.outputs.values():
            self.as_output[value] = self.as_output.get(value, 0) + 1

    def count(self, value: Value) -> int:
        return len(self.readers[value]) + self.as_output.get(value, 0)

    def is_output(self, value: Value) -> bool:
        return value in self.as_output


class Builder:
    """Collect the inputs, outputs and origins of a graph while it is written."""

    def __init__(self, name: str = "graph", *, lines: bool = True) -> None:
        self.name = name
        self.inputs: list[Value] = []
        self.outputs: dict[str, Value] = {}
        self.params: dict[str, Array] = {}
        self.donated: dict[str, str] = {}
        self.recorder = origin.Recorder(lines=lines)
        self._declared: dict[str, Value] = {}

    @contextmanager
    def recording(self) -> Generator[Builder]:
        """Note, for ops that are called inside, the line and the scopes they come from."""
        with origin.recording(self.recorder):
            yield self

    def input(self, name: str, type: TensorType) -> Value:
        """Declare an input, which every run passes."""
        known = name in self._declared
        value = self._declare(leaf.input(name, type))
        if not known:
            self.inputs.append(value)
        return value

    def param(self, name: str, type: TensorType, array: Array | None = None) -> Value:
        """Declare a parameter, which is bound once; `array` is its numbers where they are known."""
        value = self._declare(leaf.param(name, type))
        if array is not None:
            self.params[name] = array
        return value

    def output(self, name: str, value: Value, *, into: str = "") -> None:
        """Name a value as an output; `into` names an input that is donated: the output is written into its memory."""
        if name in self.outputs and self.outputs[name] is not value:
            raise GraphError(f"two outputs are named {name!r}", hint="give each output a name of its own")
        self.outputs[name] = value
        if into:
            self.donated[name] = into

    def graph(self) -> Graph:
        """Return the graph of the named outputs."""
        if not self.outputs:
            raise GraphError(f"{self.name} has no outputs", hint="name at least one with .output(name, value)")
        origins = {v: o for v in walk_into(self.outputs.values()) if (o := self.recorder.origins.get(v))}
        declared = tuple([v for v in self._declared.values() if v.op is leaf.PARAM])
        built = Graph(
            self.name, tuple(self.inputs), dict(self.outputs), origins, (), dict(self.params), declared=declared
        )
        return built.donate(self.donated) if self.donated else built

    def _declare(self, value: Value) -> Value:
        name: str = value.attrs["name"]
        known = self._declared.setdefault(name, value)
        if known is not value:
            raise GraphError(
                f"{name!r} is {known.op} {known.type} and {value.op} {value.type} at once",
                hint="give inputs and parameters names of their own",
            )
        return value
