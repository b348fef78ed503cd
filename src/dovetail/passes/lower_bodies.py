"""The bodies of branches and loops are fused as graphs of their own."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

from dovetail.derive.edit import Log
from dovetail.ir import leaf
from dovetail.ir.graph import Graph, Subgraph, subgraphs
from dovetail.ir.inline import inline, outline
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value, make
from dovetail.ops.region import region


def lower_bodies(graph: Graph, lower: Callable[[Graph], Graph], log: Log | None = None) -> Graph:
    """The graph with each body lowered as a graph whose inputs are its arguments; inner bodies come first."""
    done: dict[Subgraph, Subgraph] = {}

    def body_of(body: Subgraph) -> Subgraph:
        if body not in done:
            inputs = [leaf.input(f"argument {i}", t) for i, t in enumerate(body.arguments)]
            results = {f"result {i}": v for i, v in enumerate(inline(body, inputs))}
            inner = Graph.of(results, name=graph.name, inputs=inputs)
            lowered = lower(lower_bodies(inner, lower))
            done[body] = outline(tuple(lowered.outputs.values()), inputs)
        return done[body]

    def attribute(given: Any) -> Any:
        if isinstance(given, Subgraph):
            return body_of(given)
        return tuple(map(attribute, cast(tuple[Any, ...], given))) if isinstance(given, tuple) else given

    def step(value: Value, operands: tuple[Value, ...]) -> Value | None:
        # A region is a kernel already, and its body is what the kernel does.
        if value.op is region or not subgraphs(value):
            return None
        lowered = make(value.op, operands, {name: attribute(a) for name, a in value.attrs.items()})
        if log is not None:
            log.rewrite(f"lower {value.op.name}", "reassociated", value.with_operands(operands), lowered)
        return lowered

    if log is not None:
        log.begin("rewrite")
    return rebuild(graph, step, into_subgraphs=False)
