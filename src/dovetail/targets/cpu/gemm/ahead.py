"""Prefetch for the epilogue of a contraction: while one row tile is finished, it prefetches what the next one reads.

The operands of an epilogue have a cache line or two in each row, and rows are too far apart for the hardware to guess.
"""

from __future__ import annotations

from collections.abc import Sequence

from dovetail.codegen.llvm.arguments import Words
from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function
from dovetail.codegen.llvm.handles import Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, DRIVER, END, SCRATCH, WORDS, inner_name
from dovetail.ir.dim import symbol
from dovetail.kernels.loops.ir import Kernel


def ahead_function(epilogue: Kernel, fetched: Sequence[str], width: int, line: int) -> Function:
    """An epilogue that first prefetches the rows after its own: `width` bytes of each operand in every row."""
    t = Builder()
    given = Words.load(t, WORDS, epilogue.pointers, [str(size) for size in epilogue.sizes])
    after = t.add(END, t.sub(END, BEGIN))
    for operand in fetched:
        step = given.sizes[str(symbol(f"{operand}_row"))]
        with t.loop(END, after) as row:
            prefetch_row(t, given.pointers[operand], t.mul(row, step), width, line)
    t.call(DRIVER.renamed(inner_name(epilogue)), WORDS, BEGIN, END, SCRATCH)
    return t.function(DRIVER, attributes="nounwind")


def prefetch_row(t: Builder, operand: Ptr, offset: Int, width: int, line: int) -> None:
    """Prefetch all cache lines of `width` bytes, which begin anywhere in a line of `line` bytes."""
    row = t.ptr_add(operand, offset)
    for byte in (*range(0, width, line), width - 4):
        t.prefetch(t.ptr_add(row, byte))


__all__ = ["ahead_function", "prefetch_row"]
