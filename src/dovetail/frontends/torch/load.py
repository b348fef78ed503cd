"""Modules and exported programs as graphs."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from functools import cache
from typing import Any, cast

from dovetail.dataclass import dataclass
from dovetail.errors import OptionError
from dovetail.frontends.shared.messages import sanitized_errors
from dovetail.frontends.torch.importing.custom import CustomOps, custom_rules
from dovetail.frontends.torch.importing.importer import Import, is_part
from dovetail.frontends.torch.reading.capture import captured, decomposed, is_module, load_program
from dovetail.frontends.torch.reading.digest import digest_of, held
from dovetail.frontends.torch.reading.interface import Interface, interface_of
from dovetail.frontends.torch.reading.program import read_program
from dovetail.frontends.torch.reading.tensors import array_of
from dovetail.frontends.torch.reading.trees import plain
from dovetail.frontends.torch.rules import REGISTRY
from dovetail.ir.collector import collector_paused
from dovetail.ir.graph import Graph
from dovetail.ir.literal import Array
from dovetail.passes.known_sizes import settle_sizes
from dovetail.progress import phase
from dovetail.targets.runtime.building.weights import Weights


@dataclass(frozen=True, slots=True)
class Captured:
    """A program as torch exported it."""

    name: str
    program: Any
    """torch's ExportedProgram: it has the structure of arguments and results."""
    names: Mapping[str, str]
    """The user's names of torch's symbols."""
    forward: Any = None
    """The module's own method, whose signature says how arguments may be given."""
    custom_ops: CustomOps = field(default_factory=dict[str, Any])
    """The bodies of custom operators."""

    @property
    def digest(self) -> str:
        """Equal for programs that import to equal graphs."""
        return digest_of(self.program, self.names, is_part)


@dataclass(frozen=True, slots=True)
class Imported:
    """A graph, perhaps not imported yet, and the program that it comes from."""

    read: Callable[[], Graph]
    interface: Interface
    captured: Captured
    held: Mapping[str, Any]
    """The parameters, buffers and constants of the module by name."""
    arrays: Mapping[str, Array]
    """The memory of the parameters. The module owns it: a program that lets go of it frees nothing."""

    @property
    def graph(self) -> Graph:
        return self.read()


def capture_module(
    given: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    custom_ops: CustomOps | None = None,
) -> Captured:
    """An nn.Module exported for a call with these arguments, or an ExportedProgram as it is."""
    if not is_module(given):
        return Captured("exported", given, {}, custom_ops=custom_ops or {})
    args, kwargs = _as_called(args, kwargs or {})
    program, names = captured(given, args, kwargs, dynamic)
    return Captured(type(given).__name__, program, names, given.forward, custom_ops or {})


def import_captured(given: Captured) -> Imported:
    """The graph of a program."""
    rules = {**REGISTRY.by_name, **custom_rules(given.custom_ops)}
    lowered = decomposed(given.program, rules)
    with sanitized_errors(), phase("import"), collector_paused():
        exported = read_program(lowered, name=given.name, names=given.names)
        graph = settle_sizes(Import(exported, rules).graph())
    interface = interface_of(lowered, exported, {name: value.dtype for name, value in graph.outputs.items()})
    arrays = dict(graph.params)
    graph = replace(graph, params=Weights(arrays))
    return Imported(lambda: graph, interface, given, held(lowered), arrays)


def import_module(
    given: Any,
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    dynamic: Any = None,
    custom_ops: CustomOps | None = None,
) -> Imported:
    """The graph of an nn.Module called with these arguments, or of an ExportedProgram."""
    return import_captured(capture_module(given, args, kwargs, dynamic, custom_ops))


def known(given: Captured, interface: Interface, params: Sequence[str]) -> Imported | None:
    """What `import_captured` gives, from what was noted of an equal program; the graph is imported when it is read."""
    tensors = held(given.program)
    if any(name not in tensors for name in params):
        return None
    arrays = {name: array_of(tensors[name]) for name in params}
    return Imported(cache(lambda: import_captured(given).graph), interface, given, tensors, arrays)


def shares_memory(made: Imported) -> bool:
    """Whether all parameters of a graph are tensors of the program before it was decomposed."""
    before = held(made.captured.program)
    return all(
        name in before and array_of(before[name]).ctypes.data == a.ctypes.data for name, a in made.arrays.items()
    )


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
