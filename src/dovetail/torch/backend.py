"""The backend of torch.compile: each graph that dynamo captures is compiled by us, forward and backward."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import PurePath
from typing import Any, NoReturn

from dovetail.errors import DovetailError
from dovetail.frontends.torch.dynamo.division import Division
from dovetail.frontends.torch.dynamo.tracing import Compilers, compile_name, held_inputs, traced
from dovetail.frontends.torch.rules import BY_NAME
from dovetail.torch.compiled import CompiledGraph, refuse_fallbacks
from dovetail.torch.options import options_of
from dovetail.torch.report import GraphBreak, GraphReport, Kind

_live: list[weakref.ref[CompiledGraph]] = []
"""Graphs that dynamo holds, in the order in which they were compiled."""


def backend(
    module: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """What runs a graph that dynamo captured: `torch.compile(model, backend="dovetail")` calls it.

    `options` are `fallback` ("eager" lets torch run what has no rule, "error" refuses it), `target`, and fields of
    `Settings`. An error of ours is raised by the first call, as it is.
    """
    try:
        return _compiled(module, inputs, mode, options)
    except DovetailError as error:
        return _refusing(error)  # dynamo would wrap what is raised here in an error of its own


def _compiled(module: Any, inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None) -> Any:
    chosen = options_of(mode, options, inputs)
    name, ended = compile_name(), _break_of(getattr(module, "compile_subgraph_reason", None))

    def compiler(kind: Kind) -> Callable[[Any], CompiledGraph]:
        def compiled(graph: Any) -> CompiledGraph:
            held = held_inputs(graph, kind == "backward")
            made = CompiledGraph(graph, f"{kind}_{name}", kind, chosen, held, ended)
            _live[:] = [ref for ref in _live if ref() is not None]
            _live.append(weakref.ref(made))
            return made

        return compiled

    def joint(graph: Any) -> None:
        if chosen.fallback == "error":
            refuse_fallbacks(Division(graph, BY_NAME, "joint"))

    compilers = Compilers(compiler("inference"), compiler("forward"), compiler("backward"), joint)
    return traced(module, inputs, compilers, BY_NAME)


def _refusing(error: DovetailError) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise error

    return refuse


def reports() -> tuple[GraphReport, ...]:
    """The reports of all captured graphs that dynamo still holds, in the order in which they were compiled."""
    return tuple(found.report() for ref in list(_live) if (found := ref()) is not None)


def _break_of(reason: Any) -> GraphBreak | None:
    """Why dynamo ended a graph; None at the end of a function."""
    if reason is None or not reason.graph_break:
        return None
    frame = reason.user_stack[-1] if reason.user_stack else None
    place = "" if frame is None else f"{PurePath(frame.filename).name}:{frame.lineno} in {frame.name}"
    return GraphBreak(next((line.strip() for line in str(reason.reason).splitlines() if line.strip()), ""), place)
