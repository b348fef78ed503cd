"""The roofline of a model: the flops of its products, and the bytes of weights that they read."""

from __future__ import annotations

from collections.abc import Mapping

from dovetail.declare.cost import flops_of, type_bytes
from dovetail.errors import BindError
from dovetail.ir import leaf
from dovetail.ir.dim import Size, evaluate
from dovetail.ir.graph import Graph, subgraphs
from dovetail.ir.literal import Array
from dovetail.ir.solve import solve_symbols
from dovetail.ir.value import Value
from dovetail.runtime.binding import by_name, found_in

PRODUCTS = frozenset({"matmul", "dot", "conv", "conv_transpose", "deform_conv"})


def roofline_of(graph: Graph, feeds: Mapping[str, Array]) -> tuple[float, float]:
    """Return the multiply-adds of matmuls and convolutions, counted twice, and the bytes of the weights that they read.

    Loops count with their trip count; what depends on data is left out.
    """
    declared = by_name(graph.inputs)
    sizes = solve_symbols(found_in({name: a for name, a in feeds.items() if name in declared}, declared))
    flops = 0
    weights: dict[Value, None] = {}
    for value in graph.values:
        if value.op.name in PRODUCTS or subgraphs(value):
            flops += _number(flops_of(value), sizes)
            weights.update(dict.fromkeys(w for operand in value.operands if (w := _weight(operand)) is not None))
    return float(flops), float(sum(_number(type_bytes(w.type), sizes) for w in weights))


def _number(size: Size, sizes: Mapping[str, int]) -> int:
    try:
        return evaluate(size, sizes)
    except BindError:
        return 0


def _weight(value: Value) -> Value | None:
    """Return the parameter that a value is made of by moves and casts alone; of quantized weights, the codes."""
    while value.operands and all(v.op in (leaf.PARAM, leaf.CONST) for v in value.operands[1:]):
        value = value.operands[0]
    return value if value.op is leaf.PARAM else None
