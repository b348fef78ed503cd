"""What must hold of a model before any of it is imported: versions, names, the order of nodes, how functions nest.

One walk over the nodes, with a stack of its own: bodies may nest as deep as the file says.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from typing import Any, TypeAlias

from dovetail.dataclass import dataclass
from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.file.names import describe, domain
from dovetail.frontends.onnx.file.proto import AttributeProto, messages
from dovetail.frontends.shared.messages import printable
from dovetail.ir.attribute import HIGHEST_RANK

OLDEST_IR, NEWEST_IR = 3, 14
"""The versions of the file format that are read."""
LONGEST_NAME = 4096
LONGEST_OPERATOR = 256
DEEPEST_BODY = 31
"""How deep bodies may stand in each other; the protobuf package reads about thirty."""

# Looking them up takes longer than the comparison.
_GRAPH, _GRAPHS, _TENSOR = AttributeProto.GRAPH, AttributeProto.GRAPHS, AttributeProto.TENSOR
_ONCE = "names are unique in a graph"
_WRITER = "check how the model was written"


Key: TypeAlias = tuple[str, str, str]
"""An operator or a function: domain, name and overload."""


@dataclass(slots=True)
class Survey:
    """What the nodes of a graph or a function come to, those of bodies included."""

    operators: Counter[Key] = field(default_factory=Counter[Key])
    constant_bytes: int = 0
    """Of tensors in attributes."""


@dataclass(frozen=True, slots=True)
class Surveys:
    """Of the graph of a model, and of each of its functions."""

    graph: Survey
    functions: Mapping[Key, Survey]


def check_model(model: messages.ModelProto) -> Surveys:
    """Refuse a model that does not hold together."""
    version = model.ir_version
    if version < 1 or not model.HasField("graph"):
        found = "no graph" if version >= 1 else "no IR version"
        raise LoadError(f"a model with {found}", hint="check what the file is; export the model again")
    if not OLDEST_IR <= version <= NEWEST_IR:
        raise UnsupportedError(f"IR version {version}", hint=f"versions {OLDEST_IR} to {NEWEST_IR} are read")
    if model.training_info:
        raise UnsupportedError("a model with training steps", hint="export it for inference")
    _named(model.graph.name, "a graph")
    for info in model.graph.input:
        rank = len(info.type.tensor_type.shape.dim)
        if rank > HIGHEST_RANK:
            raise LoadError(f"the input {printable(info.name)!r} of rank {rank}", hint=f"ranks go up to {HIGHEST_RANK}")
    graph = _survey(_graph_scope(model.graph, None))
    functions: dict[Key, Survey] = {}
    for function in model.functions:
        scope = _function_scope(function)
        key = key_of(function)
        if key in functions:
            raise LoadError(f"two functions are named {printable(function.name)!r}", hint="names are unique")
        functions[key] = _survey(scope)
    return Surveys(graph, functions)


def key_of(proto: messages.FunctionProto) -> Key:
    """The key by which nodes call a function."""
    return (domain(proto.domain), proto.name, proto.overload)


def _named(name: str, what: str) -> str:
    # A name that is not UTF-8 arrives as bytes.
    if name.__class__ is not str or len(name) > LONGEST_NAME or not name.isprintable():
        _check_word(name, LONGEST_NAME, what)
    return name


def _check_word(word: Any, most: int, what: str) -> None:
    if not isinstance(word, str):
        raise LoadError(f"{what} that is not UTF-8: {printable(repr(word))}", hint=_WRITER)
    if len(word) > most:
        raise LoadError(f"{what} of {len(word):,} characters: {printable(word)!r}", hint=f"{most:,} are enough")
    if not word.isprintable():
        raise LoadError(f"{what} with control characters: {printable(word)!r}", hint=_WRITER)


def _operator(node: messages.NodeProto, key: Key) -> None:
    if not node.op_type:
        name = node.name or next((o for o in node.output if o), "")
        where = f"the node {printable(name)!r}" if name else "a node without a name"
        raise LoadError("a node without an operator", hint=_WRITER, where=where)
    for word in key:
        _check_word(word, LONGEST_OPERATOR, "an operator or domain")


@dataclass(slots=True)
class _Scope:
    """A graph or a function while its nodes are walked, and the names that are made so far."""

    nodes: Sequence[messages.NodeProto]
    outputs: Sequence[str]
    outer: _Scope | None
    made: set[str]
    left: Iterator[messages.NodeProto]
    depth: int
    coming: Sequence[str] = ()
    """The outputs of the node whose bodies are being walked."""

    def has(self, name: str) -> bool:
        scope: _Scope | None = self
        while scope is not None:
            if name in scope.made:
                return True
            scope = scope.outer
        return False


def _graph_scope(graph: messages.GraphProto, outer: _Scope | None) -> _Scope:
    inputs = _distinct([i.name for i in graph.input], "input")
    kept = [t.name for t in graph.initializer]
    kept += [t.values.name for t in graph.sparse_initializer]
    initial = _distinct(kept, "initializer")
    outputs = [o.name for o in graph.output]
    _distinct(outputs, "output")
    depth = 0 if outer is None else outer.depth + 1
    if depth > DEEPEST_BODY:
        raise LoadError(f"bodies nest deeper than {DEEPEST_BODY}", hint=_WRITER)
    # An initializer of the name of an input is its default.
    return _Scope(graph.node, outputs, outer, inputs | initial, iter(graph.node), depth)


def _function_scope(function: messages.FunctionProto) -> _Scope:
    for word in (function.name, function.domain, function.overload):
        _check_word(word, LONGEST_OPERATOR, "the name of a function")
    named = f"of the function {printable(function.name)!r}"
    inputs = _distinct(function.input, f"input {named}")
    _distinct(function.output, f"output {named}")
    _distinct([*function.attribute, *(a.name for a in function.attribute_proto)], f"attribute {named}")
    return _Scope(function.node, function.output, None, inputs, iter(function.node), 0)


def _distinct(names: Iterable[str], what: str) -> set[str]:
    found: set[str] = set()
    for name in names:
        _named(name, f"an {what}")
        if not name:
            raise LoadError(f"an {what} without a name", hint=_WRITER)
        if name in found:
            raise LoadError(f"two times {what} {printable(name)!r}", hint=_ONCE)
        found.add(name)
    return found


def _survey(whole: _Scope) -> Survey:
    survey = Survey()
    operators = survey.operators
    stack = [whole]
    while stack:
        scope = stack[-1]
        made = scope.made
        # What a node makes is not there yet in its own bodies.
        made.update(scope.coming)
        scope.coming = ()
        for node in scope.left:
            key = (domain(node.domain), node.op_type, node.overload)
            if key not in operators:
                _operator(node, key)
            operators[key] += 1
            outputs = _check_node(node, scope)
            inner = _check_attributes(node, survey)
            if inner:
                scope.coming = outputs
                stack += [_graph_scope(body, scope) for body in reversed(inner)]
                break
            made.update(outputs)
        else:
            for name in scope.outputs:
                if not scope.has(name):
                    raise LoadError(
                        f"nothing makes the output {printable(name)!r}", hint="an output is made by a node of its graph"
                    )
            stack.pop()
    return survey


def _check_node(node: messages.NodeProto, scope: _Scope) -> list[str]:
    """The names that a node makes, once it holds together."""
    _named(node.name, "a node")
    made = scope.made
    # A slice is a list, which is quicker to walk than what it is a slice of.
    for name in node.input[:]:
        if name and name not in made and not scope.has(name):
            raise _missing(name, node, scope)
    outputs: list[str] = []
    for name in node.output[:]:
        if name:
            if name in made or name in outputs:
                raise LoadError(f"two values are named {printable(name)!r}", hint=_ONCE, where=describe(node))
            outputs.append(_named(name, "a value"))
    return outputs


def _check_attributes(node: messages.NodeProto, survey: Survey) -> list[messages.GraphProto]:
    """The bodies in the attributes of a node, once those hold together."""
    found: list[str] = []
    inner: list[messages.GraphProto] = []
    if not node.attribute:
        return inner
    for attribute in node.attribute:
        name = _named(attribute.name, "an attribute")
        if not name or name in found:
            what = f"the attribute {printable(name)!r} twice" if name else "an attribute without a name"
            raise LoadError(what, hint="a node has each once", where=describe(node))
        found.append(name)
        kind = attribute.type
        if kind == _GRAPH:
            inner.append(attribute.g)
        elif kind == _GRAPHS:
            inner += attribute.graphs
        elif kind == _TENSOR:
            survey.constant_bytes += attribute.t.ByteSize()
    return inner


def _missing(name: str, node: messages.NodeProto, scope: _Scope) -> LoadError:
    """The error for a name that nothing before a node makes."""
    maker = {made: other for other in scope.nodes for made in other.output if made}
    where = describe(node)
    if name not in maker:
        return LoadError(
            f"nothing is named {printable(name)!r} here", hint="nodes stand behind what they read", where=where
        )
    pending, seen = [name], {name}
    while pending:
        for read in (i for i in maker[pending.pop()].input if i in maker and i not in seen):
            seen.add(read)
            pending.append(read)
    if any(made in seen for made in node.output if made):
        return LoadError(f"a cycle: {printable(name)!r} is made from what reads it", hint=_WRITER, where=where)
    return LoadError(f"{printable(name)!r} is made behind the node that reads it", hint="sort the nodes", where=where)
