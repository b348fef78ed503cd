"""Nodes of a traced graph as calls. Numbers are sizes: a call has them as such, and no call makes them."""

from __future__ import annotations

from typing import Any

from dovetail.errors import DovetailError, UnsupportedError
from dovetail.frontends.torch.dynamo.nodes import is_number, value_of
from dovetail.frontends.torch.exported import Call, Leaf, Result, Unknown
from dovetail.frontends.torch.reading.package import torch_module
from dovetail.frontends.torch.reading.places import describe
from dovetail.frontends.torch.reading.program import Reading
from dovetail.frontends.torch.reading.sizes import size_of
from dovetail.frontends.torch.reading.tensors import array_of
from dovetail.ir.type import TensorType


class GraphReading(Reading):
    """Reads nodes one by one, so that one which cannot be read does not stand for the graph."""

    def __init__(self) -> None:
        super().__init__(None, {})

    def call(self, node: Any) -> tuple[Call, str]:
        """A node as a call, and why it cannot be one; then nothing but its result is known."""
        try:
            if node.op != "call_function":
                raise UnsupportedError(f"a node of the kind {node.op}")
            return self._call(node), ""
        except DovetailError as error:
            reason = error.message.splitlines()[0]
        return Call(node.name, str(node.target), (), (), {}, self._known(node, reason), (), describe(node)), reason

    def leaf(self, node: Any, tensor: Any = None) -> Leaf | Call:
        """A tensor that the graph starts from, constant where it has memory; a call without a type where we lack it."""
        found = self._known(node, "a tensor that cannot be read")
        if not isinstance(found, TensorType):
            return Call(node.name, "input", (), (), {}, found, (), node.name)
        if tensor is None:
            return Leaf(node.name, "input", found, node.name)
        # torch traces while we read: it would take the constant for one of its tensors without memory.
        with torch_module("torch._subclasses.fake_tensor").unset_fake_temporarily():
            return Leaf(node.name, "constant", found, node.name, array_of(tensor))

    def type(self, node: Any) -> TensorType:
        """The type of a tensor that is known to have one."""
        found = self._type(value_of(node))
        assert isinstance(found, TensorType), "calls without a type were refused"
        return found

    def _known(self, node: Any, reason: str) -> Result:
        try:
            return self._result(value_of(node))
        except DovetailError:
            return Unknown(reason)

    def _argument(self, given: Any) -> Any:
        if isinstance(given, self.torch.fx.Node) and is_number(given):
            value = value_of(given)
            if isinstance(value, self.torch.SymFloat | self.torch.SymBool):
                raise UnsupportedError("a number that sizes decide")
            return size_of(value, self.names) if isinstance(value, self.torch.SymInt) else value
        return super()._argument(given)


__all__ = ["GraphReading"]
