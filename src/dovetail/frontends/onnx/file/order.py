"""Nodes in an order in which each comes after what it reads. Some writers store them in another."""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Iterator, MutableSequence
from typing import Any

from dovetail.frontends.onnx.file.proto import AttributeProto, messages


def in_order(model: messages.ModelProto) -> messages.ModelProto:
    """The model itself where every node comes after what it reads, else a copy with its nodes sorted.

    Cycles stay as they are: the checks that follow name them.
    """
    if all(_is_sorted(nodes) for nodes in _lists(model)):
        return model
    copy = messages.ModelProto()
    copy.CopyFrom(model)
    for nodes in _lists(copy):
        _sort(nodes)
    return copy


def _lists(model: messages.ModelProto) -> Iterator[MutableSequence[Any]]:
    """The nodes of every graph and function, those of bodies included."""
    pending: list[Any] = [model.graph, *model.functions]
    while pending:
        nodes = pending.pop().node
        yield nodes
        for node in nodes:
            if node.attribute:
                pending += bodies(node)


def bodies(node: messages.NodeProto) -> Iterator[messages.GraphProto]:
    """The graphs in the attributes of a node."""
    for attribute in node.attribute:
        if attribute.type == AttributeProto.GRAPH:
            yield attribute.g
        elif attribute.type == AttributeProto.GRAPHS:
            yield from attribute.graphs


def _reads(node: messages.NodeProto) -> Iterator[str]:
    """The names that a node and its bodies mention as inputs."""
    pending: list[messages.NodeProto] = [node]
    while pending:
        one = pending.pop()
        yield from one.input
        for body in bodies(one):
            pending += body.node
            yield from (o.name for o in body.output)


def _is_sorted(nodes: Iterable[messages.NodeProto]) -> bool:
    """Whether no node reads what a later one makes."""
    read: set[str] = set()
    for node in nodes:
        if node.attribute:
            read.update(_reads(node))
        else:
            read.update(node.input[:])
        read.discard("")
        if not read.isdisjoint(node.output):
            return False
    return True


def _sort(nodes: MutableSequence[Any]) -> None:
    """Sort in place; of nodes that are ready the first as stored comes first."""
    listed = list(nodes)
    maker = {name: index for index, node in enumerate(listed) for name in node.output if name}
    readers: dict[int, list[int]] = {}
    waits = [0] * len(listed)
    for index, node in enumerate(listed):
        needed = {maker[name] for name in _reads(node) if name in maker and maker[name] != index}
        waits[index] = len(needed)
        for other in needed:
            readers.setdefault(other, []).append(index)
    ready = [index for index, count in enumerate(waits) if not count]
    order: list[int] = []
    while ready:
        index = heapq.heappop(ready)
        order.append(index)
        for reader in readers.get(index, ()):
            waits[reader] -= 1
            if not waits[reader]:
                heapq.heappush(ready, reader)
    if len(order) == len(listed):
        copies = [messages.NodeProto.FromString(node.SerializeToString()) for node in listed]
        del nodes[:]
        nodes.extend([copies[index] for index in order])


__all__ = ["bodies", "in_order"]
