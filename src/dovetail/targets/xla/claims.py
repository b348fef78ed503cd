"""What XLA is handed: primitives alone. It fuses by itself, so nothing is fused, joined or marked before."""

from __future__ import annotations

from collections.abc import Iterable

from dovetail import ops
from dovetail.declare.cost import Machine
from dovetail.declare.fused import FusedOp
from dovetail.ir.dtype import ALL as EVERY
from dovetail.ir.dtype import f8e8m0
from dovetail.ir.value import Value
from dovetail.passes.claims import Claims, Condition

SIZED_BY_DATA = ("counting", "non_max_suppression", "nonzero", "unique")
"""Primitives whose results have sizes that only data decides."""
_SIZES = Condition("sizes_are_known_before", lambda value: False, "XLA compiles for sizes, and data decides this one")


def _keeps_its_sizes(value: Value) -> bool:
    return not value.attrs["sizes"] and value.attrs.get("trips") is None


_SAME_SIZES = Condition(
    "sizes_are_known_before", _keeps_its_sizes, "XLA compiles for sizes, and a branch or a trip decides one of these"
)
REWRITTEN = ("grouped_matmul", "grouped_outer")
"""Primitives that are spelled in others before."""
HOST = ("cast_f8", "deform_conv", "roi_align", "roi_pool")
"""Primitives that XLA calls back for: NumPy computes them on the host."""


def _conditions(name: str) -> tuple[Condition, ...]:
    if name in SIZED_BY_DATA:
        return (_SIZES,)
    return (_SAME_SIZES,) if name in ("if", "while") else ()


def claims(declared: Iterable[FusedOp[...]] = ()) -> Claims:
    """Every primitive; a fused op is handed over as its body."""
    return Claims(
        target="xla",
        machine=Machine(flops_per_second=1e11, bytes_per_second=2e10, launch_seconds=1e-6),
        native={op.name: _conditions(op.name) for op in ops.ALL if op.name not in REWRITTEN},
        dtypes=tuple(d for d in EVERY if d.bits >= 8 and d is not f8e8m0),
        fuses_itself=True,
    )


CLAIMS = claims()

__all__ = ["CLAIMS", "HOST", "REWRITTEN", "SIZED_BY_DATA", "claims"]
