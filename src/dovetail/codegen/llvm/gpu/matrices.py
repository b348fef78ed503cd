"""Private arrays with elements of matrices as LLVM's text: words of them, products by an element, roundings."""

from __future__ import annotations

from dovetail.codegen.llvm.builder import Builder
from dovetail.errors import GraphError
from dovetail.ir.dtype import DType, bf16, f16


def scale(t: Builder, target: str, source: str, dtype: DType) -> None:
    """Multiply eight 16-bit floats of a private array by those of another, two at a time."""
    if dtype not in (f16, bf16):
        raise GraphError(f"pairs of {dtype.name} as one factor", hint="multiply elements one by one")
    pair = "<2 x half>" if dtype is f16 else "<2 x bfloat>"
    for i in range(4):
        x, y = (t.let(f"load {pair}, ptr {word(t, pointer, i)}, align 4") for pointer in (target, source))
        t.emit(f"store {pair} {t.let(f'fmul {pair} {x}, {y}')}, ptr {word(t, target, i)}, align 4")


def narrow(t: Builder, target: str, source: str, dtype: DType) -> None:
    """Eight f32 of a private array to 16-bit floats of another, two at a time."""
    kind = "half" if dtype is f16 else "bfloat"
    for i in range(4):
        pair = "undef"
        for e in range(2):
            value = t.let(f"load float, ptr {word(t, source, 2 * i + e)}, align 4")
            pair = t.let(f"insertelement <2 x float> {pair}, float {value}, i32 {e}")
        rounded = t.let(f"fptrunc <2 x float> {pair} to <2 x {kind}>")
        t.emit(f"store <2 x {kind}> {rounded}, ptr {word(t, target, i)}, align 4")


def loaded(t: Builder, pointer: str, kind: str, count: int) -> list[str]:
    """Words of a private array, with their type."""
    return [f"{kind} {t.let(f'load {kind}, ptr {word(t, pointer, i)}, align 4')}" for i in range(count)]


def word(t: Builder, pointer: str, index: int) -> str:
    """The place of a word of four bytes."""
    return pointer if index == 0 else t.let(f"getelementptr inbounds i8, ptr {pointer}, i64 {4 * index}")


__all__ = ["loaded", "narrow", "scale", "word"]
