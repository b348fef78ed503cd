"""Packing at run time: a block of A as tiles [k][MR] and a block of B as panels [k][NR], for the micro-kernel."""

from __future__ import annotations

from functools import cache
from typing import Literal

from dovetail.codegen.llvm import scalar
from dovetail.codegen.llvm.function import Parameter, Signature
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dtype import DType, f32
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.policy import PAIR

OperandLayout = Literal["across", "along", "strided"]
"""How an operand is stored: contiguous across k (along rows of A or columns of B), along k, or neither, or not f32."""


@dataclass(frozen=True, slots=True)
class PairOperand:
    """An operand of the products: which pointer, its dtype, and how it is stored."""

    pointer: str
    dtype: DType
    layout: OperandLayout


@dataclass(frozen=True, slots=True)
class PanelTarget:
    """Where an operand is packed to: panels of `width`, of which each step along k takes `pitch` bytes."""

    target: Ptr
    width: int
    pitch: int
    distance: I64
    """Bytes from one panel to the next."""


_SOURCE, _TARGET = Ptr("%source"), Ptr("%target")
_K, _ACROSS, _DISTANCE, _COUNT, _STEPS = I64("%k"), I64("%across"), I64("%distance"), I64("%count"), I64("%steps")


@cache
def pack_function(
    device: CpuDevice, dtype: DType, layout: OperandLayout, width: int, pitch: int
) -> tuple[SharedFunction, Signature]:
    """`name(source, k, across, target, distance, count, steps)`: rows of A or columns of B, with their strides.

    There are `count` of them, and `steps` along k. A partial panel is filled up with anything.
    """
    parameters = [
        Parameter("ptr", "source"),
        Parameter("i64", "k"),
        Parameter("i64", "across"),
        Parameter("ptr", "target"),
    ]
    parameters += [Parameter("i64", name) for name in ("distance", "count", "steps")]
    t = VectorBuilder(device)
    _pack(t, dtype, layout, PanelTarget(_TARGET, width, pitch, _DISTANCE))
    return shared_function(
        t.function(Signature(f"gemm_pack_{layout}_{width}", tuple(parameters)), attributes="nounwind")
    )


def _pack(t: VectorBuilder, dtype: DType, layout: OperandLayout, to: PanelTarget) -> None:
    strides = (_K, _ACROSS)
    panels, full = t.ceil_div(_COUNT, to.width), t.udiv(_COUNT, to.width)
    if layout == "along" and to.width % t.lanes == 0:
        with t.loop(0, panels) as panel:
            source, there, count = _panel(t, panel, to)
            target = t.base(there)
            together = min(to.width, max(t.lanes, PAIR.rows_together))
            for first in range(0, to.width, together):
                rows = range(first, min(first + together, to.width))
                _pack_transposed(t, source, target, count, rows, to)
        return
    first: Int = 0
    if layout == "across":
        _pack_contiguous(t, _SOURCE, _K, to, full, _STEPS)
        first = full
    with t.loop(first, panels) as panel:
        _pack_elements(t, dtype, *_panel(t, panel, to), strides, to, _STEPS)


def _panel(t: VectorBuilder, panel: I64, to: PanelTarget) -> tuple[Ptr, Ptr, I64]:
    """Where a panel comes from and goes to, and how many rows or columns it has."""
    done = t.mul(panel, to.width)
    there = t.ptr_add(to.target, t.mul(panel, to.distance))
    return t.ptr_add(_SOURCE, t.mul(done, _ACROSS)), there, t.smin(t.sub(_COUNT, done), to.width)


