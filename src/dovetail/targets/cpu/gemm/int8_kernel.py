"""Contractions of bytes as LLVM's text: four products at a time are added to a sum of whole numbers.

A cell is one panel of columns for one block of rows. Rows come as floats that stand for bytes, and become those first.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from dovetail.codegen.llvm import loops as llvm
from dovetail.kernels.loops.ir import Kernel
from dovetail.targets.cpu.conv.patch import HEAD
from dovetail.targets.cpu.gemm.block import Whole
from dovetail.targets.cpu.gemm.driver import LIVE, words_bytes

LANES, ROWS, WIDE = 16, 8, 3
"""Sums of a vector, and the register tile: so many rows by so many vectors."""
COLUMNS = LANES * WIDE
BLOCK = 8 * ROWS
"""Rows of a cell: as bytes they stay in the second cache."""
_PLACE = "bytes.place"
_KIND, _BYTES = f"<{LANES} x i32>", f"<{4 * LANES} x i8>"
_DOT = "llvm.x86.avx512.vpdpbusd.512"


@dataclass(frozen=True, slots=True)
class Bytes:
    """What the text depends on."""

    deep: int
    columns: int
    operands: tuple[tuple[str, bool], ...]
    """Pointers that the epilogue reads beside the sums, and whether they have rows."""
    pointers: tuple[str, ...]

    @property
    def fours(self) -> int:
        """Steps along k, of four bytes each."""
        return -(-self.deep // 4)

    @property
    def panels(self) -> int:
        return -(-self.columns // COLUMNS)

    def layout(self, epilogue: Kernel) -> dict[str, int]:
        """Where things lie in the scratch: words of the epilogue, sums, sums of rows, rows as bytes, and the end."""
        sizes = {"words": words_bytes(epilogue), "sums": BLOCK * COLUMNS * 4, "rowsums": BLOCK * 4}
        places, end = dict[str, int](), HEAD
        for name, size in (*sizes.items(), ("rows", BLOCK * 4 * self.fours)):
            places[name], end = end, end + -(-size // 64) * 64
        return {**places, "end": end}


def bytes_text(shape: Bytes, epilogue: Kernel) -> tuple[str, str, tuple[str, ...]]:
    """The name of the kernel, its text, and the functions that it calls."""
    driver, tile = _Driver(shape, epilogue), _Tile(shape)
    function = f"{tile.function()}\n{driver.function()}"
    inside, uses = llvm.function(epilogue)
    name = f"bytes_{hashlib.blake2b(f'{function}{inside}'.encode(), digest_size=10).hexdigest()}"
    inside, _ = llvm.function(replace(epilogue, name=f"{name}.{epilogue.name}"))
    inside = inside.replace("define void", "define internal void")
    return name, f"{inside}\n{function.replace(f'@{_PLACE}', f'@{name}')}", (*uses, *driver.used, *tile.used)


class _Tile(Whole):
    """The register tile: sums of rows times one panel, kept in registers while k is gone through."""

    def __init__(self, shape: Bytes) -> None:
        super().__init__()
        self.shape = shape

    def function(self) -> str:
        self.use(f"declare {_KIND} @{_DOT}({_KIND}, {_BYTES}, {_BYTES})")
        cells = [(i, j) for i in range(ROWS) for j in range(WIDE)]
        self.label("entry")
        rows = [self.at("%a", i * 4 * self.shape.fours) for i in range(ROWS)]
        self("br label %turn")
        self.label("turn")
        self("%k = phi i64 [ 0, %entry ], [ %following, %turn ]")
        for i, j in cells:
            self(f"%s{i}.{j} = phi {_KIND} [ zeroinitializer, %entry ], [ %n{i}.{j}, %turn ]")
        panel = self.at("%b", self.product("%k", str(4 * COLUMNS)))
        columns = [self.let(f"load {_BYTES}, ptr {self.at(panel, 64 * j)}, align 64") for j in range(WIDE)]
        for i, row in enumerate(rows):
            four = self.let(f"load i32, ptr {self.at(row, self.product('%k', '4'))}, align 4")
            one = self.let(f"insertelement {_KIND} poison, i32 {four}, i64 0")
            all_ = self.let(f"shufflevector {_KIND} {one}, {_KIND} poison, {_KIND} zeroinitializer")
            x = self.let(f"bitcast {_KIND} {all_} to {_BYTES}")
            for j, column in enumerate(columns):
                self(f"%n{i}.{j} = call {_KIND} @{_DOT}({_KIND} %s{i}.{j}, {_BYTES} {x}, {_BYTES} {column})")
        self("%following = add nuw nsw i64 %k, 1")
        self(f"%more = icmp slt i64 %following, {self.shape.fours}")
        self("br i1 %more, label %turn, label %done")
        self.label("done")
        for i, j in cells:
            self(f"store {_KIND} %n{i}.{j}, ptr {self.at('%sums', 4 * (i * COLUMNS + j * LANES))}, align 64")
        self("ret void")
        given = "ptr noalias readonly %a, ptr noalias readonly %b, ptr noalias %sums"
        return "\n".join([f"define internal void @{_PLACE}.tile({given}) noinline nounwind {{", *self.lines, "}"])


class _Driver(Whole):
    """The function that goes through cells."""

    def __init__(self, shape: Bytes, epilogue: Kernel) -> None:
        super().__init__()
        self.shape = shape
        self.epilogue = epilogue
        self.places = shape.layout(epilogue)
        self.words = {name: f"%w.{name}" for name in (*shape.pointers, "count")}

    def function(self) -> str:
        self.label("entry")
        for index, (name, word) in enumerate(self.words.items()):
            place = self.let(f"getelementptr i8, ptr %arguments, i64 {8 * index}")
            self(f"{word} = load {'i64' if name == 'count' else 'ptr'}, ptr {place}, align 8")
        for name in ("words", "sums", "rowsums", "rows"):
            self(f"%{name} = getelementptr i8, ptr %scratch, i64 {self.places[name]}")
        with self.loop("%begin", "%end") as cell:
            self._cell(cell)
        self("ret void")
        head = f"define void @{_PLACE}(ptr noalias readonly %arguments, i64 %begin, i64 %end, ptr %scratch) nounwind {{"
        return "\n".join([head, *self.lines, "}"])

    def _cell(self, cell: str) -> None:
        shape = self.shape
        panel, block = self.mod(cell, str(shape.panels)), self.div(cell, str(shape.panels))
        first = self.product(block, str(BLOCK))
        count = self.least(str(BLOCK), self.sub(self.words["count"], first))
        known = self.let("load i64, ptr %scratch")
        with self.when(self.let(f"icmp ne i64 {known}, {block}")):
            self(f"store i64 {block}, ptr %scratch")
            with self.loop("0", count) as row:
                self._row(self.sum(first, row), row)
        b = self.at(self.words["w"], self.product(panel, str(4 * COLUMNS * shape.fours)))
        tiles = self.div(self.sum(count, str(ROWS - 1)), str(ROWS))
        with self.loop("0", tiles) as tile:
            a = self.at("%rows", self.product(tile, str(ROWS * 4 * shape.fours)))
            sums = self.at("%sums", self.product(tile, str(ROWS * COLUMNS * 4)))
            self(f"call void @{_PLACE}.tile(ptr {a}, ptr {b}, ptr {sums})")
        self._arguments(first, self.product(panel, str(COLUMNS)))
        self(f"call void @{_PLACE}.{self.epilogue.name}(ptr %words, i64 0, i64 {count}, ptr null)")

    def _row(self, number: str, row: str) -> None:
        """A row of floats as bytes, zeros behind it, and the sum of the bytes."""
        deep, wide = self.shape.deep, 4 * self.shape.fours
        source = self.at(self.words["a"], self.product(number, str(4 * deep)))
        target = self.at("%rows", self.product(row, str(wide)))
        total = self.at("%rowsums", self.product(row, "4"))
        factor = self.let(f"load float, ptr {self.words['g']}, align 4")
        zero = self.let(f"load float, ptr {self.at(self.words['g'], 4)}, align 4")
        self.use("declare float @llvm.roundeven.f32(float)")
        with self.loop("0", str(deep)) as k:
            x = self.let(f"load float, ptr {self.let(f'getelementptr float, ptr {source}, i64 {k}')}, align 4")
            near = self.let(f"call float @llvm.roundeven.f32(float {self.let(f'fmul float {x}, {factor}')})")
            moved = self.let(f"fadd float {near}, {zero}")
            moved = self._kept(moved, "ogt", "0.0")
            whole = self.let(f"fptosi float {self._kept(moved, 'olt', '255.0')} to i32")
            byte = self.let(f"trunc i32 {whole} to i8")
            self(f"store i8 {byte}, ptr {self.let(f'getelementptr i8, ptr {target}, i64 {k}')}, align 1")
        for k in range(deep, wide):
            self(f"store i8 0, ptr {self.at(target, k)}, align 1")
        self(f"store i32 0, ptr {total}, align 4")
        with self.loop("0", str(deep)) as k:
            byte = self.let(f"load i8, ptr {self.let(f'getelementptr i8, ptr {target}, i64 {k}')}, align 1")
            held = self.let(f"load i32, ptr {total}, align 4")
            more = self.let(f"add i32 {held}, {self.let(f'zext i8 {byte} to i32')}")
            self(f"store i32 {more}, ptr {total}, align 4")

    def _kept(self, x: str, how: str, edge: str) -> str:
        """x on one side of an edge; NaN becomes the edge."""
        return self.let(f"select i1 {self.let(f'fcmp {how} float {x}, {edge}')}, float {x}, float {edge}")

    def _arguments(self, first: str, column: str) -> None:
        """The words of the epilogue for this cell."""
        shape, across = self.shape, self.product(column, "4")
        down = self.product(first, str(4 * shape.columns))
        given = [("ptr", "%sums"), ("ptr", "%rowsums"), ("ptr", self.at(self.words["c"], across))]
        for name, has_rows in (*shape.operands, ("y", True)):
            start = self.at(self.words[name], down) if has_rows else self.words[name]
            given.append(("ptr", self.at(start, across)))
        assert self.epilogue.sizes == (LIVE,), "everything else is known"
        given.append(("i64", self.least(str(COLUMNS), self.sub(str(shape.columns), column))))
        for index, (kind, value) in enumerate(given):
            self(f"store {kind} {value}, ptr {self.at('%words', 8 * index)}, align 8")
