"""Loops and branches. Blocks read values from outside as they like; ours are handed them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dovetail import ops
from dovetail.frontends.jax.importing import Node, rule
from dovetail.frontends.jax.module import Block
from dovetail.frontends.shared.rule import Made
from dovetail.ir.value import Value
from dovetail.ops import tracing


@rule("stablehlo.while")
def while_(n: Node) -> Made:
    condition, body = n.operation.blocks
    constants, passed = n.captured(condition, body)
    count = len(n.operands)

    def run(block: Block, values: Sequence[Value]) -> tuple[Value, ...]:
        return n.inside(block, values[:count], {**constants, **dict(zip(passed, values[count:], strict=True))})

    def holds(*values: Value) -> Value:
        return run(condition, values)[0]

    def trip(*values: Value) -> tuple[Value, ...]:
        return run(body, values)

    return tracing.while_loop(holds, trip, n.operands, list(passed.values())).carries


@rule("stablehlo.if")
def if_(n: Node) -> Made:
    return _chosen(n, n.x, *n.operation.blocks)


def _chosen(n: Node, predicate: Value, yes: Block, no: Block) -> tuple[Value, ...]:
    constants, passed = n.captured(yes, no)

    def branch(block: Block) -> tracing.Traced:
        def results(*values: Value) -> tuple[Value, ...]:
            return n.inside(block, (), {**constants, **dict(zip(passed, values, strict=True))})

        return results

    return tracing.cond(predicate, branch(yes), branch(no), *passed.values())


@rule("stablehlo.case")
def case(n: Node) -> Made:
    """Branches by number; one that is none of them chooses the last."""
    blocks = n.operation.blocks
    constants, passed = n.captured(*blocks)

    def run(block: Block, values: Mapping[int, Value]) -> tuple[Value, ...]:
        return n.inside(block, (), {**constants, **values})

    def among(first: int, index: Value, values: Sequence[Value]) -> tuple[Value, ...]:
        if first == len(blocks) - 1:
            return run(blocks[first], dict(zip(passed, values, strict=True)))

        def here(index: Value, *given: Value) -> tuple[Value, ...]:
            return run(blocks[first], dict(zip(passed, given, strict=True)))

        def later(index: Value, *given: Value) -> tuple[Value, ...]:
            return among(first + 1, index, given)

        return tracing.cond(ops.equal(index, first), here, later, index, *values)

    return among(0, n.x, list(passed.values()))
