"""Packing of a head's keys and values, where their row stride causes set conflicts in L1, or misses in L2 and the TLB.

Lines whose addresses are equal modulo 4 KiB map to one set of L1, which holds few of them. Rows a large power of two
apart evict each other before they are read again. Many rows far apart use a part of the sets of L2, and more pages than
the TLB has entries for. Packed rows stay for the later tiles that read the same head.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import gcd

from dovetail.codegen.llvm.handles import I1, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import SCRATCH
from dovetail.dataclass import dataclass
from dovetail.ir.dim import Size
from dovetail.targets.cpu.attention.functions import Shared
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend
from dovetail.targets.cpu.attention.tile import AttendBuilder


def crowded(stride: Size, width: int) -> bool:
    """Whether rows of f32 with this stride evict each other from L1, though a block would fit."""
    if not isinstance(stride, int) or stride == 4 * width:
        return False
    return ATTENTION.set_period // gcd(ATTENTION.set_period, stride) * ATTENTION.associativity < ATTENTION.block


def scattered(a: Attend, stride: Size, width: int) -> bool:
    """Whether rows of f32 with this stride may be too far apart for the TLB: a run decides for unknown sizes."""
    if not a.device.has("fma_by_lane") or not isinstance(stride, int) or stride == 4 * width:
        return False
    is_long = not isinstance(a.keys, int) or a.keys * stride >= ATTENTION.far_bytes
    return is_long and (not isinstance(a.queries, int) or a.queries >= ATTENTION.far_queries)


def packed_widths(a: Attend) -> dict[str, int]:
    """Which of keys and values are packed, and how wide their rows are."""
    if a.is_few or a.stored != "float":
        return {}
    if a.narrows:
        return {"k": a.d, "v": a.dv}
    if a.blocks == 1 and a.groups == 1:
        return {}
    # Rotated keys are in the workspace already.
    widths = {"v": a.dv} if a.rotated is not None else {"k": a.d, "v": a.dv}
    strides = {n: a.strides[n][-2:] for n in widths}
    return {n: w for n, w in widths.items() if strides[n][1] == 4 and packs_rows(a, strides[n][0], w)}


def packs_rows(a: Attend, stride: Size, width: int) -> bool:
    """Whether rows with this stride are packed."""
    return crowded(stride, width) or scattered(a, stride, width)


@dataclass(frozen=True, slots=True)
class KeyValuePacking:
    """How rows of keys and values are packed: bytes of a number, rows that go together, and what packs them."""

    item: int
    together: int
    function: Callable[[Attend, str], Shared]
    """For keys or values, `(x, stride, rows, to)`."""


class PackedHead:
    """The rows of one head that are packed while a tile runs."""

    def __init__(self, t: AttendBuilder, packing: KeyValuePacking) -> None:
        self.t, self.packing = t, packing
        self.widths = packed_widths(t.problem)
        self.item, whole = packing.item, packing.together
        each = self.item * sum(self.widths.values())
        keys = t.problem.keys
        self.most = 0
        if each:
            most = ATTENTION.packed_bytes // each // whole * whole
            self.most = min(most, -(-keys // whole) * whole) if isinstance(keys, int) else most
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
            start += self.most * self.item * width
        self.count = t.smin(end, self.most)
        enough = self._enough()
        if enough is not None:
            self.count = t.select_int(enough, self.count, 0)
        counted = t.ptr_add(SCRATCH, 8)
        is_same = t.icmp("eq", t.load_i64(SCRATCH), head)
        done = t.select_int(is_same, t.load_i64(counted), 0)
        with t.when(t.icmp("slt", done, self.count)):
            done = t.mul(t.udiv(done, self.packing.together), self.packing.together)
            t.store_i64(head, SCRATCH)
            t.store_i64(self.count, counted)
            missing = t.sub(self.count, done)
            for name, width in self.widths.items():
                stride = strides[name][-2]
                x = t.ptr_add(at[name], t.scaled(done, stride))
                to = t.ptr_add(self.rows[name], t.mul(done, self.item * width))
                t.call_shared(self.packing.function(t.problem, name), x, t.size(stride), missing, to)

    def _enough(self) -> I1 | None:
        """Whether rows that are only far apart are enough for packing to pay; None where that is known."""
        t, a = self.t, self.t.problem
        if a.narrows:
            return None
        strides = {n: a.strides[n][-2] for n in self.widths}
        if any(crowded(strides[n], w) for n, w in self.widths.items()) or isinstance(a.keys * a.queries, int):
            return None
        far = t.icmp("sge", t.scaled(t.size(a.keys), next(iter(strides.values()))), ATTENTION.far_bytes)
        return t.and_(far, t.icmp("sge", t.size(a.queries), ATTENTION.far_queries))

    def halves(self, name: str, first: I64, count: I64) -> tuple[Ptr, I1]:
        """A block of keys or values in 16 bits, and whether it is packed."""
        t = self.t
        is_here = t.icmp("sle", t.add(first, count), self.count)
        return t.ptr_add(self.rows[name], t.mul(first, self.item * self.widths[name])), is_here

    def block(self, name: str, x: Ptr, stride: Int, first: I64, count: I64) -> tuple[Ptr, Int]:
        """A block of keys or values and its row stride: packed, or else where it is."""
        if name not in self.widths:
            return x, stride
        t, width = self.t, 4 * self.widths[name]
        is_here = t.icmp("sle", t.add(first, count), self.count)
        here = t.ptr_add(self.rows[name], t.mul(first, width))
        return t.select_ptr(is_here, here, x), t.select_int(is_here, width, stride)


__all__ = ["KeyValuePacking", "PackedHead", "crowded", "packed_widths", "scattered"]
