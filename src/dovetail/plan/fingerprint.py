"""The fingerprint of a compilation: equal in every process and on every machine, different where code or results are.

Parameters count by name and type: their arrays are bound later. Names of graphs and origins do not count.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Iterable, Mapping
from typing import Any, cast

from dovetail.declare.fused import FusedOp
from dovetail.errors import GraphError, OptionError
from dovetail.ir.attribute import check_attribute
from dovetail.ir.dim import Dim
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.literal import Literal
from dovetail.ir.spell import little_endian
from dovetail.ir.type import TensorType, Type
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.version import __version__


def fingerprint(graph: Graph, *, target: str, alignment: int, options: Mapping[str, Any]) -> str:
    """Digest of all that decides what is compiled, as hex digits."""
    encoder = _Encoder()
    head = [__version__, target, alignment, tuple((name, checked(name, options[name])) for name in sorted(options))]
    parts = [encoder.attribute(tuple(head)), encoder.values((*graph.inputs, *graph.outputs.values()))]
    parts += [encoder.attribute((c.left, c.relation, c.right)) for c in graph.constraints]
    parts.append(encoder.attribute((len(graph.inputs), tuple(graph.outputs))))
    return _digest(parts)


def checked(name: str, option: Any) -> Any:
    """An option as an attribute, which is what can be encoded and printed."""
    try:
        check_attribute(option)
    except GraphError as error:
        raise OptionError(
            f"the option {name} is a {type(option).__name__}", hint="use None, bool, int, float, str and tuples of them"
        ) from error
    return option


def _digest(parts: Iterable[str]) -> str:
    found = hashlib.sha256()
    for part in parts:
        # The length in front keeps two parts from reading as two others.
        found.update(f"{len(part)}:{part}".encode())
    return found.hexdigest()


class _Encoder:
    """Spells values, each kind of attribute in a way that no other can be taken for."""

    def __init__(self) -> None:
        self.bodies: dict[Subgraph, str] = {}
        self.meanings: dict[tuple[Any, ...], str] = {}

    def values(self, outputs: Iterable[Value]) -> str:
        """A digest of the outputs and all they need, numbered in the order of the walk."""
        outputs = tuple(outputs)
        number: dict[Value, str] = {}
        lines: list[str] = []
        for value in walk(outputs):
            number[value] = str(len(number))
            operands = ",".join([number[v] for v in value.operands])
            attrs = self.attributes(value.attrs) if value.attrs else ""
            op = value.op
            meaning = self.meaning(op, value, attrs) if isinstance(op, FusedOp) else ""
            lines.append(f"{op.name}({operands}){attrs}{meaning}")
        lines.append(",".join([number[v] for v in outputs]))
        return _digest(lines)

    def attributes(self, attrs: Mapping[str, Any]) -> str:
        return "".join([f"{len(name)}:{name}{self.attribute(a)}" for name, a in attrs.items()])

    def meaning(self, op: FusedOp[...], value: Value, attrs: str) -> str:
        """What a declared op spells out here: two ops of one name may differ."""
        types = tuple([v.type for v in value.operands])
        key = (op, attrs, types)
        found = self.meanings.get(key)
        if found is None:
            _, _, body = op.traced(types, value.attrs)
            found = self.meanings[key] = "=" + self.body(body)
        return found

    def body(self, body: Subgraph) -> str:
        found = self.bodies.get(body)
        if found is None:
            found = self.bodies[body] = f"[{self.attribute(body.arguments)}{self.values(body.results)}]"
        return found

    def attribute(self, attr: Any) -> str:
        match attr:
            case bool() | None:
                return f"!{attr};"
            case int():
                return f"i{attr};"
            case float():
                return f"f{attr.hex()};"
            case str():
                return f"s{len(attr)}:{attr}"
            case tuple():
                return f"({''.join([self.attribute(a) for a in cast(tuple[Any, ...], attr)])})"
            case Dim():
                return f"z{attr};"
            case DType():
                return f"d{attr.name};"
            case TensorType():
                return self.type(attr)
            case Literal():
                return f"a{self.type(TensorType(attr.dtype, attr.array.shape))}{content(attr).hex()};"
            case Subgraph():
                return f"g{self.body(attr)}"
            case _:
                raise OptionError(f"an attribute of the kind {type(attr).__name__}", hint="verify the graph first")

    def type(self, type: Type) -> str:
        return f"t{type};"


def content(literal: Literal) -> bytes:
    """The digest of an array's bytes, the low byte of each number first on every machine."""
    if sys.byteorder == "little":
        return literal.digest
    raw = little_endian(literal.array)
    return hashlib.blake2b(raw, digest_size=16).digest() if len(raw) > 16 else raw
