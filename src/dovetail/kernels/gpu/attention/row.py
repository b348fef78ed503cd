"""Attention of one query for each head, computed in f32: blocks share the keys of a head, warps those of a block.

Queries of heads that share keys are the rows of one head. Eight neighbouring lanes share the features of a key, and
have an online softmax of their own until all keys are seen. Shared memory combines the results of
warps, and the workspace those of blocks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import reduce
from typing import Any

from dovetail import library
from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import DType, bf16, bool_, f16, f32, i64, u8, u16, u64
from dovetail.ir.value import Value
from dovetail.ir.walk import walk
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import LANES, GpuDevice
from dovetail.kernels.gpu.attention.masks import masked
from dovetail.kernels.gpu.attention.softmax import (
    At,
    LaneRow,
    Numerics,
    ScoreLayout,
    f32_name,
    merged,
    minus,
    or_zero,
    started,
    times,
)
from dovetail.kernels.gpu.attention.sources import KeyRows, by_key_head, keys_of
from dovetail.kernels.gpu.attention.tile import PARTIAL
from dovetail.kernels.gpu.gemm.fragments import LANE, both, divided, less, plus, remainder
from dovetail.kernels.gpu.order.passes import in_passes
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllReduce,
    Barrier,
    Call,
    ClusterBarrier,
    Expr,
    Extent,
    Kernel,
    Launch,
    Load,
    Loop,
    Name,
    Number,
    Prefetch,
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
from dovetail.kernels.problems.attention import Attention, Widened, attention_of, find_widened
from dovetail.kernels.request import LAUNCH, Request
from dovetail.kernels.spec import Binding, Job, TensorLocations, Tiles
from dovetail.ops.region import region

WARPS = 8
SHARING = 8
"""Lanes that share a key."""
VECTOR = 4
"""Features that a lane loads at once."""
MOST_FEATURES = 256
"""Of all rows of a head: a lane has an eighth of them in registers, of queries and of sums."""
MOST_PARTS = 32
"""Blocks that share the keys of a head."""
PADDED = 4
"""Numbers after the columns of a share: the largest score, the total, and what fills 16 bytes."""
WARP = ThreadIndex("warp")


@dataclass(frozen=True, slots=True)
class RowTile:
    """An attention and the share of a block."""

    problem: Attention
    """Its rows are the queries of heads that share keys."""
    rows: int
    parts: int
    """Blocks that share the keys of a head."""
    lanes: int = LANES
    """Of a warp."""

    @staticmethod
    def of(problem: Attention, device: GpuDevice, request: Request) -> RowTile:
        if problem.groups * max(problem.d, problem.dv) <= MOST_FEATURES:
            problem = by_key_head(problem)
        rows = problem.queries
        assert isinstance(rows, int), "it was checked"
        heads = product((*problem.lead, problem.heads))
        most = device.cluster
        if not request.is_launch and isinstance(heads, int):
            most = min(MOST_PARTS, device.multiprocessors // max(heads, 1))
        few = isinstance(heads, int) and 2 * heads <= device.multiprocessors
        columns = rows * problem.dv
        even = [n for n in range(2, most + 1) if columns % (4 * n) == 0 and problem.dv % (columns // n) == 0]
        return RowTile(problem, rows, even[-1] if few and even else 1, device.warp)

    @property
    def keys(self) -> int:
        """Keys of a warp at a time."""
        return self.lanes // SHARING

    @property
    def share(self) -> int:
        """Columns of all rows that a block combines."""
        return self.rows * self.problem.dv // self.parts

    @property
    def partial_shape(self) -> tuple[Size, ...]:
        return (*self.problem.lead, self.problem.heads, self.parts, self.parts, self.share + PADDED)

    @property
    def partial(self) -> Tensor:
        """The partial result of each block: leading axes, head, share of the columns, part."""
        shape = self.partial_shape
        return Tensor(PARTIAL, f32, tuple([product(shape[i + 1 :]) * f32.itemsize for i in range(len(shape))]))

    @property
    def group_sums(self) -> Tensor:
        """The accumulators of each group of lanes for each row."""
        item, width = f32.itemsize, self.problem.dv
        return Tensor("found", f32, (self.rows * width * item, width * item, item), space="shared")

    @property
    def kept(self) -> Tensor:
        """The largest score and the total of each warp for each row."""
        item = f32.itemsize
        return Tensor("kept", f32, (self.rows * 2 * item, 2 * item, item), space="shared")

    def dtype(self, name: str) -> DType:
        """The type of a tensor in memory."""
        kinds = {"float": f32, "half": f16, "bfloat": bf16}
        return kinds[self.problem.cached.get(name, self.problem.stored)]

    @property
    def numerics(self) -> Numerics:
        return Numerics.exact(self.problem)

    @property
    def lead(self) -> tuple[Name, ...]:
        return (*[Name(f"b{i}") for i in range(len(self.problem.lead))], Name("head"))

    def features(self, width: int) -> list[Expr]:
        """Those of a lane, in vectors that are neighbours of those of others that share a key."""
        first = mul(remainder(LANE, SHARING), Extent(VECTOR))
        each = [i // VECTOR * SHARING * VECTOR + i % VECTOR for i in range(width // SHARING)]
        return [add(first, Extent(at)) for at in each]

    @property
    def span(self) -> Size:
        """Keys of a block, at most."""
        return floordiv(self.problem.keys + (self.parts - 1), self.parts)


def ceiling(x: Expr, by: int) -> Expr:
    """How many times a number is needed for another one."""
    if isinstance(x, Extent):
        return Extent(floordiv(x.size + (by - 1), by))
    return divided(add(x, Extent(by - 1)), by)


def equal(x: Expr, y: Expr) -> Expr:
    return Call("equal", (x, y), bool_)


def combined(tile: RowTile) -> list[Statement]:
    """Combine the results of all warps in shared memory; a thread has a column of a row."""
    of, kept = tile.problem, tile.kept
    statements: list[Statement] = []
    last: list[Statement] = []
    own = add(mul(WARP, Extent(tile.keys)), divided(LANE, SHARING))
    for r in range(tile.rows):
        top, total = f"top{r}", f"total{r}"
        statements += [Set(top, f32_name(f"most{r}")), AllReduce(top, "maximum", f32)]
        shrunk = tile.numerics.exp(minus(f32_name(f"most{r}"), or_zero(f32_name(top))))
        statements.append(Set(f"less{r}", shrunk))
        # Lanes that share a key have the same total.
        part = Call("mul", (f32_name(total), Number(1 / SHARING, f32)), f32)
        statements += [Set(total, Call("mul", (part, f32_name(f"less{r}")), f32)), AllReduce(total, "add", f32)]
        for i, f in enumerate(tile.features(of.dv)):
            value = Call("mul", (f32_name(f"sum{r}_{i}"), f32_name(f"less{r}")), f32)
            statements.append(Store(tile.group_sums, (own, Extent(r), f), value))
        last += [Store(kept, (WARP, Extent(r), Extent(i)), f32_name(n)) for i, n in enumerate((top, total))]
    statements += [When(equal(LANE, ZERO), tuple(last)), Barrier()]
    row, column = Name("row"), Name("column")
    each: list[Statement] = [Set(row.name, divided(Name("own"), of.dv))]
    each.append(Set(column.name, remainder(Name("own"), of.dv)))
    each += _warps_merged(tile, row, column)
    if tile.parts == 1:
        each.append(_stored(tile, row, column))
    else:
        each += _partial_stored(tile)
    return [*statements, Loop("own", Extent(tile.rows * of.dv), tuple(each), kind="thread"), Barrier()]


def _warps_merged(tile: RowTile, row: Expr, column: Expr) -> list[Statement]:
    """The largest score, the total and a weighted sum of all warps. Without any key that is seen all scores are
    minus infinity: the total is 0, and the result no number."""

    def kept(last: int) -> Callable[[Expr], Expr]:
        return lambda warp: Load(tile.kept, (warp, row, Extent(last)))

    def value(warp: Expr) -> Expr:
        first = mul(warp, Extent(tile.keys))
        groups = [Load(tile.group_sums, (add(first, Extent(group)), row, column)) for group in range(tile.keys)]
        return reduce(plus, groups)

    return merged(tile.numerics, WARPS, kept(0), {"value": value, "total": kept(1)})


def _partial_stored(tile: RowTile) -> list[Statement]:
    """Store this block's partial result of a column for the block that combines it."""
    at = (*tile.lead, divided(Name("own"), tile.share), Name("part"))
    within = remainder(Name("own"), tile.share)
    names = ("most", *["total"] * (PADDED - 1))
    # Blocks that receive a share wait for its padding too.
    last = [Store(tile.partial, (*at, Extent(tile.share + i)), f32_name(name)) for i, name in enumerate(names)]
    return [Store(tile.partial, (*at, within), f32_name("value")), When(equal(within, ZERO), tuple(last))]


