"""Attend as LLVM's text: one pass over the keys with a running maximum, a block of queries at a time.

A tile is a block of queries of one head. For each block of keys it computes the scores, bends and masks them, turns
them into weights, and adds the weighted values to what the queries have taken so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.ir.dim import Dim, Size
from dovetail.ir.dtype import f32
from dovetail.kernels.attend_parts import (
    declared,
    key_rows,
    make_columns,
    make_copy,
    make_out,
    make_scores,
    make_values,
    make_weights,
)
from dovetail.kernels.attend_rope import make_rotate
from dovetail.kernels.job import Part
from dovetail.kernels.llvm_scalar import literal
from dovetail.kernels.vector import Vectors, VectorText
from dovetail.library.rope import Form
from dovetail.library.softmax import Empty

WIDE = 2
"""Vectors of queries in a tile."""
FEW = 4
"""Up to how many queries of a head are done with lanes along features."""


@dataclass(frozen=True, slots=True)
class Attend:
    """What a kernel is asked for. Strides are in bytes: leading axes, head, row, and the axis that is read along."""

    vectors: Vectors
    lead: tuple[Size, ...]
    heads: Size
    queries: Size
    keys: Size
    d: int
    dv: int
    groups: int
    strides: Mapping[str, tuple[Size, ...]]
    """Of q, k, v and y, and where they are given of mask, keep, and cos and sin for queries and for keys."""
    scale: float
    softcap: float | None
    causal: bool
    window: int | None
    fill: float | None
    empty: Empty
    zero_unseen: bool
    rotated: int | None
    form: Form

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return WIDE * self.vectors.lanes

    @property
    def pointers(self) -> tuple[str, ...]:
        rope = ("cos", "sin") if self.rotated is not None else ()
        return ("q", "k", "v", *rope, *(n for n in ("mask", "keep") if n in self.strides), "y")


@dataclass(frozen=True, slots=True)
class Written:
    """The text of a kernel whose name is left open, what it calls, the sizes it asks for and the bytes it needs."""

    text: str
    parts: tuple[Part, ...]
    uses: tuple[str, ...]
    sizes: tuple[Dim, ...]
    scratch: int


def write(asked: Attend, name: str) -> Written:
    """The kernel under a name."""
    tile = Tile(asked)
    with tile.loop("%begin", "%end") as number:
        tile.run(number)
    tile("ret void")
    pointers = [(f"%{n}", "ptr") for n in asked.pointers]
    words = [*pointers, *((s, "i64") for s in tile.sizes.values())]
    unpacked: list[str] = []
    for i, (word, kind) in enumerate(words):
        unpacked += [
            f"  %at{i} = getelementptr i8, ptr %a, i64 {8 * i}",
            f"  {word} = load {kind}, ptr %at{i}, align 8",
        ]
    head = f"define void @{name}(ptr noalias readonly %a, i64 %begin, i64 %end, ptr noalias %scratch) nounwind {{"
    lines = [head, "entry:", *unpacked, *tile.slots, *tile.lines, "}"]
    parts = tuple(tile.parts.values())
    uses = dict.fromkeys([*tile.used, *map(declared, parts)])
    return Written("\n".join(lines), parts, tuple(uses), tuple(tile.sizes), tile.most)


class Tile(VectorText):
    """Writes the work of one tile."""

    def __init__(self, asked: Attend) -> None:
        super().__init__(asked.vectors.lanes)
        self.asked = asked
        self.sizes: dict[Dim, str] = {}
        self.parts: dict[str, Part] = {}
        self.row = 4 * self.lanes
        self.most = self.end = 0

    def take(self, size: int) -> str:
        """So many bytes of the worker's memory."""
        at = self.end
        self.end += -(-size // 64) * 64
        self.most = max(self.most, self.end)
        return self.at("%scratch", at)

    def size(self, size: Size) -> str:
        return str(size) if isinstance(size, int) else self.sizes.setdefault(size, f"%s{len(self.sizes)}")

    def times(self, x: str, size: Size) -> str:
        return "0" if size == 0 else self.let(f"mul i64 {x}, {self.size(size)}")

    def smaller(self, x: str, y: str) -> str:
        return self.let(f"select i1 {self.let(f'icmp slt i64 {x}, {y}')}, i64 {x}, i64 {y}")

    def call(self, part: Part, *given: str) -> None:
        self.parts[part.name] = part
        self(f"call void @{part.name}({', '.join(given)})")

    def run(self, number: str) -> None:
        """Find the place of a tile, then attend with as few vectors as its queries need."""
        a = self.asked
        count = self.size(a.queries)
        blocks = self.let(f"sdiv i64 {self.let(f'add i64 {count}, {a.rows - 1}')}, {a.rows}")
        block, rest = self.let(f"srem i64 {number}, {blocks}"), self.let(f"sdiv i64 {number}, {blocks}")
        head, rest = (
            self.let(f"srem i64 {rest}, {self.size(a.heads)}"),
            self.let(f"sdiv i64 {rest}, {self.size(a.heads)}"),
        )
        lead: list[str] = []
        for size in reversed(a.lead):
            lead.insert(0, self.let(f"srem i64 {rest}, {self.size(size)}"))
            rest = self.let(f"sdiv i64 {rest}, {self.size(size)}")
        shared = head if a.groups == 1 else self.let(f"sdiv i64 {head}, {a.groups}")
        first = self.let(f"mul i64 {block}, {a.rows}")
        rows = self.smaller(str(a.rows), self.let(f"sub i64 {count}, {first}"))
        at = {n: self.place(n, [*lead, head if n in _BY_QUERY else shared], first) for n in a.strides}
        for wide in range(1, WIDE + 1):
            least = self.let(f"icmp sgt i64 {rows}, {(wide - 1) * self.lanes}")
            most = self.let(f"icmp sle i64 {rows}, {wide * self.lanes}")
            with self.when(self.let(f"and i1 {least}, {most}")):
                self.attend(wide, at, first, rows)

    def place(self, name: str, indices: Sequence[str], first: str) -> str:
        """The first row of a tile's queries, or of all keys."""
        pointer = f"%{name.split('_')[0]}"
        strides = self.asked.strides[name]
        if name in _BY_QUERY:
            indices = [*indices, first]
        for index, stride in zip(indices, strides, strict=False):
            pointer = self.at(pointer, self.times(index, stride))
        return pointer

    def attend(self, wide: int, at: Mapping[str, str], first: str, rows: str) -> None:
        a = self.asked
        work = _Work(self, wide, at, first, rows)
        work.take_queries()
        end = self.size(a.keys)
        if not a.causal:
            work.go("0", end)
        else:
            low = "0"
            if a.window is not None:
                low = self.let(f"sub i64 {first}, {a.window - 1}")
                low = self.let(f"select i1 {self.let(f'icmp slt i64 {low}, 0')}, i64 0, i64 {low}")
            work.go(low, self.smaller(end, self.let(f"add i64 {first}, {rows}")))
            if a.fill is not None and not math.isinf(a.fill):
                with self.when(work.sees_nothing(a.fill)):
                    work.go("0", end)
        work.give()
        self.most = max(self.most, work.room.end)


_BY_QUERY = ("q", "y", "mask", "keep", "cos_q", "sin_q")


