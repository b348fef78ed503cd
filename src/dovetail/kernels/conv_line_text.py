"""Convolutions along one axis as LLVM's text: what each place sees becomes a row, and rows are multiplied with panels.

A cell is one panel of filters for one block of places; places are counted through all images.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from dovetail.ir.dim import symbol
from dovetail.kernels import llvm
from dovetail.kernels.contract_cell import Whole, cell_name
from dovetail.kernels.contract_text import LIVE, words_bytes
from dovetail.kernels.contract_tile import Tile
from dovetail.kernels.loops import Kernel

FIRST = symbol("first_place")
"""The first place of a block, as the epilogue asks for it."""
_PLACE = "line.place"


@dataclass(frozen=True, slots=True)
class Line:
    """What the text depends on; everything else is an argument, named in `words`."""

    tile: Tile
    channels: int
    taps: int
    stride: int
    dilation: int
    filters: int
    operands: tuple[str, ...]
    """Pointers that the epilogue reads beside the sums."""
    pointers: tuple[str, ...]
    words: tuple[str, ...]

    @property
    def deep(self) -> int:
        return self.channels * self.taps

    @property
    def along_channels(self) -> bool:
        """Whether channels lie side by side in a row, and not taps: whatever there is more of."""
        return self.channels >= self.taps

    @property
    def panels(self) -> int:
        return -(-self.filters // self.tile.columns)

    @property
    def pitch(self) -> int:
        """Bytes between rows."""
        return 4 * self.deep + 64


def line_text(line: Line, epilogue: Kernel) -> tuple[str, str, tuple[str, ...]]:
    """The name of the kernel, its text, and the functions that it calls."""
    driver = _Driver(line, epilogue)
    function = driver.function()
    inside, uses = llvm.function(epilogue)
    name = f"line_{hashlib.blake2b(f'{function}{inside}'.encode(), digest_size=10).hexdigest()}"
    inside, _ = llvm.function(replace(epilogue, name=f"{name}.{epilogue.name}"))
    inside = inside.replace("define void", "define internal void")
    return name, f"{inside}\n{function.replace(f'@{_PLACE}', f'@{name}')}", (*uses, *driver.used)


class _Driver(Whole):
    """The function that goes through cells."""

    def __init__(self, line: Line, epilogue: Kernel) -> None:
        super().__init__()
        self.line = line
        self.epilogue = epilogue
        self.words = {name: f"%w.{name}" for name in (*line.pointers, *line.words)}

    def __getitem__(self, word: str) -> str:
        return self.words[word]

    def function(self) -> str:
        self.label("entry")
        for index, (name, word) in enumerate(self.words.items()):
            place = self.let(f"getelementptr i8, ptr %arguments, i64 {8 * index}")
            self(f"{word} = load {'ptr' if name in self.line.pointers else 'i64'}, ptr {place}, align 8")
        before = self.slot("i64")
        self(f"store i64 -1, ptr {before}")
        with self.loop("%begin", "%end") as cell:
            self._cell(cell, before)
        self("ret void")
        head = f"define void @{_PLACE}(ptr noalias readonly %arguments, i64 %begin, i64 %end, ptr %scratch) nounwind {{"
        entry, *lines = self.lines
        return "\n".join([head, entry, *self.slots, *lines, "}"])

    def _cell(self, cell: str, before: str) -> None:
        line, tile = self.line, self.line.tile
        panel, block = self.mod(cell, str(line.panels)), self.div(cell, str(line.panels))
        height = self.div(self.sub(self.sum(self["places"], self["blocks"]), "1"), self["blocks"])
        first = self.product(block, height)
        count = self.least(height, self.sub(self["places"], first))
        sums = self.at("%scratch", words_bytes(self.epilogue))
        rows = self.at("%scratch", self["copy"])
        known = self.let(f"load i64, ptr {before}")
        with self.when(self.let(f"icmp ne i64 {known}, {block}")):
            self(f"store i64 {block}, ptr {before}")
            with self.loop("0", count) as row:
                self._row(self.sum(first, row), self.at(rows, self.product(row, str(line.pitch))))
        column = self.product(panel, str(tile.columns))
        columns = self.least(str(tile.columns), self.sub(str(line.filters), column))
        self._arguments(sums, first, column, columns)
        panels = self.at(self["w"], self.product(panel, str(line.deep * tile.row_bytes)))
        call = f"@{cell_name(tile)}(ptr {rows}, i64 {line.pitch}, ptr {panels}, i64 {count}, i64 {line.deep}, "
        # What is written lies far apart, and is not asked for before.
        call += f"ptr {sums}, ptr {sums}, i64 0, i64 0, ptr @{_PLACE}.{self.epilogue.name}, ptr %scratch"
        self(f"call void {call})")

    def _row(self, place: str, target: str) -> None:
        """What one place sees, zeros where that is beyond an end."""
        line = self.line
        image, along = self.div(place, self["positions"]), self.mod(place, self["positions"])
        source = self.at(self["x"], self.product(image, self["image"]))
        start = self.sub(self.product(along, str(line.stride)), self["before"])
        if line.along_channels:
            with self.loop("0", str(line.taps)) as tap:
                at = self.sum(start, self.product(tap, str(line.dilation)))
                onto = self.at(target, self.product(tap, str(4 * line.channels)))
                inside = self.let(f"icmp ult i64 {at}, {self['length']}")
                with self.when(inside):
                    here = self.at(source, self.product(at, self["step"]))
                    self._copy(here, self["channel"], onto, "0", str(line.channels))
                with self.when(self.let(f"xor i1 {inside}, true")):
                    self._clear(onto, "0", str(line.channels))
            return
        low = self._taps_before("0", start)
        high = self._taps_before(self["length"], start)
        with self.loop("0", str(line.channels)) as channel:
            onto = self.at(target, self.product(channel, str(4 * line.taps)))
            here = self.at(self.at(source, self.product(channel, self["channel"])), self.product(start, self["step"]))
            self._clear(onto, "0", low)
            self._copy(here, self.product(self["step"], str(line.dilation)), onto, low, high)
            self._clear(onto, high, str(line.taps))

    def _taps_before(self, end: str, start: str) -> str:
        """How many taps lie before an element, the first one at `start`."""
        far = self.most(self.sub(end, start), "0")
        return self.least(
            self.div(self.sum(far, str(self.line.dilation - 1)), str(self.line.dilation)), str(self.line.taps)
        )

    def _copy(self, source: str, step: str, target: str, first: str, end: str) -> None:
        with self.loop(first, end) as i:
            found = self.let(f"load float, ptr {self.at(source, self.product(i, step))}, align 4")
            self(f"store float {found}, ptr {self.let(f'getelementptr float, ptr {target}, i64 {i}')}, align 4")

    def _clear(self, target: str, first: str, end: str) -> None:
        with self.loop(first, end) as i:
            self(f"store float 0.0, ptr {self.let(f'getelementptr float, ptr {target}, i64 {i}')}, align 4")

    def _arguments(self, sums: str, first: str, column: str, columns: str) -> None:
        """The words of the epilogue for this cell."""
        given: list[tuple[str, str]] = [("ptr", sums)]
        for name in (*self.line.operands, "y"):
            given.append(("ptr", self.at(self[name], self.product(column, self[f"{name}_filter"]))))
        known = {LIVE: columns, FIRST: first}
        for size in self.epilogue.sizes:
            given.append(("i64", known[size] if size in known else self[str(size)]))
        for index, (kind, value) in enumerate(given):
            self(f"store {kind} {value}, ptr {self.at('%scratch', 8 * index)}, align 8")
