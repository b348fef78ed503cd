"""The selection table of CPUs: every kernel variant by kind of problem, in the order of preference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail import library, ops
from dovetail.declare.backward import backward_name
from dovetail.declare.fused import FusedOp
from dovetail.declare.machine import Machine
from dovetail.ir.value import Op, Value
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.contraction_loops import offer_contraction_loops
from dovetail.kernels.families.fill import offer_fill
from dovetail.kernels.families.gather import offer_gather
from dovetail.kernels.families.grid_sample import offer_grid_sample
from dovetail.kernels.families.index_map import offer_index_map
from dovetail.kernels.families.lut_cast import offer_table
from dovetail.kernels.families.map import offer_map
from dovetail.kernels.families.move import offer_move
from dovetail.kernels.families.pool_loops import offer_pool_loops
from dovetail.kernels.families.quantise import offer_quantise
from dovetail.kernels.families.reduce import offer_reduce
from dovetail.kernels.families.resize import offer_resize
from dovetail.kernels.families.rope import offer_rope
from dovetail.kernels.families.rows import offer_rows
from dovetail.kernels.families.scatter import offer_scatter
from dovetail.kernels.families.sort import offer_sort
from dovetail.kernels.families.view_fusion import offer_weave
from dovetail.kernels.loops.folds import is_reduction
from dovetail.kernels.problems.region_steps import ANCHORS as CONVOLUTIONS
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.ops.convolution import conv_transpose
from dovetail.ops.detection import grid_sample
from dovetail.ops.region import anchor_of, region
from dovetail.ops.resize import resize
from dovetail.plan.plan import Step
from dovetail.targets.cpu.attention.variant import offer_backward, offer_decode, offer_online
from dovetail.targets.cpu.conv.int8.variant import offer_int8_conv
from dovetail.targets.cpu.gemm.blocks import offer_blocks
from dovetail.targets.cpu.gemm.int8 import offer_int8
from dovetail.targets.cpu.gemm.variant import offer_gemm
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.cpu.transpose import offer_transpose
from dovetail.targets.runtime.selection import Kind, Row, Table

LOOPS_SPEED = 0.03
"""Contractions and pools in loops, relative to kernels with register tiles: each product loads and stores its sum."""
INDEX_SPEED = 0.1
"""Steps that compute the index of each element, relative to those that stride."""

Rows = Sequence[Row[CpuDevice]]


def _kind(name: str, takes: Callable[[Value], bool], *rows: Row[CpuDevice]) -> Kind[CpuDevice]:
    return Kind(name, takes, lambda: rows)


def _is(*listed: Op) -> Callable[[Value], bool]:
    found = frozenset(listed)
    return lambda value: value.op in found


def _anchored(*listed: Op) -> Callable[[Value], bool]:
    """Whether a step is one of some ops, or a region that one of them anchors."""
    found = frozenset(listed)

    def takes(value: Value) -> bool:
        anchor = anchor_of(value.attrs["body"]) if value.op is region else value
        return anchor is not None and anchor.op in found

    return takes


def _has_a_body(value: Value) -> bool:
    return value.op is region or isinstance(value.op, FusedOp)


def _is_a_contraction(value: Value) -> bool:
    return value.op in (ops.matmul, ops.conv) or _has_a_body(value)


def _is_elementwise(value: Value) -> bool:
    return value.op.elementwise or is_reduction(value) or _has_a_body(value)


def _of_convolutions() -> Rows:
    from dovetail.targets.cpu.conv.select import ROWS

    return ROWS


def _of_transposed() -> Rows:
    from dovetail.targets.cpu.conv.select import TRANSPOSED_ROWS

    return TRANSPOSED_ROWS


def _of_pools() -> Rows:
    from dovetail.targets.cpu.pool.variant import offer_pool

    return (Row("pool", offer_pool), Row("pool_loops", offer_pool_loops, LOOPS_SPEED))


TABLE: Table[CpuDevice] = Table(
    (
        Kind("convolution", _anchored(*[op for op in CONVOLUTIONS if op is not conv_transpose]), _of_convolutions),
        Kind("transposed convolution", _anchored(conv_transpose), _of_transposed),
        Kind("pool", _is(ops.max_pool, ops.average_pool), _of_pools),
        _kind(
            "attention",
            _anchored(library.attention, library.rope_attention),
            Row("decode", offer_decode),
            Row("online", offer_online),
        ),
        _kind(
            "attention backward",
            lambda value: value.op.name == backward_name(library.attention),
            Row("attention_back", offer_backward),
        ),
        _kind("rope", _is(library.rope, library.partial_rope), Row("rope", offer_rope)),
        _kind(
            "elementwise",
            _is_elementwise,
            Row("map", offer_map),
            Row("rows", offer_rows),
            Row("weave", offer_weave),
            Row("index_map", offer_index_map, INDEX_SPEED),
        ),
        _kind(
            "contraction",
            _is_a_contraction,
            Row("int8", offer_int8),
            Row("int8_conv", offer_int8_conv),
            Row("blocks", offer_blocks),
            Row("gemm", offer_gemm),
            Row("loops", offer_contraction_loops, LOOPS_SPEED),
        ),
        _kind("copy", _is(ops.merge, ops.concat, ops.pad), Row("transpose", offer_transpose), Row("move", offer_move)),
        _kind(
            "reduction",
            _is(ops.arg_max, ops.arg_min, ops.cum_sum, ops.cum_prod, ops.cum_max, ops.cum_min),
            Row("reduce", offer_reduce),
        ),
        _kind("resize", _is(resize), Row("resize", offer_resize)),
        _kind("grid sample", _is(grid_sample), Row("grid_sample", offer_grid_sample)),
        _kind("gather", _is(ops.gather, ops.gather_elements, ops.gather_nd), Row("gather", offer_gather)),
        _kind("scatter", _is(ops.scatter_elements, ops.scatter_nd), Row("scatter", offer_scatter)),
        _kind("narrow cast", _is(ops.cast, ops.cast_f8), Row("table", offer_table)),
        _kind("quantisation", _is(ops.quantise, ops.dequantise), Row("quantise", offer_quantise)),
        _kind("sort", _is(ops.sort, ops.top_k), Row("sort", offer_sort)),
        _kind("fill", _is(ops.extent, ops.iota, ops.random_bits), Row("fill", offer_fill)),
    ),
    on_host="host",
)


def make_job(step: Step, locations: TensorLocations, device: CpuDevice, machine: Machine = BUILT_IN) -> Job | None:
    """The job of a step, or None where it has to run on the host."""
    return TABLE.select(step, locations, device, machine)


__all__ = ["TABLE", "make_job"]
