"""Turn: a tensor copied crosswise, squares at a time, each turned in registers: whole lines are read and written."""

from __future__ import annotations

from dovetail import ops
from dovetail.codegen.llvm.simd import VectorText
from dovetail.ir.dim import Size
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.loops.ir import collapsed
from dovetail.kernels.spec import Job, Places, Template
from dovetail.plan.alias import dense_strides
from dovetail.plan.plan import Step

SIDE = 64
"""Rows and columns of a tile."""
MOST_OUTER = 2
"""Axes beside the two that are turned."""
ITEM = 4
"""Bytes of an element: what the lanes of vectors are for."""


def make_turn(step: Step, places: Places, vectors: CpuDevice) -> Job | None:
    """The job of a copy whose operand is dense along one axis and whose result is along another."""
    value = step.value
    if value.op is not ops.merge or value.dtype.itemsize != ITEM:
        return None
    x = value.operands[0]
    shape, (target, source) = collapsed(x.shape, [dense_strides(x.tensor), places(x).strides])
    if not 2 <= len(shape) <= 2 + MOST_OUTER or 0 in shape or source[-1] in (0, ITEM):
        return None
    across = next((a for a in range(len(shape) - 1) if source[a] == ITEM), None)
    if across is None or any(isinstance(n, int) and n < vectors.lanes for n in (shape[across], shape[-1])):
        return None
    outer = [a for a in range(len(shape) - 1) if a != across]
    lead: list[tuple[Size, Size, Size]] = [(1, 0, 0)] * (MOST_OUTER - len(outer))
    lead += [(shape[a], source[a], target[a]) for a in outer]
    rows, columns = shape[across], shape[-1]
    sizes = (*(size for axis in lead for size in axis), rows, columns, source[-1], target[across])
    name = f"turn_{vectors.lanes}"
    tiles = _blocks(rows) * _blocks(columns)
    for size, _, _ in lead:
        tiles = tiles * size
    return Job(Template(name, _text(name, vectors), (), ("x", "y"), sizes), {"x": x, "y": value}, tiles, SIDE * SIDE)


def _blocks(size: Size) -> Size:
    return (size + (SIDE - 1)) // SIDE


_WORDS = ("n0", "x0", "y0", "n1", "x1", "y1", "rows", "columns", "x_step", "y_step")


def _text(name: str, vectors: CpuDevice) -> str:
    """x lies densely along rows of the result, y along columns."""
    t = VectorText(vectors.lanes)
    for i, (kind, word) in enumerate([("ptr", "x"), ("ptr", "y"), *(("i64", w) for w in _WORDS)]):
        t(f"%{word} = load {kind}, ptr {t.at('%a', 8 * i)}, align 8")
    down, over = (t.let(f"sdiv i64 {t.let(f'add i64 %{n}, {SIDE - 1}')}, {SIDE}") for n in ("rows", "columns"))
    with t.loop("%begin", "%end") as tile:
        column, rest = _digit(t, tile, over)
        row, rest = _digit(t, rest, down)
        second, first = _digit(t, rest, "%n1")
        left, top = t.let(f"mul i64 {column}, {SIDE}"), t.let(f"mul i64 {row}, {SIDE}")
        x = _moved(t, "%x", (first, "%x0"), (second, "%x1"), (left, "%x_step"), (top, str(ITEM)))
        y = _moved(t, "%y", (first, "%y0"), (second, "%y1"), (top, "%y_step"), (left, str(ITEM)))
        _tile(t, x, y, _left(t, "%rows", top), _left(t, "%columns", left))
    t("ret void")
    head = f"define void @{name}(ptr noalias readonly %a, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {{"
    return "\n".join([head, "entry:", *t.slots, *t.lines, "}"])


def _digit(t: VectorText, number: str, size: str) -> tuple[str, str]:
    return t.let(f"urem i64 {number}, {size}"), t.let(f"udiv i64 {number}, {size}")


def _moved(t: VectorText, pointer: str, *steps: tuple[str, str]) -> str:
    for index, stride in steps:
        pointer = t.at(pointer, t.let(f"mul i64 {index}, {stride}"))
    return pointer


def _left(t: VectorText, size: str, start: str) -> str:
    rest = t.let(f"sub i64 {size}, {start}")
    return t.let(f"select i1 {t.let(f'icmp slt i64 {rest}, {SIDE}')}, i64 {rest}, i64 {SIDE}")


def _tile(t: VectorText, x: str, y: str, rows: str, columns: str) -> None:
    """Squares as far as they go, and single elements at the edges."""
    lanes = t.lanes
    whole_rows, whole_columns = (t.let(f"and i64 {n}, {-lanes}") for n in (rows, columns))
    with t.steps("0", whole_columns, lanes) as column, t.steps("0", whole_rows, lanes) as row:
        here = _moved(t, x, (column, "%x_step"), (row, str(ITEM)))
        there = _moved(t, y, (row, "%y_step"), (column, str(ITEM)))
        lines = [t.load(_moved(t, here, (str(i), "%x_step"))) for i in range(lanes)]
        for i, line in enumerate(t.transposed(lines)):
            t.store(line, _moved(t, there, (str(i), "%y_step")))
    for first, last, start in ((whole_columns, columns, "0"), ("0", whole_columns, whole_rows)):
        with t.loop(first, last) as column, t.loop(start, rows) as row:
            element = t.let(f"load i32, ptr {_moved(t, x, (column, '%x_step'), (row, str(ITEM)))}, align {ITEM}")
            t(f"store i32 {element}, ptr {_moved(t, y, (row, '%y_step'), (column, str(ITEM)))}, align {ITEM}")
