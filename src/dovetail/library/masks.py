"""Which keys a query may see, spelled from positions so that it can stand in a body."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail import ops
from dovetail.declare.cost import Cost, default_cost, flops_of
from dovetail.declare.fused import FusedOp
from dovetail.declare.machine import base_kind
from dovetail.ir.value import Value
from dovetail.ops.deferred_shape import size_of


def causal(q: Value, k: Value, *, rank: int = 2) -> Value:
    """Keys up to the query's own position, counted from the first key: bool[.., sq, sk] with 1s in front."""
    return ops.less_equal(_keys(k), _queries(q, rank))


def sliding(q: Value, k: Value, *, window: int, rank: int = 2) -> Value:
    """The last `window` keys up to the query's own position: bool[.., sq, sk] with 1s in front."""
    keys, queries = _keys(k), _queries(q, rank)
    return ops.bit_and(ops.less(queries - window, keys), ops.less_equal(keys, queries))


def _keys(k: Value) -> Value:
    """The positions of the keys, along the last axis."""
    return ops.iota(size=size_of(k, -2))


def _queries(q: Value, rank: int) -> Value:
    """The positions of the queries, along the last axis but one."""
    return ops.unsqueeze(ops.iota(size=size_of(q, -2)), axes=(*range(-rank, -2), -1))


def cost_by_position(op: FusedOp[...], call: Mapping[str, Any]) -> Cost:
    """The cost of an attention by its call: a kernel that knows which keys positions hide does no work to find out."""
    whole = default_cost(op(**call))
    # An attention packs keys and values once for all of its queries, as a product with a weight does.
    whole = replace(whole, kind=base_kind(whole.kind))
    if not call["causal"]:
        return whole
    kept = call["keep"] is not None
    seen = {**call, "causal": False, "fill": call["fill"] if kept else None}
    seen["filled"] = "first" if kept and call["filled"] == "first" else "last"
    if "window" in call:
        seen["window"] = None
    seen["zero_unseen"] = call["zero_unseen"] and (kept or call["mask"] is not None)
    return replace(whole, flops=flops_of(op(**seen)))
