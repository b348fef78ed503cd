"""Packing of weights of two bytes by compiled loops: rows become columns of panels, eight by eight.

NumPy moves two bytes at a time, and converts f16 through f32 in arrays of their own. Callers run in several threads;
compiled code holds no lock of Python's.
"""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from functools import cache
from typing import Any

import numpy as np

from dovetail.ir.literal import Array
from dovetail.targets.cpu.jit import Compiled, compile_text

_LOCK = threading.Lock()
SIDE = 8
"""Rows and steps along k that are transposed at once."""
_RAW, _HALF, _FLOAT = f"<{SIDE} x i16>", f"<{SIDE} x half>", f"<{SIDE} x float>"
_LOW = ", ".join([f"i32 {lane // 2 + SIDE * (lane % 2)}" for lane in range(SIDE)])
_HIGH = ", ".join([f"i32 {SIDE // 2 + lane // 2 + SIDE * (lane % 2)}" for lane in range(SIDE)])
_PREFETCH = "declare void @llvm.prefetch.p0(ptr, i32, i32, i32)"
_POWERS = (2.0**-24, 2.0**15)
"""The smallest and the largest power of two in f16."""
_LARGEST = """
define void @largest(ptr %rows, i64 %stride, i64 %steps, ptr %onto, i64 %count) {
entry:
  br label %row
row:
  %number = phi i64 [ 0, %entry ], [ %number.next, %done ]
  %offset = mul i64 %number, %stride
  %start = getelementptr i8, ptr %rows, i64 %offset
  br label %along
along:
  %step = phi i64 [ 0, %row ], [ %step.next, %along ]
  %most = phi i16 [ 0, %row ], [ %more, %along ]
  %at = getelementptr i16, ptr %start, i64 %step
  %bits = load i16, ptr %at, align 2
  %size = and i16 %bits, 32767
  %is = icmp ugt i16 %size, %most
  %more = select i1 %is, i16 %size, i16 %most
  %step.next = add nuw nsw i64 %step, 1
  %again = icmp ult i64 %step.next, %steps
  br i1 %again, label %along, label %done
done:
  %there = getelementptr i16, ptr %onto, i64 %number
  store i16 %more, ptr %there, align 2
  %number.next = add nuw nsw i64 %number, 1
  %left = icmp ult i64 %number.next, %count
  br i1 %left, label %row, label %end
end:
  ret void
}
"""