def _pack_contiguous(t: VectorBuilder, source: Ptr, stride: I64, to: PanelTarget, panels: I64, steps: I64) -> None:
    """Full panels of a contiguous operand, some steps along k at a time, while the next ones are prefetched."""
    kind = f"<{to.width} x float>"
    whole = I64(t.let(f"and i64 {steps}, {-PAIR.steps}"))
    for first, end, count in ((0, whole, PAIR.steps), (whole, steps, 1)):
        with t.loop(first, end, step=count) as k:
            lines = [t.ptr_add(source, t.mul(t.add(k, i), stride)) for i in range(count)]
            following = [t.ptr_add(line, t.mul(stride, count)) for line in lines]
            there = t.ptr_add(to.target, t.mul(k, to.pitch))
            with t.loop(0, panels) as panel:
                done, target = t.mul(panel, 4 * to.width), t.ptr_add(there, t.mul(panel, to.distance))
                for i in range(count):
                    loaded = t.let(f"load {kind}, ptr {t.ptr_add(lines[i], done)}, align 4")
                    t.prefetch(t.ptr_add(following[i], done))
                    t.emit(f"store {kind} {loaded}, ptr {t.ptr_add(target, i * to.pitch)}, align 4")


def _pack_transposed(t: VectorBuilder, source: Ptr, target: Ptr, count: I64, numbers: range, to: PanelTarget) -> None:
    """Some rows that are contiguous along k, transposed in registers; the last one is repeated up to the width."""
    last, stride, steps = t.sub(count, 1), _ACROSS, _STEPS
    rows = [t.base(t.ptr_add(source, t.mul(t.smin(i, last), stride))) for i in numbers]
    line, done = max(t.device.caches.line // 4, t.lanes), I64("0")
    for step in dict.fromkeys((line, t.lanes)):
        end = I64(t.let(f"and i64 {steps}, {-step}"))
        with t.loop(done, end, step=step) as k:
            if step == line:
                ahead = _distance(t, k, steps, t.mul(stride, len(rows)))
                for row in rows:
                    t.prefetch(t.ptr_add(t.element(row, "float", k), ahead))
            for more in range(0, step, t.lanes):
                for first in range(0, len(rows), t.lanes):
                    at = t.add(k, more)
                    lines = [t.load(t.element(row, "float", at)) for row in rows[first : first + t.lanes]]
                    there = t.ptr_add(target, t.add(t.mul(at, to.pitch), 4 * (numbers[0] + first)))
                    for i, column in enumerate(t.transpose(lines)):
                        t.store(column, t.ptr_add(there, i * to.pitch))
        done = end
    with t.loop(done, steps) as k:
        there = t.ptr_add(target, t.mul(k, to.pitch))
        for i, row in zip(numbers, rows, strict=True):
            t.store_f32(t.load_f32(t.element(row, "float", k)), t.ptr_add(there, 4 * i))


def _distance(t: VectorBuilder, k: I64, steps: I64, panel: I64) -> I64:
    """Bytes from a row at k to what is prefetched: within the row, and near its end in a row of the next ones."""
    left = t.mul(t.sub(steps, k), 4)
    within = t.icmp("sgt", left, PAIR.prefetch_distance)
    far = t.add(t.sub(PAIR.prefetch_distance, t.mul(steps, 4)), panel)
    return t.select_int(within, PAIR.prefetch_distance, far)


def _pack_elements(
    t: VectorBuilder,
    dtype: DType,
    source: Ptr,
    target: Ptr,
    count: I64,
    strides: tuple[I64, I64],
    to: PanelTarget,
    steps: I64,
) -> None:
    """Elements of any dtype and strides, one by one, and zeros up to the width."""
    with t.loop(0, steps) as k:
        here, there = t.ptr_add(source, t.mul(k, strides[0])), t.ptr_add(target, t.mul(k, to.pitch))
        with t.loop(0, count) as i:
            element = t.ptr_add(here, t.mul(i, strides[1]))
            loaded = t.let(f"load {scalar.stored(dtype)}, ptr {element}, align {dtype.itemsize}")
            t.emit(f"store float {scalar.cast(t, loaded, dtype, f32)}, ptr {t.element(there, 'float', i)}, align 4")
        with t.loop(count, to.width) as i:
            t.emit(f"store float 0.0, ptr {t.element(there, 'float', i)}, align 4")


__all__ = ["OperandLayout", "PairOperand", "PanelTarget", "pack_function"]
