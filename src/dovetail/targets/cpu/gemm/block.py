"""The cache block of matrix multiplication: MC rows of A times one B panel, KC steps along k at a time.

It goes through k in blocks of KC that fit L1, and through the rows tile by tile; accumulators wait in the workspace
between blocks. After the last block the epilogue takes the accumulators of a tile while they are in L1.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.builder import Builder
from dovetail.codegen.llvm.function import Function, Parameter, Signature
from dovetail.codegen.llvm.handles import FALSE, I1, I64, Int, Ptr
from dovetail.codegen.llvm.kernel import shared_function
from dovetail.kernels.spec import SharedFunction
from dovetail.targets.cpu.gemm.micro_kernel import Tile, micro_kernel_signature, micro_kernel_text
from dovetail.targets.cpu.gemm.policy import GEMM

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


class _Block(Builder):
    """The function of a cache block."""

    def __init__(self, tile: Tile) -> None:
        super().__init__()
        self.tile = tile
        self._write()

    def _write(self) -> None:
        tile = self.tile
        tiles = self.udiv(self.add(_ROWS, tile.rows - 1), tile.rows)
        some = self.smax(tiles, 1)
        each, more = self.udiv(_ROWS, some), self.urem(_ROWS, some)
        uneven = self.and_(self.icmp("eq", tiles, 2), self.icmp("sge", _ROWS, tile.rows + GEMM.least_rows))
        kc, prefetching = self._kc()
        blocks = self.smax(self._ceil_udiv(_DEPTH, kc), 1)
        # Blocks are equally deep, so that none is too short to prefetch the next one's panel.
        deep = self.mul(self._ceil_udiv(self._ceil_udiv(_DEPTH, blocks), GEMM.unroll), GEMM.unroll)
        with self.loop(0, blocks) as block:
            start = self.mul(block, deep)
            steps = self.smin(deep, self.sub(_DEPTH, start))
            fresh = self.icmp("eq", block, 0)
            final = self.icmp("eq", self.add(block, 1), blocks)
            b = self.ptr_add(_B, self.mul(start, tile.row_bytes))
            a = self.ptr_add(_A, self.mul(start, 4))
            with self.loop(0, tiles) as i:
                row = self.add(self.mul(i, each), self.smin(i, more))
                end = self.add(row, self.add(each, self.zext(self.icmp("slt", i, more))))
                row, end = self._uneven(i, row, end, uneven)
                rows = self.sub(end, row)
                with self.unless(prefetching):
                    first, last = self._share(rows, block, blocks), self._share(rows, self.add(block, 1), blocks)
                    self._prefetch_c(row, first, last)
                size = self.mul(steps, tile.row_bytes)
                share = self.ptr_add(self.ptr_add(b, size), self.udiv(self.mul(size, i), some))
                self._accumulate(a, b, row, rows, steps, fresh, final, prefetching, share)
                with self.when(final):
                    words = f"ptr {_WORDS}, i64 {row}, i64 {self.add(row, rows)}, ptr null"
                    self.emit(f"call void %epilogue({words})")

    def _kc(self) -> tuple[Int, I1]:
        """KC, and whether the prefetching variant serves all tiles."""
        tile = self.tile
        if not tile.prefetching:
            return kc_of(tile), FALSE
        few = self.icmp("sle", _ROWS, GEMM.smallest_m)
        kc = self.select_int(few, GEMM.kc_small_m, kc_of(tile))
        prefetching = self.icmp("sge", _ROWS, tile.many_rows)
        return self.select_int(prefetching, GEMM.kc_prefetching, kc), prefetching

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
        self, a: Ptr, b: Ptr, row: I64, rows: I64, steps: I64, fresh: I1, final: I1, prefetching: I1, share: Ptr
    ) -> None:
        """One row tile; with many, each prefetches its share of the next panel, and the rows that it writes."""
        tile = self.tile
        here = self.ptr_add(a, self.mul(row, _STRIDE))
        sums = self.ptr_add(_SUMS, self.mul(row, tile.row_bytes))
        some = self.icmp("ne", steps, 0)
        if tile.prefetching:
            with self.when(self.and_(some, prefetching)):
                written = self.ptr_add(_C, self.mul(row, _TARGET))
                c = self.select_ptr(final, written, sums)
                target = self.select_int(final, _TARGET, tile.row_bytes)
                micro = micro_kernel_signature(tile, prefetching=True)
                self.call(micro, rows, here, _STRIDE, b, sums, steps, fresh, share, c, target)
            some = self.and_(some, self.not_(prefetching))
        with self.when(some):
            micro = micro_kernel_signature(tile, prefetching=False)
            self.call(micro, rows, here, _STRIDE, b, sums, steps, fresh)
        with self.when(self.icmp("eq", steps, 0)), self.loop(0, self.mul(rows, tile.columns)) as zero:
            self.emit(f"store float 0.0, ptr {self.element(sums, 'float', zero)}, align 4")

    def _share(self, rows: I64, block: I64, blocks: I64) -> I64:
        return self.udiv(self.mul(rows, block), blocks)

    def _prefetch_c(self, row: I64, first: I64, end: I64) -> None:
        """Prefetch the lines that the epilogue will write, a few rows in each block, while accumulating."""
        target = self.ptr_add(_C, self.mul(row, _TARGET))
        with self.loop(first, end) as i:
            line = self.ptr_add(target, self.mul(i, _TARGET))
            with self.loop(0, self.udiv(_WIDTH, self.tile.line)) as n:
                self.prefetch(self.ptr_add(line, self.mul(n, self.tile.line)), for_write=True)
