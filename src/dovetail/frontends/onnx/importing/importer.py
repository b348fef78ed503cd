"""A model as a graph: node by node, each by the rule of its operator."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np

from dovetail.errors import BindError, LoadError, UnsupportedError
from dovetail.frontends.onnx.file.names import describe, describe_output, domain
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.file.tensors import Tensors
from dovetail.frontends.onnx.file.types import check_declared, element, shared, tensor_type
from dovetail.frontends.onnx.importing import attributes, functions
from dovetail.frontends.onnx.importing.constants import matters, without
from dovetail.frontends.onnx.importing.fixed import Fixed, Given, fixed
from dovetail.frontends.onnx.importing.forks import results_of
from dovetail.frontends.onnx.importing.node import Captured, Node
from dovetail.frontends.onnx.importing.origins import origins_of
from dovetail.frontends.onnx.importing.rule import Parameter, Rule
from dovetail.frontends.onnx.importing.scope import Scope
from dovetail.frontends.onnx.importing.supported import Vocabulary
from dovetail.frontends.shared.binding import with_binders
from dovetail.frontends.shared.contents import settled
from dovetail.frontends.shared.importer import Importer
from dovetail.frontends.shared.messages import printable
from dovetail.frontends.shared.rule import Made
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, symbols
from dovetail.ir.dtype import of_numpy
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.progress import Phase, phase

MOST_NODES = 2_000_000
"""Of a model with its functions written out. Real models have thousands."""
DEEPEST = 64
"""How deep bodies and functions may stand in each other."""


class Import(Importer):
    """One import of a model."""

    def __init__(
        self,
        model: messages.ModelProto,
        tensors: Tensors,
        vocabulary: Vocabulary,
        given: Given,
        free: frozenset[str] = frozenset(),
        train: bool = False,
    ) -> None:
        super().__init__(model.graph.name or "model")
        self.model = model
        self.train = train
        """Whether small arrays become parameters too."""
        self.free = free
        """Initializers that become inputs."""
        self.tensors = tensors
        self.vocabulary = vocabulary
        self.given = given
        self.ranked_by_sizes: set[Value] = set()
        self._declared_sizes: set[str] = set()
        """Names of sizes, as inputs declare them."""
        self._leaves: dict[str, int] = {}
        """The names of inputs and parameters, and how many others are named after each."""
        self._replaced: set[str] = set()
        self._imported = 0
        self._traced = 0

    def graph(self) -> Graph:
        """The whole model."""
        proto = self.model.graph
        scope = Scope(self.vocabulary.opsets)
        initial = {t.name for t in proto.initializer} | {t.values.name for t in proto.sparse_initializer}
        strange = self.free - (initial & {i.name for i in proto.input})
        if strange:
            raise BindError(
                f"there is no input named {printable(min(strange))!r}", hint="only initializers that are inputs can be"
            )
        declared = [i for i in proto.input if i.name not in initial or i.name in self.given or i.name in self.free]
        types = shared({i.name: self._declared(i) for i in declared})
        self._declared_sizes |= {d.dim_param for i in declared for d in i.type.tensor_type.shape.dim}
        self.symbols |= {name for t in types.values() for size in t.shape for name in symbols(size)}
        known = fixed(self.given, types)
        with self.builder.recording():
            for info in declared:
                self._leaves[info.name] = 0
                scope.values[info.name] = self._input(info.name, types[info.name], known)
            self._initialize(proto, scope)
            with phase("nodes") as told:
                outputs = results_of(self, proto.node, scope, partial(self._outputs, proto), told)
            for info, value in zip(proto.output, with_binders(outputs, scope.values.values()), strict=True):
                self.builder.output(info.name, value)
            if not self.given and not self.free:  # what a caller fixes may differ from what the file declares
                self._check_declared(proto, scope)
        return without(self.builder.graph(), self._replaced)

    def _outputs(self, proto: messages.GraphProto, scope: Scope) -> list[Value]:
        return [self._found(scope, o.name, partial(describe_output, o)) for o in proto.output]

    def _check_declared(self, proto: messages.GraphProto, scope: Scope) -> None:
        for what, infos in (("the output", proto.output), ("the value", proto.value_info)):
            for info in infos:
                value = scope.values.get(info.name)
                if value is not None and isinstance(value.known_type, TensorType):
                    check_declared(info, value.known_type, what, partial(self._any_rank, info, value))

    def _any_rank(self, info: messages.ValueInfoProto, value: Value) -> bool:
        """Whether a declared rank says nothing: sizes of the run decide it, or it is not of this model at all.

        torch writes the names that a user gives to axes of a result (`dynamic_axes`) into a shape that it guesses.
        """
        if any(d.dim_param and d.dim_param not in self._declared_sizes for d in info.type.tensor_type.shape.dim):
            return True
        return bool(self.ranked_by_sizes) and not self.ranked_by_sizes.isdisjoint(walk([value]))

    def _unnamed(self, name: str) -> Size:
        return self.fresh(name)

    def _declared(self, info: messages.ValueInfoProto) -> TensorType:
        if info.name in self.given and not info.type.tensor_type.HasField("shape"):
            where = f"the input {printable(info.name)!r}"
            return TensorType(element(info.type.tensor_type.elem_type, where), np.shape(self.given[info.name]))
        return tensor_type(info, self._unnamed)

    def _input(self, name: str, type: TensorType, known: Fixed) -> Value:
        array = known.arrays.get(name)
        return self.builder.input(name, known.type(type)) if array is None else leaf.constant(array)

    def _initialize(self, proto: messages.GraphProto, scope: Scope) -> None:
        declared = {info.name: info for info in proto.input} if proto.initializer else {}
        for tensor in proto.initializer:
            if (tensor.name in self.given or tensor.name in self.free) and scope.outer is None:
                continue  # the default of an input that is fixed to something else, or given in each run
            where = f"the initializer {printable(tensor.name)!r}"
            array = self.tensors.array(tensor, where)
            scope.values[tensor.name] = self.array_value(tensor.name, array)
            if tensor.name in declared:
                check_declared(declared[tensor.name], scope.values[tensor.name].tensor, "the initializer")
        for sparse in proto.sparse_initializer:
            where = f"the sparse initializer {printable(sparse.values.name)!r}"
            scope.values[sparse.values.name] = self.array_value(sparse.values.name, self.tensors.dense(sparse, where))

    def array_value(self, name: str, array: Array) -> Value:
        """An array of the model: a constant where its numbers matter to patterns and shapes, else a parameter."""
        dtype = of_numpy(array.dtype)
        if dtype is None or self._traced or matters(array, dtype, train=self.train):
            return leaf.constant(array)
        stem = unique = name or "constant"
        count = self._leaves.get(stem, 0)
        while unique in self._leaves:
            count += 1
            unique = f"{stem}_{count}"
        self._leaves[stem], self._leaves[unique] = count, 0
        return self.builder.param(unique, TensorType(dtype, array.shape), array)

    def stored(self, value: Value) -> Array | None:
        if value.op is leaf.CONST:
            return value.attrs["value"].array
        return self.builder.params.get(value.attrs["name"]) if value.op is leaf.PARAM else None

    def replaced(self, *values: Value) -> None:
        self._replaced |= {value.attrs["name"] for value in values if value.op is leaf.PARAM}

    def nodes(self, nodes: Sequence[messages.NodeProto], scope: Scope, told: Phase | None = None) -> None:
        """Import nodes one after the other into a scope."""
        recorder = self.builder.recorder
        for number, proto in enumerate(nodes, 1):
            if told is not None:
                told.at(number, len(nodes))
            self._imported += 1
            if self._imported > MOST_NODES:
                raise LoadError(
                    f"more than {MOST_NODES:,} nodes once functions are written out", hint="check how they nest"
                )
            # Nodes of a body have names of their own; those of a function stand for every call.
            is_own = not recorder.place or (scope.outer is not None and bool(proto.name))
            place = origins_of(proto) if is_own else recorder.place
            with self.step(proto.op_type, partial(describe, proto), place):
                self._node(proto, scope)

    def _node(self, proto: messages.NodeProto, scope: Scope) -> None:
        function = self.vocabulary.function(proto)
        version = scope.opsets.get(domain(proto.domain), 0)
        rule = None if function is not None else self.vocabulary.rule(proto, version)
        where = partial(describe, proto)
        operands = [self._found(scope, name, where) if name else None for name in proto.input[:]]
        if rule is not None:
            made = self._by_rule(Node(proto, version, self, scope.find), rule, operands, scope)
        else:
            if function is None:
                if not functions.has_body(proto.op_type, version, domain(proto.domain)):
                    raise UnsupportedError(
                        f"the operator {proto.op_type}", hint="docs/operators.md lists those that are"
                    )
                function = functions.defined(proto, version, operands)
            made = self._by_function(proto, function, operands, scope)
        results = (made,) if isinstance(made, Value) else made
        for index, name in enumerate(proto.output[:]):
            if not name:
                continue
            value = results[index] if index < len(results) else None
            if value is None:
                raise LoadError(
                    f"{proto.op_type} has no output {index}", hint="check the node's outputs", where=describe(proto)
                )
            if name in scope.values:
                raise LoadError(f"two values are named {printable(name)!r}", hint="names are unique in a graph")
            scope.values[name] = self._settled(value)

    def _by_rule(self, node: Node, rule: Rule, operands: Sequence[Value | None], scope: Scope) -> Made:
        found = attributes.by_name(node.proto, scope.attrs)
        reader = attributes.Reader(self.tensors.array, lambda graph: Body(self, graph, scope, node))
        keywords = reader.read(node.proto, rule, found) if found or rule.attributes else {}
        arguments: list[Any] = []
        named = list(rule.parameters)
        rest = named.pop() if named and named[-1].rest else None
        if rest is None and len(operands) > len(named) and any(o is not None for o in operands[len(named) :]):
            raise node.unsupported(
                f"{len(operands)} inputs", hint=f"it takes {', '.join(p.name for p in named) or 'none'}"
            )
        for index, parameter in enumerate(named):
            operand = operands[index] if index < len(operands) else None
            arguments.append(self._argument(node, parameter, operand, found, reader))
        if rest is not None:
            arguments += [self._argument(node, rest, o, {}, reader) for o in operands[len(named) :]]
        return rule(node, *arguments, **keywords)

    def _argument(
        self,
        node: Node,
        parameter: Parameter,
        operand: Value | None,
        found: attributes.Read,
        reader: attributes.Reader,
    ) -> Any:
        name = parameter.name.rstrip("_")
        if operand is None:
            kind = _OLDER.get(parameter.kind)
            if kind is not None and name in found:
                return reader.value(node.proto, found[name], kind)
            if parameter.optional:
                return None
            raise node.malformed(f"{name} is missing")
        if parameter.kind == "value":
            return operand
        if parameter.kind == "array":
            return node.array(operand, name)
        if parameter.kind == "sizes":
            sizes = node.sizes(operand)
            if sizes is None:
                raise node.needs(operand, name)
            return sizes
        array = node.array(operand, name)
        return tuple(array.reshape(-1).tolist())

    def _by_function(
        self, proto: messages.NodeProto, function: functions.Function, operands: Sequence[Value | None], scope: Scope
    ) -> tuple[Value | None, ...]:
        inner = Scope(function.opsets, attrs=function.attributes(proto, attributes.by_name(proto, scope.attrs)))
        inner.depth = scope.depth + 1
        if inner.depth > DEEPEST:
            raise LoadError(f"functions nest deeper than {DEEPEST}", hint="check that none calls itself")
        if any(operand is not None for operand in operands[len(function.inputs) :]):
            raise LoadError(
                f"{len(operands)} inputs for {function.name}",
                hint=f"it takes {len(function.inputs)}",
                where=describe(proto),
            )
        for name, operand in zip(function.inputs, operands, strict=False):
            if operand is not None:
                inner.values[name] = operand
        self.nodes(function.nodes, inner)
        return tuple(inner.values.get(name) for name in function.outputs)

    def _found(self, scope: Scope, name: str, where: Callable[[], str]) -> Value:
        value = scope.find(name)
        if value is None:
            raise LoadError(
                f"nothing is named {printable(name)!r} here", hint="nodes stand behind what they read", where=where()
            )
        return value

    def _settled(self, value: Value) -> Value:
        """Whole numbers that are known are written as what they are, so that shape arithmetic ends here."""
        if value.op is leaf.CONST or value.known_type is None or value.dtype.is_inexact:
            return value
        known = self.follower.contents(value)
        if known is None:
            return value
        plain = settled(value, known)
        self.follower.put(plain, known)
        return plain

    def portable(self, value: Value) -> Value | None:
        """The value as it can be written inside a body without being passed in, or None."""
        if value.op is leaf.CONST:
            return value
        known = self.follower.contents(value)
        if known is None or (value.rank > 1 and any(isinstance(x, Dim) for x in known.flat)):
            return None
        return settled(value, known)

    def body(
        self, graph: messages.GraphProto, scope: Scope, arguments: Sequence[Value], captured: Mapping[str, Value] | None
    ) -> tuple[Value, ...]:
        """The results of a graph within another."""
        inner = Scope(scope.opsets, outer=scope, captured=captured, attrs=scope.attrs)
        if inner.depth > DEEPEST:
            raise LoadError(f"bodies nest deeper than {DEEPEST}", hint="check how the model was written")
        inner.values |= {info.name: value for info, value in zip(graph.input, arguments, strict=True)}
        recorder = self.builder.recorder
        around = recorder.place
        if scope.attrs is None:
            recorder.place = ()  # outside of functions, nodes of a body have names of their own
        self._traced += captured is not None
        try:
            self._initialize(graph, inner)
            results = results_of(self, graph.node, inner, partial(self._outputs, graph))
        finally:
            self._traced -= captured is not None
            recorder.place = around
        return tuple(results if captured is None else with_binders(results, inner.values.values()))


_OLDER: dict[str, Any] = {"ints": tuple[int, ...], "sizes": tuple[int, ...], "floats": tuple[float, ...]}
"""What stands in an attribute where older opsets have one instead of an input."""


def _rank(info: messages.ValueInfoProto) -> int | None:
    declared = info.type.tensor_type
    return len(declared.shape.dim) if declared.HasField("shape") else None


class Body:
    """A graph in an attribute of a node."""

    def __init__(self, around: Import, graph: messages.GraphProto, scope: Scope, node: Node) -> None:
        self._around = around
        self._graph = graph
        self._scope = scope
        self._node = node

    @property
    def inputs(self) -> tuple[str, ...]:
        return tuple(i.name for i in self._graph.input)

    @property
    def outputs(self) -> tuple[str, ...]:
        return tuple(o.name for o in self._graph.output)

    def rank(self, index: int) -> int | None:
        return _rank(self._graph.input[index])

    def output_rank(self, index: int) -> int | None:
        return _rank(self._graph.output[index])

    def reads(self) -> Captured:
        found: dict[str, Value] = {}
        for name in functions.free_names(self._graph):
            value = self._scope.find(name)
            if value is not None and self._around.portable(value) is None:
                found[name] = value
        return Captured(found)

    def __call__(self, *arguments: Value, captured: Mapping[str, Value] | None = None) -> tuple[Value, ...]:
        if len(arguments) != len(self._graph.input):
            raise self._node.malformed(f"a body of {len(self._graph.input)} inputs that is given {len(arguments)}")
        inside = captured
        if captured is not None:
            outer = {n: self._scope.find(n) for n in functions.free_names(self._graph) if n not in captured}
            direct = {n: self._around.portable(v) for n, v in outer.items() if v is not None}
            inside = {**{n: v for n, v in direct.items() if v is not None}, **captured}
        return self._around.body(self._graph, self._scope, arguments, inside)
