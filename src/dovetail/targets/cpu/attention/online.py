"""Attend for many queries, lanes along queries: the steps of one tile."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

from dovetail.codegen.llvm.scalar import literal
from dovetail.codegen.llvm.simd import LOG2_E, STORED
from dovetail.ir.dtype import f32
from dovetail.targets.cpu.attention.parts import (
    BLOCK,
    LINE,
    key_rows,
    make_columns,
    make_copy,
    make_out,
    make_scores,
    make_values,
    make_weights,
    weight,
)

if TYPE_CHECKING:
    from dovetail.targets.cpu.attention.driver import Tile


class Many:
    """One tile with so many vectors of queries: what lies where in the worker's memory, and the steps."""

    def __init__(self, t: Tile, wide: int, at: Mapping[str, str], first: str, rows: str) -> None:
        self.t, self.wide, self.at, self.first, self.rows = t, wide, at, first, rows
        a = self.a = t.asked
        self.row = wide * t.row
        self.columns, self.taken = t.take(a.d * self.row), t.take(a.dv * self.row)
        self.scores = t.take(BLOCK * self.row)
        self.tops, self.sums, self.old = (t.take(self.row) for _ in range(3))
        self.buffer = t.take(t.lanes * t.row)
        self.keys = key_rows(a.vectors, wide)
        changes = a.softcap is not None or a.fill is not None
        is_added = not changes and not a.zero_unseen and a.stored == "float"
        self.has_key_mask = is_added and a.strides.get("mask", ())[-2:] == (0, 4)
        self.bends = changes or ("mask" in a.strides and not self.has_key_mask)
        # Nothing but the scale makes a score: then it is one of powers of two as well.
        self.twos = not changes and "mask" not in a.strides
        self.mask_left = t.take(4 * self.keys) if self.has_key_mask else "null"
        # Keys that are rotated lie in the worker's memory already.
        self.key_row, self.key_step = a.strides["k"][-2:] if a.rotated is None else (4 * a.d, 4)
        self.key_kind = a.stored if a.rotated is None else "float"
        self.packs_keys = self.key_step != 4 or self.key_kind != "float"
        self.key_rows = t.take((BLOCK if self.packs_keys else self.keys) * 4 * a.d)
        self.value_rows = t.take(BLOCK * 4 * a.dv) if a.strides["v"][-1] != 4 or a.stored != "float" else ""
        self.masks = {n: t.take(BLOCK * self.row) for n in ("mask", "keep") if self.is_by_row(n)}
        self.query_rows = t.take(a.rows * 4 * a.d) if a.rotated is not None else ""

    def is_by_row(self, name: str) -> bool:
        """Whether each query has a mask of its own."""
        strides = self.a.strides.get(name)
        return strides is not None and strides[-2] != 0

    def ask_for_results(self) -> None:
        """Have the lines come that are written at the end: they lie apart, and each would be waited for."""
        t, a = self.t, self.a
        with t.loop("0", self.rows) as row:
            place = t.at(self.at["y"], t.times(row, a.strides["y"][-2]))
            for at in range(0, STORED[a.stored] * a.dv, LINE):
                t.prefetch(t.at(place, at), to_write=True)

    def take_queries(self) -> None:
        """The queries as columns, scaled."""
        t, a = self.t, self.a
        x, stride, step = self.at["q"], t.size(a.strides["q"][-2]), t.size(a.strides["q"][-1])
        stored = a.stored
        if a.rotated is not None:
            t.rotate("q", self.at, "0", self.rows, self.query_rows)
            x, stride, step, stored = self.query_rows, str(4 * a.d), "4", "float"
        factor = (a.scale if a.softcap is None else a.scale / a.softcap) * (LOG2_E if self.twos else 1.0)
        for i in range(self.wide):
            first = t.let(f"mul i64 {stride}, {i * t.lanes}")
            to = t.at(self.columns, i * t.row)
            self.as_columns(t.at(x, first), stride, step, i, str(a.d), factor, to, stored)

    def as_columns(
        self, x: str, stride: str, step: str, i: int, count: str, factor: float, to: str, stored: str
    ) -> None:
        t = self.t
        rows = t.let(f"sub i64 {self.rows}, {i * t.lanes}")
        t.call(
            make_columns(self.a.vectors, stored),
            f"ptr {x}", f"i64 {stride}", f"i64 {step}", f"i64 {rows}", f"i64 {count}",
            f"float {literal(factor, f32)}", f"ptr {to}", f"i64 {self.row}",
        )  # fmt: skip

    def go(self, low: str, end: str) -> None:
        """Everything that the queries take from the keys between two."""
        t = self.t
        self.clear()
        with t.steps(low, end, BLOCK) as first:
            count = t.smaller(str(BLOCK), t.let(f"sub i64 {end}, {first}"))
            before = [t.load(t.at(self.tops, i * t.row), t.row) for i in range(self.wide)]
            self.score(first, count)
            if self.bends:
                self.bend(first, count)
            self.shrink(before)
            t.call(
                make_weights(self.a.vectors, self.wide, twos=self.twos),
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
        """The scores of a block of keys, a few keys at a time; the last key stands in for those behind it."""
        t, a = self.t, self.a
        x, stride = t.at(self.at["k"], t.times(first, self.key_row)), t.size(self.key_row)
        x, stride = t.near.block("k", x, stride, first, count)
        mask = t.at(self.at["mask"], t.times(first, 4)) if self.has_key_mask else "null"
        if self.packs_keys:
            self.copy(x, stride, t.size(self.key_step), count, self.key_rows, self.key_kind)
            self.repeat_last(count)
            x, stride = self.key_rows, str(4 * a.d)
        # What lies behind the last mask is no number for the keys that are there only to fill a group.
        fills = self.packs_keys and not self.has_key_mask
        counted = t.let(f"add i64 {count}, {self.keys - 1}") if fills else count
        whole = t.let(f"sdiv i64 {counted}, {self.keys}")
        with t.loop("0", whole) as group:
            done = t.let(f"mul i64 {group}, {self.keys}")
            own = t.at(mask, t.times(done, 4)) if self.has_key_mask else mask
            self.score_keys(t.at(x, t.let(f"mul i64 {done}, {stride}")), stride, first, done, own)
        if fills:
            return
        done = t.let(f"mul i64 {whole}, {self.keys}")
        left = t.let(f"sub i64 {count}, {done}")
        with t.when(t.let(f"icmp sgt i64 {left}, 0")):
            last = t.at(x, t.let(f"mul i64 {done}, {stride}"))
            if not self.packs_keys:
                self.copy(last, stride, "4", left, self.key_rows)
                self.repeat_last(left)
                last = self.key_rows
            if self.has_key_mask:
                self.take_mask(t.at(mask, t.times(done, 4)), left)
            self.score_keys(last, str(4 * a.d), first, done, self.mask_left)

    def copy(self, x: str, stride: str, step: str, rows: str, to: str, stored: str = "float") -> None:
        given = f"ptr {x}", f"i64 {stride}", f"i64 {step}", f"i64 {rows}", f"ptr {to}"
        self.t.call(make_copy(self.a.vectors, self.a.d, stored), *given)

    def repeat_last(self, count: str) -> None:
        """The last key again, up to as many as are scored at once: it changes no maximum."""
        t, size = self.t, 4 * self.a.d
        missing = t.let(f"srem i64 {t.let(f'sub i64 {BLOCK}, {count}')}, {self.keys}")
        end = t.at(self.key_rows, t.let(f"mul i64 {count}, {size}"))
        self.copy(t.at(end, -size), "0", "4", missing, end)

    def take_mask(self, mask: str, count: str) -> None:
        """The mask of the last keys, with that of the last one for those behind it."""
        t = self.t
        with t.loop("0", str(self.keys)) as j:
            own = t.smaller(j, t.let(f"sub i64 {count}, 1"))
            t.put_number(
                t.number_at(t.at(mask, t.times(own, 4)), "float"), t.at(self.mask_left, t.times(j, 4)), "float"
            )

    def score_keys(self, x: str, stride: str, first: str, done: str, mask: str) -> None:
        t, a = self.t, self.a
        to = t.at(self.scores, t.let(f"mul i64 {done}, {self.row}"))
        row = a.strides["v"][-2]
        ahead = t.at(self.at["v"], t.times(t.let(f"add i64 {first}, {done}"), row))
        how = {"with_top": not self.bends, "with_mask": self.has_key_mask, "asks": not t.near.widths}
        part = make_scores(a.vectors, self.wide, a.d, a.dv, **how)
        given = f"ptr {self.columns}", f"ptr {x}", f"i64 {stride}", f"ptr {to}", f"ptr {ahead}", f"i64 {t.size(row)}"
        t.call(part, *given, f"ptr {self.tops}", f"ptr {mask}")

    def bend(self, first: str, count: str) -> None:
        """Cap and mask the scores of a block, and keep the highest of each query."""
        t, a = self.t, self.a
        for name, to in self.masks.items():
            row, step = a.strides[name][-2:]
            for i in range(self.wide):
                x = t.at(t.at(self.at[name], t.times(first, step)), t.let(f"mul i64 {t.size(row)}, {i * t.lanes}"))
                at = t.at(to, i * t.row)
                self.as_columns(x, t.size(row), t.size(step), i, count, 1.0, at, t.stored(name))
        starts = [t.load(t.at(self.tops, i * t.row), t.row) for i in range(self.wide)]
        with t.carried("0", count, starts) as (j, tops):
            key = t.let(f"add i64 {first}, {j}")
            at = t.at(self.scores, t.let(f"mul i64 {j}, {self.row}"))
            given = {n: self.masked(n, key, j) for n in ("mask", "keep") if n in a.strides}
            for i in range(self.wide):
                place = t.at(at, i * t.row)
                x = self.bent(t.load(place, t.row), i, key, {n: v[i] for n, v in given.items()})
                t.store(x, place, t.row)
                tops[i] = t.larger(x, tops[i])
        for i, x in enumerate(tops):
            t.store(x, t.at(self.tops, i * t.row), t.row)

    def shrink(self, before: Sequence[str]) -> None:
        """How much older sums weigh now that higher scores were met."""
        t = self.t
        for i, x in enumerate(before):
            now = t.load(t.at(self.tops, i * t.row), t.row)
            none = t.compare("oeq", now, t.number(float("-inf")))
            shrunk = weight(t, t.sub(x, t.select(none, t.number(0.0), now)), twos=self.twos)
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
        return [t.spread(t.number_at(at, t.stored(name)))] * self.wide

    def bent(self, x: str, i: int, key: str, given: Mapping[str, str]) -> str:
        t, a = self.t, self.a
        if a.softcap is not None:
            x = t.mul(t.tanh(x), t.number(a.softcap))
        own = t.positions(self.first, i) if a.causal else ""
        return t.shown(x, given, t.spread_whole(key) if a.causal else "", own)

    def add_values(self, first: str, count: str) -> None:
        t, a = self.t, self.a
        stride, step = t.size(a.strides["v"][-2]), t.size(a.strides["v"][-1])
        x = t.at(self.at["v"], t.times(first, a.strides["v"][-2]))
        x, stride = t.near.block("v", x, stride, first, count)
        if self.value_rows:
            t.call(
                make_copy(a.vectors, a.dv, a.stored),
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

    def sees_nothing(self, highest: float) -> str:
        """Whether some query has met no higher score than that of hidden keys: then those left out count as much."""
        t = self.t
        found = "false"
        for i in range(self.wide):
            top = t.load(t.at(self.tops, i * t.row), t.row)
            low = t.compare("ole", top, t.number(highest))
            some = t.let(f"bitcast {t.truth} {low} to i{t.lanes}")
            found = t.let(f"or i1 {found}, {t.let(f'icmp ne i{t.lanes} {some}, 0')}")
        return found

    def give(self) -> None:
        """Divide by the sums and write the rows of the result."""
        t, a = self.t, self.a
        for i in range(self.wide):
            total = t.load(t.at(self.sums, i * t.row), t.row)
            factor = t.factor(total)
            t.store(factor, t.at(self.old, i * t.row), t.row)
            stride = t.size(a.strides["y"][-2])
            to = t.at(self.at["y"], t.let(f"mul i64 {stride}, {i * t.lanes}"))
            left = t.let(f"sub i64 {self.rows}, {i * t.lanes}")
            rows = t.smaller(str(t.lanes), left)
            t.call(
                make_out(a.vectors, a.dv, a.stored),
                f"ptr {t.at(self.taken, i * t.row)}", f"i64 {self.row}", f"ptr {t.at(self.old, i * t.row)}",
                f"ptr {to}", f"i64 {stride}", f"i64 {rows}", f"ptr {self.buffer}",
            )  # fmt: skip
