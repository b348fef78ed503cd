"""The fingerprint of a compilation: equal in every process and on every machine, different where code or results are.

Parameters count by name and type: their arrays are bound later. Names of graphs and origins do not count.
"""

from __future__ import annotations

import hashlib
import sys
from collections.abc import Callable, Iterable, Mapping
from types import NoneType
from typing import Any

from dovetail.declare.fused import FusedOp
from dovetail.errors import GraphError, OptionError
from dovetail.ir.attribute import check_attribute
from dovetail.ir.dim import Dim
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.literal import Literal
from dovetail.ir.spell import little_endian
from dovetail.ir.type import TensorType
from dovetail.ir.value import Value, attrs_key
from dovetail.version import __version__


def fingerprint(graph: Graph, *, target: str, alignment: int, options: Mapping[str, Any]) -> str:
    """Digest of all that decides what is compiled, as hex digits."""
    encoder = _Encoder()
    head = [__version__, target, alignment, tuple((name, checked(name, options[name])) for name in sorted(options))]
    read = graph.values
    leaves = (*graph.inputs, *graph.declared)
    met = set(read) if leaves else set[Value]()
    unread = [v for v in leaves if v not in met]
    parts = [encoder.attribute(tuple(head)), encoder.values([*read, *unread], (*graph.inputs, *graph.outputs.values()))]
    parts += [encoder.attribute((c.left, c.relation, c.right)) for c in graph.constraints]
    parts.append(encoder.attribute((len(graph.inputs), tuple(graph.outputs))))
    if graph.donated:
        parts.append(encoder.attribute(tuple(sorted(graph.donated.items()))))
    if graph.forward:
        parts.append(encoder.attribute(("forward", *graph.forward)))
    return _digest(parts)


def checked(name: str, option: Any) -> Any:
    """Return an option as an attribute, which can be encoded and printed."""
    try:
        check_attribute(option)
    except GraphError as error:
        raise OptionError(
            f"the option {name} is a {type(option).__name__}", hint="use None, bool, int, float, str and tuples of them"
        ) from error
    return option


def _digest(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


class _Encoder:
    """Spells values, each kind of attribute in a way that no other can be taken for: text has its length in front."""

    def __init__(self) -> None:
        self.bodies: dict[Subgraph, str] = {}
        self.meanings: dict[tuple[Any, ...], str] = {}
        self.types: dict[TensorType, str] = {}
        self.spellings: dict[type, Callable[[Any], str]] = {
            NoneType: lambda _: "n;",
            bool: lambda attr: f"b{attr:d};",
            int: lambda attr: f"i{attr};",
            float: lambda attr: f"f{attr.hex()};",
            str: lambda attr: f"s{len(attr)}:{attr}",
            tuple: lambda attr: f"({''.join([self.attribute(item) for item in attr])})",
            Dim: lambda attr: f"z{attr};",
            DType: lambda attr: f"d{attr.name};",
            TensorType: self.type,
            Literal: self.literal,
            Subgraph: self.body,
        }

    def values(self, values: Iterable[Value], outputs: Iterable[Value]) -> str:
        """Return a digest of the outputs and all they need, numbered in the order of the walk."""
        number: dict[Value, str] = {}
        lines: list[str] = []
        for value in values:
            number[value] = str(len(number))
            op, attrs = value.op, value.attrs
            line = f"{op.name}({','.join([number[v] for v in value.operands])})"
            if attrs:
                line += "".join([f"{len(name)}:{name}{self.attribute(a)}" for name, a in attrs.items()])
            lines.append(line + self.meaning(op, value) if isinstance(op, FusedOp) else line)
        lines.append(",".join([number[v] for v in outputs]))
        return _digest(lines)

    def meaning(self, op: FusedOp[...], value: Value) -> str:
        """Encode what a declared op spells out here: two ops of one name may differ."""
        types = tuple([v.type for v in value.operands])
        key = (op, attrs_key(value.attrs), types)
        text = self.meanings.get(key)
        if text is None:
            _, _, body = op.traced(types, value.attrs)
            text = self.meanings[key] = self.body(body)
        return text

    def attribute(self, attr: Any) -> str:
        spell = self.spellings.get(attr.__class__)
        if spell is None:
            raise OptionError(f"an attribute of the kind {attr.__class__.__name__}", hint="verify the graph first")
        return spell(attr)

    def type(self, type: TensorType) -> str:
        text = self.types.get(type)
        if text is None:
            text = self.types[type] = f"t{type};"
        return text

    def literal(self, literal: Literal) -> str:
        return f"a{self.type(TensorType(literal.dtype, literal.array.shape))}{content(literal).hex()};"

    def body(self, body: Subgraph) -> str:
        text = self.bodies.get(body)
        if text is None:
            inside = self.values(body.values, body.results)
            text = self.bodies[body] = f"g{''.join(map(self.type, body.arguments))}{inside};"
        return text


def content(literal: Literal) -> bytes:
    """Return the digest of an array's bytes, the low byte of each number first on every machine."""
    if sys.byteorder == "little":
        return literal.digest
    raw = little_endian(literal.array)
    return hashlib.blake2b(raw, digest_size=16).digest() if len(raw) > 16 else raw
