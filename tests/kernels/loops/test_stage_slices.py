"""Stages that a block runs for itself: which part of them it needs."""

from __future__ import annotations

from dovetail.ir.dtype import f32
from dovetail.kernels.loops.ir import ZERO, Extent, Load, Loop, Name, Number, Statement, Store, Tensor, ThreadIndex
from dovetail.kernels.loops.launch_fusion.stage_narrowing import Index
from dovetail.kernels.loops.launch_fusion.stage_slices import indices_of

HEADS, WIDTH = 4, 32
BLOCK, THREAD = ThreadIndex("block"), ThreadIndex("thread")
ROWS = Tensor("rows", f32, (4 * WIDTH, 4), space="shared")
KEPT = Tensor("kept", f32, (4,), space="private")


def _index_of(*stage: Statement) -> Index | None:
    reader = Store(Tensor("y", f32, (4 * WIDTH, 4)), (BLOCK, THREAD), Load(ROWS, (BLOCK, THREAD)))
    (found,) = indices_of([(Loop("head", Extent(HEADS), stage),)], (reader,), HEADS, {})
    return found


def test_a_block_needs_the_rows_of_its_own_head() -> None:
    store = Store(ROWS, (Name("head"), THREAD), Number(1.0, f32))
    assert _index_of(store) == Index("head", 1, BLOCK)
    assert _index_of(Store(ROWS, (ZERO, THREAD), Number(1.0, f32))) is None, "no index of the stage decides the row"


def test_what_a_thread_keeps_in_registers_is_no_result() -> None:
    keep = Store(KEPT, (ZERO,), Number(1.0, f32))
    store = Store(ROWS, (Name("head"), THREAD), Load(KEPT, (ZERO,)))
    assert _index_of(keep, store) == Index("head", 1, BLOCK)
