"""Modules and exported programs as graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from dovetail.frontends.shared.messages import sanitized_errors
from dovetail.frontends.torch.exported import Exported
from dovetail.frontends.torch.importing.importer import Import
from dovetail.frontends.torch.reading.capture import captured, decomposed, is_module, load_program
from dovetail.frontends.torch.reading.program import read_program
from dovetail.frontends.torch.rules import BY_NAME
from dovetail.ir.collector import collector_paused
from dovetail.ir.graph import Graph
from dovetail.passes.known_sizes import settle_sizes
from dovetail.progress import phase
from dovetail.targets.runtime.weights import Weights


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, and the program that it came from."""

    graph: Graph
    exported: Exported
    program: Any
    """torch's ExportedProgram as it was captured: it has the structure of arguments and results."""
    lowered: Any
    """The same, decomposed: its placeholders are the leaves."""
    forward: Any = None
    """The module's own method, whose signature says how arguments may be given."""


def import_module(
    given: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, dynamic: Any = None
) -> Imported:
    """The graph of an nn.Module called with these arguments, or of an ExportedProgram."""
    names: dict[str, str] = {}
    if is_module(given):
        program, names = captured(given, args, kwargs or {}, dynamic)
        name, forward = type(given).__name__, given.forward
    else:
        program, name, forward = given, "exported", None
    lowered = decomposed(program, BY_NAME)
    with sanitized_errors(), phase("import"), collector_paused():
        exported = read_program(lowered, name=name, names=names)
        graph = settle_sizes(Import(exported, BY_NAME).graph())
    return Imported(replace(graph, params=Weights(graph.params)), exported, program, lowered, forward)


def load_exported(path: str) -> Imported:
    """The graph of a .pt2 file."""
    return import_module(load_program(path))