def shares_combined(tile: RowTile) -> list[Statement]:
    """Combine a share of the columns over all blocks: some lanes share a column, with a few parts each."""
    dv, share = tile.problem.dv, tile.share
    lanes = max([n for n in (1, 2, 4, 8, 16, 32) if tile.parts % n == 0 and share * n <= tile.lanes * WARPS])
    lanes = lanes if share * lanes % tile.lanes == 0 else 1
    column = add(mul(Name("part"), Extent(share)), Name("within"))
    each: list[Statement] = [
        Set("within", divided(Name("own"), lanes)),
        Set("row", divided(column, dv)),
        Set("column", remainder(column, dv)),
        Set("of_lane", remainder(Name("own"), lanes)),
    ]

    def of(at: Expr) -> Callable[[Expr], Expr]:
        return lambda part: Load(tile.partial, (*tile.lead, Name("part"), part, at))

    sums = {"value": of(Name("within")), "total": of(Extent(share + 1))}
    each += merged(tile.numerics, tile.parts, of(Extent(share)), sums, lanes)
    stored = _stored(tile, Name("row"), Name("column"))
    each.append(stored if lanes == 1 else When(equal(remainder(Name("own"), lanes), ZERO), (stored,)))
    return [Loop("own", Extent(share * lanes), tuple(each), kind="thread")]


