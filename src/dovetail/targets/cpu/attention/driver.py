"""Attend as LLVM's text: one pass over the keys with a running maximum, a block of queries at a time.

A tile is a block of queries of one head. For each block of keys it computes the scores, bends and masks them, turns
them into weights, and adds the weighted values to what the queries have taken so far.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dovetail.codegen.llvm.simd import VectorText
from dovetail.ir.dim import Dim, Size, product
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Part
from dovetail.library.attention import Filled
from dovetail.library.rope import Form
from dovetail.library.softmax import Empty
from dovetail.targets.cpu.attention.decode import Few
from dovetail.targets.cpu.attention.online import Many
from dovetail.targets.cpu.attention.pack_kv import KEPT, Near
from dovetail.targets.cpu.attention.rope import make_rotate

WIDE = 2
"""CpuDevice of queries in a tile."""
SPAN = 4
"""Blocks of queries for which keys are rotated once."""
FEW = 4
"""Up to how many queries of a head are done with lanes along features."""


@dataclass(frozen=True, slots=True)
class Attend:
    """What a kernel is asked for. Strides are in bytes: leading axes, head, row, and the axis that is read along."""

    vectors: CpuDevice
    lead: tuple[Size, ...]
    heads: Size
    queries: Size
    keys: Size
    d: int
    dv: int
    stored: str
    """The type of elements in memory; they are computed with as f32."""
    groups: int
    strides: Mapping[str, tuple[Size, ...]]
    """Of q, k, v and y, and where they are given of mask, keep, and cos and sin for queries and for keys."""
    scale: float
    softcap: float | None
    causal: bool
    window: int | None
    fill: float | None
    filled: Filled
    empty: Empty
    zero_unseen: bool
    rotated: int | None
    form: Form

    @property
    def fill_takes_all(self) -> bool:
        """Whether no score is seen through a fill that is added to it."""
        return self.filled != "added" or self.fill is None or self.fill <= -1e30

    @property
    def lost_below(self) -> float | None:
        """From which score down hidden keys count as well; None where they never do.

        Behind masks and scores that come on top of the fill half of it is left, for none of them is that large.
        """
        if self.fill is None or math.isinf(self.fill):
            return None
        return self.fill + 200.0 if self.filled == "last" else self.fill / 2

    @property
    def rows(self) -> int:
        """Queries of a tile."""
        return WIDE * self.vectors.lanes

    @property
    def blocks(self) -> Size:
        """Tiles of a head."""
        return (self.queries + (self.rows - 1)) // self.rows

    @property
    def shared(self) -> Size:
        """Heads of keys and values."""
        return self.heads // self.groups

    @property
    def is_few(self) -> bool:
        """Whether a tile is a head of keys with all the queries that look at it."""
        return isinstance(self.queries, int) and self.queries <= FEW and self.rotated is None

    @property
    def may_be_few(self) -> bool:
        """Whether only a run tells that there are few queries; where each is a key too, few are no work anyway."""
        return not isinstance(self.queries, int) and self.queries != self.keys and self.rotated is None

    @property
    def span(self) -> int:
        """Queries of a head for which keys are rotated once."""
        return SPAN * self.rows

    @property
    def spans(self) -> Size:
        return (self.queries + (self.span - 1)) // self.span

    @property
    def room(self) -> int:
        """Bytes that a worker needs beside what is laid out and rotated keys."""
        t = Tile(self)
        Many(t, WIDE, dict.fromkeys(self.strides, "null"), "0", "0")
        if self.may_be_few:
            t.end = KEPT
            Few(t, dict.fromkeys(self.strides, "null"), FEW, count="0", first="0")
        return t.most

    @property
    def tiles(self) -> Size:
        if self.rotated is not None:
            return product(self.lead) * self.shared * self.spans
        return product(self.lead) * (self.shared if self.is_few else self.heads * self.blocks)

    @property
    def work(self) -> Size:
        """Multiplications of a tile."""
        rows = self.groups * self.span if self.rotated is not None else self.rows
        if self.is_few:
            rows = self.groups * self.queries
        return rows * (self.d + self.dv) * self.keys

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
    scratch: Size


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
    uses = dict.fromkeys([*tile.used, *[part.declaration for part in parts]])
    scratch: Size = tile.most if asked.is_few else asked.room + tile.near.bytes
    if asked.rotated is not None:
        # A few keys more, because they are scored several at a time.
        scratch = scratch + (asked.keys + tile.lanes) * (4 * asked.d)
    return Written("\n".join(lines), parts, tuple(uses), tuple(tile.sizes), scratch)


class Tile(VectorText):
    """Writes the work of one tile."""

    def __init__(self, asked: Attend) -> None:
        super().__init__(asked.vectors.lanes)
        self.asked = asked
        self.sizes: dict[Dim, str] = {}
        self.parts: dict[str, Part] = {}
        self.row = 4 * self.lanes
        self.most = self.end = KEPT
        self.near = Near(self)

    def take(self, size: int) -> str:
        """So many bytes of the worker's memory."""
        at = self.end
        self.end += -(-size // 64) * 64
        self.most = max(self.most, self.end)
        return self.at("%scratch", at)

    def stored(self, name: str) -> str:
        """The type of a tensor's elements."""
        return "i8" if name == "keep" else self.asked.stored

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
        if a.is_few:
            *lead, shared = self.indices(number, (*a.lead, a.shared))
            head = self.let(f"mul i64 {shared}, {a.groups}")
            rows = a.groups * a.queries
            assert isinstance(rows, int), "few queries are counted"
            Few(self, self.places(lead, head, shared, "0"), rows).go()
            return
        if a.rotated is not None:
            self.run_rotated(number)
            return
        *lead, head, block = self.indices(number, (*a.lead, a.heads, a.blocks))
        shared = head if a.groups == 1 else self.let(f"sdiv i64 {head}, {a.groups}")
        first = self.let(f"mul i64 {block}, {a.rows}")
        rows = self.smaller(str(a.rows), self.let(f"sub i64 {self.size(a.queries)}, {first}"))
        at = self.places(lead, head, shared, first)
        end = self.seen(first, self.let(f"add i64 {first}, {rows}"))[1] if a.causal else self.size(a.keys)
        self.near.lay(self.let(f"sdiv i64 {number}, {self.times(str(a.groups), a.blocks)}"), at, end)
        if a.may_be_few:
            less = self.let(f"icmp sle i64 {rows}, {FEW}")
            with self.when(less):
                Few(self, at, FEW, count=rows, first=first).go()
            some = self.let(f"xor i1 {less}, true")
        else:
            some = "true"
        with self.when(some):
            self.run_rows(at, first, rows)

    def run_rotated(self, number: str) -> None:
        """Rotate the keys once for several blocks of queries of all the heads that share them."""
        a = self.asked
        *lead, shared, block = self.indices(number, (*a.lead, a.shared, a.spans))
        start = self.let(f"mul i64 {block}, {a.span}")
        low, end = "0", self.size(a.keys)
        if a.causal and a.fill is not None and math.isinf(a.fill):
            low, end = self.seen(start, self.let(f"add i64 {start}, {a.span}"))
        keys = self.at("%scratch", a.room + self.near.bytes)
        at = self.places(lead, "0", shared, "0")
        count = self.let(f"sub i64 {end}, {low}")
        self.rotate("k", at, low, count, self.at(keys, self.times(low, 4 * a.d)))
        self.near.lay(self.let(f"sdiv i64 {number}, {self.size(a.spans)}"), at, end)
        with self.loop("0", str(a.groups)) as group, self.loop("0", str(a.span // a.rows)) as part:
            head = self.let(f"add i64 {self.let(f'mul i64 {shared}, {a.groups}')}, {group}")
            first = self.let(f"add i64 {start}, {self.let(f'mul i64 {part}, {a.rows}')}")
            rows = self.smaller(str(a.rows), self.let(f"sub i64 {self.size(a.queries)}, {first}"))
            self.run_rows({**self.places(lead, head, shared, first), "k": keys}, first, rows)

    def run_rows(self, at: Mapping[str, str], first: str, rows: str) -> None:
        """A block of queries with as few vectors as it needs; none at all where there are no rows."""
        for wide in range(1, WIDE + 1):
            least = self.let(f"icmp sgt i64 {rows}, {(wide - 1) * self.lanes}")
            most = self.let(f"icmp sle i64 {rows}, {wide * self.lanes}")
            with self.when(self.let(f"and i1 {least}, {most}")):
                self.end = KEPT
                self.attend(wide, at, first, rows)

    def seen(self, first: str, end: str) -> tuple[str, str]:
        """The keys that positions show to the queries between two."""
        a = self.asked
        low = "0"
        if a.window is not None:
            low = self.let(f"sub i64 {first}, {a.window - 1}")
            low = self.let(f"select i1 {self.let(f'icmp slt i64 {low}, 0')}, i64 0, i64 {low}")
        return low, self.smaller(self.size(a.keys), end)

    def rotate(self, which: str, at: Mapping[str, str], first: str, rows: str, to: str) -> None:
        """Rows of queries or keys, rotated and dense."""
        a = self.asked
        assert a.rotated is not None
        given: list[str] = []
        for name in (which, f"cos_{which}", f"sin_{which}"):
            stride = a.strides[name][-2]
            given += [f"ptr {self.at(at[name], self.times(first, stride))}", f"i64 {self.size(stride)}"]
        self.call(make_rotate(a.vectors, a.d, a.rotated, a.form, a.stored), *given, f"i64 {rows}", f"ptr {to}")

    def indices(self, number: str, sizes: Sequence[Size]) -> list[str]:
        """The index along each axis of what has a number; the last axis is the fastest."""
        found: list[str] = []
        for size in reversed(sizes[1:]):
            found.append("0" if size == 1 else self.let(f"srem i64 {number}, {self.size(size)}"))
            number = number if size == 1 else self.let(f"sdiv i64 {number}, {self.size(size)}")
        return [number, *reversed(found)]

    def places(self, lead: Sequence[str], head: str, shared: str, first: str) -> dict[str, str]:
        """Where the first row of a tile's queries lies in each tensor, or the first of all keys."""
        found: dict[str, str] = {}
        for name, strides in self.asked.strides.items():
            indices = [*lead, head, first] if name in _BY_QUERY else [*lead, shared]
            pointer = f"%{name.split('_')[0]}"
            for index, stride in zip(indices, strides, strict=False):
                pointer = self.at(pointer, self.times(index, stride))
            found[name] = pointer
        return found

    def attend(self, wide: int, at: Mapping[str, str], first: str, rows: str) -> None:
        """With lanes along queries; keys that positions hide are left out where they weigh nothing."""
        a = self.asked
        work = Many(self, wide, at, first, rows)
        work.ask_for_results()
        work.take_queries()
        end = self.size(a.keys)
        if not a.causal:
            work.go("0", end)
        else:
            work.go(*self.seen(first, self.let(f"add i64 {first}, {rows}")))
            if a.lost_below is not None:
                with self.when(work.sees_nothing(a.lost_below)):
                    work.go("0", end)
        work.give()

    def shown(self, x: str, given: Mapping[str, str], keys: str, own: str) -> str:
        """Scores with the mask, and with the fill in place of those that masks or positions hide, as asked for."""
        a = self.asked
        if "mask" in given and a.filled != "first":
            x = self.add(x, given["mask"])
        x = self.filled(x, given, keys, own)
        return self.add(x, given["mask"]) if "mask" in given and a.filled == "first" else x

    def filled(self, x: str, given: Mapping[str, str], keys: str, own: str) -> str:
        a = self.asked
        seen = [self.compare("une", given["keep"], self.number(0.0))] if "keep" in given else []
        if a.zero_unseen and "mask" in given:
            seen.append(self.compare("une", given["mask"], self.number(-math.inf)))
        if a.causal:
            seen.append(self.let(f"icmp sle {self.whole} {keys}, {own}"))
            if a.window is not None:
                low = self.let(f"sub {self.whole} {own}, splat (i32 {min(a.window, 2**30)})")
                seen.append(self.let(f"icmp sgt {self.whole} {keys}, {low}"))
        if not seen:
            return x
        visible = seen[0]
        for more in seen[1:]:
            visible = self.let(f"and {self.truth} {visible}, {more}")
        fill = self.number(-math.inf if a.fill is None else a.fill)
        if a.fill_takes_all:
            return self.select(visible, x, fill)
        return self.add(x, self.select(visible, self.number(0.0), fill))

    def positions(self, first: str, i: int) -> str:
        """Whole numbers from `first` on, those of vector i."""
        own = ", ".join(f"i32 {i * self.lanes + lane}" for lane in range(self.lanes))
        return self.let(f"add {self.whole} {self.spread_whole(first)}, <{own}>")

    def spread_whole(self, x: str) -> str:
        one = self.let(f"insertelement {self.whole} poison, i32 {self.let(f'trunc i64 {x} to i32')}, i64 0")
        return self.let(f"shufflevector {self.whole} {one}, {self.whole} poison, {self.whole} zeroinitializer")

    def factor(self, total: str) -> str:
        """What the sums of weighted values are multiplied by; 0 makes 0 of anything."""
        a = self.asked
        found = self.div(self.number(1.0), total)
        if a.empty == "zero":
            found = self.select(self.compare("ogt", total, self.number(0.0)), found, self.number(0.0))
        elif a.zero_unseen:
            # All scores were -inf; a NaN among them is a NaN in the sum.
            found = self.select(self.compare("oeq", total, self.number(0.0)), self.number(0.0), found)
        keyless = self.let(f"icmp eq i64 {self.size(a.keys)}, 0")
        return self.let(f"select i1 {keyless}, {self.kind} zeroinitializer, {self.kind} {found}")


_BY_QUERY = ("q", "y", "mask", "keep", "cos_q", "sin_q")
