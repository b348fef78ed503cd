"""Which operators a model may use: those with a rule, its own functions, and those that ONNX defines by a body."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import onnx

from dovetail.errors import LoadError, UnsupportedError
from dovetail.frontends.onnx.functions import Function, bodies, domain, has_body
from dovetail.frontends.onnx.node import describe, printable
from dovetail.frontends.onnx.rule import Rule

OLDEST, NEWEST = 1, 28
"""The opsets of ONNX's own domain that rules are written for."""
MOST_LISTED = 40


class Vocabulary:
    """The rules for a model's opsets, and the functions that it brings."""

    def __init__(self, model: onnx.ModelProto, rules: Iterable[Rule]) -> None:
        self.opsets: Mapping[str, int] = _opsets(model.opset_import)
        self._rules: dict[tuple[str, str], list[Rule]] = {}
        for rule in rules:
            self._rules.setdefault((rule.domain, rule.op_type), []).append(rule)
        self._functions: dict[tuple[str, str, str], Function] = {}
        for proto in model.functions:
            key = (domain(proto.domain), proto.name, proto.overload)
            if key in self._functions:
                raise LoadError(f"two functions are named {printable(proto.name)!r}", hint="names are unique")
            self._functions[key] = Function.of(proto, self.opsets)

    def rule(self, node: onnx.NodeProto, version: int) -> Rule | None:
        """The newest rule that is not newer than the model."""
        fitting = [
            r
            for r in self._rules.get((domain(node.domain), node.op_type), ())
            if r.since <= version and (r.until is None or version <= r.until)
        ]
        return max(fitting, key=lambda r: r.since, default=None)

    def function(self, node: onnx.NodeProto) -> Function | None:
        return self._functions.get((domain(node.domain), node.op_type, node.overload))

    def check(self, graph: onnx.GraphProto) -> None:
        """All operators that nothing is known of, as one error."""
        unknown: dict[str, list[str]] = {}
        pending: list[tuple[Iterable[onnx.NodeProto], Mapping[str, int]]] = [(graph.node, self.opsets)]
        pending += [(f.nodes, f.opsets) for f in self._functions.values()]
        while pending:
            nodes, opsets = pending.pop()
            for node in nodes:
                pending += [(body.node, opsets) for body in bodies(node)]
                of = domain(node.domain)
                version = opsets.get(of, 0)
                known = self.function(node) or self.rule(node, version) or has_body(node.op_type, version, of)
                if not known:
                    unknown.setdefault(f"{of}.{node.op_type}" if of else node.op_type, []).append(describe(node))
        if unknown:
            lines = [
                f"  {printable(op)}: {', '.join(found[:3])}{f' and {len(found) - 3} more' if len(found) > 3 else ''}"
                for op, found in sorted(unknown.items())[:MOST_LISTED]
            ]
            more = [f"  and {len(unknown) - MOST_LISTED} more operators"] if len(unknown) > MOST_LISTED else []
            raise UnsupportedError(
                f"{len(unknown)} operators of this model are not supported:\n" + "\n".join([*lines, *more]),
                hint="docs/operators.md lists those that are",
            )


def _opsets(imports: Iterable[onnx.OperatorSetIdProto]) -> dict[str, int]:
    found: dict[str, int] = {}
    for entry in imports:
        of = domain(entry.domain)
        if found.setdefault(of, entry.version) != entry.version:
            raise LoadError(
                f"opset {found[of]} and opset {entry.version} of {of or 'ai.onnx'!r} at once", hint="import one version"
            )
    version = found.get("", NEWEST)
    if not OLDEST <= version <= NEWEST:
        raise UnsupportedError(f"opset {version} of ai.onnx", hint=f"opsets {OLDEST} to {NEWEST} are read")
    return found
