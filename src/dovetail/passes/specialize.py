"""Specialising: symbols become numbers, in types, attributes and sub-graphs, and every constraint is checked."""

from __future__ import annotations

import operator
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any, cast

from dovetail import ops
from dovetail.errors import BindError, GraphError, SizeError
from dovetail.ir import origin
from dovetail.ir.dim import Dim, Size, substitute, symbols
from dovetail.ir.fact import Constraint
from dovetail.ir.graph import Graph, Reread, Subgraph, subgraphs, walk_into
from dovetail.ir.origin import Origin
from dovetail.ir.type import TensorType, TupleType, Type, tensors, type_symbols, with_sizes
from dovetail.ir.value import Op, Value, make
from dovetail.ir.walk import walk
from dovetail.nearest import nearest
from dovetail.ops.movement import split_of_nothing
from dovetail.ops.primitive import Primitive


def specialize(graph: Graph, binding: Mapping[str, int], *, partial: bool = False) -> Graph:
    """The graph with its symbols replaced by numbers. All of them are wanted unless `partial`."""
    numbers = _checked(graph, binding, partial)
    left = [c for constraint in graph.constraints if (c := _bound(graph, constraint, numbers)) is not None]
    spelled = ", ".join(f"{name} = {number}" for name, number in numbers.items())
    specializer = Specializer(lambda size: substitute(size, numbers), spelled, graph)
    return replace(
        specializer.graph_with(left),
        reread=None if graph.reread is None else _with_sizes(graph.reread, binding),
    )


def _with_sizes(reread: Reread, binding: Mapping[str, int]) -> Reread:
    return lambda fixed, free: reread({**binding, **fixed}, free)


def symbols_of(graph: Graph) -> tuple[set[str], set[str]]:
    """The symbols that a caller binds, and those that running the graph binds."""
    found: set[str] = set()
    fresh: set[str] = set()
    # Layers repeat: what looks like a value that was read has its symbols.
    seen: set[tuple[Op, Hashable, Type]] = set()
    for value in (*graph.inputs, *graph.parameters, *graph.values):
        look = (value.op, value.attrs_key, value.type)
        if look not in seen and _has_symbols(value):
            seen.add(look)
            found.update(value_symbols(value))
            fresh.update(fresh_symbols(value))
            for body in subgraphs(value):
                fresh.update(name for inner in walk_into(body.results) for name in fresh_symbols(inner))
    for constraint in graph.constraints:
        found.update(constraint.symbols)
    for value in (*graph.inputs, *graph.parameters):
        fresh.difference_update(type_symbols(value.type))
    return found - fresh, fresh


def _has_symbols(value: Value) -> bool:
    """Whether it is worth while to look closer: most values have none."""
    type = value.type
    for attr in value.attrs.values():
        if attr.__class__ in _MAY_HAVE_SYMBOLS and attr is not type:
            return True
    return any([size.__class__ is Dim for tensor in tensors(type) for size in tensor.shape])


_MAY_HAVE_SYMBOLS = frozenset((Dim, tuple, TensorType, TupleType, Subgraph))


def value_symbols(value: Value) -> Iterator[str]:
    """The symbols in the type and the attributes of a value; a sub-graph keeps those that running it binds."""
    yield from type_symbols(value.type)
    yield from attribute_symbols(value)


def attribute_symbols(value: Value) -> Iterator[str]:
    """The symbols in the attributes of a value."""
    for attr in value.attrs.values():
        yield from _attr_symbols(attr)


def _attr_symbols(attr: Any) -> Iterator[str]:
    match attr:
        case Dim():
            yield from symbols(attr)
        case TensorType() | TupleType():
            yield from type_symbols(attr)
        case tuple():
            for item in cast(tuple[Any, ...], attr):
                yield from _attr_symbols(item)
        case Subgraph():
            values = attr.values
            bound = {name for v in values for name in fresh_symbols(v)}
            yield from (name for v in values for name in value_symbols(v) if name not in bound)
        case _:
            pass


def fresh_symbols(value: Value) -> Iterator[str]:
    """The symbols that running this value binds, because its size depends on data."""
    if isinstance(value.op, Primitive):
        for name, attr in value.attrs.items():
            if value.op.kinds[name].name == "fresh":
                yield from _attr_symbols(attr)


def _checked(graph: Graph, binding: Mapping[str, int], partial: bool) -> dict[str, Size]:
    known, fresh = symbols_of(graph)
    numbers: dict[str, Size] = {}
    for name, given in binding.items():
        if name not in known and name not in fresh:
            near = nearest(name, sorted(known))
            listed = f"its symbols are {', '.join(sorted(known))}" if known else "it has no symbols"
            raise BindError(
                f"{graph.name} has no symbol {name!r}", hint=f"did you mean {near[0]}?" if near else f"{listed}"
            )
        numbers[name] = _number(name, given)
    missing = sorted(known - numbers.keys())
    if missing and not partial:
        raise BindError(
            f"{graph.name} has no number for {', '.join(missing)}", hint=f"bind it too: {{{missing[0]!r}: 1, …}}"
        )
    return numbers


def _number(name: str, given: object) -> int:
    try:
        number = operator.index(cast(Any, given))
    except TypeError:
        number = -1
    if isinstance(given, bool) or number < 0:
        raise BindError(f"the symbol {name} is bound to {given!r}", hint="a size is a whole number, zero or more")
    return number


