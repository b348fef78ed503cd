"""The cell of a contraction as LLVM's text: a block of rows times one panel of columns.

It goes through k in blocks that fit the first cache, and through the rows tile by tile; sums wait in the worker's
scratch between blocks. When the last block is done, the epilogue takes the sums of a tile while they are still near.
"""

from __future__ import annotations

from functools import cache

from dovetail.codegen.llvm.loops import Text
from dovetail.kernels.spec import Part
from dovetail.targets.cpu.gemm.micro_kernel import FEWEST, PACED, Tile, tile_text

DEEP = 192
"""Steps along k that are taken before the next rows, at most."""
PACED_DEEP = 512
"""The same for many rows: the panel comes from the second cache as fast as it is multiplied, and sums stay put."""
STREAMED_DEEP = 1024
"""The same for few rows: what is asked for ahead is as much again, and its parts lie in many pages."""
NEAR_BYTES = 24 * 1024
"""Bytes of a panel that stay in the first cache while rows come and go."""
_UNROLLED = 4
LEAST = 6
"""Rows that a tile needs to keep the machine busy."""
_LINE = 64
"""Bytes of a cache line."""


class Whole(Text):
    """A function while it is written, with arithmetic on whole numbers and addresses."""

    def at(self, pointer: str, offset: int | str) -> str:
        return pointer if offset in (0, "0") else self.let(f"getelementptr i8, ptr {pointer}, i64 {offset}")

    def product(self, x: str, y: str) -> str:
        return "0" if "0" in (x, y) else self.let(f"mul i64 {x}, {y}")

    def sum(self, x: str, y: str) -> str:
        if "0" in (x, y):
            return x if y == "0" else y
        return self.let(f"add i64 {x}, {y}")

    def sub(self, x: str, y: str) -> str:
        return self.let(f"sub i64 {x}, {y}")

    def div(self, x: str, y: str) -> str:
        return self.let(f"udiv i64 {x}, {y}")

    def mod(self, x: str, y: str) -> str:
        return self.let(f"urem i64 {x}, {y}")

    def most(self, x: str, y: str) -> str:
        self.use("declare i64 @llvm.smax.i64(i64, i64)")
        return self.let(f"call i64 @llvm.smax.i64(i64 {x}, i64 {y})")

    def least(self, x: str, y: str) -> str:
        self.use("declare i64 @llvm.smin.i64(i64, i64)")
        return self.let(f"call i64 @llvm.smin.i64(i64 {x}, i64 {y})")


