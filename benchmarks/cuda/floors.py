"""The roofline of a program on an NVIDIA GPU: what no run can stay below, by the figures of the device."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any

from dovetail.declare.cost import Cost, Machine, estimate, is_free, kernel_cost, standing, type_bytes
from dovetail.ir.solve import solve_symbols
from dovetail.runtime.binding import by_name, found_in
from dovetail.settings import settings_of
from dovetail.targets.cuda.target import TARGET


def machine_here() -> Machine:
    """The figures of the device as `dovetail doctor --calibrate` measured them, else those of an H200."""
    assert TARGET.machine is not None, "the target has one"
    return TARGET.machine(settings_of({}, os.environ))


def floor_of(program: Any, feeds: Mapping[str, Any], machine: Machine, moved: float | None = None) -> float:
    """Seconds: all arithmetic at the peak, or what comes from outside read once and outputs written.

    `moved` are these bytes where a run reads a part of its inputs alone, such as the rows of a cache that are filled.
    """
    plan = program.plan
    declared = by_name(plan.graph.inputs)
    sizes = solve_symbols(found_in({name: x for name, x in feeds.items() if name in declared}, declared))
    bound = {step.value for step in plan.phase("bind")}
    values = [step.value for step in plan.phase("run") if not is_free(step.value)]
    costs = [kernel_cost(standing(value, bound.__contains__)) for value in values]
    work = sum(machine.least_work(cost, sizes) for cost in costs)
    if moved is None:
        written = sum(estimate(type_bytes(value.type), sizes) for value in plan.graph.outputs.values())
        moved = written + sum(estimate(cost.given, sizes) for cost in costs)
    return max(work, machine.floor(Cost(0, int(moved), int(moved))))


__all__ = ["floor_of", "machine_here"]
