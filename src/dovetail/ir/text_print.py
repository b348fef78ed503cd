"""Graphs as text that reads back to the identical graph. The grammar stands in docs/text-form.md."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, cast

from dovetail.ir import leaf
from dovetail.ir.dim import Dim
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.literal import Literal
from dovetail.ir.origin import Origin
from dovetail.ir.spell import name, payload, quote
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ir.walk import walk

_WIDTH = 120


def print_graph(graph: Graph, *, constant: Callable[[Literal], str] = payload) -> str:
    """Print the graph as text; `constant` says how the elements of an array are written."""
    return _Printer(graph, constant).graph()


def local_names(graph: Graph, values: Iterable[Value]) -> dict[Value, str]:
    """Return the name in the text of each value of the top level: inputs and parameters by name, others by number."""
    names: dict[Value, str] = {}
    taken: set[str] = set()
    for value in (*graph.inputs, *(v for v in values if v.op is leaf.PARAM), *graph.declared):
        spelled = name(str(value.attrs.get("name")))
        if value.op in (leaf.INPUT, leaf.PARAM) and value not in names and spelled not in taken:
            taken.add(spelled)
            names[value] = spelled
    return _numbered(names, values)


def _numbered(names: dict[Value, str], values: Iterable[Value]) -> dict[Value, str]:
    number = 0
    for value in values:
        if value not in names:
            names[value] = f"%{number}"
            number += 1
    return names


class _Printer:
    def __init__(self, of: Graph, constant: Callable[[Literal], str]) -> None:
        self.of = of
        self.constant = constant
        self.lines: list[str] = []
        self.types: dict[Type | None, str] = {None: "?"}
        self.printed: set[Value] = set()

    def graph(self) -> str:
        of = self.of
        values = of.values
        names = local_names(of, values)
        self.header(names)
        for value in of.signature:
            if not names.get(value, "%").startswith("%"):
                why = of.frozen.get(str(value.attrs.get("name")))
                mark = "" if why is None else f" frozen {quote(why)}"
                self.lines.append(f"  param {names[value]}: {self.type(value.known_type)}{mark}{self.origins(value)}")
        self.body(values, names, "  ")
        for fact in of.assumed:
            self.lines.append(f"  assume {fact.relation}({fact.left}, {fact.right}) {quote(fact.why)}")
        marks = {output: f" into {name(source)}" for output, source in of.donated.items()}
        marks |= {output: f"{marks.get(output, '')} forward" for output in of.forward}
        results = ", ".join(f"{name(str(k))} = {names[v]}{marks.get(k, '')}" for k, v in of.outputs.items())
        self.lines += [f"  return {results}".rstrip(), "}", ""]
        return "\n".join(self.lines)

    def header(self, names: dict[Value, str]) -> None:
        listed = [v for v in dict.fromkeys(self.of.inputs) if not names.get(v, "%").startswith("%")]
        inputs = [f"{names[v]}: {self.type(v.known_type)}{self.origins(v)}" for v in listed]
        start = f"graph {name(self.of.name)}("
        line = f"{start}{', '.join(inputs)}) {{"
        if not listed or (len(line) <= _WIDTH and not any(map(self.of.origins.get, listed))):
            self.lines.append(line)
        else:
            self.lines += [start, *(f"  {text}," for text in inputs[:-1]), f"  {inputs[-1]}", ") {"]

    def body(self, values: Iterable[Value], names: dict[Value, str], indent: str) -> None:
        for value in values:
            local = names[value]
            if local.startswith("%"):
                self.lines.append(f"{indent}{local} = {self.expression(value, names, indent)}{self.origins(value)}")

    def expression(self, value: Value, names: dict[Value, str], indent: str) -> str:
        literal = value.attrs.get("value")
        if value.op is leaf.CONST and isinstance(literal, Literal):
            return self.literal(literal)
        operands = ", ".join([names[v] for v in value.operands])
        attrs = ", ".join([f"{name(k)}={self.attribute(a, indent)}" for k, a in value.attrs.items()])
        braced = f" {{{attrs}}}" if attrs else ""
        return f"{name(value.op.name)}({operands}){braced} : {self.type(value.known_type)}"

    def attribute(self, value: Any, indent: str) -> str:
        match value:
            case None | bool():
                return str(value).lower()
            case int() | DType():
                return str(value)
            case float():
                return float.__repr__(value)
            case str():
                return quote(value)
            case Dim():
                return f"size({value})"
            case TensorType():
                return self.type(value)
            case Literal():
                return self.literal(value)
            case Subgraph():
                return self.subgraph(value, indent)
            case tuple():
                items = [self.attribute(item, indent) for item in cast("tuple[Any, ...]", value)]
                return f"({items[0]},)" if len(items) == 1 else f"({', '.join(items)})"
            case _:
                return f"?{quote(repr(value))}"

    def literal(self, literal: Literal) -> str:
        return f"const {self.type(TensorType(literal.dtype, literal.array.shape))} {self.constant(literal)}"

    def subgraph(self, body: Subgraph, indent: str) -> str:
        """Print the arguments, results and values of a sub-graph, which has numbers of its own."""
        outer, self.lines = self.lines, []
        values = walk(body.results)
        arguments = {f"${v.attrs.get('index')}": v for v in values if _is_argument(v, body)}
        names = {v: local for local, v in arguments.items()}
        declared = {f"${i}": type for i, type in enumerate(body.arguments)}
        listed = ", ".join(f"{k}: {self.type(t)}{self.origins(arguments.get(k))}" for k, t in declared.items())
        inner = indent + "  "
        self.body(values, _numbered(names, values), inner)
        results = ", ".join(names[v] for v in body.results)
        text = "\n".join([f"graph({listed}) {{", *self.lines, f"{inner}return {results}".rstrip(), f"{indent}}}"])
        self.lines = outer
        return text

    def type(self, type: Type | None) -> str:
        text = self.types.get(type)
        if text is None:
            text = self.types[type] = str(type)
        return text

    def origins(self, value: Value | None) -> str:
        """Print where a value comes from, on its first line."""
        known = self.of.origins.get(value) if value is not None else None
        if value is None or not known or value in self.printed:
            return ""
        self.printed.add(value)
        return "  " + " ".join(map(_origin, known))


def _is_argument(value: Value, body: Subgraph) -> bool:
    """Return whether a leaf is what the sub-graph declares at its index."""
    index = value.attrs.get("index") if value.op is leaf.ARGUMENT else None
    return isinstance(index, int) and body.arguments[index : index + 1] == (value.known_type,)


def _origin(origin: Origin) -> str:
    return f"@{origin.kind} {quote(origin.name)}"
