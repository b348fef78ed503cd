"""A region of a traced graph as a graph of ours: what it is fed, what it gives back, what it writes in place."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.frontends.torch.dynamo.attempt import Attempt
from dovetail.frontends.torch.dynamo.graph_reading import GraphReading
from dovetail.frontends.torch.dynamo.nodes import (
    copied_into,
    inputs_of,
    is_tensor,
    stored_order,
    symbol_of,
)
from dovetail.frontends.torch.exported import Call, Exported, Leaf, Output, Ref
from dovetail.frontends.torch.importing.rule import Rule
from dovetail.ir.collector import collector_paused
from dovetail.ir.dim import Dim, symbol, symbols
from dovetail.ir.dtype import DType, u8
from dovetail.ir.graph import Graph
from dovetail.ir.type import TensorType, type_symbols
from dovetail.passes.known_sizes import settle_sizes


@dataclass(frozen=True, slots=True)
class Feed:
    """An input of a region: a tensor, or the number of elements of an array that stands for a size."""

    name: str
    """Of the input of our graph."""
    node: Any
    order: tuple[int, ...] | None = None
    """The axes of the tensor as they are stored, where they are not in order."""
    is_size: bool = False


@dataclass(frozen=True, slots=True)
class Given:
    """An output of a region."""

    name: str
    node: Any
    dtype: DType
    back: tuple[int, ...] | None = None
    """Where each axis of the tensor is stored, where they are not in order."""


@dataclass(frozen=True, slots=True)
class Write:
    """The new content of an input: it is written into the input's own memory."""

    name: str
    feed: int
    copy: Any
    """The node that the region does the work of."""
    dtype: DType


@dataclass(frozen=True, slots=True, eq=False)
class Region:
    """Nodes that are compiled together."""

    graph: Graph
    calls: int
    feeds: tuple[Feed, ...]
    given: tuple[Given, ...]
    writes: tuple[Write, ...]


class RefusedError(Exception):
    """Calls that turned out not to be readable in their region; it never leaves this package."""

    def __init__(self, refused: Mapping[str, str]) -> None:
        super().__init__(*refused.values())
        self.refused = refused


def region_of(
    name: str,
    nodes: Sequence[Any],
    known: Mapping[str, Call | Leaf],
    numbers: Iterable[Any],
    copies: Iterable[Any],
    rules: Mapping[str, Rule],
    unread: Collection[Any] = (),
) -> Region:
    """The region of nodes; `numbers` are known before it runs, `copies` write to inputs after all regions.

    Nodes that are `unread` do not run, and need no output of the region.
    """
    reading, inside = GraphReading(), set(nodes)
    calls = [cast(Call, known[node.name]) for node in nodes]
    leaves: list[Leaf] = []
    feeds: list[Feed] = []
    moved: list[Call] = []
    for node in inputs_of(nodes):
        if not is_tensor(node):
            continue
        leaf = known.get(node.name)
        if isinstance(leaf, Leaf) and leaf.array is not None:
            leaves.append(leaf)
            continue
        order, type_ = stored_order(node), reading.type(node)
        if order is None:
            leaves.append(Leaf(node.name, "input", type_, node.name))
        else:
            stored = _permuted(type_, order)
            leaves.append(Leaf(f"{node.name}_stored", "input", stored, node.name))
            moved.append(_permute(node.name, f"{node.name}_stored", _inverse(order), type_))
        feeds.append(Feed(leaves[-1].name, node, order))
    for missing in sorted(_symbols(calls, leaves) - _bound(leaves, nodes)):
        provider = next((n for n in numbers if symbol_of(n) == missing), None)
        if provider is None:
            reason = f"the number {missing}, which is no size: it may be negative, or torch computes it"
            needing = [c for c in calls if missing in _symbols([c], [])]
            raise RefusedError({c.name: reason for c in needing or calls})
        leaves.append(Leaf(f"size_{missing}", "input", TensorType(u8, (symbol(missing),)), f"size_{missing}"))
        feeds.append(Feed(f"size_{missing}", provider, is_size=True))
    writes = _writes(nodes, feeds, copies, reading)
    done = {*unread, *(write.copy for write in writes)}
    given: list[Given] = []
    outputs: list[Output] = []
    for node in nodes:
        if is_tensor(node) and any(u not in inside and u not in done for u in node.users):
            order, type_ = stored_order(node), reading.type(node)
            if order is not None:
                calls.append(_permute(f"{node.name}_stored", node.name, order, _permuted(type_, order)))
            back = None if order is None else _inverse(order)
            given.append(Given(f"output_{len(outputs)}", node, type_.dtype, back))
            outputs.append(Output(Ref(node.name if order is None else f"{node.name}_stored")))
    outputs += [Output(Ref(w.copy.args[1].name), feeds[w.feed].name) for w in writes]
    attempt = Attempt(Exported(name, tuple(leaves), (*moved, *calls), tuple(outputs)), rules)
    with collector_paused():
        graph = attempt.graph()
        if attempt.refused:
            raise RefusedError(attempt.refused)
        graph = settle_sizes(graph)
    return Region(graph, len(nodes), tuple(feeds), tuple(given), tuple(writes))


def _writes(nodes: Sequence[Any], feeds: Sequence[Feed], copies: Iterable[Any], reading: GraphReading) -> list[Write]:
    """Copies into inputs that the region can do itself: nothing else reads the old content."""
    inside = set(nodes)
    at = {feed.node: i for i, feed in enumerate(feeds) if feed.order is None and not feed.is_size}
    found: list[Write] = []
    for copy in copies:
        into = copied_into(copy)
        if into not in at or copy.args[1] not in inside or any(u not in inside and u is not copy for u in into.users):
            continue
        if reading.type(copy.args[1]) == reading.type(into):
            found.append(Write(f"{feeds[at[into]].name}_after", at[into], copy, reading.type(into).dtype))
    return found


def _permute(name: str, of: str, order: tuple[int, ...], result: TensorType) -> Call:
    return Call(name, "aten.permute.default", (Ref(of), list(order)), ("self", "dims"), {}, result)


def _permuted(type_: TensorType, order: tuple[int, ...]) -> TensorType:
    return TensorType(type_.dtype, tuple(type_.shape[axis] for axis in order))


def _inverse(order: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(order.index(axis) for axis in range(len(order)))


def _bound(leaves: Iterable[Leaf], nodes: Iterable[Any]) -> set[str]:
    """Symbols that the shapes of inputs tell, and those that nodes of the region make."""
    alone = {str(size) for leaf in leaves for size in leaf.type.shape if isinstance(size, Dim)}
    return alone | {str(s) for node in nodes for s in node.meta.get("unbacked_bindings") or ()}


def _symbols(calls: Iterable[Call], leaves: Iterable[Leaf]) -> set[str]:
    """Every symbol that the types and arguments of a region mention."""
    found: set[str] = set()
    for leaf in leaves:
        found.update(type_symbols(leaf.type))
    for call in calls:
        for part in (call.result, call.arguments, list(call.keywords.values())):
            found.update(_symbols_in(part))
    return found


def _symbols_in(part: Any) -> set[str]:
    if isinstance(part, TensorType):
        return set(type_symbols(part))
    if isinstance(part, Dim):
        return set(symbols(part))
    if isinstance(part, list | tuple):
        return {name for item in cast(Iterable[Any], part) for name in _symbols_in(item)}
    return set()


__all__ = ["Feed", "Given", "RefusedError", "Region", "Write", "region_of"]
