"""Which kernel a step becomes: the first archetype that takes it."""

from __future__ import annotations

from collections.abc import Callable

from dovetail import ops
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.contraction_loops import make_plain
from dovetail.kernels.families.fill import make_fill
from dovetail.kernels.families.gather import make_gather
from dovetail.kernels.families.lut_cast import make_table
from dovetail.kernels.families.map import make_map
from dovetail.kernels.families.move import make_move
from dovetail.kernels.families.pool_loops import make_plain_pool
from dovetail.kernels.families.quantise import make_quantise
from dovetail.kernels.families.reduce import make_reduce
from dovetail.kernels.families.resize import make_resize
from dovetail.kernels.families.rope import make_rope
from dovetail.kernels.families.rows import make_rows
from dovetail.kernels.families.scatter import make_scatter
from dovetail.kernels.families.sort import make_sort
from dovetail.kernels.families.view_fusion import make_weave
from dovetail.kernels.problems.region_steps import ANCHORS as CONVOLUTIONS
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.ops.region import anchor_of, region
from dovetail.plan.plan import Step
from dovetail.targets.cpu.attention.variant import make_attend
from dovetail.targets.cpu.gemm.int8 import make_byte_contract
from dovetail.targets.cpu.gemm.variant import make_contract, make_declared_contract
from dovetail.targets.cpu.transpose import make_transpose

ARCHETYPES: tuple[Callable[[Step, TensorLocations], Job | None], ...] = (
    make_map,
    make_rows,
    make_rope,
    make_reduce,
    make_resize,
    make_move,
    make_gather,
    make_table,
    make_weave,
    make_quantise,
    make_sort,
    make_scatter,
    make_fill,
    make_plain,
    make_plain_pool,
)


def _make_convolution(step: Step, locations: TensorLocations, device: CpuDevice) -> Job | None:
    """The job of a convolution. Its templates are many: they are imported when a model has a convolution."""
    value = step.value
    call = anchor_of(value.attrs["body"]) if value.op is region else value
    if call is None or call.op not in CONVOLUTIONS:
        return None
    from dovetail.targets.cpu.conv.templates import make_convolution

    return make_convolution(step, locations, device)


def _make_pool(step: Step, locations: TensorLocations, device: CpuDevice) -> Job | None:
    if step.value.op not in (ops.max_pool, ops.average_pool):
        return None
    from dovetail.targets.cpu.pool.variant import make_pool

    return make_pool(step, locations, device)


TEMPLATES: tuple[Callable[[Step, TensorLocations, CpuDevice], Job | None], ...] = (
    _make_convolution,
    _make_pool,
    make_byte_contract,
    make_contract,
    make_attend,
    make_transpose,
)
"""Archetypes that write their vectors themselves, and so ask how wide they are."""


def make_job(step: Step, locations: TensorLocations, vectors: CpuDevice) -> Job | None:
    """The job of a step, or None where it has to run on the host."""
    for template in TEMPLATES:
        job = template(step, locations, vectors)
        if job is not None:
            return job
    for archetype in ARCHETYPES:
        job = archetype(step, locations)
        if job is not None:
            return job
    return make_declared_contract(step, locations, vectors)
