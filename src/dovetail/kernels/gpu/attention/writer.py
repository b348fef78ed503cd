"""Attend: attention with an online softmax on tensor cores.

A block has up to 64 queries of one head, 16 for each warp. It goes through the keys 64 at a time, with copies of the
next ones in flight. Scores stay in registers, where they become the left factor of the second product. On Hopper the
four warps of 64 queries multiply together, by keys and values in shared memory. Where queries are few and keys are
many, blocks share the keys, and combine what they found: as a cluster, or in a second kernel.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace

from dovetail.ir.dim import Size, floordiv, product
from dovetail.ir.dtype import f32, i32, i64
from dovetail.kernels.choice import Refused
from dovetail.kernels.device import LANES
from dovetail.kernels.gpu.attention.cluster import WarpKeys
from dovetail.kernels.gpu.attention.groups import GroupRounds, scores_allocated
from dovetail.kernels.gpu.attention.prefetch import prefetched
from dovetail.kernels.gpu.attention.products import scored, summed
from dovetail.kernels.gpu.attention.result import cluster_combined, left_over, parts_combined, written
from dovetail.kernels.gpu.attention.seen import SeenAhead, seen_allocated, seen_loaded, where_seen
from dovetail.kernels.gpu.attention.shifts import Shifts
from dovetail.kernels.gpu.attention.softmax import masks_allocated, masks_loaded, weighted
from dovetail.kernels.gpu.attention.sources import AXES, AttendSources
from dovetail.kernels.gpu.attention.staged import are_staged, staged_allocated
from dovetail.kernels.gpu.attention.tile import (
    GROUP,
    GROUP_WARPS,
    MINUS_INFINITY,
    PARTIAL,
    AttendTile,
)
from dovetail.kernels.gpu.gemm.fragments import (
    LANE,
    THREAD,
    copied,
    divided,
    load_left,
    private,
    remainder,
    rolled,
    stored,
    unrolled,
    zeroed,
)
from dovetail.kernels.gpu.gemm.shared_tiles import SharedTile
from dovetail.kernels.gpu.gemm.spread_blocks import dynamic_bytes
from dovetail.kernels.gpu.gemm.tile import CHUNK
from dovetail.kernels.gpu.order.passes import in_passes
from dovetail.kernels.loops.analysis import shared_bytes
from dovetail.kernels.loops.ir import (
    ZERO,
    Alloc,
    AwaitCopies,
    Barrier,
    Call,
    ClusterBarrier,
    CommitCopies,
    Expr,
    Extent,
    FenceShared,
    Kernel,
    Launch,
    Loop,
    Name,
    Number,
    Schedule,
    Set,
    Statement,
    ThreadIndex,
    WarpBarrier,
    add,
    indices,
    minimum,
    mul,
    sizes_in,
)
from dovetail.kernels.spec import Job, Tiles


class AttendWriter:
    """The kernels of an attention."""

    def __init__(self, sources: AttendSources, tile: AttendTile) -> None:
        self.problem, self.bindings, self.device = sources.problem, sources.bindings, sources.device
        self.dtype, self.factors, self.copies = sources.dtype, sources.factors, sources.copies
        self.lead, self.staged = tile.lead, are_staged(sources, tile)
        self.axes = AXES if self.copies else dict.fromkeys(AXES, "k")
        self.block, self.d, self.dv = tile, tile.d, tile.dv
        self.warps, self.threads, self.rows = tile.warps, tile.threads, tile.rows
        self.keys = tile.warp_keys if tile.is_cluster or tile.is_apart else tile.keys
        """Keys of a tile in shared memory."""

    @property
    def stages(self) -> int:
        """Tiles in shared memory: of a round and of the next one; in a cluster each warp has its own, and warpgroups
        may have."""
        if self.block.is_cluster or self.block.is_apart:
            return self.block.buffers * self.block.splits
        return 2 if self.copies and not self.block.is_one_round else 1

    def _stage(self, number: Expr) -> Expr:
        """The tile of a round."""
        found = remainder(number, 2)
        return add(mul(GROUP, Extent(2)), found) if self.block.is_apart else found

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

    def job(self) -> Job | Refused:
        a = self.problem
        blocks = floordiv(a.queries + (self.rows - 1), self.rows)
        parts = self.block.parts
        shape = (*a.lead, a.heads, blocks if self.block.turns == 1 else 1, parts)
        *front, block, part = indices(shape, Name("tile"))
        if self.block.descends:
            block, *front = indices((blocks, *a.lead, a.heads), Name("tile"))
            block = Call("sub", (Extent(blocks - 1), block), i64)
        share = [Set("part", part), Set("first_round", mul(Name("part"), Extent(self.block.part_rounds)))]
        allocations = self._allocations()
        place = [
            *(Set(name.name, index) for name, index in zip(self.lead, front, strict=True)),
            *(share if parts > 1 else ()),
        ]
        body: tuple[Statement, ...] = (
            *allocations,
            Loop(
                "tile",
                Extent(product(shape)),
                (*place, *(self._turns() if self.block.turns > 1 else self._turn(mul(block, Extent(self.rows))))),
                kind="block",
            ),
        )
        shared = shared_bytes(allocations)
        if shared > self.device.shared_bytes:
            return Refused("tiles_fit_shared_memory", f"{shared:,} bytes", f"at most {self.device.shared_bytes:,}")
        launch = self._launch(product(shape), shared)
        if parts == 1:
            of, schedule = tuple(self.bindings), Schedule("block", product(shape))
            sizes = sizes_in(body)
            kernel = Kernel(self.block.kernel, of, ("y",), "tile", body, sizes=sizes, launch=launch, schedule=schedule)
            return Job(kernel, self.bindings, Tiles(product(shape), self.rows))
        workspace = {PARTIAL: self.block.partial_bytes}
        if self.block.is_cluster:
            own = Set("tile", ThreadIndex("block"))
            body = (*body, ClusterBarrier(), own, *place, *cluster_combined(self.block))
            pointers = (*(name for name in self.bindings if name != "y"), PARTIAL, "y")
            launch = replace(launch, cluster=parts)
            kernel = Kernel("attend", pointers, (PARTIAL, "y"), "tile", body, sizes=sizes_in(body), launch=launch)
            early = prefetched(self.block, (own, *place)) if self.device.bulk_copies else ()
            opening = self._opening((own, *place)) if self.device.as_parts else ()
            sizes = sizes_in((*early, *opening, *body))
            kernel = replace(kernel, exchanged=(PARTIAL,), early=early, opening=opening, sizes=sizes)
            return in_passes([(kernel, product(shape))], self.bindings, workspace)
        pointers = (*(name for name in self.bindings if name != "y"), PARTIAL)
        kernel = Kernel("attend_parts", pointers, (PARTIAL,), "tile", body, sizes=sizes_in(body), launch=launch)
        every = ((kernel, product(shape)), self._combining())
        return in_passes(every, self.bindings, workspace)

    def _launch(self, grid: Size, shared: int) -> Launch:
        # Tiles of warpgroups are aligned as dynamic shared memory is.
        return Launch(grid, self.threads, shared if self.block.by_group else dynamic_bytes(shared))

    def _turn(self, top: Expr) -> list[Statement]:
        """The results of some queries."""
        return [Set("top", top), *self._queries(), *self._keys(), *self._written()]

    def _written(self) -> list[Statement]:
        if self.block.sharing:
            return left_over(self.block, self._warp_keys.by_lanes.stored(self.block.query_shares))
        return written(self.block, staged=self.staged)

    def _turns(self) -> list[Statement]:
        """The results of all queries, block by block, with the same keys and values in shared memory."""
        found: list[Statement] = []
        for turn in range(self.block.turns):
            found += [Set("top", Extent(turn * self.rows)), *self._started()]
            first = self._loaded("q", ZERO, ZERO)
            found += self._groups.later(self._fragments()) if turn else self._groups.first(first, self._fragments())
            following = [Set("top", Extent((turn + 1) * self.rows)), *first] if turn + 1 < self.block.turns else []
            found += [*self._groups.few_rounds(turn, following), *self._written()]
        return [*found, Barrier()]

    def _combining(self) -> tuple[Kernel, Size]:
        """The kernel that combines the parts of the keys: a block for each query, a thread for each column."""
        a = self.problem
        shape = (*a.lead, a.heads, a.queries)
        place = zip((*self.lead, Name("query")), indices(shape, Name("tile")), strict=True)
        each = (*(Set(name.name, index) for name, index in place), *parts_combined(self.block))
        body = (Loop("tile", Extent(product(shape)), each, kind="block"),)
        launch = Launch(product(shape), min(256, -(-a.dv // 32) * 32))
        made = Kernel("attend_sum", (PARTIAL, "y"), ("y",), "tile", body, sizes=sizes_in(body), launch=launch)
        return made, product(shape)

    def _allocations(self) -> list[Alloc]:
        # Parts of a resident kernel take queries from where they are.
        tiles = [*AXES][1:] if self.block.is_cluster and self.device.as_parts else [*AXES]
        return [
            *(Alloc(f"{name}_tile", self.dtype, self.tile(name).count, "shared") for name in tiles),
            *self.block.shares_allocated(),
            *(self._warp_keys.by_lanes.masks_allocated() if self.block.sharing else self._registers()),
        ]

    def _registers(self) -> list[Alloc]:
        return [
            *(masks_allocated(self.block) if self.block.holds_masks else ()),
            *seen_allocated(self.block),
            *Shifts(self.block).allocated(),
            *([staged_allocated(self.block)] if self.staged else ()),
            Alloc("sums", f32, self.dv // 8 * 4, "private"),
            Alloc("scores", f32, self.block.warp_keys // 8 * 4, "private"),
            *scores_allocated(self.block),
            Alloc("q_fragment", self.dtype, self.d // 16 * 8, "private"),
            Alloc("right", self.dtype, max(self.block.warp_keys, self.dv) // 8 * 4, "private"),
            Alloc("weights", self.dtype, self.block.warp_keys // 16 * 8, "private"),
        ]

    def _loaded(self, name: str, number: Expr, stage: Expr) -> list[Statement]:
        """Queries from the block's first on, or a round of keys or values."""
        tile, factor, axis = self.tile(name), self.factors[name], self.axes[name]
        at = mul(self.block.key_round(number), Extent(self.keys))
        at = self.block.first_key(number) if self.block.is_apart else at
        first, k = (Name("top"), ZERO) if name == "q" else (at, ZERO) if name == "k" else (ZERO, at)
        if not self.copies:
            return stored(tile, factor, first, k, self.threads, 0, 1)
        by_group, threads, thread = self.block.by_group, self.threads, THREAD
        if self.block.is_apart and name != "q":
            threads, thread = GROUP_WARPS * LANES, remainder(THREAD, GROUP_WARPS * LANES)
        if not by_group or name == "q":
            copies = copied(tile, factor, axis, first, k, stage, threads, 0, 1, thread, in_columns=by_group)
            return copies if by_group else [rolled(s) for s in copies]
        left = minimum(Call("sub", (Extent(self.problem.keys), at), i64), Extent(self.keys))
        there = Call("cast", (Call("maximum", (left, ZERO), i64),), i32)
        given = first, k, stage, threads, 0, 1, thread
        copies = copied(tile, factor, axis, *given, in_columns=True, there=Name("there", i32))
        return [Set("there", there), *copies]

    @property
    def _warp_keys(self) -> WarpKeys:
        """How warps of a cluster come to their keys."""
        tiles = {name: self.tile(name) for name in ("k", "v")}
        return WarpKeys(self.block, tiles, self.factors, self.axes, self.device.as_parts)

    @property
    def _groups(self) -> GroupRounds:
        return GroupRounds(self.block, self.tile("k"), self.tile("v"), self._loaded)

    @property
    def _warp_row(self) -> Expr:
        """The first query of a warp in a tile."""
        return mul(remainder(ThreadIndex("warp"), self.warps), Extent(16))

    def _fragments(self) -> Statement:
        """The queries of a warp in its registers."""
        fragments, step = private("q_fragment", self.dtype, self.d // 16, 8), Name("step")
        return unrolled(
            "step",
            self.d // 16,
            load_left(fragments, (step, ZERO), self.tile("q"), "k", ZERO, self._warp_row, mul(step, Extent(16))),
        )

    def _started(self) -> list[Statement]:
        """No sums yet."""
        if self.block.sharing:
            return self._warp_keys.by_lanes.started()
        empty = zeroed(private("sums", f32, 1), self.dv // 8 * 4)
        found: list[Statement] = [empty, *self._own_queries(self._warp_row)]
        for half in self.block.lane_rows:
            found += [Set(half.most, MINUS_INFINITY), Set(half.total, Number(0.0, f32))]
        return found

    def _queries(self) -> list[Statement]:
        load, start = self._fragments(), self._started()
        if self.block.holds_masks and not self.block.is_cluster:
            start += masks_loaded(self.block, ZERO)
        if not self.copies:
            return [*start, *self._loaded("q", ZERO, ZERO), Barrier(), load]
        if self.block.is_cluster:
            # Rows without queries weigh no key.
            empty = zeroed(private("weights", self.dtype, 1), self.block.warp_keys // 16 * 8)
            start += [] if self.block.sharing else [empty]
            if self.device.as_parts:
                return start
            queries = [*self._loaded("q", ZERO, ZERO), CommitCopies(), AwaitCopies(0), Barrier()]
            return [*start, *self._warp_keys.first(), *queries, load]
        if self.block.overlaps:
            return [*start, *self._groups.first(self._loaded("q", ZERO, ZERO), load)]
        first = [*self._loaded("k", ZERO, self._stage(ZERO)), *self._loaded("v", ZERO, self._stage(ZERO))]
        arrive: list[Statement] = [CommitCopies(), *first, CommitCopies()]
        if self.block.sees_ahead:
            arrive += SeenAhead(self.block).first()
        arrive += [AwaitCopies(1), Barrier()]
        return [*start, *self._loaded("q", ZERO, ZERO), *arrive, load]

    def _own_queries(self, first: Expr) -> list[Statement]:
        """The queries of a lane."""
        own = [add(divided(LANE, 4), Extent(8 * half.number)) for half in self.block.lane_rows]
        top = add(Name("top"), first)
        return [Set(half.query, add(top, x)) for half, x in zip(self.block.lane_rows, own, strict=True)]

    def _opening(self, place: Sequence[Statement]) -> tuple[Statement, ...]:
        """The first keys and values, which are copied before a block of a resident kernel waits for its queries."""
        return (*place, Set("top", ZERO), *self._own_queries(ZERO), *self._warp_keys.first())

    def _rounds(self) -> Expr:
        """Rounds of keys; those that no query of the block sees are left out."""
        a = self.problem
        keys: Expr = Extent(a.keys)
        if a.causal and a.fill is not None and math.isinf(a.fill):
            keys = minimum(keys, add(Name("top"), Extent(self.rows)))
        span = self.block.keys
        every = Call("div", (add(keys, Extent(span - 1)), Extent(span)), i64)
        if self.block.parts == 1:
            return every
        left = Call("maximum", (Call("sub", (every, Name("first_round")), i64), ZERO), i64)
        return minimum(left, Extent(self.block.part_rounds))

    def _keys(self) -> list[Statement]:
        if self.block.overlaps:
            return self._groups.rounds(self._rounds())
        work = [*self._scored(), *weighted(self.block), *self._summed()]
        if not self.copies:
            loads = [*self._loaded("k", Name("round"), ZERO), *self._loaded("v", Name("round"), ZERO)]
            each = (
                Barrier(),
                *loads,
                *seen_loaded(self.block, Name("round")),
                Barrier(),
                *where_seen(self.block, work),
            )
            return [Set("stage", ZERO), Loop("round", self._rounds(), each), Barrier()]
        if self.block.is_cluster:
            rounds = self._warp_keys.rounds(self._scored(), self._summed())
            if not self.device.as_parts:
                return rounds
            # Without a warp that copies, threads have no registers for addresses that LLVM computes before a condition.
            return self._warp_keys.after_stages(rounds, is_guarded=not self.device.copying_warp)
        if self.block.is_one_round:
            body = (*seen_loaded(self.block, Name("round")), AwaitCopies(0), Barrier(), Set("stage", ZERO))
            return [Loop("round", Extent(1), (*body, *where_seen(self.block, work))), Barrier()]
        later = [*self._loaded("k", Name("later"), Name("next")), *self._loaded("v", Name("later"), Name("next"))]
        barrier = WarpBarrier(GROUP_WARPS) if self.block.is_apart else Barrier()
        start = [Set("later", add(Name("round"), Extent(1))), Set("next", self._stage(Name("later")))]
        arrive: list[Statement] = [AwaitCopies(1), *([FenceShared()] if self.block.by_group else ()), barrier]
        arrive.append(Set("stage", self._stage(Name("round"))))
        if self.block.sees_ahead:
            ahead = SeenAhead(self.block)
            copies = [*ahead.where(Name("later"), later), CommitCopies(), *ahead.loaded()]
            each = (*start, *copies, *arrive, *ahead.where(Name("round"), work), *ahead.kept(), barrier, *ahead.moved())
        else:
            copies = [*later, CommitCopies(), *seen_loaded(self.block, Name("round"))]
            each = (*start, *copies, *arrive, *where_seen(self.block, work), barrier)
        return [Loop("round", self._rounds(), each), AwaitCopies(0), Barrier()]

    def _scored(self) -> list[Statement]:
        return self._warp_keys.by_lanes.scored() if self.block.sharing else scored(self.block, self.tile("k"))

    def _summed(self) -> list[Statement]:
        lanes = self._warp_keys.by_lanes
        return lanes.summed() if self.block.sharing else summed(self.block, self.tile("v"), self.axes["v"])


__all__ = ["AttendWriter"]
