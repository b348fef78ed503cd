"""Attend: attention with an online softmax on tensor cores.

A block has up to 64 queries of one head, 16 for each warp. It goes through the keys 64 at a time, with copies of the
next ones in flight. Scores stay in registers, where they become the left factor of the second product.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import floordiv, product
from dovetail.ir.dtype import bf16, bool_, f16, f32, i64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.contract import STATIC_BYTES
from dovetail.kernels.gpu.fragments import (
    LANE,
    Factor,
    SharedTile,
    both,
    copied,
    divided,
    less,
    load_left,
    load_right,
    multiplied,
    private,
    remainder,
    stored,
    unrolled,
    zeroed,
)
from dovetail.kernels.gpu.policy import WIDEST
from dovetail.kernels.gpu.tile import CHUNK, H200, LANES
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllReduce,
    AwaitCopies,
    Barrier,
    Call,
    CommitCopies,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Set,
    Statement,
    Store,
    Tensor,
    ThreadIndex,
    When,
    add,
    indices,
    minimum,
    mul,
    sizes_in,
)
from dovetail.kernels.problems.attention import Attention, attention_of
from dovetail.kernels.spec import Job, TensorLocations, Tiles
from dovetail.plan.plan import Step

KEYS = 64
"""Keys that a block goes through at once."""
MOST_WARPS = 4
SPLIT_BYTES = 128 << 10
"""Shared memory for keys and values that warps share out among them."""
_MINUS_INFINITY = Number(-math.inf, f32)
_TILES = ("q", "k", "v")


def offer_attend(of: StepProblem[GpuDevice | None]) -> Offer | Refused:
    """The kernel of an attention of 16-bit floats."""
    value = of.value
    if not isinstance(value.op, FusedOp):
        return Refused("op_is_attention", value.op.name)
    call: dict[str, Any] = value.op.arguments(value.operands, value.attrs)
    found = attention_of(value, call, of.locations)
    if isinstance(found, Refused):
        return found
    if value.dtype not in (f16, bf16):
        return Refused("tensor_cores_have_the_dtype", value.dtype.name, "f16 or bf16")
    if max(found.d, found.dv) > WIDEST:
        return Refused("features_fit_registers", str(max(found.d, found.dv)), f"at most {WIDEST}")
    bindings = {name: of.step.results[0] if name == "y" else call[name] for name in found.pointers}
    return Offer(lambda: _Writer(of.step, found, bindings, of.locations, of.device or H200).job())


@dataclass(frozen=True, slots=True)
class _Half:
    """One of the two rows that a lane has of its warp's 16."""

    number: int

    @property
    def most(self) -> str:
        return f"most{self.number}"

    @property
    def total(self) -> str:
        return f"total{self.number}"

    @property
    def shrunk(self) -> str:
        return f"shrunk{self.number}"

    @property
    def query(self) -> str:
        return f"query{self.number}"


_HALVES = (_Half(0), _Half(1))


