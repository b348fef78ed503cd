"""Names of one graph of a model, and of the graphs around it."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.frontends.onnx.importing import attributes
from dovetail.ir.value import Value


class Scope:
    """The values that names stand for in one graph, and the graph around it."""

    def __init__(
        self,
        opsets: Mapping[str, int],
        *,
        outer: Scope | None = None,
        captured: Mapping[str, Value] | None = None,
        attrs: attributes.Read | None = None,
    ) -> None:
        self.opsets = opsets
        self.outer = outer
        self.captured = captured
        self.attrs = attrs
        """The attributes of the call, inside a function."""
        self.values: dict[str, Value] = {}
        self.depth: int = 0 if outer is None else outer.depth + 1

    def find(self, name: str) -> Value | None:
        scope: Scope | None = self
        while scope is not None:
            if name in scope.values:
                return scope.values[name]
            if scope.captured is not None and name in scope.captured:
                return scope.captured[name]
            scope = scope.outer
        return None
