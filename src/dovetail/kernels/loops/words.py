"""Statements of the loop language for what blocks of one kernel send to each other without a barrier.

An element in `stamped` memory is a word of twice its size: its bits, and the number of the launch that wrote it. A word
is read and written as a whole, so that a thread that finds the number of this launch has the element too, and needs no
other order of memory. Strides and offsets of such a tensor are those of its words.
"""

from __future__ import annotations

from dovetail.dataclass import dataclass
from dovetail.kernels.loops.expr import Expr, Tensor


@dataclass(frozen=True, slots=True)
class Receipt:
    """Elements that follow each other in stamped memory, and where they go in shared memory."""

    source: Tensor
    source_at: tuple[Expr, ...]
    """Where the first element is."""
    target: Tensor
    count: int


@dataclass(frozen=True, slots=True)
class Receive:
    """The threads of a block wait for elements that blocks of this launch write, and copy them to shared memory."""

    receipts: tuple[Receipt, ...]
    pause: int = 0
    """Cycles after the barrier before it, of the whole block, in which no thread looks for them."""


@dataclass(frozen=True, slots=True)
class Amend:
    """Where a warp copied rows of a tensor to: rows that stages of its block write meanwhile are stored there again.

    `amend.py` makes statements of it; no kernel that runs has one.
    """

    source: Tensor
    lead: tuple[Expr, ...]
    """The index along the axes before rows and columns."""
    first: Expr
    """The first row."""
    rows: int
    columns: int
    target: Tensor
    target_at: tuple[Expr, ...]
    """Where an element is: `line` is its row from the first on, and a lane has 8 columns, of which `element` is one."""


__all__ = ["Amend", "Receipt", "Receive"]
