"""Modules and exported programs as graphs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from dovetail.errors import OptionError
from dovetail.frontends.shared.messages import sanitized_errors
from dovetail.frontends.torch.importing.importer import Import
from dovetail.frontends.torch.reading.capture import captured, decomposed, is_module, load_program
from dovetail.frontends.torch.reading.interface import Interface, interface_of
from dovetail.frontends.torch.reading.program import read_program
from dovetail.frontends.torch.reading.trees import plain
from dovetail.frontends.torch.rules import BY_NAME
from dovetail.ir.collector import collector_paused
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.known_sizes import settle_sizes
from dovetail.progress import phase
from dovetail.targets.runtime.weights import Weights


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, and the program that it came from."""

    graph: Graph
    interface: Interface
    program: Any
    """torch's ExportedProgram as it was captured: it has the structure of arguments and results."""
    held: Mapping[str, Any]
    """The parameters, buffers and constants of the module by name."""
    arrays: Mapping[str, Array]
    """The memory of the parameters. The module owns it: a program that lets go of it frees nothing."""
    forward: Any = None
    """The module's own method, whose signature says how arguments may be given."""


def import_module(
    given: Any, args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, dynamic: Any = None
) -> Imported:
    """The graph of an nn.Module called with these arguments, or of an ExportedProgram."""
    names: dict[str, str] = {}
    if is_module(given):
        args, kwargs = _as_called(args, kwargs or {})
        program, names = captured(given, args, kwargs, dynamic)
        name, forward = type(given).__name__, given.forward
    else:
        program, name, forward = given, "exported", None
    lowered = decomposed(program, BY_NAME)
    with sanitized_errors(), phase("import"), collector_paused():
        exported = read_program(lowered, name=name, names=names)
        graph = settle_sizes(Import(exported, BY_NAME).graph())
    interface = interface_of(lowered, exported, {name: value.dtype for name, value in graph.outputs.items()})
    held = {**lowered.state_dict, **lowered.constants}
    arrays = dict(graph.params)
    return Imported(replace(graph, params=Weights(arrays)), interface, program, held, arrays, forward)


def _as_called(args: Any, kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the example call; the dict of a tokeniser may stand for the keywords."""
    if isinstance(args, Mapping):
        args, kwargs = (), {**cast(Mapping[str, Any], args), **kwargs}
    elif not isinstance(args, list | tuple):
        raise OptionError(f"args is a {type(args).__name__}", hint="pass a tuple: args=(x,)")
    return plain(tuple(cast(Sequence[Any], args))), plain(dict(kwargs))


def load_exported(path: str) -> Imported:
    """The graph of a .pt2 file."""
    return import_module(load_program(path))