def _warps(a: Attention, device: GpuDevice) -> tuple[int, int]:
    """Warps of a block along queries, and along keys: enough blocks for all multiprocessors, then enough warps."""
    queries = a.queries if isinstance(a.queries, int) else KEYS
    keys = a.keys if isinstance(a.keys, int) else KEYS * MOST_WARPS
    heads = 1
    for size in (*a.lead, a.heads):
        heads *= size if isinstance(size, int) else 1
    warps = min(MOST_WARPS, max(1, -(-queries // 16)))
    while warps > 1 and heads * -(-queries // (16 * warps)) < device.multiprocessors:
        warps //= 2
    rows = max(a.d, a.dv) * 2 * 2 * KEYS
    most = max(1, SPLIT_BYTES // (2 * rows))
    splits = 1
    while 2 * splits * warps <= MOST_WARPS and 2 * splits <= most and splits * KEYS < keys:
        splits *= 2
    return warps, splits


def _f32(name: str) -> Name:
    return Name(name, f32)


class _Writer:
    def __init__(
        self,
        step: Step,
        problem: Attention,
        bindings: Mapping[str, Value],
        locations: TensorLocations,
        device: GpuDevice,
    ) -> None:
        self.step, self.problem, self.bindings, self.locations = step, problem, bindings, locations
        self.dtype = step.value.dtype
        self.warps, self.splits = _warps(problem, device)
        self.threads = LANES * self.warps * self.splits
        self.rows = 16 * self.warps
        self.keys = KEYS * self.splits
        self.d, self.dv = (-(-n // 16) * 16 for n in (problem.d, problem.dv))
        self.lead = (*(Name(f"b{i}") for i in range(len(problem.lead))), Name("head"))
        aligned = locations.alignment(dict(bindings))
        self.factors = {name: self._factor(name) for name in _TILES}
        axes: dict[str, str] = {"q": "k", "k": "k", "v": "row"}
        fits = [f.dense_axis(aligned[name]) == axes[name] for name, f in self.factors.items()]
        self.copies = all(fits)
        self.axes = axes if self.copies else dict.fromkeys(axes, "k")

    def _factor(self, name: str) -> Factor:
        """Queries, keys or values along what is summed: features, or keys for the values."""
        a = self.problem
        strides = a.strides[name]
        lead = self.lead if name == "q" else (*self.lead[:-1], divided(self.lead[-1], a.groups))
        if name == "v":
            tensor = Tensor("v", self.dtype, (*strides[:-2], strides[-1], strides[-2]))
            return Factor(tensor, lead, a.dv, a.keys)
        tensor = Tensor(name, self.dtype, strides)
        rows = a.queries if name == "q" else a.keys
        return Factor(tensor, lead, rows, a.d, None if a.rotated is None else partial(self._rotated, tensor, name))

    def _rotated(self, tensor: Tensor, name: str, at: tuple[Expr, ...]) -> Expr:
        """A feature of a query or key with its rotation."""
        a = self.problem
        rotated = a.rotated or 0
        k = at[-1]
        own, half = cast_to(Load(tensor, at), f32), rotated // 2
        if a.form == "half":
            low = less(k, Extent(half))
            other = Call("where", (low, add(k, Extent(half)), Call("sub", (k, Extent(half)), i64)), i64)
        else:
            low = Call("equal", (remainder(k, 2), ZERO), bool_)
            other = Call("bit_xor", (k, Extent(1)), i64)
        other = minimum(other, Extent(a.d - 1))
        pair = cast_to(Load(tensor, (*at[:-1], Call("maximum", (other, ZERO), i64))), f32)
        pair = Call("where", (low, Call("neg", (pair,), f32), pair), f32)
        turn = minimum(k, Extent(rotated - 1))
        cos, sin = [
            cast_to(Load(Tensor(n, self.dtype, a.strides[f"{n}_{name}"]), (*at[:-1], turn)), f32)
            for n in ("cos", "sin")
        ]
        found = Call("add", (Call("mul", (own, cos), f32), Call("mul", (pair, sin), f32)), f32)
        if rotated < a.d:
            found = Call("where", (less(k, Extent(rotated)), found, own), f32)
        return cast_to(found, self.dtype)

    @property
    def _own_keys(self) -> Expr:
        """Where the keys of this warp start among those of a round."""
        return ZERO if self.splits == 1 else mul(divided(ThreadIndex("warp"), self.warps), Extent(KEYS))

    @property
    def stages(self) -> int:
        return 2 if self.copies else 1

    def tile(self, name: str) -> SharedTile:
        match name:
            case "q":
                return SharedTile("q_tile", self.dtype, self.rows, self.d // CHUNK, 1)
            case "k":
                return SharedTile("k_tile", self.dtype, self.keys, self.d // CHUNK, self.stages)
            case _ if self.axes["v"] == "row":
                return SharedTile("v_tile", self.dtype, self.keys, self.dv // CHUNK, self.stages)
            case _:
                return SharedTile("v_tile", self.dtype, self.dv, self.keys // CHUNK, self.stages)

    def job(self) -> Job:
        a = self.problem
        blocks = floordiv(a.queries + (self.rows - 1), self.rows)
        shape = (*a.lead, a.heads, blocks)
        *front, block = indices(shape, Name("tile"))
        allocations = self._allocations()
        body = (
            *allocations,
            Loop(
                "tile",
                Extent(product(shape)),
                (
                    *(Set(name.name, index) for name, index in zip(self.lead, front, strict=True)),
                    Set("top", mul(block, Extent(self.rows))),
                    *self._queries(),
                    *self._keys(),
                    *self._written(),
                ),
                kind="block",
            ),
        )
        shared = shared_bytes(allocations)
        launch = Launch(product(shape), self.threads, shared if shared > STATIC_BYTES else 0)
        kernel = Kernel("attend", tuple(self.bindings), ("y",), "tile", body, sizes=sizes_in(body), launch=launch)
        return Job(kernel, self.bindings, Tiles(product(shape), self.rows))

    def _allocations(self) -> list[Alloc]:
        return [
            *(Alloc(f"{name}_tile", self.dtype, self.tile(name).count, "shared") for name in _TILES),
            *([Alloc("parts", f32, self.splits * self.rows * (self.dv + CHUNK), "shared")] if self.splits > 1 else []),
            Alloc("sums", f32, self.dv // 8 * 4, "private"),
            Alloc("scores", f32, KEYS // 8 * 4, "private"),
            Alloc("q_fragment", self.dtype, self.d // 16 * 8, "private"),
            Alloc("right", self.dtype, max(KEYS, self.dv) // 8 * 4, "private"),
            Alloc("weights", self.dtype, KEYS // 16 * 8, "private"),
        ]

    def _loaded(self, name: str, number: Expr, stage: Expr) -> list[Statement]:
        """Queries from the block's first on, or a round of keys or values."""
        tile, factor, axis = self.tile(name), self.factors[name], self.axes[name]
        at = mul(number, Extent(self.keys))
        first, k = (Name("top"), ZERO) if name == "q" else (at, ZERO) if name == "k" else (ZERO, at)
        if not self.copies:
            return stored(tile, factor, first, k, self.threads, 0, 1)
        return copied(tile, factor, axis, first, k, stage, self.threads, 0, 1)

    def _queries(self) -> list[Statement]:
        row = mul(remainder(ThreadIndex("warp"), self.warps), Extent(16))
        fragments = private("q_fragment", self.dtype, self.d // 16, 8)
        step = Name("step")
        load = unrolled(
            "step",
            self.d // 16,
            load_left(fragments, (step, ZERO), self.tile("q"), "k", ZERO, row, mul(step, Extent(16))),
        )
        start: list[Statement] = [zeroed(private("sums", f32, 1), self.dv // 8 * 4)]
        for half in _HALVES:
            own = add(add(Name("top"), row), add(divided(LANE, 4), Extent(8 * half.number)))
            start += [Set(half.most, _MINUS_INFINITY), Set(half.total, Number(0.0, f32)), Set(half.query, own)]
        if not self.copies:
            return [*start, *self._loaded("q", ZERO, ZERO), Barrier(), load]
        first = [*self._loaded("k", ZERO, ZERO), *self._loaded("v", ZERO, ZERO)]
        arrive: list[Statement] = [CommitCopies(), *first, CommitCopies(), AwaitCopies(1), Barrier()]
        return [*start, *self._loaded("q", ZERO, ZERO), *arrive, load]

    def _rounds(self) -> Expr:
        """Rounds of keys; those that no query of the block sees are left out."""
        a = self.problem
        keys: Expr = Extent(a.keys)
        if a.causal and a.fill is not None and math.isinf(a.fill):
            keys = minimum(keys, add(Name("top"), Extent(self.rows)))
        return Call("div", (add(keys, Extent(self.keys - 1)), Extent(self.keys)), i64)

    def _keys(self) -> list[Statement]:
        work = [*self._scored(), *self._weighted(), *self._summed()]
        if not self.copies:
            loads = [*self._loaded("k", Name("round"), ZERO), *self._loaded("v", Name("round"), ZERO)]
            return [
                Set("stage", ZERO),
                Loop("round", self._rounds(), (Barrier(), *loads, Barrier(), *work)),
                Barrier(),
            ]
        later = [*self._loaded("k", Name("later"), Name("next")), *self._loaded("v", Name("later"), Name("next"))]
        return [
            Loop(
                "round",
                self._rounds(),
                (
                    Set("later", add(Name("round"), Extent(1))),
                    Set("next", remainder(Name("later"), 2)),
                    *later,
                    CommitCopies(),
                    AwaitCopies(1),
                    Barrier(),
                    Set("stage", remainder(Name("round"), 2)),
                    *work,
                    Barrier(),
                ),
            ),
            AwaitCopies(0),
            Barrier(),
        ]

    def _scored(self) -> list[Statement]:
        """The products of queries and keys."""
        scores, right = private("scores", f32, KEYS // 8, 4), private("right", self.dtype, 1)
        j, step, k = Name("j"), Name("step"), mul(Name("step"), Extent(16))
        queries = private("q_fragment", self.dtype, self.d // 16, 8)
        column, at = add(self._own_keys, mul(j, Extent(16))), (mul(j, Extent(8)),)
        return [
            zeroed(scores, KEYS // 8 * 4),
            unrolled(
                "step",
                self.d // 16,
                unrolled("j", KEYS // 16, load_right(right, at, self.tile("k"), "k", Name("stage"), column, k)),
                unrolled("j", KEYS // 8, multiplied(scores, (j, ZERO), queries, (step, ZERO), right, j)),
            ),
        ]

    def _weighted(self) -> list[Statement]:
        """Scores with masks and fills; their exponentials, and what the sums so far shrink by."""
        scores, weights = private("scores", f32, KEYS // 8, 4), private("weights", self.dtype, KEYS // 8, 4)
        j, e = Name("j"), Name("e")
        first = add(mul(Name("round"), Extent(self.keys)), self._own_keys)
        found: list[Statement] = [Set("first_key", add(first, mul(remainder(LANE, 4), Extent(2))))]
        for half in _HALVES:
            at = (j, add(e, Extent(2 * half.number)))
            key = add(Name("first_key"), add(mul(j, Extent(8)), e))
            shown = self._shown(Load(scores, at), half)
            more = Call("maximum", (_f32("round_most"), Load(scores, at)), f32)
            found += [
                Set("round_most", _f32(half.most)),
                unrolled(
                    "j",
                    KEYS // 8,
                    unrolled("e", 2, Set("key", key), Store(scores, at, shown), Set("round_most", more)),
                ),
                AllReduce("round_most", "maximum", f32, 4),
                # Without a key that is seen the scores are -inf, and their weights 0.
                Set(
                    "safe",
                    Call(
                        "where",
                        (
                            Call("equal", (_f32("round_most"), _MINUS_INFINITY), bool_),
                            Number(0.0, f32),
                            _f32("round_most"),
                        ),
                        f32,
                    ),
                ),
                Set(half.shrunk, _exp(_minus(_f32(half.most), _f32("safe")))),
                Set(half.most, _f32("round_most")),
                Set("round_total", Number(0.0, f32)),
                unrolled(
                    "j",
                    KEYS // 8,
                    unrolled(
                        "e",
                        2,
                        Set("weight", _exp(_minus(Load(scores, at), _f32("safe")))),
                        Store(weights, at, cast_to(_f32("weight"), self.dtype)),
                        Set("round_total", _plus(_f32("round_total"), _f32("weight"))),
                    ),
                ),
                AllReduce("round_total", "add", f32, 4),
                Set(half.total, _plus(_times(_f32(half.total), _f32(half.shrunk)), _f32("round_total"))),
            ]
        return found

    def _shown(self, score: Expr, half: _Half) -> Expr:
        """A score as the softmax sees it."""
        a = self.problem
        key, query = Name("key"), Name(half.query)
        there = less(key, Extent(a.keys))
        inside = minimum(query, Extent(a.queries - 1)), minimum(key, Extent(a.keys - 1))
        if a.scale != 1.0:
            score = _times(score, Number(a.scale, f32))
        if a.softcap is not None:
            bent = Call("tanh", (Call("div", (score, Number(a.softcap, f32)), f32),), f32)
            score = _times(bent, Number(a.softcap, f32))
        given: dict[str, Expr] = {}
        for name, dtype in (("mask", self.dtype), ("keep", bool_)):
            if name in a.strides:
                given[name] = Load(Tensor(name, dtype, a.strides[name]), (*self.lead, *inside))
        seen: list[Expr] = [given["keep"]] if "keep" in given else []
        if a.causal:
            seen.append(less(key, add(query, Extent(1))))
            if a.window is not None:
                seen.append(less(query, add(key, Extent(a.window))))
        mask = cast_to(given["mask"], f32) if "mask" in given else None
        if mask is not None and a.filled != "first":
            score = _plus(score, mask)
        if seen:
            fill = Number(-math.inf if a.fill is None else a.fill, f32)
            visible = both(*seen)
            if a.filled == "added":
                score = _plus(score, Call("where", (visible, Number(0.0, f32), fill), f32))
            else:
                score = Call("where", (visible, score, fill), f32)
        if mask is not None and a.filled == "first":
            score = _plus(score, mask)
        return Call("where", (there, score, _MINUS_INFINITY), f32)

    def _summed(self) -> list[Statement]:
        """The products of weights and values."""
        sums, right = private("sums", f32, self.dv // 8, 4), private("right", self.dtype, 1)
        weights = private("weights", self.dtype, KEYS // 16, 8)
        j, e, step = Name("j"), Name("e"), Name("step")
        found: list[Statement] = []
        for half in _HALVES:
            at = (j, add(e, Extent(2 * half.number)))
            shrunk = _times(Load(sums, at), _f32(half.shrunk))
            found.append(unrolled("j", self.dv // 8, unrolled("e", 2, Store(sums, at, shrunk))))
        column, k, at = mul(j, Extent(16)), add(self._own_keys, mul(step, Extent(16))), (mul(j, Extent(8)),)
        found.append(
            unrolled(
                "step",
                KEYS // 16,
                unrolled(
                    "j",
                    self.dv // 16,
                    load_right(right, at, self.tile("v"), self.axes["v"], Name("stage"), column, k),
                ),
                unrolled("j", self.dv // 8, multiplied(sums, (j, ZERO), weights, (step, ZERO), right, j)),
            )
        )
        return found

    def _written(self) -> list[Statement]:
        """The weighted sums over their totals."""
        if self.splits > 1:
            return self._combined()
        sums = private("sums", f32, self.dv // 8, 4)
        found: list[Statement] = []
        for half in _HALVES:
            found.append(Set("inverse", self._inverse(_f32(half.total))))
            for j in range(self.dv // 8):
                columns = [add(mul(remainder(LANE, 4), Extent(2)), Extent(8 * j + e)) for e in range(2)]
                values = [Load(sums, (Extent(j), Extent(2 * half.number + e))) for e in range(2)]
                stores = [
                    self._stored(Name(half.query), column, _times(value, _f32("inverse")), 8 * j + 8 <= self.problem.dv)
                    for column, value in zip(columns, values, strict=True)
                ]
                found.append(When(less(Name(half.query), Extent(self.problem.queries)), tuple(stores)))
        return found

    def _stored(self, query: Expr, column: Expr, value: Expr, fits: bool) -> Statement:
        a = self.problem
        target = Tensor("y", self.dtype, a.strides["y"])
        store = Store(target, (*self.lead, query, column), cast_to(value, self.dtype))
        return store if fits else When(less(column, Extent(a.dv)), (store,))

    def _inverse(self, total: Expr) -> Expr:
        """What weighted sums are multiplied by."""
        a = self.problem
        found: Expr = Call("div", (Number(1.0, f32), total), f32)
        if a.empty == "zero":
            some = Call("greater", (total, Number(0.0, f32)), bool_)
            found = Call("where", (some, found, Number(0.0, f32)), f32)
        elif a.zero_unseen:
            none = Call("equal", (total, Number(0.0, f32)), bool_)
            found = Call("where", (none, Number(0.0, f32), found), f32)
        if not isinstance(a.keys, int) or a.keys == 0:
            found = Call("where", (less(ZERO, Extent(a.keys)), found, Number(0.0, f32)), f32)
        return found

    @property
    def _parts(self) -> Tensor:
        """What each warp along the keys has of each row: weighted sums, then the largest score and the total."""
        item = f32.itemsize
        width = (self.dv + CHUNK) * item
        return Tensor("parts", f32, (self.rows * width, width, item), space="shared")

    def _combined(self) -> list[Statement]:
        """Sums of several warps along the keys, each relative to its own largest score."""
        sums, parts = private("sums", f32, self.dv // 8, 4), self._parts
        warp = ThreadIndex("warp")
        part, first = divided(warp, self.warps), mul(remainder(warp, self.warps), Extent(16))
        found: list[Statement] = []
        for half in _HALVES:
            row = add(first, add(divided(LANE, 4), Extent(8 * half.number)))
            for j in range(self.dv // 8):
                for e in range(2):
                    column = add(mul(remainder(LANE, 4), Extent(2)), Extent(8 * j + e))
                    found.append(
                        Store(parts, (part, row, column), Load(sums, (Extent(j), Extent(2 * half.number + e))))
                    )
            own = [Store(parts, (part, row, Extent(self.dv)), _f32(half.most))]
            own.append(Store(parts, (part, row, Extent(self.dv + 1)), _f32(half.total)))
            found.append(When(Call("equal", (remainder(LANE, 4), ZERO), bool_), tuple(own)))
        groups = self.dv // CHUNK
        row, group = divided(Name("own"), groups), remainder(Name("own"), groups)
        body: list[Statement] = [
            Set("row", row),
            Set("query", add(Name("top"), Name("row"))),
            Set("most", _MINUS_INFINITY),
        ]
        for s in range(self.splits):
            more = Load(parts, (Extent(s), Name("row"), Extent(self.dv)))
            body.append(Set("most", Call("maximum", (_f32("most"), more), f32)))
        none = Call("equal", (_f32("most"), _MINUS_INFINITY), bool_)
        body += [
            Set("most", Call("where", (none, Number(0.0, f32), _f32("most")), f32)),
            Set("total", Number(0.0, f32)),
        ]
        for s in range(self.splits):
            share = _exp(_minus(Load(parts, (Extent(s), Name("row"), Extent(self.dv))), _f32("most")))
            total = _times(_f32(f"share{s}"), Load(parts, (Extent(s), Name("row"), Extent(self.dv + 1))))
            body += [Set(f"share{s}", share), Set("total", _plus(_f32("total"), total))]
        body.append(Set("inverse", self._inverse(_f32("total"))))
        e = Name("e")
        column = add(mul(group, Extent(CHUNK)), e)
        value: Expr = Number(0.0, f32)
        for s in range(self.splits):
            value = _plus(value, _times(_f32(f"share{s}"), Load(parts, (Extent(s), Name("row"), column))))
        value = _times(value, _f32("inverse"))
        fits = self.problem.dv % CHUNK == 0 and self.problem.dv == self.dv
        stores = unrolled("e", CHUNK, self._stored(Name("query"), column, value, fits))
        body.append(When(less(Name("query"), Extent(self.problem.queries)), (stores,)))
        return [*found, Barrier(), Loop("own", Extent(self.rows * groups), tuple(body), kind="thread"), Barrier()]


def _plus(x: Expr, y: Expr) -> Expr:
    return Call("add", (x, y), f32)


def _minus(x: Expr, y: Expr) -> Expr:
    return Call("sub", (x, y), f32)


def _times(x: Expr, y: Expr) -> Expr:
    return Call("mul", (x, y), f32)


def _exp(x: Expr) -> Expr:
    """To the accuracy of 16-bit floats."""
    return Call("near_exp", (x,), f32)


__all__ = ["offer_attend"]
