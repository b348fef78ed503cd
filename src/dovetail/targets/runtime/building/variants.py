"""Which kernel serves each step of a plan, where an op has several; nothing is compiled to find out."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Mapping
from dataclasses import replace
from functools import partial
from typing import Protocol, runtime_checkable

import numpy as np

from dovetail.declare.machine import estimate
from dovetail.ir.dim import Size
from dovetail.ir.dtype import bf16
from dovetail.ir.literal import Array
from dovetail.ir.value import Value
from dovetail.kernels.loops.body import steps_without_code
from dovetail.kernels.spec import Job, Packed, Template
from dovetail.plan.plan import Plan, Step
from dovetail.plan.served import Served
from dovetail.targets.runtime.backend import Backend
from dovetail.targets.runtime.building.build import JobBuilder, builder_of
from dovetail.targets.runtime.building.step_signature import step_signature

__all__ = ["Rounds", "variants"]

_ROWS, _COLUMNS = 16, 64
"""Of what is measured: columns are taken from everywhere in a matrix."""


@runtime_checkable
class Rounds(Protocol):
    """A packing that rounds weights to bf16."""

    def by_column(self, *weights: Array) -> list[Array]:
        """Matrices [columns, k] before they are rounded."""
        ...


def rounding_error(binding: Packed, read: Callable[[Value], Array]) -> float:
    """The norm of what rounding changes, over the norm of products of random activations with the weights."""
    assert isinstance(binding.pack, Rounds), "what does not round has no error"
    away = whole = 0.0
    for matrix in binding.pack.by_column(*[read(value) for value in (binding.value, *binding.beside)]):
        count = len(matrix)
        some = matrix[np.unique(np.linspace(0, count - 1, min(count, _COLUMNS), dtype=np.int64))] if count else matrix
        x = np.random.default_rng(0).standard_normal((_ROWS, some.shape[1]), np.float32)
        exact = _wide(x) @ _wide(some).T
        product = _wide(x.astype(bf16.numpy)) @ _wide(some.astype(bf16.numpy)).T
        away += float(np.square(product - exact).sum())
        whole += float(np.square(exact).sum())
    return (away / whole) ** 0.5 if whole > 0 else 0.0


def _wide(x: Array) -> Array:
    return x.astype(np.float64)


def variants(plan: Plan, sizes: Mapping[str, Size], backend: Backend) -> dict[Value, Served]:
    """By value of the run phase, what serves it at these sizes."""
    builder = builder_of(plan, backend)
    known: dict[Hashable, Served] = {}
    served: dict[Value, Served] = {}
    for step in plan.phase("run"):
        signature = step_signature(step, builder.locations)
        if signature not in known:
            known[signature] = _served(step, builder, sizes, backend)
        served[step.value] = _with_error(known[signature], step, builder)
    return served


def _served(step: Step, builder: JobBuilder, sizes: Mapping[str, Size], backend: Backend) -> Served:
    job, locations = builder.job(step), builder.locations
    why = locations.refused.get(step.value, "")
    if job is None:
        return Served(None, why=why, lacks=steps_without_code(step.value, locations.target.scalars))
    if not isinstance(job, Job):
        return Served("", why=why)

    def number(size: Size) -> int:
        # An estimate below 1 is no size of a run: a window that is longer than what a symbol counts as gives one.
        return max(1, estimate(size, sizes))

    kernel = job.chosen(number, backend.machine)[1].kernel
    cost = job.cost(number, backend.machine) if job.variants else locations.costs.get(step.value)
    if not isinstance(kernel, Template):
        return Served("", cost, why=why)
    return Served(kernel.variant, cost, kernel.rounding, why=why)


def _with_error(served: Served, step: Step, builder: JobBuilder) -> Served:
    """With the error of a kernel that rounds its weights: steps with equal signatures have weights of their own."""
    job = builder.job(step) if served.rounding else None
    packed = [b for b in job.bindings.values() if isinstance(b, Packed)] if isinstance(job, Job) else []
    rounded = [binding for binding in packed if isinstance(binding.pack, Rounds)]
    return replace(served, error=partial(rounding_error, rounded[0])) if rounded else served
