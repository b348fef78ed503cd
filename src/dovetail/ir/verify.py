"""Whether a graph holds together. Errors name the node, the operand and where it came from."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any, NoReturn

import numpy as np

from dovetail.errors import DovetailError, GraphError, VerifyError
from dovetail.ir import leaf
from dovetail.ir.attribute import DEEPEST, check_attribute, check_type
from dovetail.ir.dim import check_size
from dovetail.ir.donation import check_donated
from dovetail.ir.dtype import of_numpy
from dovetail.ir.fact import Constraint, Facts
from dovetail.ir.graph import Graph, Subgraph, subgraphs
from dovetail.ir.literal import Array
from dovetail.ir.origin import Origin
from dovetail.ir.text_print import local_names
from dovetail.ir.type import TensorType, TupleType, Type
from dovetail.ir.value import Op, Value, attrs_key, is_interned


def verify(graph: Graph) -> None:
    """Raise a VerifyError unless every rule of a graph holds."""
    _Verifier(graph).run()


class _Verifier:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.bodies: set[Subgraph] = set()
        self.leaves: set[Value] = set()
        """Inputs and parameters of the interface, which are checked with it."""
        self.order: list[Value] = []
        """The values of the graph's own level, as far as they were met."""
        self.types: dict[int, int] = {}
        """The numbers of types that were checked, by id."""
        self.numbers: dict[Type, int] = {}
        """Equal types have one number: layers that look alike have types of their own."""
        self.rules: set[tuple[Op, Hashable, tuple[int | None, ...]]] = set()
        """Ops that were checked, with their attributes and the numbers of the types of their results and operands."""

    def run(self) -> None:
        graph = self.graph
        if not graph.outputs:
            self.fail(f"the graph {graph.name!r} has no outputs", "name at least one value as an output")
        for name, value in graph.outputs.items():
            self.name(name, "an output")
            if not _is(value, Value):
                self.fail(f"the output {name!r} is {value!r}", "an output is a value")
        self.order = self.walk(tuple(graph.outputs.values()))
        self.interface()
        for value in self.order:
            self.value(value, None, 0)
        self.metadata()

    def walk(self, outputs: tuple[Value, ...]) -> list[Value]:
        """Operands before users, as `walk` has it, on values that may be broken."""
        order: list[Value] = []
        done: set[Value] = set()
        open_: set[Value] = set()
        stack = list(reversed(outputs))
        while stack:
            value = stack[-1]
            if value in done:
                stack.pop()
                continue
            pending = self.pending(value, done)
            if not pending:
                done.add(value)
                order.append(stack.pop())
                continue
            if value in open_:
                self.fail(f"{value!r} depends on itself", "values are built from values that exist", value)
            open_.add(value)
            stack.extend(reversed(pending))
        return order

    def pending(self, value: Value, done: set[Value]) -> list[Value]:
        if not _is(value.op, Op):
            self.fail(f"a value whose op is {value.op!r}", "build values with make", value)
        if not _is(value.operands, tuple):
            self.fail(f"the operands are a {type(value.operands).__name__}", "operands are a tuple of values", value)
        operands: list[Value] = []
        for index, operand in enumerate(value.operands):
            if operand.__class__ is not Value:
                self.fail(f"operand {index} is {operand!r}", "operands are values; leave an optional one out", value)
            if operand not in done:
                operands.append(operand)
        return operands

    def interface(self) -> None:
        """Inputs and parameters: each name once, with one type."""
        declared: dict[str, Value] = {}
        listed = self.leaves
        for index, value in enumerate(self.graph.inputs):
            if not _is(value, Value) or value.op is not leaf.INPUT:
                self.fail(f"input {index} is {value!r}", "inputs are made with leaf.input or Builder.input")
            self.declare(declared, value)
            self.attributes(value)
            self.rule(value, value.known_type)
            if value in listed:
                self.fail(f"the input {value.attrs['name']!r} is listed twice", "list each input once", value)
            listed.add(value)
        try:
            check_donated(self.graph.donated, self.graph.inputs, self.graph.outputs)
        except GraphError as error:
            self.fail(error.message, error.hint)
        for index, value in enumerate(self.graph.declared):
            if not _is(value, Value) or value.op is not leaf.PARAM:
                self.fail(f"parameter {index} is {value!r}", "parameters are made with leaf.param or Builder.param")
            self.declare(declared, value)
            self.attributes(value)
            self.rule(value, value.known_type)
            listed.add(value)
        for value in self.order:
            if value.op is leaf.PARAM:
                self.declare(declared, value)
            elif value.op is leaf.INPUT and value not in listed:
                self.fail(f"{value!r} is read and is not among the inputs", "list it in the graph's inputs", value)

    def declare(self, declared: dict[str, Value], value: Value) -> None:
        name: Any = value.attrs.get("name")
        self.name(name, value.op.name, value)
        known = declared.setdefault(name, value)
        if known is not value:
            self.fail(
                f"{name!r} is {known.op} {known.known_type} and {value.op} {value.known_type} at once",
                "give inputs and parameters names of their own",
                value,
            )

    def name(self, name: Any, of: str, value: Value | None = None) -> None:
        if not _is(name, str) or not name:
            self.fail(f"{of} is named {name!r}", "a name is text, and not empty", value)

    def value(self, value: Value, body: Subgraph | None, depth: int) -> None:
        if value.op in (leaf.HOLE, leaf.NUMBER):
            self.fail(
                f"a {value.op} of a pattern stands in a graph", "match the pattern first, or give it a tensor", value
            )
        if value.known_type is None:
            self.fail("a value without a type", "patterns have none; build the value from typed operands", value)
        self.type(value)
        self.leaf(value, body)
        if value not in self.leaves:
            self.attributes(value)
            self.rule(value, value.known_type)
        for inner in subgraphs(value) if value.attrs else ():
            self.subgraph(inner, value, depth + 1)
        if not is_interned(value):
            self.fail("a value that equals another and is not the same object", "build values with make", value)

    def attributes(self, value: Value) -> None:
        if not _is(value.attrs, Mapping):
            self.fail(f"the attributes are a {type(value.attrs).__name__}", "attributes are a mapping", value)
        for name, attr in value.attrs.items():
            self.name(name, "an attribute", value)
            try:
                check_attribute(attr)
            except GraphError as error:
                self.fail(f"the attribute {name!r}: {error.message}", error.hint, value)

    def type(self, value: Value) -> None:
        type = value.type
        if id(type) in self.types:
            return
        items: tuple[Any, ...] = type.items if isinstance(type, TupleType) else (type,)
        if not all(_is(item, TensorType) and _is(item.shape, tuple) for item in items):
            self.fail(f"the type is {type!r}", "a type is a tensor or a tuple of tensors", value)
        try:
            check_type(type)
        except GraphError as error:
            self.fail(f"the type {type}: {error.message}", error.hint, value)
        self.types[id(type)] = self.numbers.setdefault(type, len(self.numbers))

    def leaf(self, value: Value, body: Subgraph | None) -> None:
        """Arguments stand inside sub-graphs, inputs and parameters outside."""
        if body is None:
            if value.op is leaf.ARGUMENT:
                self.fail("an argument stands outside of a sub-graph", "use an input or a parameter", value)
            return
        if value.op in (leaf.INPUT, leaf.PARAM):
            self.fail(f"a sub-graph reads {value!r} of the graph", "pass it as an operand and read an argument", value)
        if value.op is leaf.ARGUMENT:
            index: Any = value.attrs.get("index")
            if not isinstance(index, int) or not 0 <= index < len(body.arguments):
                self.fail(f"argument {index} of {len(body.arguments)}", "count arguments from 0", value)
            if body.arguments[index] != value.known_type:
                self.fail(
                    f"argument {index} is read as {value.known_type} and declared as {body.arguments[index]}",
                    "read arguments with the type that the sub-graph declares",
                    value,
                )

    def rule(self, value: Value, stored: Type | None) -> None:
        """Check that the attributes are in normal form, and that the type is what the op's rule infers."""
        types = tuple([operand.type for operand in value.operands])
        key = attrs_key(value.attrs)
        # Sub-graphs are checked later: until then they may be anything.
        plain = not value.constraints and (not value.attrs or (bool(types) and not subgraphs(value)))
        known = [self.types.get(id(type)) for type in (stored, *types)]
        plain = plain and None not in known
        checked = (value.op, key, tuple(known))
        if plain and checked in self.rules:
            return
        facts = Facts(value.op.name)
        try:
            normal = value.op.normal(value.operands, value.attrs)
            inferred = value.op.infer(facts, types, value.attrs)
        except DovetailError as error:
            self.fail(f"{value.op.name} does not take this: {error.message}", error.hint, value)
        except Exception as error:  # a rule meets attributes that no builder gave it
            self.fail(f"{value.op.name} does not take this: {error}", "check its operands and attributes", value)
        if (normal or value.attrs) and attrs_key(normal) != key:
            self.fail(
                f"attributes that are not in normal form: {dict(value.attrs)}", f"normal is {dict(normal)}", value
            )
        if inferred != stored:
            self.fail(f"the type is stored as {stored}, and the rule gives {inferred}", "build values with make", value)
        if tuple(facts.recorded) != value.constraints:
            kept, key = _spell(value.constraints), _spell(facts.recorded)
            self.fail(
                f"the constraints are stored as {kept}, and the rule gives {key}", "build values with make", value
            )
        if plain:
            self.rules.add(checked)

    def subgraph(self, body: Subgraph, owner: Value, depth: int) -> None:
        if not _is(body.arguments, tuple) or not _is(body.results, tuple):
            self.fail("a sub-graph whose arguments or results are no tuples", "pass tuples to Subgraph", owner)
        if body in self.bodies:
            return
        if depth > DEEPEST:
            self.fail(f"more than {DEEPEST} sub-graphs inside each other", "take some of them apart", owner)
        for index, type in enumerate(body.arguments):
            if not _is(type, TensorType):
                self.fail(f"argument {index} of a sub-graph has the type {type!r}", "arguments are tensors", owner)
        for index, result in enumerate(body.results):
            if not _is(result, Value):
                self.fail(f"result {index} of a sub-graph is {result!r}", "results are values", owner)
        for value in self.walk(body.results):
            self.value(value, body, depth)
        self.bodies.add(body)

    def metadata(self) -> None:
        """Check the metadata of the values: origins, assumptions, arrays."""
        for value, origins in self.graph.origins.items():
            if not _is(value, Value) or not all(_is(o, Origin) for o in origins):
                self.fail(f"the origins of {value!r} are {origins!r}", "origins map a value to a tuple of Origin")
        for fact in self.graph.assumed:
            if not _is(fact, Constraint):
                self.fail(f"an assumption is {fact!r}", "an assumption is a Constraint")
            for size in (fact.left, fact.right):
                try:
                    check_size(size)
                except GraphError as error:
                    self.fail(f"the assumption {fact.relation}: {error.message}", error.hint)
        params = {v.attrs["name"]: v for v in (*self.order, *self.graph.declared) if v.op is leaf.PARAM}
        for name, array in self.graph.params.items():
            self.name(name, "an array")
            if name in params:
                self.array(array, params[name])

    def array(self, array: Array, param: Value) -> None:
        """Check that an array fits its parameter."""
        type = param.tensor
        if not _is(array, np.ndarray):
            self.fail(f"the array of {param.attrs['name']!r} is a {array.__class__.__name__}", "pass an array", param)
        fits = len(array.shape) == type.rank and all(
            not isinstance(declared, int) or declared == size
            for declared, size in zip(type.shape, array.shape, strict=True)
        )
        if of_numpy(array.dtype) is not type.dtype or not fits:
            actual = f"{array.dtype}{list(array.shape)}"
            self.fail(
                f"the array of {param.attrs['name']!r} is {actual}, and its type is {type}", "pass one that fits", param
            )

    def fail(self, message: str, hint: str, value: Value | None = None) -> NoReturn:
        raise VerifyError(message, hint=hint, where="" if value is None else self.where(value))

    def where(self, value: Value) -> str:
        """Describe the node as the text form calls it, with its operands and its origin."""
        names = local_names(self.graph, self.order)
        called = [names.get(v, "?") for v in value.operands]
        operands = ", ".join(f"{n}: {_known(v)}" for n, v in zip(called, value.operands, strict=True))
        local = names.get(value, "inside a sub-graph")
        origin = self.graph.where(value)
        return f"{local} = {value.op}({operands})" + (f", from {origin}" if origin else "")


def _is(attribute: Any, kind: type) -> bool:
    """Nothing that an annotation promises is taken for granted here."""
    return isinstance(attribute, kind)


def _known(value: Any) -> Any:
    return value.known_type if isinstance(value, Value) else value


def _spell(constraints: Any) -> str:
    return "; ".join(map(str, constraints)) or "none"
