"""Contractions as LLVM's text: which cells there are, where their operands lie, and what becomes of the sums.

A cell is one panel of columns for one block of rows of one matrix of the batch.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from dovetail.codegen.llvm import loops as llvm
from dovetail.codegen.llvm import scalar
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import DType, f32
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.gemm.block import Whole, cell_name
from dovetail.targets.cpu.gemm.micro_kernel import Tile

LIVE = symbol("live_columns")
"""How many columns of a panel there are, as the epilogue asks for it."""
_PLACE = "contract.place"


@dataclass(frozen=True, slots=True)
class Source:
    """A matrix that the kernel copies into scratch before it reads it: which pointer, and its dtype."""

    pointer: str
    dtype: DType
    dense: bool = False
    """Whether elements of f32 lie one behind the other."""


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
    inside = inside.replace("define void", "define internal void")
    return name, f"{inside}\n{function.replace(f'@{_PLACE}', f'@{name}')}", (*uses, *driver.used)


def words_bytes(kernel: Kernel) -> int:
    """The room in front of the scratch that the words of the epilogue take."""
    return -(-8 * (len(kernel.pointers) + len(kernel.sizes)) // 64) * 64


class _Driver(Whole):
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
        self._sums(a, pitch, b, count, first, column, far)

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
        """The first of the rows, and how far apart they lie: where they are, or in scratch."""
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
            whole = "false"
            if source.dense and width % tile.lanes == 0:
                whole = self.let(f"icmp eq i64 {columns}, {width}")
                with self.when(whole), self.loop("0", self["deep"]) as k:
                    here = self.at(start, self.product(k, self[f"{name}_k"]))
                    self._copy_row(here, self.at(target, self.product(k, str(tile.row_bytes))), width)
            with self.when(self.let(f"xor i1 {whole}, true")), self.loop("0", self["deep"]) as k:
                here = self.at(start, self.product(k, self[f"{name}_k"]))
                there = self.at(target, self.product(k, str(tile.row_bytes)))
                with self.loop("0", columns) as i:
                    self._copy(source.dtype, self.at(here, self.product(i, self[f"{name}_column"])), there, i)
                with self.loop(columns, str(width)) as i:
                    self(f"store float 0.0, ptr {self.let(f'getelementptr float, ptr {there}, i64 {i}')}, align 4")
        return copy

    def _copy_row(self, source: str, target: str, width: int) -> None:
        """So many elements one behind the other."""
        kind = f"<{self.shape.tile.lanes} x float>"
        for first in range(0, width, self.shape.tile.lanes):
            found = self.let(f"load {kind}, ptr {self.at(source, 4 * first)}, align 4")
            self(f"store {kind} {found}, ptr {self.at(target, 4 * first)}, align 4")

    def _copy(self, dtype: DType, source: str, target: str, index: str) -> None:
        found = self.let(f"load {scalar.stored(dtype)}, ptr {source}, align {dtype.itemsize}")
        place = self.let(f"getelementptr float, ptr {target}, i64 {index}")
        self(f"store float {scalar.cast(self, found, dtype, f32)}, ptr {place}, align 4")

    def _arguments(self, first: str, column: str, columns: str, far: dict[str, str]) -> None:
        """The words of the epilogue for this cell."""
        given: list[tuple[str, str]] = [("ptr", self["sums"])]
        for name in (*self.shape.operands, "c"):
            given.append(("ptr", self._place(name, first, column, far)))
        for size in self.epilogue.sizes:
            given.append(("i64", columns if size == LIVE else self[str(size)]))
        for index, (kind, value) in enumerate(given):
            self(f"store {kind} {value}, ptr {self.at('%scratch', 8 * index)}, align 8")

    def _sums(self, a: str, pitch: str, b: str, count: str, first: str, column: str, far: dict[str, str]) -> None:
        """Go through k and the rows of the cell."""
        width = 4 * self.shape.tile.columns // self.shape.streams
        call = f"@{cell_name(self.shape.tile)}(ptr {a}, i64 {pitch}, ptr {b}, i64 {count}, i64 {self['deep']}, "
        call += f"ptr {self['sums']}, ptr {self._place('c', first, column, far)}, i64 {self['c_row']}, i64 {width}, "
        self(f"call void {call}ptr @{_PLACE}.{self.epilogue.name}, ptr %scratch)")

    def _place(self, name: str, first: str, column: str, far: dict[str, str]) -> str:
        """Where a tensor has the first row and column of the cell."""
        place = self.at(self.at(self[name], far[name]), self.product(first, self[f"{name}_row"]))
        return self.at(place, self.product(column, self[f"{name}_column"]))