def _stored(tile: RowTile, row: Expr, column: Expr) -> Store:
    dtype = tile.dtype("y")
    ratio: Expr = Call("div", (f32_name("value"), f32_name("total")), f32)
    if tile.problem.zero_unseen:
        ratio = Call("where", (equal(f32_name("total"), Number(0.0, f32)), Number(0.0, f32), ratio), f32)
    return Store(Tensor("y", dtype, tile.problem.strides["y"]), (*tile.lead, row, column), cast_to(ratio, dtype))


AT_ONCE = 2
"""Keys of a lane that are on their way together."""


def has_one_query(value: Value) -> bool:
    """Whether an attention of f32 has a kernel: one query for each head, whose hidden keys score nothing."""
    if value.op is not library.attention or value.dtype is not f32:
        return False
    call: dict[str, Any] = library.attention.arguments(value.operands, value.attrs)
    widths = [call[name].shape[-1] for name in ("q", "v")]
    known = all([isinstance(size, int) and size % (SHARING * VECTOR) == 0 and size <= MOST_FEATURES for size in widths])
    plain = call["softcap"] is None and not call["causal"] and call["window"] is None and not call["zero_unseen"]
    return known and plain and call["q"].shape[-2] == 1 and call["fill"] in (None, -math.inf) and call["empty"] == "nan"


def widens_keys(value: Value, locations: TensorLocations) -> Widened | None:
    """An attention of one query that reads keys or values of f16, and computes with them as f32; None for others."""
    widened = find_widened(value, locations) if value.op is region else None
    return widened if widened is not None and has_one_query(widened.anchor) else None


def is_attention(value: Value) -> bool:
    """Whether a value is a declared attention."""
    return value.op in (library.attention, library.rope_attention)


def has_attention(value: Value) -> bool:
    """Whether a value is a region around a declared attention."""
    return value.op is region and any([is_attention(v) for v in walk(value.attrs["body"].results)])


def attends(value: Value, locations: TensorLocations) -> bool:
    """Whether a step is an attention and nothing else."""
    return is_attention(value) or widens_keys(value, locations) is not None


def offer_attend_row(of: StepProblem[GpuDevice]) -> Offer | Refused:
    """The kernel of an attention of one query."""
    value, y = of.value, of.step.results[0]
    widened = widens_keys(value, of.locations)
    if widened is not None:
        attention = widened.attention({"y": y}, of.locations)
        if isinstance(attention, Refused):
            return attention
        names = [name for name in attention.pointers if name != "y"]
        offsets = {name: widened.offset(name) for name in names}
        operands = {name: widened.operand(name) for name in names}
        aligned = [n for n, nbytes in of.locations.alignment(operands).items() if nbytes % u64.itemsize == 0]
        return Offer(lambda: _job(attention, of, {**operands, "y": y}, offsets, frozenset(aligned)))
    if not isinstance(value.op, FusedOp) or not has_one_query(value):
        return Refused("attention_of_f32_has_one_query", str(value.type))
    call: dict[str, Any] = value.op.arguments(value.operands, value.attrs)
    attention = attention_of(value, call, of.locations)
    if isinstance(attention, Refused):
        return attention
    bindings = {name: y if name == "y" else call[name] for name in attention.pointers}
    return Offer(lambda: _job(attention, of, bindings, {}))


