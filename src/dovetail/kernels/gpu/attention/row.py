"""Attention of one query for each head in f32: blocks share the keys of a head, and warps share those of a block.

Queries of heads that share keys are the rows of one head. Eight neighbouring lanes share the features of a key, and
have an online softmax of their own until all keys are seen. What they found is combined in shared memory, and what
blocks found in the workspace.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail import library
from dovetail.dataclass import dataclass
from dovetail.declare.fused import FusedOp
from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import DType, bool_, f16, f32, i64, u8, u16, u64
from dovetail.ir.value import Value
from dovetail.kernels.choice import Offer, Refused, StepProblem
from dovetail.kernels.device import GpuDevice
from dovetail.kernels.gpu.attention.row_result import combined, shares_combined
from dovetail.kernels.gpu.attention.row_tile import (
    LEAST,
    MOST_FEATURES,
    SHARING,
    VECTOR,
    WARP,
    WARPS,
    RowTile,
    equal,
    exp_of,
    f32_name,
)
from dovetail.kernels.gpu.attention.tile import PARTIAL
from dovetail.kernels.gpu.gemm.fragments import LANE, both, divided, less, remainder
from dovetail.kernels.gpu.gemm.tile import H200
from dovetail.kernels.gpu.order.passes import in_passes
from dovetail.kernels.loops.body import cast_to
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AllReduce,
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
from dovetail.kernels.spec import Binding, Job, TensorLocations, Tiles
from dovetail.ops.region import region

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
    found = find_widened(value, locations) if value.op is region else None
    return found if found is not None and has_one_query(found.anchor) else None


def is_attention(value: Value) -> bool:
    """Whether a value is a declared attention."""
    return value.op in (library.attention, library.rope_attention)


def attends(value: Value, locations: TensorLocations) -> bool:
    """Whether a step is an attention and nothing else."""
    return is_attention(value) or widens_keys(value, locations) is not None


def offer_attend_row(of: StepProblem[GpuDevice | None]) -> Offer | Refused:
    """The kernel of an attention of one query."""
    value, y = of.value, of.step.results[0]
    widened = widens_keys(value, of.locations)
    if widened is not None:
        found = widened.attention({"y": y}, of.locations)
        if isinstance(found, Refused):
            return found
        given = [name for name in found.pointers if name != "y"]
        offsets = {name: widened.offset(name) for name in given}
        operands = {name: widened.operand(name) for name in given}
        aligned = [n for n, nbytes in of.locations.alignment(operands).items() if nbytes % u64.itemsize == 0]
        return Offer(lambda: _job(found, of.device or H200, {**operands, "y": y}, offsets, frozenset(aligned)))
    if not isinstance(value.op, FusedOp) or not has_one_query(value):
        return Refused("attention_of_f32_has_one_query", str(value.type))
    call: dict[str, Any] = value.op.arguments(value.operands, value.attrs)
    found = attention_of(value, call, of.locations)
    if isinstance(found, Refused):
        return found
    bindings = {name: y if name == "y" else call[name] for name in found.pointers}
    return Offer(lambda: _job(found, of.device or H200, bindings, {}))


@dataclass(frozen=True, slots=True)
class RowWriter:
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

    def _stored(self, name: str) -> DType:
        """The type of a tensor in memory."""
        return f16 if self.problem.cached.get(name) == "half" else f32

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
        early = self._prefetched((own, *place)) if self.device.bulk_copies else ()
        launch = replace(launch, cluster=self.tile.parts)
        sizes = sizes_in((*early, *body))
        kernel = Kernel("attend_row", pointers, (PARTIAL, "y"), "tile", body, sizes=sizes, launch=launch, early=early)
        workspace = {PARTIAL: product(self.tile.partial_shape) * f32.itemsize}
        return in_passes([(replace(kernel, exchanged=(PARTIAL,)), tiles)], bindings, workspace)

    def _loaded(self, name: str, row: Expr, prefix: str) -> list[Set]:
        """The features of a lane under names; axes say what a lane has of a vector, so that LLVM sees one load."""
        *lead, head = self.tile.lead
        groups = self.problem.groups
        shared = head if name == "q" or groups == 1 else divided(head, groups)
        *front, last = self.problem.strides[name]
        strides = (*front, SHARING * VECTOR * last, VECTOR * last, last)
        tensor = Tensor(name, self._stored(name), strides, self.offsets.get(name, 0))
        width = self.problem.dv if name == "v" else self.problem.d
        place, found = (*lead, shared, row), list[Set]()
        if self._in_words(name):
            return self._halves_loaded(name, place, width, prefix)
        for i in range(width // SHARING):
            at = (Extent(i // VECTOR), remainder(LANE, SHARING), Extent(i % VECTOR))
            found.append(Set(f"{prefix}_{i}", cast_to(Load(tensor, (*place, *at)), f32)))
        return found

    def _in_words(self, name: str) -> bool:
        """Whether four neighbouring elements of f16 are one word of 64 bits in memory: LLVM sees no alignment where
        sizes are not known, and would load one by one."""
        *front, last = self.problem.strides[name]
        at = (*front, self.offsets.get(name, 0))
        is_half = name in self.aligned and self._stored(name) is f16 and last == f16.itemsize
        return is_half and all([floordiv(s, u64.itemsize) * u64.itemsize == s for s in at])

    def _halves_loaded(self, name: str, place: tuple[Expr, ...], width: int, prefix: str) -> list[Set]:
        *front, last = self.problem.strides[name]
        strides = (*front, SHARING * VECTOR * last, VECTOR * last)
        tensor, found = Tensor(name, u64, strides, self.offsets.get(name, 0)), list[Set]()
        for i in range(width // SHARING // VECTOR):
            word = Name(f"{prefix}_word{i}", u64)
            found.append(Set(word.name, Load(tensor, (*place, Extent(i), remainder(LANE, SHARING)))))
            for j in range(VECTOR):
                bits = cast_to(Call("shift_right", (word, Number(16 * j, u64)), u64) if j else word, u16)
                found.append(Set(f"{prefix}_{VECTOR * i + j}", cast_to(Call("bitcast", (bits,), f16), f32)))
        return found

    def _prefetched(self, place: tuple[Statement, ...]) -> tuple[Statement, ...]:
        """The keys and values of a block come to L2 before the kernels before it have ended, where rows are dense."""
        of, found = self.problem, list[Statement]()
        *lead, head = self.tile.lead
        head = head if of.groups == 1 else divided(head, of.groups)
        each = floordiv(self.tile.span + (WARPS - 1), WARPS)
        count = minimum(Extent(each), Call("sub", (Name("last"), Name("first")), i64))
        for name, width in (("k", of.d), ("v", of.dv)):
            *_, row, last = of.strides[name]
            kind = self._stored(name)
            if row != width * kind.itemsize or last != kind.itemsize:
                return ()
            source = Tensor(name, kind, of.strides[name], self.offsets.get(name, 0))
            nbytes = mul(count, Extent(width * kind.itemsize))
            found.append(Prefetch(source, (*lead, head, Name("first"), ZERO), nbytes))
        start = mul(Name("part"), Extent(self.tile.span))
        ends = minimum(add(start, Extent(self.tile.span)), Extent(of.keys))
        inside = both(less(Name("first"), Name("last")), equal(LANE, ZERO))
        return (
            *place,
            Set("first", add(start, mul(WARP, Extent(each)))),
            Set("last", ends),
            When(inside, tuple(found)),
        )

    def _keys(self) -> list[Statement]:
        """What each warp finds of its keys."""
        of = self.problem
        found: list[Statement] = []
        for r in range(self.tile.rows):
            found += [*self._loaded("q", Extent(r), f"q{r}"), Set(f"most{r}", LEAST), Set(f"total{r}", Number(0, f32))]
            found += [Set(f"sum{r}_{i}", Number(0, f32)) for i in range(of.dv // SHARING)]
        start = mul(Name("part"), Extent(self.tile.span)) if self.tile.parts > 1 else ZERO
        end = minimum(add(start, Extent(self.tile.span)), Extent(of.keys)) if self.tile.parts > 1 else Extent(of.keys)
        found += [Set("start", start), Set("end", end)]
        together = WARPS * self.tile.keys * AT_ONCE
        rounds = floordiv(self.tile.span + (together - 1), together)
        return [*found, Loop("round", Extent(rounds), tuple(self._round()), rolled=True)]

    def _round(self) -> list[Statement]:
        """Some keys of a warp: all of them on their way, then the sums with one after the other. Those that a warp does
        not have are near ones, and not seen: a branch around them takes longer."""
        of, found = self.problem, list[Statement]()
        each = range(AT_ONCE)
        for u in each:
            number = mul(add(mul(Name("round"), Extent(AT_ONCE)), Extent(u)), Extent(WARPS * self.tile.keys))
            first = add(Name("start"), add(number, mul(WARP, Extent(self.tile.keys))))
            key = add(first, divided(LANE, SHARING))
            found.append(Set(f"key{u}", key))
            found.append(Set(f"near{u}", minimum(Name(f"key{u}"), Extent(of.keys - 1))))
            found += [s for name in "kv" for s in self._loaded(name, Name(f"near{u}"), f"{name}{u}")]
            found += [s for r in range(self.tile.rows) for s in self._masks_loaded(r, u)]
        for u in each:
            found += [*self._scored(u), *[s for r in range(self.tile.rows) for s in self._weighed(r, u)]]
        return found

    def _scored(self, u: int) -> list[Statement]:
        """The scores of a key, in all lanes that share it."""
        found: list[Statement] = []
        for r in range(self.tile.rows):
            halves: list[Expr] = [Number(0, f32), Number(0, f32)]
            for i in range(self.problem.d // SHARING):
                halves[i % 2] = Call("fma", (f32_name(f"q{r}_{i}"), f32_name(f"k{u}_{i}"), halves[i % 2]), f32)
            found.append(Set(f"score{r}_{u}", Call("add", tuple(halves), f32)))
        found += [AllReduce(f"score{r}_{u}", "add", f32, SHARING) for r in range(self.tile.rows)]
        return found

    def _weighed(self, r: int, u: int) -> list[Statement]:
        """The sums of a row with those of a key."""
        most, score, top, base, less_, weight = (
            f32_name(f"{name}{r}") for name in ("most", "score", "top", "base", "less", "weight")
        )
        found: list[Statement] = [
            Set(score.name, self._score(r, u)),
            Set(top.name, Call("maximum", (most, score), f32)),
            # Where nothing is seen yet, all of these are minus infinity, whose difference is no number.
            Set(base.name, Call("where", (equal(top, LEAST), Number(0, f32), top), f32)),
            Set(less_.name, exp_of(most, base)),
            Set(weight.name, exp_of(score, base)),
            Set(most.name, top),
            Set(f"total{r}", Call("fma", (f32_name(f"total{r}"), less_, weight), f32)),
        ]
        for i in range(self.problem.dv // SHARING):
            before = Call("mul", (f32_name(f"sum{r}_{i}"), less_), f32)
            found.append(Set(f"sum{r}_{i}", Call("fma", (weight, f32_name(f"v{u}_{i}"), before), f32)))
        return found

    def _masks_loaded(self, r: int, u: int) -> list[Set]:
        """The masks of a key, on their way with it: a byte that is no condition yet is not awaited."""
        at = (*self.tile.lead, Extent(r), Name(f"near{u}"))
        kinds = {name: dtype for name, dtype in (("mask", f32), ("keep", u8)) if name in self.problem.strides}
        return [
            Set(f"{name}{r}_{u}", Load(Tensor(name, dtype, self.problem.strides[name], self.offsets.get(name, 0)), at))
            for name, dtype in kinds.items()
        ]

    def _score(self, r: int, u: int) -> Expr:
        of = self.problem
        found: Expr = Call("mul", (f32_name(f"score{r}_{u}"), Number(of.scale, f32)), f32)
        if "mask" in of.strides:
            found = Call("add", (found, f32_name(f"mask{r}_{u}")), f32)
        seen = less(Name(f"key{u}"), Name("end"))
        if "keep" in of.strides:
            hidden = equal(Name(f"keep{r}_{u}", u8), Number(0, u8))
            seen = both(seen, Call("bit_not", (hidden,), bool_))
        return Call("where", (seen, found, LEAST), f32)


def _job(
    problem: Attention,
    device: GpuDevice,
    bindings: Mapping[str, Binding],
    offsets: Mapping[str, Size],
    aligned: frozenset[str] = frozenset(),
) -> Job:
    return RowWriter(RowTile.of(problem, device), device, offsets, aligned).job(bindings)


__all__ = ["attends", "has_one_query", "is_attention", "offer_attend_row", "widens_keys"]
