"""The order of a graph in stages: compiled regions, and between them what torch runs."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.frontends.torch.dynamo.nodes import is_item, is_random


@dataclass(frozen=True, slots=True)
class Stage:
    """Nodes that run after all of the stage before; those of a compiled stage are one region."""

    is_compiled: bool
    nodes: tuple[Any, ...]


def stages_of(nodes: Iterable[Any], compiled: Collection[Any], depends: Callable[[Any, Any], bool]) -> list[Stage]:
    """As few stages as dependencies allow: a node runs in the first that its operands let it.

    Even stages are compiled. `depends` says whether a node needs a number as a value: sizes it knows from its type.
    Nodes that draw random numbers keep their order, which the stream depends on.
    """
    at: dict[Any, int] = {}
    drawn = -1
    for node in nodes:
        if is_item(node):
            at[node] = at.get(node.args[0], -1)
            continue
        own = 0 if node in compiled else 1
        level = -own
        for read in node.all_input_nodes:
            if read in at and depends(node, read):
                level = max(level, at[read] + (at[read] % 2 != own))
        if is_random(node):
            level = drawn = max(level, drawn)
        at[node] = level
    found: dict[int, list[Any]] = {}
    for node, level in at.items():
        found.setdefault(level, []).append(node)
    return [Stage(level % 2 == 0, tuple(found[level])) for level in sorted(found)]


__all__ = ["Stage", "stages_of"]