def fill(panels: Array, rows: Array, factors: Array | None = None) -> bool:
    """Write rows [n * NR, k] as panels [n, k, NR], each row times its factor; False where shapes do not fit."""
    (count, steps), width = rows.shape, panels.shape[2]
    whole = count == len(panels) * width and width % SIDE == 0 and steps % SIDE == 0 and rows.size > 0
    if not whole or rows.strides[1] != 2 or panels.strides[2] != 2:
        return False
    name, scales = ("fill", None) if factors is None else _factors(factors)
    source, target = (rows.ctypes.data, rows.strides[0], steps), (panels.ctypes.data, *panels.strides[:2])
    place = 0 if scales is None else scales.ctypes.data
    _function(name)(*source, *target, place, count // SIDE, width // SIDE)
    return True


def _factors(factors: Array) -> tuple[str, Array]:
    """The function that multiplies by powers of two, and the factors in its dtype."""
    # Powers of two that f16 has give the same bits there, without a conversion of every weight to f32 and back.
    if factors.max() <= _POWERS[1] and factors.min() >= _POWERS[0]:
        return "scale", factors.astype(np.float16)
    return "scale_wide", np.ascontiguousarray(factors, np.float32)


def largest(rows: Array) -> Array:
    """The bits of the largest magnitude of each row."""
    exponents = np.zeros(len(rows), np.uint16)
    if rows.size and rows.strides[1] == 2:
        _function("largest")(rows.ctypes.data, rows.strides[0], rows.shape[1], exponents.ctypes.data, len(rows))
        return exponents
    return (rows & np.uint16(0x7FFF)).max(axis=1, initial=0)


def _function(name: str) -> Callable[..., None]:
    # Two threads that compile at once would each keep the address of code that only one of them keeps.
    with _LOCK:
        return _compiled_function(name)


@cache
def _compiled_function(name: str) -> Callable[..., None]:
    pointer, number = ctypes.c_void_p, ctypes.c_int64
    kinds: list[Any] = [pointer, number, number, pointer, number]
    if name != "largest":
        kinds += [number, pointer, number, number]
    return ctypes.CFUNCTYPE(None, *kinds)(_code().address(name))


@cache
def _code() -> Compiled:
    moves = [_transpose("fill", ""), _transpose("scale", "half"), _transpose("scale_wide", "float")]
    return compile_text("\n".join([_PREFETCH, _LARGEST, *moves]))


def _transpose(name: str, factor: str) -> str:
    """Rows as columns of panels: `groups` of eight rows, of which a panel has `each`.

    `factor` is the type of a row's factor, empty where rows are moved as they are.
    """
    vector = f"<{SIDE} x {factor}>"
    parameters = "ptr %all, i64 %stride, i64 %steps, ptr %panels, i64 %panel_stride, i64 %pitch, ptr %factors"
    lines = [f"define void @{name}({parameters}, i64 %groups, i64 %each) {{", "entry:", "  br label %group", "group:"]
    lines += [
        "  %number = phi i64 [ 0, %entry ], [ %number.next, %done ]",
        f"  %first = mul i64 %number, {SIDE}",
        "  %start = mul i64 %first, %stride",
        "  %rows = getelementptr i8, ptr %all, i64 %start",
        f"  %ahead = mul i64 %stride, {SIDE}",
        "  %index = udiv i64 %number, %each",
        "  %before = mul i64 %index, %each",
        "  %lane = sub i64 %number, %before",
        "  %skipped = mul i64 %index, %panel_stride",
        "  %here = getelementptr i8, ptr %panels, i64 %skipped",
        f"  %panel = getelementptr <{SIDE} x i16>, ptr %here, i64 %lane",
    ]
    for row in range(SIDE):
        lines.append(f"  %offset{row} = mul i64 %stride, {row}")
        lines.append(f"  %row{row} = getelementptr i8, ptr %rows, i64 %offset{row}")
        if factor:
            lines.append(f"  %which{row} = add i64 %first, {row}")
            lines.append(f"  %there{row} = getelementptr {factor}, ptr %factors, i64 %which{row}")
            lines.append(f"  %one{row} = load {factor}, ptr %there{row}, align 2")
            lines.append(f"  %first{row} = insertelement {vector} poison, {factor} %one{row}, i64 0")
            splat = f"shufflevector {vector} %first{row}, {vector} poison, <{SIDE} x i32> zeroinitializer"
            lines.append(f"  %factor{row} = {splat}")
    lines += ["  br label %along", "along:", "  %step = phi i64 [ 0, %group ], [ %next, %along ]"]
    held = [_loaded(lines, row, factor) for row in range(SIDE)]
    # Each round interleaves the first half of the vectors with the second: three of them transpose.
    for turn in range(SIDE.bit_length() - 1):
        names: list[str] = []
        for index in range(SIDE // 2):
            x, y = held[index], held[index + SIDE // 2]
            for word, mask in (("low", _LOW), ("high", _HIGH)):
                names.append(f"%{word}{turn}.{index}")
                lines.append(f"  {names[-1]} = shufflevector {_RAW} {x}, {_RAW} {y}, <{SIDE} x i32> <{mask}>")
        held = names
    for column, vector in enumerate(held):
        lines.append(f"  %step{column} = add i64 %step, {column}")
        lines.append(f"  %place{column} = mul i64 %step{column}, %pitch")
        lines.append(f"  %target{column} = getelementptr i8, ptr %panel, i64 %place{column}")
        lines.append(f"  store {_RAW} {vector}, ptr %target{column}, align 2")
    lines += [f"  %next = add nuw nsw i64 %step, {SIDE}", "  %again = icmp ult i64 %next, %steps"]
    lines += ["  br i1 %again, label %along, label %done", "done:", "  %number.next = add nuw nsw i64 %number, 1"]
    lines += ["  %left = icmp ult i64 %number.next, %groups", "  br i1 %left, label %group, label %end"]
    lines += ["end:", "  ret void", "}", ""]
    return "\n".join(lines)


def _loaded(lines: list[str], row: int, factor: str) -> str:
    lines.append(f"  %at{row} = getelementptr i16, ptr %row{row}, i64 %step")
    lines.append(f"  %bits{row} = load {_RAW}, ptr %at{row}, align 2")
    # The row that is in its place of the next group.
    lines.append(f"  %next{row} = getelementptr i8, ptr %at{row}, i64 %ahead")
    lines.append(f"  call void @llvm.prefetch.p0(ptr %next{row}, i32 0, i32 3, i32 1)")
    if not factor:
        return f"%bits{row}"
    lines.append(f"  %half{row} = bitcast {_RAW} %bits{row} to {_HALF}")
    if factor == "half":
        lines.append(f"  %narrow{row} = fmul {_HALF} %half{row}, %factor{row}")
    else:
        lines.append(f"  %wide{row} = fpext {_HALF} %half{row} to {_FLOAT}")
        lines.append(f"  %scaled{row} = fmul {_FLOAT} %wide{row}, %factor{row}")
        lines.append(f"  %narrow{row} = fptrunc {_FLOAT} %scaled{row} to {_HALF}")
    lines.append(f"  %found{row} = bitcast {_HALF} %narrow{row} to {_RAW}")
    return f"%found{row}"


__all__ = ["fill", "largest"]
