"""Attend for few queries, lanes along features: keys and values stream by once, for all the heads they serve.

A tile is one head of keys with all the queries that look at it. What they attend to is bound by memory, so that a row
of keys or values is read as it lies, and all its queries are done while it is near.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.simd import STORED, VectorText
from dovetail.ir.dtype import f32
from dovetail.kernels.device import CpuDevice
from dovetail.kernels.spec import Part
from dovetail.targets.cpu.attention.parts import BLOCK, LINE, finished, make_copy

if TYPE_CHECKING:
    from dovetail.targets.cpu.attention.driver import Tile

MOST_UNROLLED = 8
"""CpuDevice of a row that are spelled out one by one; longer rows go through a loop."""


def padded(size: int, lanes: int) -> int:
    """The size up to whole vectors."""
    return -(-size // lanes) * lanes


def make_few_scores(vectors: CpuDevice, d: int) -> Part:
    """s[j] = sum over c of q[c] * k[j, c] for as many keys as a vector has lanes. q ends in zeros."""
    t = VectorText(vectors.lanes)
    lanes, size = vectors.lanes, 4 * vectors.lanes
    rows = [t.at("%k", t.let(f"mul i64 {j}, %stride") if j else 0) for j in range(lanes)]
    sums = ["zeroinitializer"] * lanes
    if d // lanes <= MOST_UNROLLED:
        for i in range(d // lanes):
            x = t.load(t.at("%q", i * size), size)
            sums = [t.fma(x, t.load(t.at(row, i * size)), s) for row, s in zip(rows, sums, strict=True)]
    else:
        with t.carried("0", str(d // lanes), sums) as (i, held):
            at = t.let(f"mul i64 {i}, {size}")
            x = t.load(t.at("%q", at), size)
            held[:] = [t.fma(x, t.load(t.at(row, at)), s) for row, s in zip(rows, held, strict=True)]
        sums = held
    if d % lanes:
        at = d // lanes * size
        x = t.load(t.at("%q", at), size)
        sums = [t.fma(x, t.load_first(t.at(row, at), d % lanes), s) for row, s in zip(rows, sums, strict=True)]
    t.store(t.summed(sums), "%s", size)
    name = f"attend_few_scores_{lanes}_{d}"
    return finished(name, "ptr noalias readonly %q, ptr noalias readonly %k, i64 %stride, ptr noalias %s", t)


def make_few_values(vectors: CpuDevice, dv: int) -> Part:
    """o[c] = o[c] * old + sum over j of p[j] * v[j, c], in several sums that are added up at the end."""
    t = VectorText(vectors.lanes)
    lanes, size = vectors.lanes, 4 * vectors.lanes
    count = padded(dv, lanes) // lanes
    # Sums enough to keep the machine busy; wide rows have them anyway.
    at_once = max(1, min(4, vectors.registers // 2 // count))

    def row(pointer: str, i: int) -> str:
        place = t.at(pointer, i * size)
        return t.load(place) if (i + 1) * lanes <= dv else t.load_first(place, dv % lanes)

    old = t.spread("%old")
    starts = [t.mul(t.load(t.at("%o", i * size), size), old) for i in range(count)]
    starts += ["zeroinitializer"] * (count * (at_once - 1))
    with t.carried("0", t.let(f"sdiv i64 %count, {at_once}"), starts) as (i, sums):
        first = t.let(f"mul i64 {i}, {at_once}")
        p = t.at("%p", t.let(f"mul i64 {first}, 4"))
        v = t.at("%v", t.let(f"mul i64 {first}, %stride"))
        for j in range(at_once):
            weight = t.spread_from(t.at(p, 4 * j))
            place = t.at(v, t.let(f"mul i64 {j}, %stride") if j else 0)
            for c in range(count):
                sums[j * count + c] = t.fma(weight, row(place, c), sums[j * count + c])
    for j in range(1, at_once):
        sums[:count] = [t.add(sums[c], sums[j * count + c]) for c in range(count)]
    done = t.let(f"mul i64 {t.let(f'sdiv i64 %count, {at_once}')}, {at_once}")
    with t.carried(done, "%count", sums[:count]) as (j, rest):
        weight = t.spread_from(t.at("%p", t.let(f"mul i64 {j}, 4")))
        place = t.at("%v", t.let(f"mul i64 {j}, %stride"))
        rest[:] = [t.fma(weight, row(place, c), x) for c, x in enumerate(rest)]
    for c, x in enumerate(rest):
        t.store(x, t.at("%o", c * size), size)
    given = "ptr noalias readonly %p, ptr noalias readonly %v, i64 %stride, i64 %count, ptr noalias %o, float %old"
    return finished(f"attend_few_values_{lanes}_{vectors.registers}_{dv}", given, t)


class Few:
    """One tile: the rows of queries of one head of keys."""

    def __init__(self, t: Tile, at: Mapping[str, str], rows: int, *, count: str = "", first: str = "") -> None:
        """`count` and `first` say how many rows there are, all of one head, where that is not known before."""
        self.t, self.at, self.rows, self.first = t, at, count or str(rows), first
        a = self.a = t.asked
        self.d, self.dv = padded(a.d, t.lanes), padded(a.dv, t.lanes)
        self.queries = t.take(rows * 4 * self.d)
        self.scores, self.taken = t.take(rows * 4 * BLOCK), t.take(rows * 4 * self.dv)
        self.state = t.take(rows * 8)
        self.left = t.take(t.lanes * 4 * a.d)
        self.packed = {n: t.take(BLOCK * 4 * w) for n, w in (("k", a.d), ("v", a.dv)) if self.packs(n)}

    def packs(self, name: str) -> bool:
        return self.a.strides[name][-1] != 4 or self.a.stored != "float"

    def go(self) -> None:
        t = self.t
        end = t.size(self.a.keys)
        with t.loop("0", self.rows) as row:
            self.take_query(row)
        with t.steps("0", end, BLOCK) as first:
            count = t.smaller(str(BLOCK), t.let(f"sub i64 {end}, {first}"))
            k, stride = self.block("k", first, count)
            v, apart = self.block("v", first, count)
            self.score(k, stride, v, apart, count)
            part = make_few_values(self.a.vectors, self.a.dv)
            with t.loop("0", self.rows) as row:
                old = self.weigh(row, first, count)
                p, o = self.of(self.scores, row, BLOCK), self.of(self.taken, row, self.dv)
                t.call(part, f"ptr {p}", f"ptr {v}", f"i64 {apart}", f"i64 {count}", f"ptr {o}", f"float {old}")
        with t.loop("0", self.rows) as row:
            self.give(row)

    def of(self, pointer: str, row: str, size: int) -> str:
        return self.t.at(pointer, self.t.let(f"mul i64 {row}, {4 * size}"))

    def place(self, name: str, row: str) -> str:
        """A row of queries, of the result or of a mask: its head of those that share the keys, then its position."""
        t, a = self.t, self.a
        *_, head, position, _ = a.strides[name]
        if self.first:
            return t.at(self.at[name], t.times(row, position))
        count = t.size(a.queries)
        group, own = t.let(f"sdiv i64 {row}, {count}"), t.let(f"srem i64 {row}, {count}")
        return t.at(t.at(self.at[name], t.times(group, head)), t.times(own, position))

    def take_query(self, row: str) -> None:
        """A query scaled, with zeros behind it; nothing is taken yet."""
        t, a = self.t, self.a
        x, to = self.place("q", row), self.of(self.queries, row, self.d)
        for i in range(a.d // t.lanes * t.lanes, self.d, t.lanes):
            t.store("zeroinitializer", t.at(to, 4 * i), 4)
        factor = literal(a.scale if a.softcap is None else a.scale / a.softcap, f32)
        with t.loop("0", str(a.d)) as c:
            found = t.number_at(t.at(x, t.times(c, a.strides["q"][-1])), a.stored)
            t(f"store float {t.let(f'fmul float {found}, {factor}')}, ptr {t.at(to, t.times(c, 4))}, align 4")
        taken = self.of(self.taken, row, self.dv)
        for i in range(0, self.dv, t.lanes):
            t.store("zeroinitializer", t.at(taken, 4 * i))
        top, total = self.kept(row)
        t(f"store float {literal(float('-inf'), f32)}, ptr {top}, align 4")
        t(f"store float {literal(0.0, f32)}, ptr {total}, align 4")

    def kept(self, row: str) -> tuple[str, str]:
        """Where the highest score of a row and the sum of its weights lie."""
        at = self.of(self.state, row, 2)
        return at, self.t.at(at, 4)

    def block(self, name: str, first: str, count: str) -> tuple[str, str]:
        """A block of keys or values and the stride of its rows; where they do not lie densely, a copy."""
        t, a = self.t, self.a
        *_, row, step = a.strides[name]
        x, stride = t.at(self.at[name], t.times(first, row)), t.size(row)
        if name not in self.packed:
            return x, stride
        width = a.d if name == "k" else a.dv
        given = f"ptr {x}", f"i64 {stride}", f"i64 {t.size(step)}", f"i64 {count}"
        t.call(make_copy(a.vectors, width, a.stored), *given, f"ptr {self.packed[name]}")
        return self.packed[name], str(4 * width)

    def ask_for(self, row: str, width: int) -> None:
        for at in range(0, 4 * width, LINE):
            self.t.prefetch(self.t.at(row, at))

    def score(self, k: str, stride: str, v: str, apart: str, count: str) -> None:
        t, a = self.t, self.a
        part = make_few_scores(a.vectors, a.d)

        def score(x: str, apart: str, first: str) -> None:
            with t.loop("0", self.rows) as row:
                q, s = self.of(self.queries, row, self.d), self.of(self.scores, row, BLOCK)
                t.call(part, f"ptr {q}", f"ptr {x}", f"i64 {apart}", f"ptr {t.at(s, t.times(first, 4))}")

        whole = t.let(f"sdiv i64 {count}, {t.lanes}")
        with t.loop("0", whole) as group:
            first = t.let(f"mul i64 {group}, {t.lanes}")
            x = t.at(k, t.let(f"mul i64 {first}, {stride}"))
            following = t.at(x, t.let(f"mul i64 {t.lanes}, {stride}"))
            with t.loop("0", str(t.lanes)) as j:
                self.ask_for(t.at(following, t.let(f"mul i64 {j}, {stride}")), a.d)
                self.ask_for(t.at(v, t.let(f"mul i64 {t.let(f'add i64 {first}, {j}')}, {apart}")), a.dv)
            score(x, stride, first)
        done = t.let(f"mul i64 {whole}, {t.lanes}")
        left = t.let(f"sub i64 {count}, {done}")
        with t.when(t.let(f"icmp sgt i64 {left}, 0")):
            x = t.at(k, t.let(f"mul i64 {done}, {stride}"))
            t.call(
                make_copy(a.vectors, a.d, "float"),
                f"ptr {x}",
                f"i64 {stride}",
                "i64 4",
                f"i64 {left}",
                f"ptr {self.left}",
            )
            score(self.left, str(4 * a.d), done)

    def weigh(self, row: str, first: str, count: str) -> str:
        """Bend and mask the scores of a row, make weights of them; gives how much older sums shrink."""
        t = self.t
        scores = self.of(self.scores, row, BLOCK)
        top, total = self.kept(row)
        low = t.number(float("-inf"))
        masks = {n: self.place(n, row) for n in ("mask", "keep") if n in self.a.strides}
        vectors = t.let(f"sdiv i64 {t.let(f'add i64 {count}, {t.lanes - 1}')}, {t.lanes}")
        with t.carried("0", vectors, [low]) as (i, highest):
            at = t.let(f"mul i64 {i}, {t.lanes}")
            inside = t.below(t.let(f"sub i64 {count}, {at}"))
            place = t.at(scores, t.times(at, 4))
            x = self.bent(t.load(place), row, t.let(f"add i64 {first}, {at}"), inside, masks)
            x = t.select(inside, x, low)
            t.store(x, place)
            highest[0] = t.larger(x, highest[0])
        before = t.let(f"load float, ptr {top}, align 4")
        found = t.across("fmax", highest[0])
        higher = t.let(f"fcmp ogt float {found}, {before}")
        now = t.let(f"select i1 {higher}, float {found}, float {before}")
        t(f"store float {now}, ptr {top}, align 4")
        none = t.let(f"fcmp oeq float {now}, {literal(float('-inf'), f32)}")
        safe = t.spread(t.let(f"select i1 {none}, float {literal(0.0, f32)}, float {now}"))
        old = t.exp_of_negative(t.sub(t.spread(before), safe))
        with t.carried("0", vectors, ["zeroinitializer"]) as (i, sums):
            place = t.at(scores, t.times(t.let(f"mul i64 {i}, {t.lanes}"), 4))
            p = t.exp_of_negative(t.sub(t.load(place), safe))
            t.store(p, place)
            sums[0] = t.add(sums[0], p)
        shrunk = t.let(f"extractelement {t.kind} {old}, i64 0")
        earlier = t.let(f"fmul float {t.let(f'load float, ptr {total}, align 4')}, {shrunk}")
        t(f"store float {t.let(f'fadd float {earlier}, {t.summed_up(sums[0])}')}, ptr {total}, align 4")
        return shrunk

    def bent(self, x: str, row: str, key: str, inside: str, masks: Mapping[str, str]) -> str:
        t, a = self.t, self.a
        given = {n: self.masked(n, at, key, inside) for n, at in masks.items()}
        if a.softcap is not None:
            x = t.mul(t.tanh(x), t.number(a.softcap))
        keys = t.positions(key, 0) if a.causal else ""
        own = t.spread_whole(self.position(row)) if a.causal else ""
        return t.shown(x, given, keys, own)

    def position(self, row: str) -> str:
        t = self.t
        return t.let(f"add i64 {self.first}, {row}" if self.first else f"srem i64 {row}, {t.size(self.a.queries)}")

    def masked(self, name: str, at: str, key: str, inside: str) -> str:
        """What a mask has for as many keys as a vector has lanes."""
        t = self.t
        step, stored = self.a.strides[name][-1], t.stored(name)
        place, item = t.at(at, t.times(key, step)), STORED[stored]
        if step == 0:
            return t.spread(t.number_at(place, stored))
        wide = t.raw(stored)
        kind = f"v{t.lanes}{ {'float': 'f32', 'half': 'f16', 'bfloat': 'i16'}.get(stored, stored) }"
        if step == item:
            full = f"llvm.masked.load.{kind}.p0"
            t.use(f"declare {wide} @{full}(ptr, i32, {t.truth}, {wide})")
            found = t.let(f"call {wide} @{full}(ptr {place}, i32 {item}, {t.truth} {inside}, {wide} zeroinitializer)")
        else:
            full = f"llvm.masked.gather.{kind}.v{t.lanes}p0"
            t.use(f"declare {wide} @{full}(<{t.lanes} x ptr>, i32, {t.truth}, {wide})")
            far = t.let(f"mul <{t.lanes} x i64> {t.counted()}, {t.spread_long(t.size(step))}")
            places = t.let(f"getelementptr i8, ptr {place}, <{t.lanes} x i64> {far}")
            given = f"<{t.lanes} x ptr> {places}, i32 {item}, {t.truth} {inside}, {wide} zeroinitializer"
            found = t.let(f"call {wide} @{full}({given})")
        return t.widened(found, stored)

    def give(self, row: str) -> None:
        t, a = self.t, self.a
        total = t.spread_from(self.kept(row)[1])
        factor = t.factor(total)
        none = t.compare("oeq", factor, t.number(0.0))
        x, y = self.of(self.taken, row, self.dv), self.place("y", row)
        for i in range(0, self.dv, t.lanes):
            found = t.select(none, t.number(0.0), t.mul(t.load(t.at(x, 4 * i)), factor))
            if i + t.lanes <= a.dv:
                t.store_as(found, t.at(y, STORED[a.stored] * i), a.stored)
                continue
            for c in range(i, a.dv):
                one = t.let(f"extractelement {t.kind} {found}, i64 {c - i}")
                t.put_number(one, t.at(y, STORED[a.stored] * c), a.stored)
