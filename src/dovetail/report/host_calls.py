"""How many calls of NumPy a step is that runs on the host: those of its body, for each trip of a loop."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail import ops
from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.dim import Size, largest
from dovetail.ir.value import Value
from dovetail.ops.region import region


def host_calls(value: Value) -> Size:
    """The calls of a step. A loop whose trips are not bounded counts as one trip, and a branch as the longer one."""
    attrs = value.attrs
    if value.op is ops.scan_:
        carries: int = attrs["carries"]
        length: Size | None = attrs["length"]
        return _all(attrs["body"].values) * (value.operands[carries].shape[0] if length is None else length)
    if value.op is ops.while_:
        limit: Size | None = attrs["limit"]
        return _all((*attrs["condition"].values, *attrs["body"].values)) * (1 if limit is None else limit)
    if value.op is ops.if_:
        return largest(_all(attrs["then"].values), _all(attrs["otherwise"].values))
    if value.op is region:
        return _all(attrs["body"].values)
    if isinstance(value.op, FusedOp):
        traced = value.op.traced(tuple([v.type for v in value.operands]), attrs, value.attrs_key)
        return _all(traced[2].values)
    return 0 if value.op in leaf.LEAVES else 1


def _all(values: Iterable[Value]) -> Size:
    found: Size = 0
    for value in values:
        found = found + host_calls(value)
    return found


__all__ = ["host_calls"]
