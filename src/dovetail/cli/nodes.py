"""Nodes of a model by the words of a user: a name, an origin, or a node of the file that it was read from."""

from __future__ import annotations

import re
from pathlib import Path

from dovetail.cli.model import is_onnx
from dovetail.errors import OptionError
from dovetail.ir import leaf
from dovetail.ir.graph import Graph
from dovetail.ir.origin import Origin
from dovetail.ir.value import Value
from dovetail.report.record import Node

_MOST_LISTED = 20


class UnknownNodeError(OptionError):
    """No node of the graph has this name or origin."""


def find(graph: Graph, names: dict[Value, str], asked: str) -> list[Value]:
    """The value of that name, or the one whose origin (and op) has all words of what was asked.

    For the name of a node in a file that became several ops, all of them.
    """
    computed = [v for v in graph.values if v.op not in leaf.LEAVES]
    named = next((v for v, name in names.items() if name == asked), None)
    if named is not None and named.op not in leaf.LEAVES:
        return [named]
    words = asked.split()
    matching = [v for v in computed if words and all(_speaks_of(graph, v, w, whole=True) for w in words)]
    if not matching and named is None:
        matching = [v for v in computed if words and all(_speaks_of(graph, v, w, whole=False) for w in words)]
    if not matching and named is None:
        matching = [v for v in computed if words and all(w.lower() in graph.where(v).lower() for w in words)]
    if len(matching) == 1:
        return matching
    whole = {str(o) for v in matching for o in graph.origins.get(v, ()) if _is_named(o, asked)}
    if len(whole) == 1:
        return [v for v in matching if any(_is_named(o, asked) for o in graph.origins.get(v, ()))]
    if matching:
        op = next((v.op.name for v in matching if v.op.name not in words), None)
        narrower = f", or with its op, as in {f'{asked} {op}'!r}" if op is not None else ""
        hint = f"say which by its name{narrower}:\n{_listed(graph, names, matching)}"
        raise OptionError(f"{len(matching)} nodes are at {asked!r}", hint=hint)
    if named is not None:
        raise OptionError(f"{asked} ({named.op}) is computed by no kernel", hint="ask about a value that reads it")
    hint = f"dovetail show MODEL --stage mir prints all nodes; there are:\n{_listed(graph, names, computed)}"
    raise UnknownNodeError(f"no node is named {asked!r}, and no origin has it", hint=hint)


def _is_named(origin: Origin, asked: str) -> bool:
    """Whether an origin is the node of this name in a file."""
    return origin.kind == "onnx" and origin.name.rpartition(" (")[0] == asked


def enclosing(model: str, asked: str, unknown: UnknownNodeError) -> tuple[str, str]:
    """For a node that the graph has not: the node of the file whose body or function has it, and what it is called.

    Raises `unknown` where the file has no such node, and says so where nothing is left of it.
    """
    if not is_onnx(model):
        raise unknown
    from dovetail.frontends.onnx.file.places import place_of  # onnx takes a fifth of a second to import

    place = place_of(Path(model), asked)
    if place is None:
        raise unknown
    if place.outer == asked:
        raise OptionError(
            f"{place.node} is computed by no kernel: it passes its input on, is known before a run, or is not needed",
            hint="ask about a node that reads what it gives",
        )
    return place.outer, place.node


def _speaks_of(graph: Graph, value: Value, word: str, *, whole: bool) -> bool:
    where = graph.where(value)
    if word == value.op.name or (not whole and word in where):
        return True
    return re.search(rf"(?<!\w){re.escape(word)}(?!\w)", where) is not None


def _listed(graph: Graph, names: dict[Value, str], values: list[Value]) -> str:
    lines = [f"    {Node(names[v], v.op.name, graph.where(v))}" for v in values[:_MOST_LISTED]]
    more = len(values) - len(lines)
    return "\n".join([*lines, *([f"    and {more} more"] if more else [])])
