"""Why two kernels are two: every pair that hands a tensor over has a named reason and a price."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dovetail.declare.cost import Machine
from dovetail.derive.missed import COST, Missed
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.report.joining import Joining
from dovetail.report.kernels import KernelMap
from dovetail.report.missed import Gap, gap_prices, gaps_of, homes_of
from dovetail.report.record import Boundary

FAN_OUT = "fan_out"
OUTPUT = "graph_output"
BIND = "bind_time"


def boundaries(
    kernels: KernelMap,
    missed: Iterable[Missed],
    bind_time: frozenset[Value],
    joining: Joining,
    machine: Machine,
    sizes: Mapping[str, Size],
) -> tuple[Boundary, ...]:
    """Every producer and consumer of the final schedule that stay apart."""
    why = _by_pair(kernels, missed, bind_time)
    price = gap_prices(kernels, bind_time, machine, sizes)
    readers: dict[Value, dict[Value, None]] = {k: {} for k in kernels.kernels}
    pairs: dict[tuple[Value, Value], None] = {}
    for consumer in kernels.kernels:
        for operand in consumer.operands:
            producer = kernels.kernel_of(operand)
            if producer is not None:
                readers[producer][consumer] = None
                pairs[(producer, consumer)] = None
    written = {k for v in kernels.final.outputs.values() if (k := kernels.kernel_of(v)) is not None}
    found: list[Boundary] = []
    for producer, consumer in pairs:
        rule, reason, message, hint = _reason(producer, consumer, why, readers, written, bind_time, joining)
        traffic, seconds = price((producer, consumer))
        found.append(
            Boundary(kernels.names[producer], kernels.names[consumer], rule, reason, message, hint, traffic, seconds)
        )
    return tuple(found)


def _by_pair(kernels: KernelMap, missed: Iterable[Missed], bind_time: frozenset[Value]) -> dict[Gap, Missed]:
    """The miss that speaks of each pair of kernels; guards and limits before what cost declined."""
    pairs: dict[Gap, Missed] = {}
    for miss in sorted(missed, key=lambda m: m.reason == COST):
        for gap in gaps_of(homes_of(miss, kernels), kernels, bind_time):
            pairs.setdefault(gap, miss)
    return pairs


def _reason(
    producer: Value,
    consumer: Value,
    why: Mapping[tuple[Value, Value], Missed],
    readers: Mapping[Value, Mapping[Value, None]],
    written: set[Value],
    bind_time: frozenset[Value],
    joining: Joining,
) -> tuple[str, str, str, str]:
    if producer in bind_time:
        return "", BIND, f"{producer.op.name} depends on parameters alone and runs once, when they are bound", ""
    miss = why.get((producer, consumer))
    if miss is not None:
        return miss.rule, miss.reason, miss.message, ""
    if producer in written:
        message = f"{producer.op.name} {producer.type} is a graph output and has to be written"
        return "", OUTPUT, message, "this changes the model: leave it out of the outputs if nothing needs it"
    if len(readers[producer]) > 1:
        return "", FAN_OUT, f"{producer.op.name} {producer.type} is read by {len(readers[producer])} kernels", ""
    cause = joining.cause(producer, consumer)
    return cause.rule, cause.reason, cause.message, cause.hint
