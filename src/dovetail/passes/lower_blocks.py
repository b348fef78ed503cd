"""HIR to MIR: blocks are spelled out, or born fused, as each asks for."""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.declare.block import Block
from dovetail.declare.fused import FusedOp
from dovetail.derive.edit import Log
from dovetail.derive.fuse import fuse
from dovetail.ir import leaf
from dovetail.ir.graph import Graph, Subgraph
from dovetail.ir.inline import inline
from dovetail.ir.rewrite import rebuild
from dovetail.ir.value import Value


def lower_blocks(graph: Graph, ops: Sequence[FusedOp[...]], log: Log | None = None) -> Graph:
    """The graph without blocks. A `direct` block is fused by `ops` on its own, once for all of its kind."""
    born: dict[tuple[object, ...], Subgraph] = {}

    def lower(value: Value, operands: tuple[Value, ...]) -> Value | None:
        op = value.op
        if not isinstance(op, Block):
            return None
        lowered = spelled(op, value, operands)
        if log is not None:
            log.rewrite(f"lower {op.name}", "reassociated", value.with_operands(operands), lowered)
        return lowered

    def spelled(op: Block[...], value: Value, operands: tuple[Value, ...]) -> Value:
        if value.attrs["policy"] == "fusable":
            return op.expansion(operands, value.attrs)
        types = tuple(v.type for v in operands)
        key = (op, types, tuple(value.attrs.items()))
        if key not in born:
            born[key] = _fused_body(op.traced(types, value.attrs)[2], ops)
        results = inline(born[key], operands)
        return results[0] if len(results) == 1 else leaf.pack(results)

    while True:
        if log is not None:
            log.begin("rewrite")
        lowered = rebuild(graph, lower)
        if lowered is graph:
            return graph
        graph = lowered


def _fused_body(body: Subgraph, ops: Sequence[FusedOp[...]]) -> Subgraph:
    named = {str(i): v for i, v in enumerate(body.results)}
    plain = lower_blocks(Graph.of(named), ops)
    fused = fuse(plain, ops, always=True).graph
    return Subgraph(body.arguments, tuple(fused.outputs[n] for n in named))