def _bound(graph: Graph, constraint: Constraint, numbers: Mapping[str, Size]) -> Constraint | None:
    """What is left of a constraint; an error says which value needs it."""
    try:
        return constraint.bind(numbers)
    except SizeError as error:
        needs = [v for v in walk_into(graph.values) if constraint in v.constraints]
        error.where = graph.where(needs[0]) if needs else ""
        raise


class Specializer:
    """Rebuilds values with sizes replaced; sub-graphs are entered, origins follow."""

    def __init__(self, size: Callable[[Size], Size], spelled: str, graph: Graph) -> None:
        self.size = size
        self.spelled = spelled
        self.graph = graph
        self.origins: dict[Value, tuple[Origin, ...]] = {}
        self.bodies: dict[Subgraph, Subgraph] = {}

    def graph_with(self, assumed: Iterable[Constraint]) -> Graph:
        """The graph rebuilt, with these constraints assumed: inputs and parameters stay declared, read or not."""
        graph = self.graph
        new = self.run((*graph.inputs, *graph.signature, *graph.outputs.values()))
        return replace(
            graph,
            inputs=tuple([new[v] for v in graph.inputs]),
            outputs={name: new[v] for name, v in graph.outputs.items()},
            origins=self.origins,
            assumed=tuple(dict.fromkeys(assumed)),
            declared=tuple([new[v] for v in graph.signature]),
        )

    def run(self, outputs: Iterable[Value]) -> dict[Value, Value]:
        new: dict[Value, Value] = {}
        for value in walk(outputs):
            fresh = new[value] = self.value(value, tuple([new[v] for v in value.operands]))
            found = self.graph.origins.get(value)
            if found:
                known = self.origins.get(fresh)
                self.origins[fresh] = found if known is None else origin.merge(known, found)
        return new

    def value(self, value: Value, operands: tuple[Value, ...]) -> Value:
        try:
            attrs = {name: self.attribute(a) for name, a in self.possible(value).items()}
            if operands == value.operands and all(attrs[name] is a for name, a in value.attrs.items()):
                return value
            if value.op is ops.split:
                attrs = split_of_nothing(attrs, self.shape(value))
            new = make(value.op, operands, attrs)
        except GraphError as error:
            raise BindError(
                f"{value.op.name} does not fit {self.spelled}: {error.message}",
                hint=error.hint,
                where=self.graph.where(value) or error.where,
            ) from error
        self.refuse_negative(new, value)
        return new

    def shape(self, value: Value) -> tuple[Size, ...]:
        type = self.type(value.type)
        return type.shape if isinstance(type, TensorType) else ()

    def possible(self, value: Value) -> Mapping[str, Any]:
        """The attributes; a branch that does not fit the numbers is one that refuses to run, unless none fits."""
        if not value.op.branches:
            return value.attrs
        found = dict(value.attrs)
        refused: list[BindError] = []
        for name, attr in value.attrs.items():
            if isinstance(attr, Subgraph):
                try:
                    self.body(attr)
                except BindError as error:
                    refused.append(error)
                    found[name] = self.refusing(attr, error)
        if len(refused) == len(subgraphs(value)):
            raise refused[0]
        return found

    def refusing(self, body: Subgraph, error: BindError) -> Subgraph:
        """A body of the same type that says why it cannot be run."""
        types = [cast(TensorType, self.type(v.tensor)) for v in body.results]
        shapes = [tuple(max(s, 0) if isinstance(s, int) else s for s in t.shape) for t in types]
        results = [
            ops.refusal(shape=shape, dtype=t.dtype, message=error.message, hint=error.hint)
            for shape, t in zip(shapes, types, strict=True)
        ]
        return Subgraph(tuple(cast(TensorType, self.type(t)) for t in body.arguments), tuple(results))

    def refuse_negative(self, new: Value, old: Value) -> None:
        for tensor in tensors(new.type):
            for size in tensor.shape:
                if isinstance(size, int) and size < 0:
                    raise BindError(
                        f"{old!r} gets a negative size with {self.spelled}: {new.type}",
                        hint="bind larger sizes",
                        where=self.graph.where(old),
                    )

    def attribute(self, attr: Any) -> Any:
        """The attribute with its sizes replaced; the same object where there are none."""
        match attr:
            case Dim():
                return self.size(attr)
            case TensorType() | TupleType():
                return self.type(attr)
            case tuple():
                items = cast(tuple[Any, ...], attr)
                replaced = [self.attribute(item) for item in items]
                return tuple(replaced) if any(a is not b for a, b in zip(replaced, items, strict=True)) else items
            case Subgraph():
                return self.body(attr)
            case _:
                return attr

    def type(self, type: Type) -> Type:
        return with_sizes(type, self.size) if any(True for _ in type_symbols(type)) else type

    def body(self, body: Subgraph) -> Subgraph:
        if body not in self.bodies:
            new = self.run(body.results)
            arguments = tuple(cast(TensorType, self.type(t)) for t in body.arguments)
            results = tuple(new[v] for v in body.results)
            same = arguments == body.arguments and results == body.results
            self.bodies[body] = body if same else Subgraph(arguments, results)
        return self.bodies[body]
