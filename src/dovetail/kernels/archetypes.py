"""Which kernel a step becomes: the first archetype that takes it."""

from __future__ import annotations

from collections.abc import Callable

from dovetail.kernels.attend import make_attend
from dovetail.kernels.contract import make_contract, make_declared_contract
from dovetail.kernels.contract_bytes import make_byte_contract
from dovetail.kernels.conv_forms import make_conv
from dovetail.kernels.conv_line import make_line
from dovetail.kernels.conv_transpose import make_conv_transpose
from dovetail.kernels.fill import make_fill
from dovetail.kernels.gather import make_gather
from dovetail.kernels.job import Job, Places
from dovetail.kernels.map import make_map
from dovetail.kernels.move import make_move
from dovetail.kernels.plain import make_plain
from dovetail.kernels.plain_pool import make_plain_pool
from dovetail.kernels.pool import make_pool
from dovetail.kernels.quantise import make_quantise
from dovetail.kernels.reduce import make_reduce
from dovetail.kernels.resize import make_resize
from dovetail.kernels.rope import make_rope
from dovetail.kernels.rows import make_rows
from dovetail.kernels.scatter import make_scatter
from dovetail.kernels.sort import make_sort
from dovetail.kernels.table import make_table
from dovetail.kernels.turn import make_turn
from dovetail.kernels.vector import Vectors
from dovetail.kernels.weave import make_weave
from dovetail.plan.plan import Step

ARCHETYPES: tuple[Callable[[Step, Places], Job | None], ...] = (
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


TEMPLATES: tuple[Callable[[Step, Places, Vectors], Job | None], ...] = (
    make_line,
    make_conv,
    make_conv_transpose,
    make_pool,
    make_byte_contract,
    make_contract,
    make_attend,
    make_turn,
)
"""Archetypes that write their vectors themselves, and so ask how wide they are."""


def make_job(step: Step, places: Places, vectors: Vectors) -> Job | None:
    """The job of a step, or None where it has to run on the host."""
    for template in TEMPLATES:
        job = template(step, places, vectors)
        if job is not None:
            return job
    for archetype in ARCHETYPES:
        job = archetype(step, places)
        if job is not None:
            return job
    return make_declared_contract(step, places, vectors)
