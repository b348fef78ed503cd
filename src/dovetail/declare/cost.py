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
from dovetail.ir.value import Op, Value, make
from dovetail.ops import contraction, convolution, indexing
from dovetail.ops.primitive import Primitive
from dovetail.ops.region import is_prologue, region


@lru_cache(maxsize=1 << 16)
def type_bytes(type: Type) -> Size:
    """The bytes of all tensors of a type; models repeat a few types everywhere."""
    total: Size = 0
    for tensor in tensors(type):
        total = total + tensor.bytes
    return total


def flops_of(value: Value) -> Size:
    """The arithmetic of one value, declared ops counted through their bodies."""
    op = value.op
    if isinstance(op, Primitive):
        return op.flops(value.type, tuple([v.type for v in value.operands]), value.attrs)
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


_RANK: tuple[Kind, ...] = ("conv", "conv_3x3", "conv_apart", "contract", "map")
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
            return Effort(flops, flops, _conv_kind(value))
        return Effort(flops, 0, "map")
    if isinstance(op, FusedOp):
        _, _, body = op.traced(tuple([v.type for v in value.operands]), value.attrs, value.attrs_key)
        return _body_effort(body, frozenset([i for i, v in enumerate(value.operands) if is_weight(v)]))
    total = _NOTHING
    for body in [a for a in value.attrs.values() if isinstance(a, Subgraph)]:
        total = total + _body_effort(body)
    return total


def _conv_kind(value: Value) -> Kind:
    """Whether windows overlap so much that sums can be shared between them, or filters have nothing in common."""
    weights, groups = value.operands[1].shape, value.attrs["groups"]
    if value.op is not convolution.conv or (groups > 1 and weights[1] == 1):
        return "conv_apart"
    steps = (*value.attrs["strides"], *value.attrs["dilations"])
    return "conv_3x3" if groups == 1 and weights[2:] == (3, 3) and all(s == 1 for s in steps) else "conv"


_MOST_KNOWN = 1 << 16
_EFFORTS: dict[Hashable, Effort] = {}


def _body_effort(body: Subgraph, bound: frozenset[int] = frozenset()) -> Effort:
    """The effort of a body for each run; `bound` are the arguments that are weights, and what these decide is not."""
    # The values decide it; comparing the arguments' types too would say nothing more.
    key = (body.results, bound)
    found = _EFFORTS.get(key)
    if found is None:
        found = _NOTHING
        early: set[Value] = set()
        for value in body.values:
            given = value.attrs["index"] in bound if value.op is leaf.ARGUMENT else value.op is leaf.CONST
            if given or (value.operands and early.issuperset(value.operands)):
                early.add(value)
            elif value.operands or not is_free(value):
                found = found + _effort(value)
        if len(_EFFORTS) > _MOST_KNOWN:
            _EFFORTS.clear()
        _EFFORTS[key] = found
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
        read = _read_bytes(value, index, operand)
        traffic = traffic + read
        given = given + read if is_given(operand) else given
    effort = _effort(value)
    return Cost(effort.flops, traffic, given, effort.dense, effort.kind)


def _read_bytes(value: Value, index: int, operand: Value) -> Size:
    """Of what it gathers from, a kernel reads no more than it writes; of what it has views of, no more than these."""
    whole = seen = type_bytes(operand.type)
    if index == 0 and value.op in _GATHERS:
        seen = type_bytes(value.type)
    elif value.op is region and value.attrs["lanes"] == 1:
        seen = _seen_bytes(value.attrs["body"]).get(value.operands.index(operand), whole)
    return seen if estimate(seen) < estimate(whole) else whole


@lru_cache(maxsize=1 << 10)
def _seen_bytes(body: Subgraph) -> Mapping[int, Size]:
    """For each argument of a region, the bytes of what its steps read of it."""
    home: dict[Value, int] = {}
    seen: dict[Value, None] = {}
    for value in body.values:
        if value.op is leaf.ARGUMENT:
            home[value] = value.attrs["index"]
        elif is_prologue(value) and value.operands[0] in home:
            home[value] = home[value.operands[0]]
        else:
            seen.update(dict.fromkeys([v for v in value.operands if v in home]))
    total: dict[int, Size] = {}
    for value in seen:
        total[home[value]] = total.get(home[value], 0) + type_bytes(value.type)
    return total


_GATHERS = (indexing.gather, indexing.gather_elements, indexing.gather_nd)


def is_given(value: Value) -> bool:
    """Whether a tensor was there before a run began: a parameter, a constant or an input, maybe moved."""
    return _is_moved(value, _GIVEN)


def is_weight(value: Value) -> bool:
    """Whether a tensor was there when parameters were bound: one of them or a constant, maybe moved."""
    return _is_moved(value, _WEIGHTS)


def _is_moved(value: Value, ends: tuple[Op, ...]) -> bool:
    stack = [value]
    while stack:
        value = stack.pop()
        if value.op in ends:
            continue
        if not value.operands or not (is_free(value) or value.op.name in _MOVES):
            return False
        stack.extend(value.operands)
    return True


_WEIGHTS = (leaf.PARAM, leaf.CONST)
_GIVEN = (*_WEIGHTS, leaf.INPUT)
_MOVES = frozenset({"concat", "cast"})


def standing(value: Value, is_bound: Callable[[Value], bool]) -> Value:
    """A value as a run meets it: what parameters alone decide was there before, and is read like a parameter."""
    made = [v for v in value.operands if v.operands and is_bound(v)]
    if not made:
        return value
    now = {v: make(leaf.PARAM, (), {"name": f"bound.{i}", "type": v.type}) for i, v in enumerate(dict.fromkeys(made))}
    return value.with_operands(tuple([now.get(v, v) for v in value.operands]))


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
    operands = value.operands
    types = tuple([v.known_type for v in operands])
    same = () if len(set(operands)) == len(operands) else tuple([operands.index(v) for v in operands])
    given = tuple([v.op in _GIVEN or is_given(v) for v in operands])
    key = (by, value.op, types, same, given, value.attrs_key)
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
                price = self._known[value] = self._price(value)
            total += price
        return total

    def _price(self, value: Value) -> float:
        return 0.0 if is_free(value) else self.machine.seconds(kernel_cost(value), self.sizes)


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
    "is_weight",
    "kernel_cost",
    "largest_bytes",
    "standing",
    "streamed_bytes",
    "total_seconds",
    "type_bytes",
]
