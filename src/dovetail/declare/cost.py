"""What a value costs: work and traffic, and what they come to on a machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import replace
from functools import lru_cache
from typing import Any

from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.declare.machine import ASSUMED_SIZE, MAP, Cost, Level, Machine, Peak, Reach, base_kind, estimate
from dovetail.ir import leaf
from dovetail.ir.dim import Size, product, smallest
from dovetail.ir.dtype import DType
from dovetail.ir.graph import Subgraph
from dovetail.ir.type import Type, tensors
from dovetail.ir.value import Op, Value, make
from dovetail.ops import groups, indexing, reduction
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
    """Arithmetic, how much of it runs at the rate of its kind, that kind, and the dtype of the operands."""

    flops: Size
    dense: Size
    kind: str = MAP
    dtype: DType | None = None
    rows: Size = 0
    """Results of reductions."""

    def __add__(self, other: Effort) -> Effort:
        """Work of both in one kernel, which is of the kind that matters more."""
        first, second = (self, other) if _rank(self.kind) <= _rank(other.kind) else (other, self)
        dtype = first.dtype or second.dtype
        flops, dense, rows = self.flops + other.flops, self.dense + other.dense, self.rows + other.rows
        return Effort(flops, dense, first.kind, dtype, rows)


def _rank(kind: str) -> tuple[int, bool, str]:
    """Of several kinds in one kernel, the lowest rank names it: convolution, other dense work, maps."""
    base = base_kind(kind)
    return {"conv": 0, MAP: 2}.get(base, 1), kind != base, kind


_NOTHING = Effort(0, 0)


def _effort(value: Value) -> Effort:
    op = value.op
    if isinstance(op, Primitive):
        types = tuple([v.type for v in value.operands])
        flops, kind = op.flops(value.type, types, value.attrs), op.cost_kind(types, value.attrs)
        dtype = _computed_in(value) if flops != 0 else None
        return Effort(flops, 0 if kind == MAP else flops, kind, dtype, _rows(value))
    if isinstance(op, FusedOp):
        _, _, body = op.traced(tuple([v.type for v in value.operands]), value.attrs, value.attrs_key)
        return _body_effort(body, frozenset([i for i, v in enumerate(value.operands) if is_weight(v)]))
    total = _NOTHING
    for body in [a for a in value.attrs.values() if isinstance(a, Subgraph)]:
        total = total + _body_effort(body, declared=op is region)
    return total


def _declared_effort(value: Value) -> Effort:
    """The effort of a value inside a region: an anchor's is that of its declared cost, as it is without steps."""
    if not isinstance(value.op, FusedOp) or value.op.cost_of is None:
        return _effort(value)
    cost = kernel_cost(value)
    return Effort(cost.flops, cost.dense, cost.kind, cost.dtype, cost.rows)


_REDUCTIONS = (reduction.reduce_sum, reduction.reduce_mean, reduction.reduce_max, reduction.reduce_min)


def _rows(value: Value) -> Size:
    """The results of a reduction; 0 for other ops."""
    return product(value.shape) if value.op in _REDUCTIONS else 0


def _computed_in(value: Value) -> DType | None:
    """The dtype of the first floating-point operand, else of the first tensor."""
    dtypes = [t.dtype for v in (*value.operands, value) for t in tensors(v.type)]
    return next((d for d in dtypes if d.is_float), dtypes[0] if dtypes else None)


_MOST_KNOWN = 1 << 16
_EFFORTS: dict[Hashable, Effort] = {}


def _body_effort(body: Subgraph, bound: frozenset[int] = frozenset(), declared: bool = False) -> Effort:
    """The effort of a body for each run; `bound` are the arguments that are weights, and what these decide is not.

    With `declared`, ops in it count as they declare.
    """
    # The values decide it; comparing the arguments' types too would say nothing more.
    key = (body.results, bound, declared)
    found = _EFFORTS.get(key)
    if found is None:
        found = _NOTHING
        early: set[Value] = set()
        for value in body.values:
            given = value.attrs["index"] in bound if value.op is leaf.ARGUMENT else value.op is leaf.CONST
            if given or (value.operands and early.issuperset(value.operands)):
                early.add(value)
            elif value.operands or not is_free(value):
                found = found + (_declared_effort(value) if declared else _effort(value))
        if len(_EFFORTS) > _MOST_KNOWN:
            _EFFORTS.clear()
        _EFFORTS[key] = found
    return found


def kernel_cost(value: Value) -> Cost:
    """One value as a kernel of its own, by its declared cost where there is one."""
    op = value.op
    if isinstance(op, FusedOp) and op.cost_of is not None:
        declared = op.cost_of
        return _looked_up(declared, value, lambda: _in_its_dtype(declared(**op.of(value).names), value))
    return default_cost(value)


def _in_its_dtype(cost: Cost, value: Value) -> Cost:
    return replace(cost, dtype=_effort(value).dtype) if cost.dtype is None else cost


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
    return Cost(effort.flops, traffic, given, effort.dense, effort.kind, effort.dtype, effort.rows)


def _read_bytes(value: Value, index: int, operand: Value) -> Size:
    """Of what it gathers from, a kernel reads no more than it writes; of what it has views of, no more than these."""
    whole = seen = type_bytes(operand.type)
    if index == 0 and value.op in _GATHERS:
        seen = type_bytes(value.type)
    elif index == 1 and value.op is groups.grouped_matmul and isinstance(count := operand.shape[0], int) and count > 0:
        # No more groups have rows than there are rows.
        return whole // count * smallest(count, value.shape[0])
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


def view_base(value: Value) -> Value:
    """What a view looks at."""
    while is_free(value) and value.operands:
        value = value.operands[0]
    return value


def total_seconds(values: Iterable[Value], machine: Machine, sizes: Mapping[str, Size] | None = None) -> float:
    return sum(machine.seconds(kernel_cost(v), sizes) for v in values if not is_free(v))


JOINED = 0.01
"""The share of a launch that an op counts less which another kernel can compute: little, as often none does."""


class Prices:
    """Seconds of kernels on one machine; what many patterns have in common is priced once."""

    def __init__(self, machine: Machine, sizes: Mapping[str, Size] | None = None) -> None:
        self.machine = machine
        self.sizes = sizes
        self._known: dict[Value, float] = {}
        self._by_cost: dict[int, tuple[Cost, float]] = {}
        """Seconds by the identity of a cost, with the cost itself; kernels that are alike share one."""

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
        if is_free(value):
            return 0.0
        cost = kernel_cost(value)
        found = self._by_cost.get(id(cost))
        if found is None:
            found = self._by_cost[id(cost)] = (cost, self.machine.seconds(cost, self.sizes))
        return found[1] - JOINED * self.machine.launch_seconds * (value.op.name in self.machine.joined)


__all__ = [
    "ASSUMED_SIZE",
    "MAP",
    "Cost",
    "Effort",
    "Level",
    "Machine",
    "Peak",
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
    "view_base",
]
