"""What a value costs: work and traffic, and what they come to on a machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dovetail.declare.fused import FusedOp
from dovetail.declare.machine import ASSUMED_SIZE, Cost, Kind, Level, Machine, Reach, estimate
from dovetail.ir import leaf
from dovetail.ir.dim import Size
from dovetail.ir.graph import Subgraph
from dovetail.ir.type import Type, tensors
from dovetail.ir.value import Value, attrs_key
from dovetail.ops import contraction, convolution, indexing
from dovetail.ops.primitive import Primitive


@lru_cache(maxsize=1 << 14)
def type_bytes(type: Type) -> Size:
    """The bytes of all tensors of a type; models repeat a few types everywhere."""
    total: Size = 0
    for tensor in tensors(type):
        total = total + tensor.bytes
    return total


def flops_of(value: Value) -> Size:
    """The arithmetic of one value, declared ops counted through their bodies."""
    return _effort(value).flops


@dataclass(frozen=True, slots=True)
class Effort:
    """Arithmetic, how much of it is multiply-adds of contractions, and what kind of kernel that makes."""

    flops: Size
    dense: Size
    kind: Kind

    def __add__(self, other: Effort) -> Effort:
        kinds = (self.kind, other.kind)
        return Effort(self.flops + other.flops, self.dense + other.dense, next(k for k in _RANK if k in kinds))


_RANK: tuple[Kind, ...] = ("conv", "conv_3x3", "contract", "map")
"""Which kind a kernel is that has several in it: the first of them."""
_NOTHING = Effort(0, 0, "map")
_CONVOLUTIONS = frozenset(convolution.FAMILY)
_CONTRACTIONS = frozenset(contraction.FAMILY)


def _effort(value: Value) -> Effort:
    op = value.op
    if isinstance(op, Primitive):
        flops = op.flops(value.type, tuple([v.type for v in value.operands]), value.attrs)
        if op in _CONTRACTIONS:
            return Effort(flops, flops, "contract")
        if op in _CONVOLUTIONS:
            return Effort(flops, flops, "conv_3x3" if _is_3x3(value) else "conv")
        return Effort(flops, 0, "map")
    if isinstance(op, FusedOp):
        _, _, body = op.traced(tuple([v.type for v in value.operands]), value.attrs)
        return _body_effort(body)
    total = _NOTHING
    for body in [a for a in value.attrs.values() if isinstance(a, Subgraph)]:
        total = total + _body_effort(body)
    return total


def _is_3x3(value: Value) -> bool:
    """A convolution of windows that overlap so much that sums can be shared between them."""
    if value.op is not convolution.conv or value.attrs["groups"] != 1:
        return False
    window = value.operands[1].shape[2:]
    return window == (3, 3) and all(s == 1 for s in (*value.attrs["strides"], *value.attrs["dilations"]))


_MOST_KNOWN = 10_000
_EFFORTS: dict[Subgraph, Effort] = {}


def _body_effort(body: Subgraph) -> Effort:
    found = _EFFORTS.get(body)
    if found is None:
        found = _NOTHING
        for value in body.values:
            found = found + _effort(value)
        if len(_EFFORTS) > _MOST_KNOWN:
            _EFFORTS.clear()
        _EFFORTS[body] = found
    return found


def kernel_cost(value: Value) -> Cost:
    """One value as a kernel of its own, by its declared cost where there is one."""
    op = value.op
    if isinstance(op, FusedOp) and op.cost_of is not None:
        declared = op.cost_of
        return _looked_up(declared, value, lambda: declared(**op.of(value).names))
    return default_cost(value)


def default_cost(value: Value) -> Cost:
    """Every distinct operand read once, every result written once, all flops once."""
    return Cost(0, 0) if is_free(value) else _looked_up(None, value, lambda: _each_once(value))


def _each_once(value: Value) -> Cost:
    traffic, given = type_bytes(value.type), 0
    for index, operand in enumerate(dict.fromkeys(value.operands)):
        # Of what it gathers from, a kernel reads as much as it writes.
        read = type_bytes(value.type if index == 0 and value.op in _GATHERS else operand.type)
        traffic = traffic + read
        given = given + read if is_given(operand) else given
    effort = _effort(value)
    return Cost(effort.flops, traffic, given, effort.dense, effort.kind)


_GATHERS = (indexing.gather, indexing.gather_elements, indexing.gather_nd)


def is_given(value: Value) -> bool:
    """Whether a tensor was there before a run began: a parameter, a constant or an input, maybe moved."""
    stack = [value]
    while stack:
        value = stack.pop()
        if value.op in (leaf.PARAM, leaf.CONST, leaf.INPUT):
            continue
        if not value.operands or not (is_free(value) or value.op.name in _MOVES):
            return False
        stack.extend(value.operands)
    return True


_MOVES = frozenset({"concat", "cast"})


def largest_bytes(values: Iterable[Value], sizes: Mapping[str, Size] | None = None) -> int:
    """Bytes of the largest tensor that these values make."""
    made = dict.fromkeys(v.type for v in values if not is_free(v))
    return max((estimate(type_bytes(type), sizes) for type in made), default=0)


def streamed_bytes(values: Iterable[Value], sizes: Mapping[str, Size] | None = None) -> int:
    """Bytes of the parameters and constants that these values read whole; what is gathered from is not."""
    read: dict[Value, None] = {}
    for value in values:
        for index, operand in enumerate(value.operands):
            if operand.op in (leaf.PARAM, leaf.CONST) and not (index == 0 and value.op in _GATHERS):
                read[operand] = None
    return sum(estimate(type_bytes(v.type), sizes) for v in read)


def _looked_up(by: Callable[..., Any] | None, value: Value, compute: Callable[[], Cost]) -> Cost:
    """Layers repeat: a cost that depends on types and attributes alone is computed once for all that are alike."""
    types = tuple([v.type for v in value.operands])
    distinct = types if len(types) < 2 else tuple([v.type for v in dict.fromkeys(value.operands)])
    given = tuple([is_given(v) for v in value.operands])
    key = (by, value.op, types, distinct, given, attrs_key(value.attrs))
    found = _COSTS.get(key)
    if found is None:
        if len(_COSTS) > _MOST_KNOWN:
            _COSTS.clear()
        found = _COSTS[key] = compute()
    return found


_COSTS: dict[Hashable, Cost] = {}


def is_free(value: Value) -> bool:
    """Leaves, projections and views start no kernel."""
    op = value.op
    return op in leaf.LEAVES or (isinstance(op, Primitive) and op.view)


def total_seconds(values: Iterable[Value], machine: Machine, sizes: Mapping[str, Size] | None = None) -> float:
    return sum(machine.seconds(kernel_cost(v), sizes) for v in values if not is_free(v))


class Prices:
    """Seconds of kernels on one machine; what many patterns have in common is priced once."""

    def __init__(self, machine: Machine, sizes: Mapping[str, Size] | None = None) -> None:
        self.machine = machine
        self.sizes = sizes
        self._known: dict[Value, float] = {}

    def __call__(self, values: Iterable[Value]) -> float:
        """What these values take together, each as a kernel of its own."""
        total = 0.0
        for value in values:
            price = self._known.get(value)
            if price is None:
                price = self._known[value] = total_seconds([value], self.machine, self.sizes)
            total += price
        return total


__all__ = [
    "ASSUMED_SIZE",
    "Cost",
    "Effort",
    "Kind",
    "Level",
    "Machine",
    "Prices",
    "Reach",
    "default_cost",
    "estimate",
    "flops_of",
    "is_free",
    "is_given",
    "kernel_cost",
    "largest_bytes",
    "streamed_bytes",
    "total_seconds",
    "type_bytes",
]