def depth_of(tile: Tile) -> int:
    """Steps along k that are taken before the next rows, at most; whole turns of the tile's loop."""
    return min(DEEP, NEAR_BYTES // tile.row_bytes) // _UNROLLED * _UNROLLED


def cell_name(tile: Tile) -> str:
    return f"{tile.name}.cell"


def cell_declared(tile: Tile) -> str:
    """What those who call it declare."""
    return f"declare void @{cell_name(tile)}(ptr, i64, ptr, i64, i64, ptr, ptr, i64, i64, ptr, ptr)"


@cache
def cell_part(tile: Tile) -> Part:
    """The cell as a function that kernels share."""
    return Part(cell_name(tile), cell_text(tile))


def cell_text(tile: Tile) -> str:
    """A module with `cell(a, stride of a, b, rows, depth, sums, c, stride of c, width in bytes, epilogue, its words)`.

    The panel b is [depth][columns]; sums is room for [rows][columns].
    """
    tiles, text = tile_text(tile), _Cell(tile)
    function = text.function()
    declared = [line for line in text.used if line not in tiles]
    return "\n".join([tiles, *declared, function])


class _Cell(Whole):
    def __init__(self, tile: Tile) -> None:
        super().__init__()
        self.tile = tile

    def function(self) -> str:
        tile = self.tile
        self.label("entry")
        tiles = self.div(self.sum("%rows", str(tile.rows - 1)), str(tile.rows))
        some = self.most(tiles, "1")
        each, more = self.div("%rows", some), self.mod("%rows", some)
        uneven = self.let(f"icmp eq i64 {tiles}, 2")
        uneven = self.let(f"and i1 {uneven}, {self.let(f'icmp sge i64 %rows, {tile.rows + LEAST}')}")
        most, paced = str(depth_of(tile)), "false"
        if tile.paced:
            few = self.let(f"icmp sle i64 %rows, {FEWEST}")
            most = self.let(f"select i1 {few}, i64 {STREAMED_DEEP}, i64 {most}")
            paced = self.let(f"icmp sge i64 %rows, {tile.many_rows}")
            most = self.let(f"select i1 {paced}, i64 {PACED_DEEP}, i64 {most}")
        turns = self.most(self._parts("%depth", most), "1")
        # Turns are equally deep, so that none is too short to fetch the next one's panel.
        deep = self.product(self._parts(self._parts("%depth", turns), str(_UNROLLED)), str(_UNROLLED))
        with self.loop("0", turns) as turn:
            start = self.product(turn, deep)
            steps = self.least(deep, self.sub("%depth", start))
            fresh = self.let(f"icmp eq i64 {turn}, 0")
            final = self.let(f"icmp eq i64 {self.sum(turn, '1')}, {turns}")
            b = self.at("%b", self.product(start, str(tile.row_bytes)))
            a = self.at("%a", self.product(start, "4"))
            with self.loop("0", tiles) as i:
                row = self.sum(self.product(i, each), self.least(i, more))
                end = self.sum(row, self.sum(each, self.let(f"zext i1 {self.let(f'icmp slt i64 {i}, {more}')} to i64")))
                row, end = self._uneven(i, row, end, uneven)
                rows = self.sub(end, row)
                with self.when(self.let(f"xor i1 {paced}, true")):
                    self._fetch(row, self._share(rows, turn, turns), self._share(rows, self.sum(turn, "1"), turns))
                size = self.product(steps, str(tile.row_bytes))
                share = self.at(self.at(b, size), self.div(self.product(size, i), some))
                self._sum_up(a, b, row, rows, steps, fresh, final, paced, share)
                with self.when(final):
                    self(f"call void %epilogue(ptr %words, i64 {row}, i64 {self.sum(row, rows)}, ptr null)")
        self("ret void")
        given = "ptr %a, i64 %stride, ptr %b, i64 %rows, i64 %depth, ptr %sums, ptr %c, i64 %target, i64 %width, "
        head = f"define void @{cell_name(tile)}({given}ptr %epilogue, ptr %words) nounwind {{"
        return "\n".join([head, *self.lines, "}"])

    def _uneven(self, i: str, row: str, end: str, uneven: str) -> tuple[str, str]:
        """Of two tiles the first takes as many rows as it can: it reads the panel, and has more time for it."""
        cut = self.tile.rows
        first = self.let(f"icmp eq i64 {i}, 0")
        from_cut = self.let(f"select i1 {first}, i64 0, i64 {cut}")
        to_cut = self.let(f"select i1 {first}, i64 {cut}, i64 %rows")
        return (
            self.let(f"select i1 {uneven}, i64 {from_cut}, i64 {row}"),
            self.let(f"select i1 {uneven}, i64 {to_cut}, i64 {end}"),
        )

    def _parts(self, whole: str, size: str) -> str:
        """How many parts of a size it takes for a whole."""
        return self.div(self.sub(self.sum(whole, size), "1"), size)

    def _sum_up(
        self, a: str, b: str, row: str, rows: str, steps: str, fresh: str, final: str, paced: str, share: str
    ) -> None:
        """One tile; where there are many, each fetches its share of the panel that comes next, and what it writes."""
        tile = self.tile
        place = self.at(a, self.product(row, "%stride"))
        sums = self.at("%sums", self.product(row, str(tile.row_bytes)))
        given = f"i64 {rows}, ptr {place}, i64 %stride, ptr {b}, ptr {sums}, i64 {steps}, i1 {fresh}"
        some = self.let(f"icmp ne i64 {steps}, 0")
        if tile.paced:
            with self.when(self.let(f"and i1 {some}, {paced}")):
                written = self.at("%c", self.product(row, "%target"))
                c = self.let(f"select i1 {final}, ptr {written}, ptr {sums}")
                target = self.let(f"select i1 {final}, i64 %target, i64 {tile.row_bytes}")
                self(f"call void @{tile.name}{PACED}({given}, ptr {share}, ptr {c}, i64 {target})")
            some = self.let(f"and i1 {some}, {self.let(f'xor i1 {paced}, true')}")
        with self.when(some):
            self(f"call void @{tile.name}({given})")
        with (
            self.when(self.let(f"icmp eq i64 {steps}, 0")),
            self.loop("0", self.product(rows, str(tile.columns))) as zero,
        ):
            self(f"store float 0.0, ptr {self.let(f'getelementptr float, ptr {sums}, i64 {zero}')}, align 4")

    def _share(self, rows: str, turn: str, turns: str) -> str:
        return self.div(self.product(rows, turn), turns)

    def _fetch(self, row: str, first: str, end: str) -> None:
        """Ask for lines that the epilogue will write, a few rows in each turn: they come while rows are summed up."""
        target = self.at("%c", self.product(row, "%target"))
        with self.loop(first, end) as i:
            line = self.at(target, self.product(i, "%target"))
            with self.loop("0", self.div("%width", str(_LINE))) as n:
                self._ask(self.at(line, self.product(n, str(_LINE))))

    def _ask(self, place: str) -> None:
        self.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        self(f"call void @llvm.prefetch.p0(ptr {place}, i32 1, i32 3, i32 1)")
