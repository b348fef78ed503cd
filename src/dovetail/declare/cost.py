"""What a value costs: work, traffic, and the time both take on a machine."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from dovetail.declare.fused import FusedOp
from dovetail.ir import leaf
from dovetail.ir.dim import Dim, Size, substitute, symbols
from dovetail.ir.graph import Subgraph
from dovetail.ir.type import Type, tensors
from dovetail.ir.value import Value, attrs_key
from dovetail.ops.primitive import Primitive

ASSUMED_SIZE = 128
"""What an unbound symbol counts as in an estimate."""


@dataclass(frozen=True, slots=True)
class Cost:
    """Floating-point work and memory traffic of one kernel."""

    flops: Size
    bytes: Size

    def __add__(self, other: Cost) -> Cost:
        return Cost(self.flops + other.flops, self.bytes + other.bytes)


@dataclass(frozen=True, slots=True)
class Machine:
    """A small model of a machine: peak arithmetic, bandwidth, and what starting a kernel costs."""

    flops_per_second: float
    bytes_per_second: float
    launch_seconds: float

    def seconds(self, cost: Cost, sizes: Mapping[str, Size] | None = None) -> float:
        """The time of one kernel, by whichever of work and traffic is slower."""
        work = estimate(cost.flops, sizes) / self.flops_per_second
        traffic = estimate(cost.bytes, sizes) / self.bytes_per_second
        return max(work, traffic) + self.launch_seconds


def estimate(size: Size, sizes: Mapping[str, Size] | None = None) -> int:
    """A size as a number; symbols that nobody bound count as ASSUMED_SIZE."""
    if isinstance(size, Dim):
        known = sizes or {}
        assumed: dict[str, Size] = {name: known.get(name, ASSUMED_SIZE) for name in symbols(size)}
        size = substitute(size, assumed)
    return size if isinstance(size, int) else 0


@lru_cache(maxsize=1 << 14)
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
    if isinstance(op, FusedOp):
        _, _, body = op.traced(tuple([v.type for v in value.operands]), value.attrs)
        return _body_flops(body)
    bodies = [a for a in value.attrs.values() if isinstance(a, Subgraph)]
    total: Size = 0
    for body in bodies:
        total = total + _body_flops(body)
    return total


_MOST_KNOWN = 10_000
_FLOPS: dict[Subgraph, Size] = {}


def _body_flops(body: Subgraph) -> Size:
    found = _FLOPS.get(body)
    if found is None:
        found = 0
        for value in body.values:
            found = found + flops_of(value)
        if len(_FLOPS) > _MOST_KNOWN:
            _FLOPS.clear()
        _FLOPS[body] = found
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
    traffic = type_bytes(value.type)
    for operand in dict.fromkeys(value.operands):
        traffic = traffic + type_bytes(operand.type)
    return Cost(flops_of(value), traffic)


def _looked_up(by: Callable[..., Any] | None, value: Value, compute: Callable[[], Cost]) -> Cost:
    """Layers repeat: a cost that depends on types and attributes alone is computed once for all that are alike."""
    types = tuple([v.type for v in value.operands])
    distinct = types if len(types) < 2 else tuple([v.type for v in dict.fromkeys(value.operands)])
    key = (by, value.op, types, distinct, attrs_key(value.attrs))
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
