"""The backend of torch.compile: each graph that dynamo captures is compiled by us, forward and backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

from dovetail.errors import DovetailError
from dovetail.frontends.torch.dynamo.division import Division
from dovetail.frontends.torch.dynamo.tracing import Compilers, compile_name, traced
from dovetail.torch.compiled import CompiledGraph, note, refuse_fallbacks
from dovetail.torch.explain import break_of
from dovetail.torch.options import options_of
from dovetail.torch.python_function import with_arguments_as_tuple
from dovetail.torch.report import Kind


def backend(
    module: Any, inputs: Sequence[Any], *, mode: str | None = None, options: Mapping[str, Any] | None = None
) -> Callable[..., Any]:
    """Compile a graph that dynamo captured: `torch.compile(model, backend="dovetail")` calls it.

    `options` are `fallback` ("eager" lets torch run what has no rule, "error" refuses it), `custom_ops` (bodies of
    operators of torch.library, as `dovetail.compile` takes them), `target`, and fields of `Settings`. An error of
    ours is raised by the first call, as it is.
    """
    try:
        return _compiled(module, inputs, mode, options)
    except DovetailError as error:
        return _refusing(error)  # dynamo would wrap what is raised here in an error of its own


def _compiled(module: Any, inputs: Sequence[Any], mode: str | None, options: Mapping[str, Any] | None) -> Any:
    chosen = options_of(mode, options, inputs)
    name, ended = compile_name(), break_of(getattr(module, "compile_subgraph_reason", None))

    def compiler(kind: Kind) -> Callable[[Any], Callable[..., Any]]:
        def compiled(graph: Any) -> Callable[..., Any]:
            compiled_graph = CompiledGraph(graph, f"{kind}_{name}", kind, chosen, ended)
            note(compiled_graph)
            return with_arguments_as_tuple(compiled_graph.run)

        return compiled

    def joint(graph: Any) -> None:
        if chosen.fallback == "error":
            refuse_fallbacks(Division(graph, chosen.rules, "joint"))

    compilers = Compilers(compiler("inference"), compiler("forward"), compiler("backward"), joint)
    return traced(module, inputs, compilers, chosen.rules)


def _refusing(error: DovetailError) -> Callable[..., NoReturn]:
    def refuse(*_: Any) -> NoReturn:
        raise error

    return refuse
