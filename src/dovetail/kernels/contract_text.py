"""Contractions as LLVM's text: what goes on around the register tile.

A cell is one panel of columns for one block of rows of one matrix of the batch. It goes through k in blocks that fit
the first cache, and through the rows of the block tile by tile; sums wait in the worker's scratch between blocks. When
the last block is done, the epilogue takes the sums of a tile while they are still near, and writes results.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, f32
from dovetail.kernels import llvm
from dovetail.kernels import llvm_scalar as scalar
from dovetail.kernels.contract_tile import Tile
from dovetail.kernels.llvm import Text
from dovetail.kernels.loops import Kernel

DEEP = 192
"""Steps along k that are taken before the next rows: a panel of so many stays in the first cache."""
LIVE = symbol("live_columns")
"""How many columns of a panel there are, as the epilogue asks for it."""
_PLACE = "contract.place"
_MANY = 4
"""Tiles of rows from which on the next panel is asked for; with fewer, the machine itself sees what is read."""
_LINE = 64
"""Bytes of a cache line."""


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix that the kernel copies into scratch before it reads it: which pointer, and its dtype."""

    pointer: str
    dtype: DType


@dataclass(frozen=True, slots=True)
class Shape:
    """What the text of a contraction depends on. Sizes are arguments, named in `sizes`."""

    tile: Tile
    streams: int
    """Matrices whose columns lie side by side in a panel."""
    rows: Source | None
    """Where rows have to be made dense first."""
    panels: tuple[Source, ...]
    """Where panels have to be made first, one for each stream."""
    operands: tuple[str, ...]
    """Pointers that the epilogue reads."""
    batch: int
    """Axes in front."""
    pointers: tuple[str, ...]
    sizes: tuple[str, ...]


def contract_text(shape: Shape, epilogue: Kernel) -> tuple[str, str, tuple[str, ...]]:
    """The name of the kernel, its text, and the functions that it calls."""
    driver = _Driver(shape, epilogue)
    function = driver.function()
    inside, uses = llvm.function(epilogue)
    name = f"contract_{hashlib.blake2b(f'{function}{inside}'.encode(), digest_size=10).hexdigest()}"
    inside, _ = llvm.function(replace(epilogue, name=f"{name}.{epilogue.name}"))
    return name, f"{inside}\n{function.replace(f'@{_PLACE}', f'@{name}')}", (*uses, *driver.used)