@dataclass(frozen=True, slots=True)
class RowAttend:
    """The job of one attention."""

    tile: RowTile
    device: GpuDevice
    offsets: Mapping[str, Size]
    """Bytes before the first element of a tensor, where there are some."""
    aligned: frozenset[str] = frozenset()
    """Tensors whose address is a multiple of 8."""

    @property
    def problem(self) -> Attention:
        return self.tile.problem

    @property
    def keys(self) -> KeyRows:
        return keys_of(self.problem)

    def job(self, bindings: Mapping[str, Binding]) -> Job:
        of = self.problem
        shape = (*of.lead, of.heads, self.tile.parts)
        places = zip((*self.tile.lead, Name("part")), indices(shape, Name("tile")), strict=True)
        place = [Set(n.name, at) for n, at in places if self.tile.parts > 1 or n.name != "part"]
        tiles = product(shape)
        body: tuple[Statement, ...] = (
            Alloc("found", f32, WARPS * self.tile.keys * self.tile.rows * of.dv, "shared"),
            Alloc("kept", f32, WARPS * self.tile.rows * 2, "shared"),
            Loop("tile", Extent(tiles), (*place, *self._keys(), *combined(self.tile)), kind="block"),
        )
        launch = Launch(tiles, self.tile.lanes * WARPS, warp=self.tile.lanes)
        if self.tile.parts == 1:
            kernel = Kernel("attend_row", of.pointers, ("y",), "tile", body, sizes=sizes_in(body), launch=launch)
            return Job(kernel, bindings, Tiles(tiles, of.d * self.tile.lanes))
        own = Set("tile", ThreadIndex("block"))
        body = (*body, ClusterBarrier(), own, *place, *shares_combined(self.tile))
        pointers = (*[name for name in of.pointers if name != "y"], PARTIAL, "y")
        early = self._prefetched((own, *place)) if self.device.bulk_copies and not of.page else ()
        launch = replace(launch, cluster=self.tile.parts)
        sizes = sizes_in((*early, *body))
        kernel = Kernel("attend_row", pointers, (PARTIAL, "y"), "tile", body, sizes=sizes, launch=launch, early=early)
        workspace = {PARTIAL: product(self.tile.partial_shape) * f32.itemsize}
        return in_passes([(replace(kernel, exchanged=(PARTIAL,)), tiles)], bindings, workspace)

    def _loaded(self, name: str, place: tuple[Expr, ...], prefix: str) -> list[Set]:
        """The features of a lane under names; axes say what a lane has of a vector, so that LLVM sees one load."""
        *front, last = self.problem.strides[name]
        strides = (*front, SHARING * VECTOR * last, VECTOR * last, last)
        tensor = Tensor(name, self.tile.dtype(name), strides, self.offsets.get(name, 0))
        width = self.problem.dv if name == "v" else self.problem.d
        statements: list[Set] = []
        if self._in_words(name):
            return self._halves_loaded(name, place, width, prefix)
        for i in range(width // SHARING):
            at = (Extent(i // VECTOR), remainder(LANE, SHARING), Extent(i % VECTOR))
            statements.append(Set(f"{prefix}_{i}", cast_to(Load(tensor, (*place, *at)), f32)))
        return statements

    def _in_words(self, name: str) -> bool:
        """Whether four neighbouring elements of f16 are one word of 64 bits in memory: LLVM sees no alignment where
        sizes are not known, and would load one by one."""
        *front, last = self.problem.strides[name]
        at = (*front, self.offsets.get(name, 0))
        is_half = name in self.aligned and self.tile.dtype(name).itemsize == last == f16.itemsize
        return is_half and all([floordiv(s, u64.itemsize) * u64.itemsize == s for s in at])

    def _halves_loaded(self, name: str, place: tuple[Expr, ...], width: int, prefix: str) -> list[Set]:
        *front, last = self.problem.strides[name]
        strides = (*front, SHARING * VECTOR * last, VECTOR * last)
        tensor, statements = Tensor(name, u64, strides, self.offsets.get(name, 0)), list[Set]()
        for i in range(width // SHARING // VECTOR):
            word = Name(f"{prefix}_word{i}", u64)
            statements.append(Set(word.name, Load(tensor, (*place, Extent(i), remainder(LANE, SHARING)))))
            for j in range(VECTOR):
                bits = cast_to(Call("shift_right", (word, Number(16 * j, u64)), u64) if j else word, u16)
                statements.append(
                    Set(f"{prefix}_{VECTOR * i + j}", cast_to(Call("bitcast", (bits,), self.tile.dtype(name)), f32))
                )
        return statements

    def _prefetched(self, place: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The keys and values of a block come to L2 before the kernels before it have ended, where rows are dense."""
        of, statements = self.problem, list[Statement]()
        *lead, head = self.tile.lead
        head = head if of.groups == 1 else divided(head, of.groups)
        each = floordiv(self.tile.span + (WARPS - 1), WARPS)
        count = minimum(Extent(each), Call("sub", (Name("last"), Name("first")), i64))
        for name, width in (("k", of.d), ("v", of.dv)):
            *_, row, last = of.strides[name]
            kind = self.tile.dtype(name)
            if row != width * kind.itemsize or last != kind.itemsize:
                return ()
            source = Tensor(name, kind, of.strides[name], self.offsets.get(name, 0))
            nbytes = mul(count, Extent(width * kind.itemsize))
            statements.append(Prefetch(source, (*lead, head, Name("first"), ZERO), nbytes))
        start = mul(Name("part"), Extent(self.tile.span))
        ends = minimum(add(start, Extent(self.tile.span)), Extent(of.keys))
        inside = both(less(Name("first"), Name("last")), equal(LANE, ZERO))
        return (
            *place,
            Set("first", add(start, mul(WARP, Extent(each)))),
            Set("last", ends),
            When(inside, tuple(statements)),
        )

    def _keys(self) -> list[Statement]:
        """The rounds of a warp over its keys."""
        of = self.problem
        statements: list[Statement] = []
        for r in range(self.tile.rows):
            statements += [*self._loaded("q", (*self.tile.lead, Extent(r)), f"q{r}"), *started([LaneRow(r)])]
            statements += [Set(f"sum{r}_{i}", Number(0, f32)) for i in range(of.dv // SHARING)]
        keys, parts, together = self.keys, self.tile.parts, WARPS * self.tile.keys * AT_ONCE
        span = keys.share(parts)
        start = mul(Name("part"), span) if parts > 1 else ZERO
        end = minimum(add(start, span), keys.count) if parts > 1 else keys.count
        statements += [*keys.counted(), Set("start", start), Set("end", end)]
        rounds = ceiling(span, together)
        return [*statements, Loop("round", rounds, tuple(self._round()), rolled=True)]

    def _round(self) -> list[Statement]:
        """Some keys of a warp: all of them on their way, then the sums with one after the other. Those that a warp does
        not have are near ones, and not seen: a branch around them takes longer."""
        of, statements = self.problem, list[Statement]()
        each = range(AT_ONCE)
        for u in each:
            number = mul(add(mul(Name("round"), Extent(AT_ONCE)), Extent(u)), Extent(WARPS * self.tile.keys))
            first = add(Name("start"), add(number, mul(WARP, Extent(self.tile.keys))))
            key = add(first, divided(LANE, SHARING))
            statements.append(Set(f"key{u}", key))
            last = Call("sub", (self.keys.count, Extent(1)), i64) if of.page else Extent(of.keys - 1)
            statements.append(Set(f"near{u}", minimum(Name(f"key{u}"), last)))
            statements += self.keys.located(u)
            statements += [s for name in "kv" for s in self._loaded(name, self.keys.place(u), f"{name}{u}")]
            statements += [s for r in range(self.tile.rows) for s in self._masks_loaded(r, u)]
        for u in each:
            statements += [*self._scored(u), *[s for r in range(self.tile.rows) for s in self._weighed(r, u)]]
        return statements

    def _scored(self, u: int) -> list[Statement]:
        """The scores of a key, in all lanes that share it."""
        statements: list[Statement] = []
        for r in range(self.tile.rows):
            halves: list[Expr] = [Number(0, f32), Number(0, f32)]
            for i in range(self.problem.d // SHARING):
                halves[i % 2] = Call("fma", (f32_name(f"q{r}_{i}"), f32_name(f"k{u}_{i}"), halves[i % 2]), f32)
            statements.append(Set(f"score{r}_{u}", Call("add", tuple(halves), f32)))
        statements += [AllReduce(f"score{r}_{u}", "add", f32, SHARING) for r in range(self.tile.rows)]
        return statements

    def _weighed(self, r: int, u: int) -> list[Statement]:
        """The sums of a row with those of a key."""
        row = LaneRow(r)
        weight, shrunk = f32_name("weight"), f32_name(row.shrunk)
        statements = OneScore(self, u).weighted([row])
        for i in range(self.problem.dv // SHARING):
            own = f32_name(f"sum{r}_{i}")
            statements.append(Set(own.name, Call("fma", (weight, f32_name(f"v{u}_{i}"), times(own, shrunk)), f32)))
        return statements

    def _masks_loaded(self, r: int, u: int) -> list[Set]:
        """The masks of a key, on their way with it: a byte that is no condition yet is not awaited."""
        at = (*self.tile.lead, Extent(r), Name(f"near{u}"))
        kinds = {name: dtype for name, dtype in (("mask", f32), ("keep", u8)) if name in self.problem.strides}
        return [
            Set(f"{name}{r}_{u}", Load(Tensor(name, dtype, self.problem.strides[name], self.offsets.get(name, 0)), at))
            for name, dtype in kinds.items()
        ]

    def score(self, r: int, u: int) -> Expr:
        """A score as the softmax sees it."""
        of = self.problem
        mask = f32_name(f"mask{r}_{u}") if "mask" in of.strides else None
        seen = less(Name(f"key{u}"), Name("end"))
        if of.causal:
            # Queries are the last of their sequence.
            after = Extent(self.tile.rows - 1 - r)
            seen = both(seen, less(add(Name(f"key{u}"), after), self.keys.count))
        if "keep" in of.strides:
            hidden = equal(Name(f"keep{r}_{u}", u8), Number(0, u8))
            seen = both(seen, Call("bit_not", (hidden,), bool_))
        return masked(of, self.tile.numerics, f32_name(f"score{r}_{u}"), mask, [seen])


class OneScore(ScoreLayout):
    """The score of one key, which all lanes that share it have; other lanes have an online softmax of their own."""

    sums_late = True

    def __init__(self, writer: RowAttend, number: int) -> None:
        self.numerics, self._writer, self._number = writer.tile.numerics, writer, number

    def each(self, body: Callable[[At], Sequence[Statement]]) -> list[Statement]:
        return [*body(())]

    def score(self, row: LaneRow, at: At) -> Name:
        return f32_name(f"score{row.number}_{self._number}")

    def shown(self, row: LaneRow, at: At) -> list[Statement]:
        return [Set(self.score(row, at).name, self._writer.score(row.number, self._number))]

    def combined(self, rows: Sequence[LaneRow], name: str, op: str) -> list[Statement]:
        return []


def offer_paged(
    a: Attention, device: GpuDevice, bindings: Mapping[str, Binding], aligned: Collection[str] = ()
) -> Offer | Refused:
    """The kernel of one or a few queries of each head whose keys a table of pages has.

    `aligned` are tensors whose address is a multiple of 8.
    """
    vector = SHARING * VECTOR
    if a.d % vector or a.dv % vector:
        return Refused("features_are_shared_by_lanes", f"{a.d} and {a.dv}", f"multiples of {vector}")
    if not isinstance(a.queries, int) or a.queries * max(a.d, a.dv) > MOST_FEATURES:
        return Refused("queries_fit_registers", f"{a.queries} of {max(a.d, a.dv)}", f"at most {MOST_FEATURES} features")
    writer = RowAttend(RowTile.of(a, device, LAUNCH), device, {}, frozenset(aligned))
    return Offer(lambda: writer.job(bindings), name="attend_paged")


def _job(
    problem: Attention,
    of: StepProblem[GpuDevice],
    bindings: Mapping[str, Binding],
    offsets: Mapping[str, Size],
    aligned: frozenset[str] = frozenset(),
) -> Job:
    device = of.device
    return RowAttend(RowTile.of(problem, device, of.request), device, offsets, aligned).job(bindings)


__all__ = [
    "attends",
    "has_attention",
    "has_one_query",
    "is_attention",
    "offer_attend_row",
    "offer_paged",
    "widens_keys",
]
