"""How far the functions of a model unfold: counted over their calls, before any is written out."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

import onnx

from dovetail.errors import LoadError
from dovetail.frontends.onnx.functions import bodies, domain
from dovetail.frontends.onnx.node import printable

MOST_UNFOLDED = 200_000
"""Nodes that functions may unfold to, and this many times more for each node that is written."""
UNFOLDED_BY_NODE = 20
DEEPEST_CALL = 32
"""How deep functions may call each other."""
_BYTES_A_NODE = 1 << 14
"""A node with a constant counts as one more for so many bytes: each call reads it again."""

Key: TypeAlias = tuple[str, str, str]
"""Domain, name and overload."""


@dataclass(frozen=True, slots=True)
class _Written:
    """The nodes of a graph or function, those of bodies included, and how often it calls each function."""

    nodes: int
    calls: Mapping[Key, int]


def key_of(function: onnx.FunctionProto) -> Key:
    return (domain(function.domain), function.name, function.overload)


def check_nesting(model: onnx.ModelProto) -> None:
    """Refuse functions that call themselves, directly or not, and those that unfold to far more than is written."""
    if not model.functions:
        return
    keys = {key_of(f) for f in model.functions}
    written = {key_of(f): _written(f.node, keys) for f in model.functions}
    unfolded = _unfolded(written)
    whole = _written(model.graph.node, keys)
    total = whole.nodes + sum(unfolded[key] * count for key, count in whole.calls.items())
    most = MOST_UNFOLDED + UNFOLDED_BY_NODE * (whole.nodes + sum(w.nodes for w in written.values()))
    if total > most:
        raise LoadError(
            f"{_count(total)} nodes once functions are written out, from {len(model.functions)} functions",
            hint=f"up to {most:,} are; check how they nest",
        )


def _count(number: int) -> str:
    return f"{number:,}" if number < 10**15 else f"about 10**{len(str(number)) - 1}"


def _written(nodes: Iterable[onnx.NodeProto], keys: set[Key]) -> _Written:
    count = 0
    calls: dict[Key, int] = {}
    pending = [nodes]
    while pending:
        for node in pending.pop():
            count += 1
            key = (domain(node.domain), node.op_type, node.overload)
            if key in keys:
                calls[key] = calls.get(key, 0) + 1
            if node.attribute:
                pending += [body.node for body in bodies(node)]
                count += sum(a.t.ByteSize() // _BYTES_A_NODE for a in node.attribute if a.HasField("t"))
    return _Written(count, calls)


def _unfolded(written: Mapping[Key, _Written]) -> dict[Key, int]:
    """The nodes that each function unfolds to."""
    found: dict[Key, int] = {}
    depth: dict[Key, int] = {}
    for start in written:
        path: dict[Key, None] = {}
        pending = [start]
        while pending:
            key = pending[-1]
            if key in found:
                pending.pop()
                continue
            calls = written[key].calls
            if key in path:
                path.popitem()
                pending.pop()
                found[key] = written[key].nodes + sum(found[k] * count for k, count in calls.items())
                depth[key] = 1 + max((depth[k] for k in calls), default=0)
                if depth[key] > DEEPEST_CALL:
                    raise LoadError(
                        f"functions nest deeper than {DEEPEST_CALL}, at {printable(key[1])!r}",
                        hint="write some of them out",
                    )
                continue
            path[key] = None
            for callee in calls:
                if callee in path:
                    raise LoadError(
                        f"the function {printable(callee[1])!r} calls itself, through {printable(key[1])!r}",
                        hint="functions are written out where they are called, and this one has no end",
                    )
                if callee not in found:
                    pending.append(callee)
    return found