def words_bytes(kernel: Kernel) -> int:
    """The room in front of the scratch that the words of the epilogue take."""
    return -(-8 * (len(kernel.pointers) + len(kernel.sizes)) // 64) * 64


class _Driver(Text):
    """The function that goes through cells."""

    def __init__(self, shape: Shape, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.words = {name: f"%w.{name}" for name in (*shape.pointers, *shape.sizes)}

    def __getitem__(self, word: str) -> str:
        return self.words[word]

    def function(self) -> str:
        self.label("entry")
        for index, (name, word) in enumerate(self.words.items()):
            place = self.let(f"getelementptr i8, ptr %arguments, i64 {8 * index}")
            self(f"{word} = load {'ptr' if name in self.shape.pointers else 'i64'}, ptr {place}, align 8")
        sums = self.at("%scratch", words_bytes(self.epilogue))
        self.words["sums"] = sums
        before = self.slot("i64")
        self(f"store i64 -1, ptr {before}")
        with self.loop("%begin", "%end") as cell:
            self._cell(cell, before)
        self("ret void")
        head = f"define void @{_PLACE}(ptr noalias readonly %arguments, i64 %begin, i64 %end, ptr %scratch) nounwind {{"
        entry, *lines = self.lines
        return "\n".join([head, entry, *self.slots, *lines, "}"])

    def _cell(self, cell: str, before: str) -> None:
        shape, tile = self.shape, self.shape.tile
        panel, block = self.mod(cell, self["panels"]), self.div(cell, self["panels"])
        number, matrix = block, block
        if shape.batch:
            block, matrix = self.mod(number, self["blocks"]), self.div(number, self["blocks"])
        far = self._offsets(matrix)
        height = self.div(self.sub(self.sum(self["rows"], self["blocks"]), "1"), self["blocks"])
        first = self.product(block, height)
        left = self.least(height, self.sub(self["rows"], first))
        some = self.let(f"icmp sgt i64 {left}, 0")
        count = self.let(f"select i1 {some}, i64 {left}, i64 0")
        width = tile.columns // shape.streams
        column = self.product(panel, str(width))
        columns = self.least(str(width), self.sub(self["columns"], column))
        a, pitch = self._rows(number, first, count, before, far)
        b = self._panel(panel, column, columns, far)
        self._arguments(first, column, columns, far)
        self._blocks(a, pitch, b, count)

    def _offsets(self, matrix: str) -> dict[str, str]:
        """How many bytes behind each pointer a matrix of the batch lies."""
        far = dict.fromkeys(self.shape.pointers, "0")
        for axis in reversed(range(self.shape.batch)):
            index = matrix
            if axis:
                index, matrix = self.mod(matrix, self[f"batch{axis}"]), self.div(matrix, self[f"batch{axis}"])
            for name in self.shape.pointers:
                far[name] = self.sum(far[name], self.product(index, self[f"{name}_batch{axis}"]))
        return far

    def _rows(self, number: str, first: str, count: str, before: str, far: dict[str, str]) -> tuple[str, str]:
        """The first of the rows, and how far apart they lie; copied where they are not dense."""
        start = self.at(self.at(self["a"], far["a"]), self.product(first, self["a_row"]))
        source = self.shape.rows
        if source is None:
            return start, self["a_row"]
        copy, pitch = self.at("%scratch", self["a_copy"]), self["a_pitch"]
        known = self.let(f"load i64, ptr {before}")
        with self.when(self.let(f"icmp ne i64 {known}, {number}")):
            self(f"store i64 {number}, ptr {before}")
            with self.loop("0", count) as row:
                here, there = self.at(start, self.product(row, self["a_row"])), self.at(copy, self.product(row, pitch))
                with self.loop("0", self["deep"]) as k:
                    self._copy(source.dtype, self.at(here, self.product(k, self["a_k"])), there, k)
        return copy, pitch

    def _panel(self, panel: str, column: str, columns: str, far: dict[str, str]) -> str:
        """A panel of columns; made in scratch where it is not laid out before."""
        tile = self.shape.tile
        if not self.shape.panels:
            size = self.product(self["deep"], str(tile.row_bytes))
            return self.at(self.at(self["b0"], far["b0"]), self.product(panel, size))
        copy = self.at("%scratch", self["b_copy"])
        width = tile.columns // self.shape.streams
        for stream, source in enumerate(self.shape.panels):
            name = source.pointer
            start = self.at(self.at(self[name], far[name]), self[f"stream{stream}"])
            start = self.at(start, self.product(column, self[f"{name}_column"]))
            target = self.at(copy, 4 * stream * width)
            with self.loop("0", self["deep"]) as k:
                here = self.at(start, self.product(k, self[f"{name}_k"]))
                there = self.at(target, self.product(k, str(tile.row_bytes)))
                with self.loop("0", columns) as i:
                    self._copy(source.dtype, self.at(here, self.product(i, self[f"{name}_column"])), there, i)
                with self.loop(columns, str(width)) as i:
                    self(f"store float 0.0, ptr {self.let(f'getelementptr float, ptr {there}, i64 {i}')}, align 4")
        return copy

    def _copy(self, dtype: DType, source: str, target: str, index: str) -> None:
        found = self.let(f"load {scalar.stored(dtype)}, ptr {source}, align {dtype.itemsize}")
        place = self.let(f"getelementptr float, ptr {target}, i64 {index}")
        self(f"store float {scalar.cast(self, found, dtype, f32)}, ptr {place}, align 4")

    def _arguments(self, first: str, column: str, columns: str, far: dict[str, str]) -> None:
        """The words of the epilogue for this cell."""
        given: list[tuple[str, str]] = [("ptr", self["sums"])]
        for name in (*self.shape.operands, "c"):
            place = self.at(self.at(self[name], far[name]), self.product(first, self[f"{name}_row"]))
            given.append(("ptr", self.at(place, self.product(column, self[f"{name}_column"]))))
        for size in self.epilogue.sizes:
            given.append(("i64", columns if size == LIVE else self[str(size)]))
        for index, (kind, value) in enumerate(given):
            self(f"store {kind} {value}, ptr {self.at('%scratch', 8 * index)}, align 8")

    def _blocks(self, a: str, pitch: str, b: str, count: str) -> None:
        tile = self.shape.tile
        tiles = self.div(self.sum(count, str(tile.rows - 1)), str(tile.rows))
        divisor = self.let(f"call i64 @llvm.smax.i64(i64 {tiles}, i64 1)")
        each, more = self.div(count, divisor), self.mod(count, divisor)
        turns = self.div(self.sum(self["deep"], str(DEEP - 1)), str(DEEP))
        turns = self.let(f"call i64 @llvm.smax.i64(i64 {turns}, i64 1)")
        self.use("declare i64 @llvm.smax.i64(i64, i64)")
        with self.loop("0", turns) as turn:
            start = self.product(turn, str(DEEP))
            depth = self.least(str(DEEP), self.sub(self["deep"], start))
            fresh = self.let(f"icmp eq i64 {turn}, 0")
            final = self.let(f"icmp eq i64 {self.sum(turn, '1')}, {turns}")
            here = self.at(b, self.product(start, str(tile.row_bytes)))
            begin = self.at(a, self.product(start, "4"))
            ahead, each_ahead = self._ahead(here, depth, tiles)
            with self.loop("0", tiles) as i:
                row = self.sum(self.product(i, each), self.least(i, more))
                extra = self.let(f"zext i1 {self.let(f'icmp slt i64 {i}, {more}')} to i64")
                rows = self.sum(each, extra)
                place = self.at(begin, self.product(row, pitch))
                sums = self.at(self["sums"], self.product(row, str(tile.row_bytes)))
                part, following = self.product(rows, turn), self.product(rows, self.sum(turn, "1"))
                self._fetch(row, self.div(part, turns), self.div(following, turns))
                self._stream(ahead, each_ahead, i)
                with self.when(self.let(f"icmp ne i64 {depth}, 0")):
                    self(
                        f"call void @{tile.name}(i64 {rows}, ptr {place}, i64 {pitch}, ptr {here}, ptr {sums}, "
                        f"i64 {depth}, i1 {fresh})"
                    )
                nothing = self.let(f"icmp eq i64 {depth}, 0")
                with self.when(nothing), self.loop("0", self.product(rows, str(tile.columns))) as zero:
                    place = self.let(f"getelementptr float, ptr {sums}, i64 {zero}")
                    self(f"store float 0.0, ptr {place}, align 4")
                with self.when(final):
                    self(
                        f"call void @{_PLACE}.{self.epilogue.name}(ptr %scratch, i64 {row}, i64 {self.sum(row, rows)}, "
                        "ptr null)"
                    )

    def _fetch(self, row: str, first: str, end: str) -> None:
        """Ask for lines that the epilogue will write, a few rows in each turn: they come while rows are summed up."""
        self.use("declare void @llvm.prefetch.p0(ptr, i32, i32, i32)")
        target = self.let(f"load ptr, ptr {self.at('%scratch', 8 * (1 + len(self.shape.operands)))}, align 8")
        target = self.at(target, self.product(row, self["c_row"]))
        width = 4 * self.shape.tile.columns // self.shape.streams
        with self.loop(first, end) as i:
            line = self.at(target, self.product(i, self["c_row"]))
            for offset in range(0, width, _LINE):
                self(f"call void @llvm.prefetch.p0(ptr {self.at(line, offset)}, i32 1, i32 3, i32 1)")

    def _ahead(self, here: str, depth: str, tiles: str) -> tuple[str, str]:
        """What is read of a panel, or of the next one, when these rows are done; lines of it for each tile of rows."""
        size = self.product(depth, str(self.shape.tile.row_bytes))
        lines = self.div(size, self.product(self.let(f"call i64 @llvm.smax.i64(i64 {tiles}, i64 1)"), str(_LINE)))
        many = self.let(f"icmp sge i64 {tiles}, {_MANY}")
        return self.at(here, size), self.let(f"select i1 {many}, i64 {lines}, i64 0")

    def _stream(self, ahead: str, lines: str, tile: str) -> None:
        """Ask for a share of what comes next: with many rows to go, nothing else would before it is needed."""
        start = self.at(ahead, self.product(self.product(tile, lines), str(_LINE)))
        with self.loop("0", lines) as i:
            place = self.at(start, self.product(i, str(_LINE)))
            self(f"call void @llvm.prefetch.p0(ptr {place}, i32 0, i32 2, i32 1)")

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

    def least(self, x: str, y: str) -> str:
        self.use("declare i64 @llvm.smin.i64(i64, i64)")
        return self.let(f"call i64 @llvm.smin.i64(i64 {x}, i64 {y})")
