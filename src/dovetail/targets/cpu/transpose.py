"""Transpose: a tensor copied crosswise, in squares that are transposed in registers, so that whole lines move."""

from __future__ import annotations

from dovetail import ops
from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH, WORDS, Arguments, KernelCode, assemble, kernel_function
from dovetail.codegen.llvm.vector import VectorBuilder
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.ir import collapsed
from dovetail.kernels.spec import Job, Tiles
from dovetail.plan.alias import dense_strides

SIDE = 64
"""Rows and columns of a tile."""
MOST_OUTER = 2
"""Axes in addition to the two that are transposed."""
ITEM = 4
"""Bytes of an element: what the lanes of vectors are for."""


@dataclass(frozen=True, slots=True)
class TransposeArgs:
    """x is contiguous along rows of the result, y along columns; two outer axes with a size and a stride in each."""

    x: Ptr
    y: Ptr
    n0: I64
    x0: I64
    y0: I64
    n1: I64
    x1: I64
    y1: I64
    rows: I64
    columns: I64
    x_step: I64
    y_step: I64


ARGUMENTS = Arguments(TransposeArgs)


def offer_transpose(of: StepProblem[CpuDevice]) -> Offer | Refused:
    """The kernel of a copy whose operand is contiguous along one axis and whose result is along another."""
    value, locations, device = of.value, of.locations, of.device
    if value.op is not ops.merge or value.dtype.itemsize != ITEM:
        return Refused("elements_have_4_bytes", f"{value.op.name} of {value.dtype.name}")
    x = value.operands[0]
    shape, (target, source) = collapsed(x.shape, [dense_strides(x.tensor), locations(x).strides])
    if not 2 <= len(shape) <= 2 + MOST_OUTER or 0 in shape:
        return Refused("axes_are_few", f"{len(shape)} axes", f"2 to {2 + MOST_OUTER}")
    across = next((a for a in range(len(shape) - 1) if source[a] == ITEM), None)
    if across is None or source[-1] in (0, ITEM):
        return Refused("another_axis_is_contiguous", f"strides of {', '.join(map(str, source))} bytes")
    if any(isinstance(n, int) and n < device.lanes for n in (shape[across], shape[-1])):
        return Refused("squares_fill_vectors", f"{shape[across]} by {shape[-1]}", f"at least {device.lanes}")
    return Offer(lambda: _job(value, device, (shape, source, target), across))


def _job(value: Value, device: CpuDevice, axes: tuple[tuple[Size, ...], ...], across: int) -> Job:
    x, (shape, source, target) = value.operands[0], axes
    outer = [(shape[a], source[a], target[a]) for a in range(len(shape) - 1) if a != across]
    (n0, x0, y0), (n1, x1, y1) = [(1, 0, 0)] * (MOST_OUTER - len(outer)) + outer
    rows, columns = shape[across], shape[-1]
    laid = ARGUMENTS.laid_out(
        {
            "n0": n0, "x0": x0, "y0": y0, "n1": n1, "x1": x1, "y1": y1, "rows": rows, "columns": columns,
            "x_step": source[-1], "y_step": target[across],
        }
    )  # fmt: skip
    kernel = _code(device).template(ARGUMENTS.pointers, laid.sizes, laid.scratch)
    return Job(kernel, {"x": x, "y": value}, Tiles(_blocks(rows) * _blocks(columns) * n0 * n1, SIDE * SIDE))


def _blocks(size: Size) -> Size:
    return (size + (SIDE - 1)) // SIDE


def _code(device: CpuDevice) -> KernelCode:
    t = VectorBuilder(device)
    a = ARGUMENTS.load(t, WORDS, SCRATCH)
    down, over = t.ceil_div(a.rows, SIDE), t.ceil_div(a.columns, SIDE)
    with t.loop(BEGIN, END) as tile:
        column, rest = t.urem(tile, over), t.udiv(tile, over)
        row, rest = t.urem(rest, down), t.udiv(rest, down)
        second, first = t.urem(rest, a.n1), t.udiv(rest, a.n1)
        left, top = t.mul(column, SIDE), t.mul(row, SIDE)
        x = _moved(t, a.x, (first, a.x0), (second, a.x1), (left, a.x_step), (top, ITEM))
        y = _moved(t, a.y, (first, a.y0), (second, a.y1), (top, a.y_step), (left, ITEM))
        _tile(t, a, x, y, t.smin(t.sub(a.rows, top), SIDE), t.smin(t.sub(a.columns, left), SIDE))
    return assemble("transpose", [kernel_function(t, attributes="nounwind")], optimize=True)


def _moved(t: VectorBuilder, pointer: Ptr, *steps: tuple[Int, Int]) -> Ptr:
    for index, stride in steps:
        pointer = t.ptr_add(pointer, t.mul(index, stride))
    return pointer


def _tile(t: VectorBuilder, a: TransposeArgs, x: Ptr, y: Ptr, rows: I64, columns: I64) -> None:
    """Squares as far as they go, and single elements at the edges."""
    lanes = t.lanes
    whole_rows, whole_columns = (I64(t.let(f"and i64 {n}, {-lanes}")) for n in (rows, columns))
    with t.steps(0, whole_columns, lanes) as column, t.steps(0, whole_rows, lanes) as row:
        here = _moved(t, x, (column, a.x_step), (row, ITEM))
        there = _moved(t, y, (row, a.y_step), (column, ITEM))
        lines = [t.load(_moved(t, here, (i, a.x_step))) for i in range(lanes)]
        for i, line in enumerate(t.transpose(lines)):
            t.store(line, _moved(t, there, (i, a.y_step)))
    edges: tuple[tuple[Int, I64, Int], ...] = ((whole_columns, columns, 0), (0, whole_columns, whole_rows))
    for first, last, start in edges:
        with t.loop(first, last) as column, t.loop(start, rows) as row:
            element = t.let(f"load i32, ptr {_moved(t, x, (column, a.x_step), (row, ITEM))}, align {ITEM}")
            t.emit(f"store i32 {element}, ptr {_moved(t, y, (row, a.y_step), (column, ITEM))}, align {ITEM}")
