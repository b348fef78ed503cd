"""Blocks of kernels that come several times one behind the other, as the layers of a model do."""

from __future__ import annotations

from dataclasses import replace

from dovetail.ir.value import Value
from dovetail.report.kernels import KernelMap
from dovetail.report.record import Repeat
from dovetail.report.runs import Item, find_runs, level_order


def repeats(kernels: KernelMap, bind_time: frozenset[Value]) -> tuple[Repeat, ...]:
    """The runs of equal blocks among the kernels of a run: the same ops on the same types, wired alike."""
    listed = [k for k in kernels.kernels if k not in bind_time]
    number = {k: i for i, k in enumerate(listed)}
    items = [
        Item((k.op, k.type, tuple([v.type for v in k.operands])), 0.0, 0.0, _read(k, kernels, number)) for k in listed
    ]
    order = level_order(items)
    place = {i: at for at, i in enumerate(order)}
    ordered = [replace(items[i], operands=tuple([place[j] for j in items[i].operands])) for i in order]
    names = [kernels.names[listed[i]] for i in order]
    return tuple(
        Repeat(run.count, tuple(tuple(names[at : at + run.period]) for at in range(run.start, run.end, run.period)))
        for run in find_runs(ordered)
    )


def _read(kernel: Value, kernels: KernelMap, number: dict[Value, int]) -> tuple[int, ...]:
    """The kernels that one reads, in the order of its operands."""
    makers = [kernels.kernel_of(v) for v in kernel.operands]
    return tuple([number[k] for k in makers if k is not None and k in number])
