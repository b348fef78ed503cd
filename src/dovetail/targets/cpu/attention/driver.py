"""The driver of attention: it finds the queries of each tile, and what they attend to.

A tile is a block of queries of one head, or with few queries all that attend to a head of keys. Where keys are rotated
it is several blocks of all heads that share keys, which are rotated once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

from dovetail.codegen.llvm.handles import I64, TRUE, Int, Ptr
from dovetail.codegen.llvm.kernel import BEGIN, END, SCRATCH
from dovetail.ir.dim import Size
from dovetail.targets.cpu.attention.amx import TileProducts
from dovetail.targets.cpu.attention.f16 import F16Products, HalfFewQueries
from dovetail.targets.cpu.attention.few import FewQueries
from dovetail.targets.cpu.attention.online import F32Products, OnlineSoftmax, Products
from dovetail.targets.cpu.attention.pack_kv import PackedHead
from dovetail.targets.cpu.attention.policy import ATTENTION
from dovetail.targets.cpu.attention.shape import Attend, few_regions, offsets_of, widths
from dovetail.targets.cpu.attention.tile import AttendBuilder, AttendCode, finished_code, write_rotated


def attend_code(problem: Attend) -> AttendCode:
    """The kernel of an attention."""
    driver = _Driver(problem)
    with driver.loop(BEGIN, END) as number:
        driver.tile(number)
    return finished_code("attend", driver, driver.scratch, is_final=problem.is_glue)


def _products_of(a: Attend) -> type[Products]:
    """The form of products with many queries."""
    return TileProducts if a.on_tiles else F16Products if a.halves else F32Products


class _Driver(AttendBuilder):
    """The function that goes through tiles."""

    def __init__(self, problem: Attend) -> None:
        super().__init__(problem)
        self.products = _products_of(problem)
        self.packed = PackedHead(self, self.products.packing)

    @property
    def scratch(self) -> Size:
        """Bytes of workspace."""
        a = self.problem
        if a.is_few:
            return offsets_of(few_regions(a, a.few_rows))[1]
        room: Size = a.room + self.packed.bytes
        # A few keys more, because they are scored several at a time.
        return room if a.rotated is None else room + (a.keys + self.lanes) * (4 * a.d)

    def tile(self, number: I64) -> None:
        """Find the place of a tile, then attend with as few vectors as its queries need."""
        a = self.problem
        if a.is_few:
            self._few(number)
        elif a.rotated is not None:
            self._rotated_tile(number)
        else:
            self._tile(number)

    @property
    def _few_queries(self) -> type[FewQueries]:
        return HalfFewQueries if self.problem.few_halves else FewQueries

    def _few(self, number: I64) -> None:
        """All queries of a head of keys, those of several members of a batch where they share it."""
        a = self.problem
        if a.folded is None:
            *lead, shared = self.indices(number, a.few_lead)
            self._few_queries(self, self.locations(lead, self.mul(shared, a.groups), shared, 0), a.few_rows).run()
            return
        *lead, shared, block = self.indices(number, a.few_lead)
        first = self.mul(block, ATTENTION.members)
        members = self.smin(ATTENTION.members, self.sub(self.size(a.lead[a.folded]), first))
        lead.insert(a.folded, first)
        at = self.locations(lead, self.mul(shared, a.groups), shared, 0)
        self._few_queries(self, at, a.few_rows, count=self.mul(members, a.few_rows // ATTENTION.members)).run()

    def _tile(self, number: I64) -> None:
        a = self.problem
        *lead, head, block = self.indices(number, (*a.lead, a.heads, a.blocks))
        shared = self.sdiv(head, a.groups)
        first = self.mul(block, a.rows)
        rows = self.smin(a.rows, self.sub(self.size(a.queries), first))
        at = self.locations(lead, head, shared, first)
        end: Int = self.visible_keys(first, self.add(first, rows))[1] if a.causal else self.size(a.keys)
        self.packed.pack(self.sdiv(number, self.scaled(a.groups, a.blocks)), at, end)
        some = TRUE
        if a.may_be_few:
            less = self.icmp("sle", rows, ATTENTION.few)
            with self.when(less):
                FewQueries(self, at, ATTENTION.few, count=rows, first=first).run()
            some = self.not_(less)
        with self.when(some):
            self._rows(at, first, rows)

    def _rotated_tile(self, number: I64) -> None:
        """Rotate the keys once for several blocks of queries of all the heads that share them."""
        a = self.problem
        *lead, shared, block = self.indices(number, (*a.lead, a.shared, a.spans))
        start = self.mul(block, a.span)
        low: Int = 0
        end: Int = self.size(a.keys)
        if a.causal and a.fill is not None and math.isinf(a.fill):
            low, end = self.visible_keys(start, self.add(start, a.span))
        keys = self.ptr_add(SCRATCH, a.room + self.packed.bytes)
        at = self.locations(lead, 0, shared, 0)
        write_rotated(self, "k", at, low, self.sub(end, low), self.ptr_add(keys, self.mul(low, 4 * a.d)))
        self.packed.pack(self.sdiv(number, self.size(a.spans)), at, end)
        with self.loop(0, a.groups) as group, self.loop(0, a.span // a.rows) as part:
            head = self.add(self.mul(shared, a.groups), group)
            first = self.add(start, self.mul(part, a.rows))
            rows = self.smin(a.rows, self.sub(self.size(a.queries), first))
            self._rows({**self.locations(lead, head, shared, first), "k": keys}, first, rows)

    def _rows(self, at: Mapping[str, Ptr], first: I64, rows: I64) -> None:
        """A block of queries with as few vectors as it needs; none at all where there are no rows."""
        if self.problem.narrows:
            with self.when(self.icmp("sgt", rows, 0)):
                self._attend(self.problem.wide, at, first, rows)
            return
        for wide in widths(self.problem.device, self.problem.queries):
            least = self.icmp("sgt", rows, wide // 2 * self.lanes)
            most = self.icmp("sle", rows, wide * self.lanes)
            with self.when(self.and_(least, most)):
                self._attend(wide, at, first, rows)

    def _attend(self, wide: int, at: Mapping[str, Ptr], first: I64, rows: I64) -> None:
        """With lanes along queries; keys that positions hide are left out where they weigh nothing."""
        a = self.problem
        work = OnlineSoftmax(self, self.products, self.packed, wide, at, first, rows)
        work.prefetch_results()
        work.pack_queries()
        end = self.size(a.keys)
        if not a.causal:
            work.attend(0, end)
        else:
            work.attend(*self.visible_keys(first, self.add(first, rows)))
            if a.lost_below is not None:
                with self.when(work.sees_nothing(a.lost_below)):
                    work.attend(0, end)
        work.write()
