"""The cache block of matrix multiplication: MC rows of A times one B panel, KC steps along k at a time.

It goes through k in blocks of KC that fit L1, and through the rows tile by tile; accumulators wait in the workspace
between blocks. Blocks that are summed apart are the same for every row count, so that bits are too: where KC depends on
the row count, a block has parts, or KC has several blocks. After the last block the epilogue takes the accumulators of
a tile while they are in L1.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import FALSE, I1, I64, TRUE, Int, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.dataclass import dataclass
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.f32.micro_kernel import micro_kernel_signature, micro_kernel_text
from dovetail.targets.cpu.gemm.policy import GEMM
from dovetail.targets.cpu.gemm.tile import Tile

BLOCK = Signature(
    "gemm_block",
    (
        Parameter("ptr", "a"), Parameter("i64", "stride"), Parameter("ptr", "b"), Parameter("i64", "rows"),
        Parameter("i64", "depth"), Parameter("ptr", "sums"), Parameter("ptr", "c"), Parameter("i64", "target"),
        Parameter("i64", "width"), Parameter("ptr", "epilogue"), Parameter("ptr", "words"),
    ),
)  # fmt: skip
"""A and the stride of its rows, the panel [depth][NR], rows, depth, room for accumulators [rows][NR], C and the stride
of its rows, the width of C in bytes, and the epilogue with its words."""
_A, _STRIDE, _B, _ROWS, _DEPTH = Ptr("%a"), I64("%stride"), Ptr("%b"), I64("%rows"), I64("%depth")
_SUMS, _C, _TARGET, _WIDTH, _WORDS = Ptr("%sums"), Ptr("%c"), I64("%target"), I64("%width"), Ptr("%words")


def kc_of(tile: Tile) -> int:
    """KC of a tile, whole iterations of the micro-kernel."""
    above, below = GEMM.panel_share
    room = tile.device.caches.l1_room * above // below
    return min(GEMM.kc, room // tile.row_bytes) // GEMM.unroll * GEMM.unroll


@cache
def block_function(tile: Tile) -> tuple[SharedFunction, Signature]:
    """The cache block as a function that kernels share, and how to call it."""
    return shared_function(_block(tile))


def block_text(tile: Tile) -> str:
    """The module of the cache block."""
    return block_function(tile)[0].text


def _block(tile: Tile) -> Function:
    text = micro_kernel_text(tile)
    block = _Block(tile).function(BLOCK.renamed(f"{tile.name}.block"), attributes="nounwind")
    uses = tuple([use for use in block.uses if use not in text])
    return Function(block.signature, f"{text}\n{block.text}", uses)


@dataclass(frozen=True, slots=True)
class _Part:
    """A KC block: the k steps that are summed before the next rows, and where they are along k."""

    start: I64
    steps: I64
    number: I64
    count: I64
    group: I64 | None = None
    """The blocks that are summed apart, and how many there are, where parts are not blocks."""
    groups: I64 | None = None
    summed: Int = 0
    """Steps of a block."""
    partial: Ptr | None = None
    begins: I1 = FALSE
    ends: I1 = FALSE

    def is_fresh(self, t: Builder) -> I1:
        """Whether no block was summed before."""
        return t.icmp("eq", self.number if self.group is None else self.group, 0)

    def is_final(self, t: Builder) -> I1:
        if self.group is None or self.groups is None:
            return t.icmp("eq", t.add(self.number, 1), self.count)
        return t.and_(self.ends, t.icmp("eq", t.add(self.group, 1), self.groups))


class _Block(Builder):
    """The function of a cache block."""

    def __init__(self, tile: Tile) -> None:
        super().__init__()
        self.tile = tile
        self._write()

    def _write(self) -> None:
        # Shared by all products of small matrices, where integer divisions would show.
        small = self.and_(self.icmp("sle", _ROWS, self.tile.rows), self.icmp("ne", _DEPTH, 0))
        small = self.and_(small, self.icmp("sle", _DEPTH, min(kc_of(self.tile), GEMM.kc_prefetching)))
        with self.when(small):
            self._one_part()
        with self.unless(small):
            self._all_parts()

    def _one_part(self) -> None:
        """A product of one row tile and one block."""
        self._prefetch_c(I64("0"), I64("0"), _ROWS)
        also: list[Int | I1 | Ptr] = []
        if self.tile.calls_are_blocks:
            also = [self._soon(_B), GEMM.unroll * self.tile.row_bytes]
        else:
            also = [self.round_up(_DEPTH, GEMM.unroll), _SUMS, TRUE, TRUE]
        micro = micro_kernel_signature(self.tile, prefetching=False)
        self.call(micro, _ROWS, _A, _STRIDE, _B, _SUMS, _DEPTH, TRUE, *also)
        self._finish(I64("0"), _ROWS)

    def _finish(self, row: I64, end: I64) -> None:
        """Run the epilogue on the sums of these rows."""
        self.emit(f"call void %epilogue(ptr {_WORDS}, i64 {row}, i64 {end}, ptr null)")

    def _all_parts(self) -> None:
        tile = self.tile
        tiles = self.udiv(self.add(_ROWS, tile.rows - 1), tile.rows)
        some = self.smax(tiles, 1)
        each, more = self.udiv(_ROWS, some), self.urem(_ROWS, some)
        uneven = self.and_(self.icmp("eq", tiles, 2), self.icmp("sge", _ROWS, tile.rows + GEMM.least_rows))
        if tile.calls_are_blocks:
            blocks, deep = self._equal_blocks(_DEPTH, kc_of(tile))
            with self.loop(0, blocks) as block:
                start = self.mul(block, deep)
                part = _Part(start, self.smin(deep, self.sub(_DEPTH, start)), block, blocks)
                self._go_through_rows(part, tiles, some, each, more, uneven, FALSE)
            return
        few, prefetching = self.icmp("sle", _ROWS, GEMM.smallest_m), self.icmp("sge", _ROWS, tile.many_rows)
        whole = self.or_(few, prefetching)
        partial = Ptr(self.let(f"alloca [{(tile.many_rows - 1) * tile.row_bytes} x i8], align {tile.line}"))
        kc_blocks, summed = self._equal_blocks(_DEPTH, GEMM.kc_prefetching)
        together = self.select_int(few, GEMM.kc_small_m // GEMM.kc_prefetching, 1)
        groups = self._ceil_udiv(kc_blocks, together)
        deep = self.mul(summed, together)
        with self.loop(0, groups) as group:
            first = self.mul(group, deep)
            left = self.smin(deep, self.sub(_DEPTH, first))
            least, shorter = self._equal_blocks(left, kc_of(tile))
            parts, length = self.select_int(whole, 1, least), self.select_int(whole, left, shorter)
            with self.loop(0, parts) as p:
                into = self.mul(p, length)
                begins, ends = self.icmp("eq", p, 0), self.icmp("eq", self.add(p, 1), parts)
                steps = self.smin(length, self.sub(left, into))
                number, count = self.add(self.mul(group, parts), p), self.mul(groups, parts)
                part = _Part(self.add(first, into), steps, number, count, group, groups, summed, partial, begins, ends)
                self._go_through_rows(part, tiles, some, each, more, uneven, prefetching)

    def _equal_blocks(self, depth: I64, most: int) -> tuple[I64, I64]:
        """The number of blocks of at most `most` steps, and their depth: none is too short to prefetch."""
        blocks = self.smax(self._ceil_udiv(depth, most), 1)
        return blocks, self.mul(self._ceil_udiv(self._ceil_udiv(depth, blocks), GEMM.unroll), GEMM.unroll)

    def _go_through_rows(
        self, part: _Part, tiles: I64, some: I64, each: I64, more: I64, uneven: I1, prefetching: I1
    ) -> None:
        """All row tiles along one part of k."""
        tile = self.tile
        fresh, final = part.is_fresh(self), part.is_final(self)
        b = self.ptr_add(_B, self.mul(part.start, tile.row_bytes))
        a = self.ptr_add(_A, self.mul(part.start, 4))
        with self.loop(0, tiles) as i:
            row = self.add(self.mul(i, each), self.smin(i, more))
            end = self.add(row, self.add(each, self.zext(self.icmp("slt", i, more))))
            row, end = self._uneven(i, row, end, uneven)
            rows = self.sub(end, row)
            if tile.calls_are_blocks:
                with self.when(final):
                    self._prefetch_c(row, I64("0"), rows)
            else:
                with self.unless(prefetching):
                    first = self._share(rows, part.number, part.count)
                    last = self._share(rows, self.add(part.number, 1), part.count)
                    self._prefetch_c(row, first, last)
            size = self.mul(part.steps, tile.row_bytes)
            share = self.ptr_add(self.ptr_add(b, size), self.udiv(self.mul(size, i), some))
            pace = I64("0")
            if tile.calls_are_blocks:
                # One tile reads the panel once, so that it prefetches what it reads soon.
                share = self.select_ptr(self.icmp("eq", some, 1), self._soon(b), share)
                pace = self.udiv(I64(str(GEMM.unroll * tile.row_bytes)), some)
            self._accumulate(a, b, row, rows, part, fresh, final, prefetching, share, pace)
            with self.when(final):
                self._finish(row, self.add(row, rows))

    def _soon(self, b: Ptr) -> Ptr:
        """Return the address that a micro-kernel prefetches first if it goes through a panel alone."""
        return self.ptr_add(b, GEMM.prefetch_distance * self.tile.lanes)

    def _uneven(self, i: I64, row: I64, end: I64, uneven: I1) -> tuple[I64, I64]:
        """Of two tiles the first takes as many rows as it can: it reads the panel first, and has more time for it."""
        cut = self.tile.rows
        first = self.icmp("eq", i, 0)
        from_cut = self.select_int(first, 0, cut)
        to_cut = self.select_int(first, cut, _ROWS)
        return self.select_int(uneven, from_cut, row), self.select_int(uneven, to_cut, end)

    def _ceil_udiv(self, x: Int, y: Int) -> I64:
        return self.udiv(self.sub(self.add(x, y), 1), y)

    def _accumulate(
        self,
        a: Ptr,
        b: Ptr,
        row: I64,
        rows: I64,
        part: _Part,
        fresh: I1,
        final: I1,
        prefetching: I1,
        share: Ptr,
        pace: I64,
    ) -> None:
        """One row tile; of several, each prefetches its share of the next block, of many also rows that it writes."""
        tile = self.tile
        here = self.ptr_add(a, self.mul(row, _STRIDE))
        accumulators = self.ptr_add(_SUMS, self.mul(row, tile.row_bytes))
        some = self.icmp("ne", part.steps, 0)
        if tile.prefetching:
            with self.when(self.and_(some, prefetching)):
                written = self.ptr_add(_C, self.mul(row, _TARGET))
                c = self.select_ptr(final, written, accumulators)
                target = self.select_int(final, _TARGET, tile.row_bytes)
                with self.when(fresh):
                    self.use("declare void @llvm.memset.p0.i64(ptr, i8, i64, i1)")
                    size = self.mul(rows, tile.row_bytes)
                    self.emit(f"call void @llvm.memset.p0.i64(ptr {accumulators}, i8 0, i64 {size}, i1 false)")
                micro = micro_kernel_signature(tile, prefetching=True)
                self.call(micro, rows, here, _STRIDE, b, accumulators, part.steps, fresh, share, c, target)
            some = self.and_(some, self.not_(prefetching))
        with self.when(some):
            micro = micro_kernel_signature(tile, prefetching=False)
            also: list[Int | I1 | Ptr] = []
            if tile.calls_are_blocks:
                also = [share, pace]
            elif part.partial is not None:
                also = [part.summed, self.ptr_add(part.partial, self.mul(row, tile.row_bytes)), part.begins, part.ends]
            self.call(micro, rows, here, _STRIDE, b, accumulators, part.steps, fresh, *also)
        with self.when(self.icmp("eq", part.steps, 0)), self.loop(0, self.mul(rows, tile.columns)) as zero:
            self.emit(f"store float 0.0, ptr {self.element(accumulators, 'float', zero)}, align 4")

    def _share(self, rows: I64, block: I64, blocks: I64) -> I64:
        return self.udiv(self.mul(rows, block), blocks)

    def _prefetch_c(self, row: I64, first: I64, end: I64) -> None:
        """Prefetch the lines that the epilogue will write, a few rows in each block, while accumulating."""
        target = self.ptr_add(_C, self.mul(row, _TARGET))
        with self.loop(first, end) as i:
            line = self.ptr_add(target, self.mul(i, _TARGET))
            with self.loop(0, self.udiv(_WIDTH, self.tile.line)) as n:
                self.prefetch(self.ptr_add(line, self.mul(n, self.tile.line)), for_write=True)
