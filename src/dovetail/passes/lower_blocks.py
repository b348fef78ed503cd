"""HIR to MIR: blocks are spelled out."""

from __future__ import annotations

from dovetail.declare.block import Block
from dovetail.derive.edit import Log
from dovetail.ir.graph import Graph
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value


def lower_blocks(graph: Graph, log: Log | None = None) -> Graph:
    """Return the graph without blocks, also of those that blocks are made of."""

    def lower(value: Value, operands: tuple[Value, ...]) -> Value | None:
        op = value.op
        if not isinstance(op, Block):
            return None
        lowered = op.expansion(operands, value.attrs)
        if log is not None:
            log.rewrite(f"lower {op.name}", "reassociated", value.with_operands(operands), lowered)
        return lowered

    while True:
        if log is not None:
            log.begin("rewrite")
        lowered = rebuild(graph, lower)
        if lowered is graph:
            return graph
        graph = lowered
