"""Packing of a head's keys and values, where their row stride causes L1 set conflicts.

Lines whose addresses are equal modulo 4 KiB map to one set of L1, which holds few of them. Rows a large power of two
apart evict each other before they are read again. Packed rows stay for the later tiles that read the same head.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import gcd

from dovetail.codegen.llvm.handles import I64, Int, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH
from dovetail.ir.dim import Size
from dovetail.targets.cpu.attention.parts import rows_function
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend
from dovetail.targets.cpu.attention.tile import AttendBuilder


def crowded(stride: Size, width: int) -> bool:
    """Whether rows of f32 with this stride evict each other from L1, though a block would fit."""
    if not isinstance(stride, int) or stride == 4 * width:
        return False
    return ATTENTION.set_period // gcd(ATTENTION.set_period, stride) * ATTENTION.ways < ATTENTION.block


def packed_widths(a: Attend) -> dict[str, int]:
    """Which of keys and values are packed, and how wide their rows are."""
    if a.is_few or a.stored != "float" or (a.blocks == 1 and a.groups == 1):
        return {}
    # Rotated keys are in the workspace already.
    widths = {"v": a.dv} if a.rotated is not None else {"k": a.d, "v": a.dv}
    strides = {n: a.strides[n][-2:] for n in widths}
    return {n: w for n, w in widths.items() if strides[n][1] == 4 and crowded(strides[n][0], w)}


class PackedHead:
    """The rows of one head that are packed while a tile runs."""

    def __init__(self, t: AttendBuilder) -> None:
        self.t = t
        self.widths = packed_widths(t.problem)
        each = 4 * sum(self.widths.values())
        keys = t.problem.keys
        self.most = 0
        if each:
            most = ATTENTION.packed_bytes // each
            self.most = min(most, keys) if isinstance(keys, int) else most
        self.bytes = -(-self.most * each // 64) * 64
        self.rows: dict[str, Ptr] = {}
        self.count = I64("0")

    def pack(self, head: I64, at: Mapping[str, Ptr], end: Int) -> None:
        """Pack the rows of a head up to `end`, or as many as there is room for, unless they are there."""
        if not self.widths:
            return
        t, strides = self.t, self.t.problem.strides
        start = t.problem.room
        for name, width in self.widths.items():
            self.rows[name] = t.ptr_add(SCRATCH, start)
            start += self.most * 4 * width
        self.count = t.smin(end, self.most)
        counted = t.ptr_add(SCRATCH, 8)
        is_same = t.icmp("eq", t.load_i64(SCRATCH), head)
        done = t.select_int(is_same, t.load_i64(counted), 0)
        with t.when(t.icmp("slt", done, self.count)):
            t.store_i64(head, SCRATCH)
            t.store_i64(self.count, counted)
            missing = t.sub(self.count, done)
            for name, width in self.widths.items():
                stride = strides[name][-2]
                x = t.ptr_add(at[name], t.scaled(done, stride))
                to = t.ptr_add(self.rows[name], t.mul(done, 4 * width))
                t.call_shared(rows_function(t.device, width), x, t.size(stride), missing, to)

    def block(self, name: str, x: Ptr, stride: Int, first: I64, count: I64) -> tuple[Ptr, Int]:
        """A block of keys or values and its row stride: packed, or else where it is."""
        if name not in self.widths:
            return x, stride
        t, width = self.t, 4 * self.widths[name]
        is_here = t.icmp("sle", t.add(first, count), self.count)
        here = t.ptr_add(self.rows[name], t.mul(first, width))
        return t.select_ptr(is_here, here, x), t.select_int(is_here, width, stride)


__all__ = ["PackedHead", "crowded", "packed_widths"]
