"""The misses of a report: each gap between two kernels has one price, under the miss that says most about it."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence

from dovetail.declare.cost import Machine, estimate, type_bytes
from dovetail.derive.missed import BETWEEN, COST, NEAR, Missed
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.report.hints import NO_HINT, Hint, Hints
from dovetail.report.kernels import KernelMap
from dovetail.report.record import MissedEntry, Node

Gap = tuple[Value, Value]
"""A kernel, and one that reads its result."""


def missed_entries(
    missed: Iterable[Missed],
    kernels: KernelMap,
    bind_time: Collection[Value],
    hints: Hints,
    machine: Machine,
    sizes: Mapping[str, Size],
) -> tuple[MissedEntry, ...]:
    """Every miss of a run, with a hint where one gains. What is one kernel, or computed at bind time, is no miss."""
    told: list[tuple[Missed, list[Value], Hint]] = []
    for miss in missed:
        homes = homes_of(miss, kernels)
        if len(homes) > 1 and homes[0] not in bind_time:
            told.append((miss, homes, NO_HINT if miss.reason == NEAR else hints.of_miss(miss, homes)))
    price = gap_prices(kernels, bind_time, machine, sizes)
    owner: dict[Gap, str] = {}
    entries: dict[int, MissedEntry] = {}
    # The hint that gains most has the price; what cost declined or nearly matched has none.
    ranked = sorted(range(len(told)), key=lambda i: (_is_idle(told[i]), -told[i][2].seconds, -len(told[i][1])))
    for index in ranked:
        miss, homes, hint = told[index]
        gaps = gaps_of(homes, kernels, bind_time)
        traffic = sum(price(gap)[0] for gap in gaps)
        idle = _is_idle(told[index])
        own = [] if idle else [gap for gap in gaps if gap not in owner]
        for gap in own:
            owner[gap] = miss.rule
        instead = "" if idle or own or not gaps else owner[gaps[0]]
        entries[index] = MissedEntry(
            miss.rule,
            _node(miss, homes, kernels),
            miss.reason,
            miss.message,
            "" if instead else hint.words,
            traffic,
            hint.seconds if own and miss.reason == BETWEEN else sum(price(gap)[1] for gap in own),
            tuple(kernels.names[k] for k in homes),
            gain_seconds=0.0 if instead else hint.seconds,
            changes={} if instead else hint.changes,
            instead=instead,
            between=tuple(v.op.name for v in miss.between),
        )
    return tuple(entries[index] for index in sorted(entries))


def _is_idle(told: tuple[Missed, Sequence[Value], Hint]) -> bool:
    """Whether there is nothing to win: cost declined it, it is another pattern, or the change would not pay."""
    miss, _, hint = told
    return miss.reason in (COST, NEAR) or not hint.pays


def homes_of(miss: Missed, kernels: KernelMap) -> list[Value]:
    """The kernels that compute what was missed, that of its root first."""
    return list(dict.fromkeys(k for v in miss.values if (k := kernels.kernel_of(v)) is not None))


def gaps_of(homes: Sequence[Value], kernels: KernelMap, bind_time: Collection[Value]) -> list[Gap]:
    """The pairs among these kernels of which one reads the other in a run."""
    inside = set(homes)
    found: dict[Gap, None] = {}
    for consumer in homes:
        for operand in consumer.operands:
            producer = kernels.kernel_of(operand)
            if producer is not None and producer in inside and producer not in bind_time:
                found[(producer, consumer)] = None
    return list(found)


def gap_prices(
    kernels: KernelMap, bind_time: Collection[Value], machine: Machine, sizes: Mapping[str, Size]
) -> Callable[[Gap], tuple[int, float]]:
    readers: dict[Value, set[Value]] = {k: set() for k in kernels.kernels}
    for consumer in kernels.kernels:
        for operand in consumer.operands:
            producer = kernels.kernel_of(operand)
            if producer is not None:
                readers[producer].add(consumer)
    written = {k for v in kernels.final.outputs.values() if (k := kernels.kernel_of(v)) is not None}

    def price(gap: Gap) -> tuple[int, float]:
        producer, _ = gap
        if producer in bind_time:
            return 0, 0.0
        # Where the tensor has to be written anyway, fusing would only save reading it back.
        trips = 1 if producer in written or len(readers[producer]) > 1 else 2
        traffic = trips * estimate(type_bytes(producer.type), sizes)
        return traffic, machine.moving(traffic) + (machine.launch_seconds if trips == 2 else 0.0)

    return price


def _node(miss: Missed, homes: Sequence[Value], kernels: KernelMap) -> Node:
    """The node as written that the root of a miss stands for."""
    for value in (miss.place, miss.root):
        node = None if value is None else kernels.node_of(value)
        if node is not None:
            return node
    home = homes[0] if homes else None
    if home is not None and kernels.nodes.get(home):
        return kernels.nodes[home][-1]
    name = kernels.names.get(home, "") if home is not None else ""
    return Node(name, miss.root.op.name, kernels.final.where(home) if home is not None else "")


__all__ = ["Gap", "gap_prices", "gaps_of", "homes_of", "missed_entries"]
