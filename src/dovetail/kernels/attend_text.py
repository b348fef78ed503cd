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
    Part,
    key_rows,
    make_columns,
    make_copy,
    make_out,
    make_scores,
    make_values,
    make_weights,
)
from dovetail.kernels.attend_rope import make_rotate
from dovetail.kernels.llvm_scalar import literal
from dovetail.kernels.vector import Vectors, VectorText
from dovetail.library.rope import Form
from dovetail.library.softmax import Empty

WIDE = 2
"""Vectors of queries in a tile."""
BLOCK = 64
"""Keys whose scores are kept at once: with their values they fit the first cache."""


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
    tile = _Tile(asked)
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
    uses = dict.fromkeys([*tile.used, *(u for p in parts for u in p.uses)])
    return Written("\n".join(lines), parts, tuple(uses), tuple(tile.sizes), tile.most)


class _Room:
    """Where things lie in a worker's memory."""

    def __init__(self) -> None:
        self.end = 0

    def take(self, size: int) -> int:
        at = self.end
        self.end += -(-size // 64) * 64
        return at


class _Tile(VectorText):
    """Writes the work of one tile."""

    def __init__(self, asked: Attend) -> None:
        super().__init__(asked.vectors.lanes)
        self.asked = asked
        self.sizes: dict[Dim, str] = {}
        self.parts: dict[str, Part] = {}
        self.most = 0
        self.row = 4 * self.lanes

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


class _Work:
    """One tile with so many vectors of queries: what lies where in the worker's memory, and the steps."""

    def __init__(self, t: _Tile, wide: int, at: Mapping[str, str], first: str, rows: str) -> None:
        self.t, self.wide, self.at, self.first, self.rows = t, wide, at, first, rows
        a = self.a = t.asked
        self.row = wide * t.row
        self.room = _Room()
        self.columns, self.taken = self.take(a.d * self.row), self.take(a.dv * self.row)
        self.scores = self.take(BLOCK * self.row)
        self.tops, self.sums, self.old = (self.take(self.row) for _ in range(3))
        self.buffer = self.take(t.lanes * t.row)
        self.keys = key_rows(a.vectors, wide)
        self.packs_keys = a.rotated is not None or a.strides["k"][-1] != 4
        self.key_rows = self.take((BLOCK if self.packs_keys else self.keys) * 4 * a.d)
        self.value_rows = self.take(BLOCK * 4 * a.dv) if a.strides["v"][-1] != 4 else ""
        self.masks = {n: self.take(BLOCK * self.row) for n in ("mask", "keep") if self.is_by_row(n)}
        self.query_rows = self.take(a.rows * 4 * a.d) if a.rotated is not None else ""

    def take(self, size: int) -> str:
        return self.t.at("%scratch", self.room.take(size))

    def is_by_row(self, name: str) -> bool:
        """Whether each query has a mask of its own."""
        strides = self.a.strides.get(name)
        return strides is not None and strides[-2] != 0

    def take_queries(self) -> None:
        """The queries as columns, scaled."""
        t, a = self.t, self.a
        x, stride, step = self.at["q"], t.size(a.strides["q"][-2]), t.size(a.strides["q"][-1])
        if a.rotated is not None:
            self.rotate("q", x, "0", self.rows, self.query_rows)
            x, stride, step = self.query_rows, str(4 * a.d), "4"
        factor = a.scale if a.softcap is None else a.scale / a.softcap
        for i in range(self.wide):
            first = t.let(f"mul i64 {stride}, {i * t.lanes}")
            to = t.at(self.columns, i * t.row)
            self.as_columns(t.at(x, first), stride, step, i, str(a.d), factor, to)

    def as_columns(
        self, x: str, stride: str, step: str, i: int, count: str, factor: float, to: str, *, of_bytes: bool = False
    ) -> None:
        t = self.t
        rows = t.let(f"sub i64 {self.rows}, {i * t.lanes}")
        t.call(
            make_columns(self.a.vectors, of_bytes=of_bytes),
            f"ptr {x}", f"i64 {stride}", f"i64 {step}", f"i64 {rows}", f"i64 {count}",
            f"float {literal(factor, f32)}", f"ptr {to}", f"i64 {self.row}",
        )  # fmt: skip

    def rotate(self, which: str, x: str, first: str, rows: str, to: str) -> None:
        t, a = self.t, self.a
        assert a.rotated is not None
        given = [f"ptr {x}", f"i64 {t.size(a.strides[which][-2])}"]
        for name in (f"cos_{which}", f"sin_{which}"):
            stride = a.strides[name][-2]
            given += [f"ptr {t.at(self.at[name], t.times(first, stride))}", f"i64 {t.size(stride)}"]
        t.call(make_rotate(a.vectors, a.d, a.rotated, a.form), *given, f"i64 {rows}", f"ptr {to}")

    def go(self, low: str, end: str) -> None:
        """Everything that the queries take from the keys between two."""
        t = self.t
        self.clear()
        with t.steps(low, end, BLOCK) as first:
            count = t.smaller(str(BLOCK), t.let(f"sub i64 {end}, {first}"))
            self.score(first, count)
            self.bend(first, count)
            t.call(
                make_weights(self.a.vectors, self.wide),
                f"ptr {self.scores}", f"i64 {count}", f"ptr {self.tops}", f"ptr {self.sums}",
            )  # fmt: skip
            self.add_values(first, count)

    def clear(self) -> None:
        t = self.t
        for i in range(self.wide):
            t.store(t.number(float("-inf")), t.at(self.tops, i * t.row), t.row)
            t.store("zeroinitializer", t.at(self.sums, i * t.row), t.row)
        with t.loop("0", str(self.a.dv)) as c:
            to = t.at(self.taken, t.let(f"mul i64 {c}, {self.row}"))
            for i in range(self.wide):
                t.store("zeroinitializer", t.at(to, i * t.row), t.row)

    def score(self, first: str, count: str) -> None:
        """The scores of a block of keys, a few keys at a time; those behind the last key are never read."""
        t, a = self.t, self.a
        stride, step = t.size(a.strides["k"][-2]), t.size(a.strides["k"][-1])
        x = t.at(self.at["k"], t.times(first, a.strides["k"][-2]))
        part = make_scores(a.vectors, self.wide, a.d)
        if self.packs_keys:
            if a.rotated is not None:
                self.rotate("k", x, first, count, self.key_rows)
            else:
                t.call(
                    make_copy(a.vectors, a.d),
                    f"ptr {x}",
                    f"i64 {stride}",
                    f"i64 {step}",
                    f"i64 {count}",
                    f"ptr {self.key_rows}",
                )
            x, stride = self.key_rows, str(4 * a.d)
            whole = t.let(f"sdiv i64 {t.let(f'add i64 {count}, {self.keys - 1}')}, {self.keys}")
        else:
            whole = t.let(f"sdiv i64 {count}, {self.keys}")
        with t.loop("0", whole) as group:
            at = t.at(x, t.let(f"mul i64 {t.let(f'mul i64 {group}, {self.keys}')}, {stride}"))
            to = t.at(self.scores, t.let(f"mul i64 {group}, {self.keys * self.row}"))
            t.call(part, f"ptr {self.columns}", f"ptr {at}", f"i64 {stride}", f"ptr {to}")
        if self.packs_keys:
            return
        done = t.let(f"mul i64 {whole}, {self.keys}")
        left = t.let(f"sub i64 {count}, {done}")
        with t.when(t.let(f"icmp sgt i64 {left}, 0")):
            at = t.at(x, t.let(f"mul i64 {done}, {stride}"))
            t.call(
                make_copy(a.vectors, a.d), f"ptr {at}", f"i64 {stride}", "i64 4", f"i64 {left}", f"ptr {self.key_rows}"
            )
            to = t.at(self.scores, t.let(f"mul i64 {done}, {self.row}"))
            t.call(part, f"ptr {self.columns}", f"ptr {self.key_rows}", f"i64 {4 * a.d}", f"ptr {to}")

    def bend(self, first: str, count: str) -> None:
        """Cap and mask the scores of a block; keep the highest of each query and how much older sums shrink by it."""
        t, a = self.t, self.a
        for name, to in self.masks.items():
            row, step = a.strides[name][-2:]
            for i in range(self.wide):
                x = t.at(t.at(self.at[name], t.times(first, step)), t.let(f"mul i64 {t.size(row)}, {i * t.lanes}"))
                of_bytes = name == "keep"
                self.as_columns(
                    x, t.size(row), t.size(step), i, count, 1.0, t.at(to, i * t.row), of_bytes=of_bytes
                )  # fmt: skip
        before = [t.load(t.at(self.tops, i * t.row), t.row) for i in range(self.wide)]
        tops = [t.variable(x) for x in before]
        changes = a.softcap is not None or a.fill is not None or "mask" in a.strides
        with t.loop("0", count) as j:
            key = t.let(f"add i64 {first}, {j}")
            at = t.at(self.scores, t.let(f"mul i64 {j}, {self.row}"))
            given = {n: self.masked(n, key, j) for n in ("mask", "keep") if n in a.strides}
            for i in range(self.wide):
                place = t.at(at, i * t.row)
                x = t.load(place, t.row)
                if changes:
                    x = self.bent(x, i, key, {n: v[i] for n, v in given.items()})
                    t.store(x, place, t.row)
                t.put(t.larger(x, t.get(tops[i])), tops[i])
        for i in range(self.wide):
            now = t.get(tops[i])
            t.store(now, t.at(self.tops, i * t.row), t.row)
            none = t.compare("oeq", now, t.number(float("-inf")))
            less = t.sub(before[i], t.select(none, t.number(0.0), now))
            shrunk = t.exp_of_negative(less)
            t.store(shrunk, t.at(self.old, i * t.row), t.row)
            total = t.at(self.sums, i * t.row)
            t.store(t.mul(t.load(total, t.row), shrunk), total, t.row)

    def masked(self, name: str, key: str, j: str) -> list[str]:
        """What a mask has for a key, for each vector of queries."""
        t = self.t
        if name in self.masks:
            at = t.at(self.masks[name], t.let(f"mul i64 {j}, {self.row}"))
            return [t.load(t.at(at, i * t.row), t.row) for i in range(self.wide)]
        at = t.at(self.at[name], t.times(key, self.a.strides[name][-1]))
        if name == "mask":
            return [t.spread_from(at)] * self.wide
        return [t.spread(t.let(f"uitofp i8 {t.let(f'load i8, ptr {at}')} to float"))] * self.wide

    def bent(self, x: str, i: int, key: str, given: Mapping[str, str]) -> str:
        t, a = self.t, self.a
        if a.softcap is not None:
            x = t.mul(t.tanh(x), t.number(a.softcap))
        if "mask" in given:
            x = t.add(x, given["mask"])
        seen = [t.compare("une", given["keep"], t.number(0.0))] if "keep" in given else []
        if a.causal:
            own = self.positions(i)
            keys = self.spread_whole(key)
            seen.append(t.let(f"icmp sle {t.whole} {keys}, {own}"))
            if a.window is not None:
                low = t.let(f"sub {t.whole} {own}, splat (i32 {min(a.window, 2**30)})")
                seen.append(t.let(f"icmp sgt {t.whole} {keys}, {low}"))
        if not seen:
            return x
        assert a.fill is not None
        visible = seen[0]
        for more in seen[1:]:
            visible = t.let(f"and {t.truth} {visible}, {more}")
        return t.select(visible, x, t.number(a.fill))

    def positions(self, i: int) -> str:
        """The positions of the queries of a vector."""
        t = self.t
        own = ", ".join(f"i32 {i * t.lanes + lane}" for lane in range(t.lanes))
        return t.let(f"add {t.whole} {self.spread_whole(self.first)}, <{own}>")

    def spread_whole(self, x: str) -> str:
        t = self.t
        one = t.let(f"insertelement {t.whole} poison, i32 {t.let(f'trunc i64 {x} to i32')}, i64 0")
        return t.let(f"shufflevector {t.whole} {one}, {t.whole} poison, <{t.lanes} x i32> zeroinitializer")

    def add_values(self, first: str, count: str) -> None:
        t, a = self.t, self.a
        stride, step = t.size(a.strides["v"][-2]), t.size(a.strides["v"][-1])
        x = t.at(self.at["v"], t.times(first, a.strides["v"][-2]))
        if self.value_rows:
            t.call(
                make_copy(a.vectors, a.dv),
                f"ptr {x}",
                f"i64 {stride}",
                f"i64 {step}",
                f"i64 {count}",
                f"ptr {self.value_rows}",
            )
            x, stride = self.value_rows, str(4 * a.dv)
        features = key_rows(a.vectors, self.wide)
        whole = a.dv // features
        if whole:
            with t.loop("0", str(whole)) as i:
                self.values(features, t.let(f"mul i64 {i}, {features}"), x, stride, count)
        if a.dv % features:
            self.values(a.dv % features, str(whole * features), x, stride, count)

    def values(self, features: int, first: str, x: str, stride: str, count: str) -> None:
        t = self.t
        x = t.at(x, t.let(f"mul i64 {first}, 4"))
        to = t.at(self.taken, t.let(f"mul i64 {first}, {self.row}"))
        part = make_values(self.a.vectors, self.wide, features)
        t.call(part, f"ptr {self.scores}", f"ptr {x}", f"i64 {stride}", f"i64 {count}", f"ptr {to}", f"ptr {self.old}")

    def sees_nothing(self, fill: float) -> str:
        """Whether some query has seen only hidden keys: then those that were left out count as much."""
        t = self.t
        found = "false"
        for i in range(self.wide):
            top = t.load(t.at(self.tops, i * t.row), t.row)
            low = t.compare("ole", top, t.number(fill + 200.0))
            some = t.let(f"bitcast {t.truth} {low} to i{t.lanes}")
            found = t.let(f"or i1 {found}, {t.let(f'icmp ne i{t.lanes} {some}, 0')}")
        return found

    def give(self) -> None:
        """Divide by the sums and write the rows of the result."""
        t, a = self.t, self.a
        keyless = t.let(f"icmp eq i64 {t.size(a.keys)}, 0")
        for i in range(self.wide):
            total = t.load(t.at(self.sums, i * t.row), t.row)
            factor = t.div(t.number(1.0), total)
            if a.empty == "zero":
                factor = t.select(t.compare("ogt", total, t.number(0.0)), factor, t.number(0.0))
            elif a.zero_unseen:
                # All scores were -inf; a NaN among them is a NaN in the sum.
                factor = t.select(t.compare("oeq", total, t.number(0.0)), t.number(0.0), factor)
            factor = t.let(f"select i1 {keyless}, {t.kind} zeroinitializer, {t.kind} {factor}")
            t.store(factor, t.at(self.old, i * t.row), t.row)
            stride = t.size(a.strides["y"][-2])
            to = t.at(self.at["y"], t.let(f"mul i64 {stride}, {i * t.lanes}"))
            left = t.let(f"sub i64 {self.rows}, {i * t.lanes}")
            rows = t.smaller(str(t.lanes), left)
            t.call(
                make_out(a.vectors, self.wide, a.dv),
                f"ptr {t.at(self.taken, i * t.row)}", f"ptr {t.at(self.old, i * t.row)}", f"ptr {to}",
                f"i64 {stride}", f"i64 {rows}", f"ptr {self.buffer}",
            )  # fmt: skip
