"""What the reference target keeps: every primitive, and any declared op through its body."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail import library, ops
from dovetail.declare.cost import Machine
from dovetail.declare.fused import FusedOp
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ops.region import region
from dovetail.passes.claims import Claims
from dovetail.passes.memory_rules import (
    ELEMENTWISE,
    ELEMENTWISE_REGION,
    PRODUCT_EPILOGUE,
    SEVERAL_RESULTS,
    UPDATE,
    MemoryRules,
)


def claims(declared: Iterable[FusedOp[...]] = ()) -> Claims:
    """The claims of the interpreter: the library and the user's own ops, each through its body."""
    names = [op.name for op in (*ops.ALL, *library.ALL, *declared, region)]
    return Claims(
        target="reference",
        machine=Machine(flops_per_second=1e9, bytes_per_second=1e10, launch_seconds=1e-5),
        native={name: () for name in names},
        dtypes=EVERY,
        # NumPy computes a result before it is stored: the rules of every other target hold here too.
        memory=MemoryRules(
            in_place=(ELEMENTWISE, ELEMENTWISE_REGION, SEVERAL_RESULTS, PRODUCT_EPILOGUE, UPDATE),
            strided_results=frozenset(op.name for op in library.ATTENTIONS),
        ),
    )


CLAIMS = claims()
