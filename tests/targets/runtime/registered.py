"""Which records of a plan's jobs are registered, so that programs can be stored."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, cast

from dovetail.ir.dim import Dim
from dovetail.ir.value import Value
from dovetail.kernels.loops.ir import Kernel
from dovetail.kernels.spec import Job, Template
from dovetail.plan.plan import Plan
from dovetail.targets.cpu.backend import BACKEND
from dovetail.targets.cpu.records import RECORDS
from dovetail.targets.runtime.building.build import builder_of


def held(item: Any) -> Iterator[type[Any]]:
    """The classes of everything that a job holds, but for what has a spelling of its own."""
    if item is None or isinstance(item, bool | int | str | float | Dim | Value):
        return
    if isinstance(item, tuple):
        for part in cast("tuple[Any, ...]", item):
            yield from held(part)
    elif isinstance(item, Mapping):
        for part in cast("Mapping[str, Any]", item).values():
            yield from held(part)
    else:
        kind = cast("type[Any]", type(item))
        yield kind
        if is_dataclass(item) and not isinstance(item, Kernel | Template):
            for field in fields(item):
                yield from held(getattr(item, field.name))


def unregistered(plan: Plan) -> set[str]:
    builder = builder_of(plan, BACKEND)
    jobs = [job for step in plan.phase("run") if isinstance(job := builder.job(step), Job)]
    kinds = {kind for job in jobs for kind in held(job)} - {Kernel}
    return {kind.__name__ for kind in kinds if RECORDS.name_of(kind) is None}
