"""Convolutions along one axis as LLVM's text: what each place sees becomes a row, and rows are multiplied with panels.

A cell is one panel of filters for one block of places; places are counted through all images.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.codegen.llvm import loops as llvm
from dovetail.ir.dim import symbol
from dovetail.ir.dtype import f32
from dovetail.kernels.loops.ir import Call, Extent, Kernel, Load, Loop, Name, Store, Tensor
from dovetail.targets.cpu.conv.patch import HEAD
from dovetail.targets.cpu.gemm.block import Whole, cell_name
from dovetail.targets.cpu.gemm.driver import LIVE, words_bytes
from dovetail.targets.cpu.gemm.micro_kernel import Tile

FIRST = symbol("first_place")
"""The first place of a block, as the epilogue asks for it."""
PIECE = 32
"""Steps of a row that are summed up before they are added to the rest: long sums lose digits."""
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
    dense: str
    """Along which axis of x elements lie one behind the other: `step` or `channel`, if any."""
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

    @property
    def pieces(self) -> int:
        """Into how many sums one is taken apart."""
        return -(-self.deep // PIECE)

    def totals(self, epilogue: Kernel) -> int:
        """Where the sums of all pieces lie in the room behind the head of the scratch."""
        return words_bytes(epilogue) + words_bytes(_added(self.tile))


def line_text(line: Line, epilogue: Kernel) -> tuple[str, str, tuple[str, ...]]:
    """The name of the kernel, its text, and the functions that it calls."""
    driver = _Driver(line, epilogue)
    function = driver.function()
    inside, uses = llvm.function(epilogue)
    name = f"line_{hashlib.blake2b(f'{function}{inside}'.encode(), digest_size=10).hexdigest()}"
    called = [llvm.function(replace(k, name=f"{name}.{k.name}"))[0] for k in (epilogue, driver.added)]
    inside = "\n".join(called).replace("define void", "define internal void")
    return name, f"{inside}\n{function.replace(f'@{_PLACE}', f'@{name}')}", (*uses, *driver.used)


def _added(tile: Tile) -> Kernel:
    """Adds the sums of a piece to those of the pieces before."""
    at = (Name("row"), Name("column"))
    sums, totals = (Tensor(name, f32, (tile.row_bytes, f32.itemsize)) for name in ("sums", "totals"))
    store = Store(totals, at, Call("add", (Load(totals, at), Load(sums, at)), f32))
    body = (Loop("column", Extent(tile.columns), (store,), lanes=tile.lanes),)
    return Kernel("add", ("sums", "totals"), ("totals",), "row", body)


class _Driver(Whole):
    """The function that goes through cells."""

    def __init__(self, line: Line, epilogue: Kernel) -> None:
        super().__init__()
        self.line = line
        self.epilogue = epilogue
        self.added = _added(line.tile)
        self.words = {name: f"%w.{name}" for name in (*line.pointers, *line.words)}
        if line.dense:
            self.words[line.dense] = "4"

    def __getitem__(self, word: str) -> str:
        return self.words[word]

    def function(self) -> str:
        self.label("entry")
        for index, (name, word) in enumerate(self.words.items()):
            place = self.let(f"getelementptr i8, ptr %arguments, i64 {8 * index}")
            if word.startswith("%"):
                self(f"{word} = load {'ptr' if name in self.line.pointers else 'i64'}, ptr {place}, align 8")
        self(f"%room = getelementptr i8, ptr %scratch, i64 {HEAD}")
        with self.loop("%begin", "%end") as cell:
            self._cell(cell)
        self("ret void")
        head = f"define void @{_PLACE}(ptr noalias readonly %arguments, i64 %begin, i64 %end, ptr %scratch) nounwind {{"
        entry, *lines = self.lines
        return "\n".join([head, entry, *self.slots, *lines, "}"])

    def _cell(self, cell: str) -> None:
        line, tile = self.line, self.line.tile
        panel, block = self.mod(cell, str(line.panels)), self.div(cell, str(line.panels))
        height = self.div(self.sub(self.sum(self["places"], self["blocks"]), "1"), self["blocks"])
        first = self.product(block, height)
        count = self.least(height, self.sub(self["places"], first))
        totals = self.at("%room", line.totals(self.epilogue))
        sums = self.at("%scratch", self["sums"])
        rows = self.at("%scratch", self["copy"])
        known = self.let("load i64, ptr %scratch")
        with self.when(self.let(f"icmp ne i64 {known}, {block}")):
            self(f"store i64 {block}, ptr %scratch")
            with self.loop("0", count) as row:
                self._row(self.sum(first, row), self.at(rows, self.product(row, str(line.pitch))))
        column = self.product(panel, str(tile.columns))
        columns = self.least(str(tile.columns), self.sub(str(line.filters), column))
        self._arguments(totals, first, column, columns)
        with self.loop("0", self.product(count, str(tile.columns))) as i:
            self(f"store float 0.0, ptr {self.let(f'getelementptr float, ptr {totals}, i64 {i}')}, align 4")
        added = self.at("%room", words_bytes(self.epilogue))
        self._store([("ptr", sums), ("ptr", totals)], added)
        panels = self.at(self["w"], self.product(panel, str(line.deep * tile.row_bytes)))
        with self.loop("0", str(line.pieces)) as piece:
            start = self.product(piece, str(PIECE))
            steps = self.least(str(PIECE), self.sub(str(line.deep), start))
            a, b = self.at(rows, self.product(start, "4")), self.at(panels, self.product(start, str(tile.row_bytes)))
            call = f"@{cell_name(tile)}(ptr {a}, i64 {line.pitch}, ptr {b}, i64 {count}, i64 {steps}, "
            # What is written lies far apart, and is not asked for before.
            self(f"call void {call}ptr {sums}, ptr {sums}, i64 0, i64 0, ptr @{_PLACE}.{self.added.name}, ptr {added})")
        self(f"call void @{_PLACE}.{self.epilogue.name}(ptr %room, i64 0, i64 {count}, ptr null)")

    def _row(self, place: str, target: str) -> None:
        """What one place sees, zeros where that is beyond an end."""
        line = self.line
        image, along = self.div(place, self["positions"]), self.mod(place, self["positions"])
        source = self.at(self.at(self["x"], self["x_offset"]), self.product(image, self["image"]))
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
            step = self["step"] if line.dilation == 1 else self.product(self["step"], str(line.dilation))
            self._copy(here, step, onto, low, high)
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

    def _arguments(self, totals: str, first: str, column: str, columns: str) -> None:
        """The words of the epilogue for this cell."""
        given: list[tuple[str, str]] = [("ptr", totals)]
        for name in (*self.line.operands, "y"):
            given.append(("ptr", self.at(self[name], self.product(column, self[f"{name}_filter"]))))
        known = {LIVE: columns, FIRST: first}
        for size in self.epilogue.sizes:
            given.append(("i64", known[size] if size in known else self[str(size)]))
        self._store(given, "%room")

    def _store(self, given: Sequence[tuple[str, str]], place: str) -> None:
        for index, (kind, value) in enumerate(given):
            self(f"store {kind} {value}, ptr {self.at(place, 8 * index)}, align 8")
