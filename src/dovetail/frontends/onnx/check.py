"""What must hold of a model before any of it is imported: versions, names, the order of nodes, how functions nest.

One walk over the nodes, with a stack of its own: bodies may nest as deep as the file says.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import onnx
from onnx import AttributeProto

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.functions import bodies
from dovetail.frontends.onnx.node import describe, printable

OLDEST_IR, NEWEST_IR = 3, 14
"""The versions of the file format that are read."""
LONGEST_NAME = 4096
LONGEST_OPERATOR = 256
DEEPEST_BODY = 24
"""How deep bodies may stand in each other; the protobuf package reads about thirty."""

_ONCE = "names are unique in a graph"
_WRITER = "check how the model was written"


def check_model(model: onnx.ModelProto) -> None:
    """Refuse a model that does not hold together."""
    version = model.ir_version
    if version < 1 or not model.HasField("graph"):
        found = "no graph" if version >= 1 else "no IR version"
        raise LoadError(f"a model with {found}", hint="check what the file is; export the model again")
    if not OLDEST_IR <= version <= NEWEST_IR:
        raise UnsupportedError(f"IR version {version}", hint=f"versions {OLDEST_IR} to {NEWEST_IR} are read")
    if model.training_info:
        raise UnsupportedError("a model with training steps", hint="export it for inference")
    words = _Words()
    _check_scopes(_graph_scope(model.graph, None, words), words)
    for function in model.functions:
        _check_scopes(_function_scope(function, words), words)


@dataclass(slots=True)
class _Words:
    """Operators that were looked at before; models repeat a few."""

    operators: set[tuple[str, str]] = field(default_factory=set[tuple[str, str]])

    def operator(self, node: onnx.NodeProto) -> None:
        key = (node.op_type, node.domain)
        if key not in self.operators:
            if not node.op_type:
                raise LoadError("a node without an operator", hint=_WRITER, where=_place(node))
            for word in key:
                self.word(word, LONGEST_OPERATOR, "an operator or domain")
            self.operators.add(key)

    def name(self, name: str, what: str) -> str:
        # A name that is not UTF-8 arrives as bytes.
        if name.__class__ is not str or len(name) > LONGEST_NAME or not name.isprintable():
            self.word(name, LONGEST_NAME, what)
        return name

    def word(self, word: Any, most: int, what: str) -> None:
        if not isinstance(word, str):
            raise LoadError(f"{what} that is not UTF-8: {printable(repr(word))}", hint=_WRITER)
        if len(word) > most:
            raise LoadError(f"{what} of {len(word):,} characters: {printable(word)!r}", hint=f"{most:,} are enough")
        if not word.isprintable():
            raise LoadError(f"{what} with control characters: {printable(word)!r}", hint=_WRITER)


@dataclass(slots=True)
class _Scope:
    """A graph or a function while its nodes are walked, and the names that are made so far."""

    nodes: Sequence[onnx.NodeProto]
    outputs: Sequence[str]
    outer: _Scope | None
    made: set[str]
    left: Iterator[onnx.NodeProto]
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


def _graph_scope(graph: onnx.GraphProto, outer: _Scope | None, words: _Words) -> _Scope:
    inputs = _distinct((i.name for i in graph.input), "input", words)
    kept = [t.name for t in graph.initializer]
    kept += [t.values.name for t in graph.sparse_initializer]
    initial = _distinct(kept, "initializer", words)
    outputs = [o.name for o in graph.output]
    _distinct(outputs, "output", words)
    depth = 0 if outer is None else outer.depth + 1
    if depth > DEEPEST_BODY:
        raise LoadError(f"bodies nest deeper than {DEEPEST_BODY}", hint=_WRITER)
    # An initializer of the name of an input is its default.
    return _Scope(graph.node, outputs, outer, inputs | initial, iter(graph.node), depth)


def _function_scope(function: onnx.FunctionProto, words: _Words) -> _Scope:
    for word in (function.name, function.domain, function.overload):
        words.word(word, LONGEST_OPERATOR, "the name of a function")
    named = f"of the function {printable(function.name)!r}"
    inputs = _distinct(function.input, f"input {named}", words)
    _distinct(function.output, f"output {named}", words)
    _distinct([*function.attribute, *(a.name for a in function.attribute_proto)], f"attribute {named}", words)
    return _Scope(function.node, function.output, None, inputs, iter(function.node), 0)


def _distinct(names: Iterable[str], what: str, words: _Words) -> set[str]:
    found: set[str] = set()
    for name in names:
        words.name(name, f"an {what}")
        if not name:
            raise LoadError(f"an {what} without a name", hint=_WRITER)
        if name in found:
            raise LoadError(f"two {what}s are named {printable(name)!r}", hint=_ONCE)
        found.add(name)
    return found


def _check_scopes(whole: _Scope, words: _Words) -> None:
    stack = [whole]
    while stack:
        scope = stack[-1]
        made = scope.made
        # What a node makes is not there yet in its own bodies.
        made.update(scope.coming)
        scope.coming = ()
        for node in scope.left:
            outputs = _check_node(node, scope, words)
            inner = [_graph_scope(body, scope, words) for body in bodies(node)] if node.attribute else []
            if inner:
                scope.coming = outputs
                stack += inner[::-1]
                break
            made.update(outputs)
        else:
            for name in scope.outputs:
                if not scope.has(name):
                    raise LoadError(
                        f"nothing makes the output {printable(name)!r}", hint="an output is made by a node of its graph"
                    )
            stack.pop()


def _check_node(node: onnx.NodeProto, scope: _Scope, words: _Words) -> list[str]:
    """The names that a node makes, once it holds together."""
    words.operator(node)
    words.name(node.name, "a node")
    made = scope.made
    for name in node.input:
        if name and name not in made and not scope.has(name):
            raise _missing(name, node, scope)
    outputs: list[str] = []
    for name in node.output:
        if name:
            if name in made or name in outputs:
                raise LoadError(f"two values are named {printable(name)!r}", hint=_ONCE, where=describe(node))
            outputs.append(words.name(name, "a value"))
    if node.attribute:
        _check_attributes(node, words)
    return outputs


def _check_attributes(node: onnx.NodeProto, words: _Words) -> None:
    found: list[str] = []
    for attribute in node.attribute:
        name = words.name(attribute.name, "an attribute")
        if not name or name in found:
            what = f"the attribute {printable(name)!r} twice" if name else "an attribute without a name"
            raise LoadError(what, hint="a node has each once", where=describe(node))
        found.append(name)
        if attribute.type == AttributeProto.UNDEFINED and not attribute.ref_attr_name:
            raise LoadError(f"the attribute {printable(name)!r} without a type", hint=_WRITER, where=describe(node))


def _missing(name: str, node: onnx.NodeProto, scope: _Scope) -> LoadError:
    """The error for a name that nothing before a node makes."""
    maker = {made: other for other in scope.nodes for made in other.output if made}
    where = describe(node)
    if name not in maker:
        return LoadError(f"nothing is named {printable(name)!r} here", hint="nodes stand behind what they read", where=where)
    pending, seen = [name], {name}
    while pending:
        for read in (i for i in maker[pending.pop()].input if i in maker and i not in seen):
            seen.add(read)
            pending.append(read)
    if any(made in seen for made in node.output if made):
        return LoadError(f"a cycle: {printable(name)!r} is made from what reads it", hint=_WRITER, where=where)
    return LoadError(f"{printable(name)!r} is made behind the node that reads it", hint="sort the nodes", where=where)


def _place(node: onnx.NodeProto) -> str:
    name = node.name or next((o for o in node.output if o), "")
    return f"the node {printable(name)!r}" if name else "a node without a name"
