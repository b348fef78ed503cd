"""Which operators a model may use: those with a rule, its own functions, and those that ONNX defines by a body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.file.check import Key, Survey, Surveys, key_of
from dovetail.frontends.onnx.file.names import describe, domain
from dovetail.frontends.onnx.file.proto import messages
from dovetail.frontends.onnx.importing.functions import Function, bodies, has_body
from dovetail.frontends.onnx.importing.rule import Rule, operator
from dovetail.frontends.shared.importer import refuse
from dovetail.frontends.shared.messages import printable

OLDEST, NEWEST = 1, 28
"""The opsets of ONNX's own domain that rules are written for."""
LARGEST_VERSION = 2**31


class Vocabulary:
    """The rules for a model's opsets, and the functions that it brings."""

    def __init__(
        self, model: messages.ModelProto, ours: Callable[[str], Sequence[Rule]], rules: Iterable[Rule] = ()
    ) -> None:
        """`ours` gives our rules of an operator; `rules` are those of the caller."""
        self.opsets: Mapping[str, int] = opsets_of(model.opset_import)
        if not self.opsets:
            raise LoadError("a model that imports no opset", hint="export the model again")
        self._ours = ours
        self._rules: dict[str, list[Rule]] = {}
        self._chosen: dict[tuple[str, int], Rule | None] = {}
        for rule in rules:
            self._rules.setdefault(rule.op, []).append(rule)
        self._functions: dict[tuple[str, str, str], Function] = {}
        for proto in model.functions:
            key = key_of(proto)
            if not key[0] and _is_operator(proto.name):
                raise UnsupportedError(
                    f"a function that replaces the operator {printable(proto.name)!r}", hint="give it a domain"
                )
            opsets_of(proto.opset_import)
            self._functions[key] = Function.of(proto, self.opsets)

    def rule(self, node: messages.NodeProto, version: int) -> Rule | None:
        """The newest rule that is not newer than the model."""
        return self._rule(operator(domain(node.domain), node.op_type), version)

    def _rule(self, op: str, version: int) -> Rule | None:
        key = (op, version)
        if key not in self._chosen:
            fitting = [
                r
                for r in (*self._ours(op), *self._rules.get(op, ()))
                if r.since <= version and (r.until is None or version <= r.until)
            ]
            self._chosen[key] = max(fitting, key=lambda r: r.since, default=None)
        return self._chosen[key]

    def function(self, node: messages.NodeProto) -> Function | None:
        return self._functions.get((domain(node.domain), node.op_type, node.overload))

    def _is_known(self, key: Key, opsets: Mapping[str, int]) -> bool:
        if key in self._functions:
            return True
        of, op_type, _ = key
        version = opsets.get(of, 0)
        if not version:
            raise LoadError(
                f"{op_type} of {printable(of) or 'ai.onnx'!r}, of which the model imports no opset",
                hint="import one version of each domain; export the model again",
            )
        return self._rule(operator(of, op_type), version) is not None or has_body(op_type, version, of)

    def check(self, graph: messages.GraphProto, surveys: Surveys) -> None:
        """All operators that nothing is known of, as one error."""
        unknown: list[tuple[str, messages.NodeProto]] = []
        scopes: list[tuple[Iterable[messages.NodeProto], Mapping[str, int], Survey]]
        scopes = [(graph.node, self.opsets, surveys.graph)]
        scopes += [(f.nodes, f.opsets, surveys.functions[key]) for key, f in self._functions.items()]
        for nodes, opsets, survey in scopes:
            strange = {key for key in survey.operators if not self._is_known(key, opsets)}
            for node in _nodes(nodes) if strange else ():
                of = domain(node.domain)
                if (of, node.op_type, node.overload) in strange:
                    unknown.append((operator(of, node.op_type), node))
        refuse(((op, describe(node)) for op, node in unknown), _hint({op.rpartition(".")[0] for op, _ in unknown}))


_REMEDIES = {
    "com.microsoft.nchwc": "onnxruntime wrote this file for the processor that it ran on; optimise the model again at "
    "ORT_ENABLE_EXTENDED, or give the file it was made from",
    "ai.onnx.ml": "of classical models only what docs/operators.md lists is read; for support vectors, labels that are "
    "strings and maps use onnxruntime",
}
"""What to do about a domain whose operators are not read."""


def _is_operator(name: str) -> bool:
    """Whether ONNX has an operator of a name."""
    from onnx import defs  # few models bring functions without a domain

    return defs.has(name)


def _hint(domains: set[str]) -> str:
    """What to do about operators of these domains."""
    told = [_REMEDIES[of] for of in sorted(domains) if of in _REMEDIES]
    return "; ".join(told) if told else "docs/operators.md lists those that are"


def _nodes(nodes: Iterable[messages.NodeProto]) -> Iterator[messages.NodeProto]:
    """The nodes and those of their bodies."""
    pending = [nodes]
    while pending:
        for node in pending.pop():
            yield node
            pending += [body.node for body in bodies(node)]


def opsets_of(imports: Iterable[messages.OperatorSetIdProto]) -> dict[str, int]:
    """The version that is imported of each domain."""
    found: dict[str, int] = {}
    for entry in imports:
        of = domain(entry.domain)
        if not 0 < entry.version < LARGEST_VERSION:
            raise LoadError(
                f"opset {entry.version} of {printable(of) or 'ai.onnx'!r}",
                hint="versions count from 1; export it again",
            )
        if found.setdefault(of, entry.version) != entry.version:
            raise LoadError(
                f"opset {found[of]} and opset {entry.version} of {printable(of) or 'ai.onnx'!r} at once",
                hint="import one version",
            )
    version = found.get("", NEWEST)
    if not OLDEST <= version <= NEWEST:
        raise UnsupportedError(f"opset {version} of ai.onnx", hint=f"opsets {OLDEST} to {NEWEST} are read")
    return found
