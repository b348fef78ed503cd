"""The selection table of CPUs: every kernel variant by kind of problem, in the order of preference.

Most models have elementwise steps and products of floats. The code of other kinds is imported with their first step.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from dovetail import library, ops
from dovetail.declare.backward import backward_name
from dovetail.declare.fused import FusedOp
from dovetail.declare.machine import Machine
from dovetail.ir import leaf
from dovetail.ir.dtype import bf16, f16, i8, u8
from dovetail.ir.value import Op, Value
from dovetail.kernels.choice import Answer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.families.contraction_loops import offer_contraction_loops
from dovetail.kernels.families.index_map import offer_index_map
from dovetail.kernels.families.map import offer_map
from dovetail.kernels.families.rows import offer_rows
from dovetail.kernels.families.view_fusion import offer_weave
from dovetail.kernels.loops.folds import is_reduction
from dovetail.kernels.problems.convolution import ANCHORS as CONVOLUTIONS
from dovetail.kernels.spec import Job, TensorLocations
from dovetail.ops.convolution import conv_transpose
from dovetail.ops.detection import grid_sample
from dovetail.ops.region import anchor_of, region
from dovetail.ops.resize import resize
from dovetail.plan.plan import Step
from dovetail.targets.cpu.gemm.f32.narrow import offer_narrow
from dovetail.targets.cpu.gemm.f32.variant import offer_gemm
from dovetail.targets.cpu.measure.calibration import BUILT_IN
from dovetail.targets.runtime.selection import Kind, Row, Table

LOOPS_SPEED = 0.03
"""Contractions and pools in loops, relative to kernels with register tiles: each product loads and stores its sum."""
INDEX_SPEED = 0.1
"""Steps that compute the index of each element, relative to those that stride."""

SelectionRows = Sequence[Row[CpuDevice]]


def _kind(name: str, takes: Callable[[Value], bool], *rows: Row[CpuDevice]) -> Kind[CpuDevice]:
    return Kind(name, takes, lambda: rows)


def _is(*listed: Op) -> Callable[[Value], bool]:
    ops = frozenset(listed)
    return lambda value: value.op in ops


def _anchored(*listed: Op) -> Callable[[Value], bool]:
    """Whether a step is one of some ops, or a region that one of them anchors."""
    ops = frozenset(listed)

    def takes(value: Value) -> bool:
        anchor = anchor_of(value.attrs["body"]) if value.op is region else value
        return anchor is not None and anchor.op in ops

    return takes


def _has_a_body(value: Value) -> bool:
    return value.op is region or isinstance(value.op, FusedOp)


def _is_a_contraction(value: Value) -> bool:
    return value.op in (ops.matmul, ops.conv) or _has_a_body(value)


def _is_elementwise(value: Value) -> bool:
    return value.op.elementwise or is_reduction(value) or _has_a_body(value)


def _of_grouped_products() -> SelectionRows:
    return (Row("blocks", _blocks), Row("halves", _halves), Row("gemm", offer_gemm))


def _of_convolutions() -> SelectionRows:
    from dovetail.targets.cpu.conv.select import ROWS

    return ROWS


def _of_transposed() -> SelectionRows:
    from dovetail.targets.cpu.conv.select import TRANSPOSED_ROWS

    return TRANSPOSED_ROWS


def _of_pools() -> SelectionRows:
    from dovetail.kernels.families.pool_loops import offer_pool_loops
    from dovetail.targets.cpu.pool import offer_pool

    return (Row("pool", offer_pool), Row("pool_loops", offer_pool_loops, LOOPS_SPEED))


def _of_attention() -> SelectionRows:
    from dovetail.targets.cpu.attention.variant import offer_decode, offer_online

    return (Row("decode", offer_decode), Row("online", offer_online))


def _of_backward() -> SelectionRows:
    from dovetail.targets.cpu.attention.variant import offer_backward

    return (Row("attention_back", offer_backward),)


def _of_rope() -> SelectionRows:
    from dovetail.kernels.families.rope import offer_rope

    return (Row("rope", offer_rope),)


def _of_copies() -> SelectionRows:
    from dovetail.kernels.families.move import offer_move
    from dovetail.targets.cpu.transpose import offer_transpose

    return (Row("transpose", offer_transpose), Row("move", offer_move))


def _of_reductions() -> SelectionRows:
    from dovetail.kernels.families.reduce import offer_reduce

    return (Row("reduce", offer_reduce),)


def _of_resize() -> SelectionRows:
    from dovetail.kernels.families.resize import offer_resize

    return (Row("resize", offer_resize),)


def _of_grid_sample() -> SelectionRows:
    from dovetail.kernels.families.grid_sample import offer_grid_sample

    return (Row("grid_sample", offer_grid_sample),)


def _of_gather() -> SelectionRows:
    from dovetail.kernels.families.gather import offer_gather

    return (Row("gather", offer_gather),)


def _of_scatter() -> SelectionRows:
    from dovetail.kernels.families.scatter import offer_scatter

    return (Row("scatter", offer_scatter),)


def _of_narrow_casts() -> SelectionRows:
    from dovetail.kernels.families.lut_cast import offer_table

    return (Row("table", offer_table),)


def _of_quantisation() -> SelectionRows:
    from dovetail.kernels.families.quantise import offer_quantise

    return (Row("quantise", offer_quantise),)


def _of_sorts() -> SelectionRows:
    from dovetail.kernels.families.sort import offer_sort

    return (Row("sort", offer_sort),)


def _of_fills() -> SelectionRows:
    from dovetail.kernels.families.fill import offer_fill

    return (Row("fill", offer_fill),)


def _int8(of: StepProblem[CpuDevice]) -> Answer:
    refused = _without_bytes(of)
    if refused is not None:
        return refused
    from dovetail.targets.cpu.gemm.int8.product import offer_int8

    return offer_int8(of)


def _int8_conv(of: StepProblem[CpuDevice]) -> Answer:
    refused = _without_bytes(of)
    if refused is not None:
        return refused
    from dovetail.targets.cpu.conv.int8.variant import offer_int8_conv

    return offer_int8_conv(of)


def _without_bytes(of: StepProblem[CpuDevice]) -> Refused | None:
    """Refuse a step that reads no bytes, before the code of products of bytes is imported."""
    read = {operand.dtype for operand in of.value.operands}
    names = ", ".join(sorted(dtype.name for dtype in read))
    return Refused("operands_are_bytes", names, "i8 or u8") if read.isdisjoint((i8, u8)) else None


def _blocks(of: StepProblem[CpuDevice]) -> Answer:
    if not any(map(_has_blocks, of.value.operands)):
        return Refused("weights_are_blocks", of.value.op.name, library.dequantise_blocks.name)
    from dovetail.targets.cpu.gemm.blocks.product import offer_blocks

    return offer_blocks(of)


def _few_rows(of: StepProblem[CpuDevice]) -> Answer:
    from dovetail.targets.cpu.gemm.f32.few_rows import offer_few_rows  # few models multiply a vector by an activation

    return offer_few_rows(of)


def _has_blocks(weights: Value) -> bool:
    """Whether weights are dequantised from blocks, in whole or in part, transposed or not."""
    if weights.op in (ops.permute, ops.concat):
        return any(map(_has_blocks, weights.operands))
    return weights.op is library.dequantise_blocks


def _halves(of: StepProblem[CpuDevice]) -> Answer:
    if not any(map(_has_halves, of.value.operands)):
        return Refused("weights_are_halves", of.value.op.name, "a cast of parameters in f16 or bf16")
    from dovetail.targets.cpu.gemm.halves.product import offer_halves

    return offer_halves(of)


def _bf16(of: StepProblem[CpuDevice]) -> Answer:
    if not of.locations.in_bf16:
        return Refused("precision_is_bf16", "exact or fast", "bf16")
    from dovetail.targets.cpu.gemm.amx.bf16 import offer_bf16

    return offer_bf16(of)


def _has_halves(weights: Value) -> bool:
    """Whether weights are cast from two bytes, in whole or in part, transposed or not."""
    if weights.op in (ops.permute, ops.concat):
        return any(map(_has_halves, weights.operands))
    return weights.op is ops.cast and weights.operands[0].op is leaf.PARAM and weights.operands[0].dtype in (f16, bf16)


TABLE: Table[CpuDevice] = Table(
    (
        Kind("convolution", _anchored(*[op for op in CONVOLUTIONS if op is not conv_transpose]), _of_convolutions),
        Kind("transposed convolution", _anchored(conv_transpose), _of_transposed),
        Kind("grouped product", _is(ops.grouped_matmul), _of_grouped_products),
        Kind("pool", _is(ops.max_pool, ops.average_pool), _of_pools),
        Kind("attention", _anchored(*library.ATTENTIONS), _of_attention),
        Kind("attention backward", lambda value: value.op.name == backward_name(library.attention), _of_backward),
        Kind("rope", _is(library.rope, library.partial_rope), _of_rope),
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
            Row("int8", _int8),
            Row("int8_conv", _int8_conv),
            Row("blocks", _blocks),
            Row("halves", _halves),
            Row("bf16", _bf16),
            Row("narrow", offer_narrow),
            Row("few_rows", _few_rows),
            Row("gemm", offer_gemm),
            Row("loops", offer_contraction_loops, LOOPS_SPEED),
        ),
        Kind("copy", _is(ops.merge, ops.concat, ops.pad), _of_copies),
        Kind(
            "reduction",
            _is(ops.arg_max, ops.arg_min, ops.cum_sum, ops.cum_prod, ops.cum_max, ops.cum_min),
            _of_reductions,
        ),
        Kind("resize", _is(resize), _of_resize),
        Kind("grid sample", _is(grid_sample), _of_grid_sample),
        Kind("gather", _is(ops.gather, ops.gather_elements, ops.gather_nd), _of_gather),
        Kind("scatter", _is(ops.scatter_elements, ops.scatter_nd), _of_scatter),
        Kind("narrow cast", _is(ops.cast, ops.cast_f8), _of_narrow_casts),
        Kind("quantisation", _is(ops.quantise, ops.dequantise), _of_quantisation),
        Kind("sort", _is(ops.sort, ops.top_k), _of_sorts),
        Kind("fill", _is(ops.extent, ops.iota, ops.random_bits), _of_fills),
    ),
    on_host="host",
)


def make_job(step: Step, locations: TensorLocations, device: CpuDevice, machine: Machine = BUILT_IN) -> Job | None:
    """The job of a step, or None where it has to run on the host."""
    return TABLE.select(step, locations, device, machine)


__all__ = ["TABLE", "make_job"]
